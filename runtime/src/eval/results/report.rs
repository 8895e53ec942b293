//! Results as text for people: per length a table of scores and one of differences and times. Fits 120 columns with six
//! methods.

use std::fmt;

use super::{BASELINE, Block, MethodScore, Percent};
use crate::{
    cluster::size::grouped,
    eval::{HaystackSource, Results, Scoring},
};

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for block in &self.blocks {
            writeln!(f, "{}", header(block, &self.models.join(", "), self.scoring))?;
            let heads: Vec<String> =
                block.methods.iter().map(|method| short_name(&self.methods, &method.method)).collect();
            writeln!(f, "{}", grid(&scores(block, &heads)))?;
            if block.methods.iter().any(|method| method.difference.is_some()) {
                writeln!(f, "points above {BASELINE}, question by question")?;
                writeln!(f, "{}", grid(&differences(block, &heads)))?;
            }
            writeln!(f, "median seconds")?;
            writeln!(f, "{}", grid(&times(block, &heads)))?;
        }
        for method in &self.methods {
            let short = short_name(&self.methods, method);
            if short != *method {
                writeln!(f, "{short} = {method}")?;
            }
        }
        self.remarks().iter().try_for_each(|remark| writeln!(f, "{remark}"))?;
        write!(f, "intervals: 95%; Wilson where answers are right or wrong, else normal")
    }
}

impl Results {
    /// Where the questions differ from the benchmarks'.
    fn remarks(&self) -> Vec<&'static str> {
        let suite = |name: &str| self.blocks.iter().any(|block| block.suite == name);
        let task = |name: &str| self.blocks.iter().any(|block| block.tasks.iter().any(|task| task == name));
        let remarks = [
            (task("cwe"), "cwe: frequencies 30 and 3 (6 and 1 below 4,096 tokens) as in the benchmark, other words"),
            (task("cwe") || task("vt"), "cwe, vt: without the benchmark's worked example"),
            (suite("babilong"), "babilong: simulated bAbI facts, without worked examples"),
            (suite("niah"), "niah: RULER's needle and question"),
        ];
        remarks.into_iter().filter(|(holds, _)| *holds).map(|(_, remark)| remark).collect()
    }
}

/// The method's name, numbered when it stands there with different options.
fn short_name(methods: &[String], method: &str) -> String {
    let name = |spec: &str| spec.split(':').next().unwrap_or_default().to_owned();
    let same: Vec<&String> = methods.iter().filter(|other| name(other) == name(method)).collect();
    match same.iter().position(|other| *other == method) {
        Some(at) if same.len() > 1 => format!("{} #{}", name(method), at + 1),
        _ => name(method),
    }
}

/// `4,096 tokens`, or that nobody asked for a length.
fn length_name(length: usize) -> String {
    if length == 0 { "lengths as given".into() } else { format!("{} tokens", grouped(length)) }
}

fn header(block: &Block, model: &str, scoring: Scoring) -> String {
    let counts = block.methods.iter().flat_map(|method| method.tasks.iter().map(|task| task.n));
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let n = if least == most { format!("{most}") } else { format!("{least} to {most}") };
    let score = match (scoring, block.suite.as_str()) {
        (Scoring::Exact, _) => "answers that hold every gold string",
        (Scoring::Benchmark, "ruler") => "mean share of the gold strings found",
        (Scoring::Benchmark, "babilong") => "answers whose first sentence names the gold label alone",
        (Scoring::Benchmark, "niah" | "real" | "file") => "mean share of the gold strings found",
        (Scoring::Benchmark, _) => "the benchmark's own score",
    };
    let prose = match block.haystack {
        Some(HaystackSource::Generated) => "; generated prose, not the benchmark's",
        Some(HaystackSource::File) => "; prose from a file",
        None => "",
    };
    let length = length_name(block.length);
    format!("{} with {model}, {length}, n = {n} a task{prose}\n{score}, in percent, with 95% intervals", block.suite)
}

fn scores(block: &Block, heads: &[String]) -> Vec<Vec<String>> {
    let mut rows = vec![row("task", heads.iter().cloned())];
    for (index, task) in block.tasks.iter().enumerate() {
        rows.push(row(task, block.methods.iter().map(|method| cell(method.tasks[index].score))));
    }
    if block.tasks.len() > 1 {
        rows.push(row("average", block.methods.iter().map(|method| cell(Some(method.average)))));
    }
    rows
}

fn differences(block: &Block, heads: &[String]) -> Vec<Vec<String>> {
    let compared: Vec<(&String, &MethodScore)> =
        heads.iter().zip(&block.methods).filter(|(_, method)| method.difference.is_some()).collect();
    let mut rows = vec![row("task", compared.iter().map(|(head, _)| (*head).clone()))];
    let points = |points: Option<f64>| points.map_or("-".into(), signed);
    for (index, task) in block.tasks.iter().enumerate() {
        rows.push(row(task, compared.iter().map(|(_, method)| points(method.tasks[index].difference))));
    }
    let average = compared.iter().map(|(_, method)| match method.difference {
        Some(Percent { mean, low: Some(low), high: Some(high) }) => {
            format!("{} ±{:.1}", signed(mean), (high - low) / 2.0)
        }
        difference => points(difference.map(|difference| difference.mean)),
    });
    rows.push(row("average", average));
    rows
}

fn times(block: &Block, heads: &[String]) -> Vec<Vec<String>> {
    let phase = |name: &str, of: fn(&MethodScore) -> Option<f64>| {
        let shown = |seconds: Option<f64>| seconds.map_or("cached".into(), |seconds| format!("{seconds:.3}"));
        row(name, block.methods.iter().map(|method| shown(of(method))))
    };
    vec![
        row("phase", heads.iter().cloned()),
        phase("encode", |method| method.seconds.encode),
        phase("query", |method| Some(method.seconds.query)),
        phase("decode", |method| Some(method.seconds.decode)),
    ]
}

fn cell(percent: Option<Percent>) -> String {
    match percent {
        None => "-".into(),
        Some(Percent { mean, low: Some(low), high: Some(high) }) => {
            format!("{mean:.1} {:>7}", format!("{low:.0}-{high:.0}"))
        }
        Some(Percent { mean, .. }) => format!("{mean:.1} {:>7}", ""),
    }
}

/// With a sign, but for a zero.
fn signed(points: f64) -> String {
    let text = format!("{points:+.1}");
    if text == "+0.0" || text == "-0.0" { "0.0".into() } else { text }
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

/// The first column to the left, the others to the right.
fn grid(rows: &[Vec<String>]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = format!("{:<1$}", row[0], widths[0]);
        row.iter().zip(&widths).skip(1).for_each(|(cell, width)| line += &format!("  {cell:>width$}"));
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Answer, answer::tests::answered};

    const METHODS: [&str; 6] =
        ["dense", "star", "pulsar:chunk_tokens=32:heuristic=max_idf", "pulsar:chunk_tokens=16", "minference", "auto"];

    fn run() -> Results {
        let mut answers = Vec::new();
        for (place, method) in METHODS.iter().enumerate() {
            for (row, task) in ["niah_multiquery", "vt", "cwe"].iter().enumerate() {
                for sample in 0..12 {
                    let right = (sample as usize * 7 + row * 3) % 13 >= place;
                    let mut answer: Answer = answered(task, method, sample, right);
                    answer.seconds.encode = Some(1.0 + place as f64);
                    answer.haystack = (row == 0).then_some(HaystackSource::Generated);
                    answer.score = if *task == "vt" && !right { 0.4 } else { answer.score };
                    answers.push(answer);
                }
            }
        }
        Results::of(&answers, Scoring::Benchmark)
    }

    #[test]
    fn six_methods_fit_120_columns() {
        let text = run().to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn one_method_and_questions_as_given() {
        let answers = [
            Answer { suite: "file".into(), length: 0, ..answered("mine", "star", 0, true) },
            Answer { suite: "file".into(), length: 0, score: 0.5, ..answered("mine", "star", 1, false) },
        ];
        insta::assert_snapshot!(Results::of(&answers, Scoring::Exact).to_string());
    }
}
