//! Answers summed up: scores by length, method and task, with intervals and differences. Draws no table.

pub(crate) mod chart;
pub(crate) mod interval;
pub(crate) mod report;

use serde::Serialize;

use super::{Answer, HaystackSource, Scoring, Task, results::interval::median};

/// The method that the others are compared with.
pub const BASELINE: &str = "dense";

/// Every suite and length of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// What counts.
    pub scoring: Scoring,
    /// Models by name.
    pub models: Vec<String>,
    /// Methods as typed, in the order in which they came.
    pub methods: Vec<String>,
    /// By suite, then by length.
    pub blocks: Vec<Block>,
}

/// One suite at one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Block {
    /// The suite.
    pub suite: String,
    /// Tokens asked for; 0 for questions that were given as they are.
    pub length: usize,
    /// Where prose came from, where any is.
    pub haystack: Option<HaystackSource>,
    /// Tasks in the order of the benchmark; those of files in the order in which they came.
    pub tasks: Vec<String>,
    /// In the order of [`Results::methods`]; methods without an answer are left out.
    pub methods: Vec<MethodScore>,
}

/// One method over the tasks of a block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MethodScore {
    /// The method as typed.
    pub method: String,
    /// Questions answered.
    pub n: usize,
    /// The plain mean over tasks.
    pub average: Percent,
    /// Points above the baseline, over the questions that both answered.
    pub difference: Option<Percent>,
    /// By task, in the order of [`Block::tasks`].
    pub tasks: Vec<TaskScore>,
    /// Medians.
    pub seconds: Phases,
}

/// One method on one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskScore {
    /// The task.
    pub task: String,
    /// Questions answered.
    pub n: usize,
    /// The score; absent without an answer.
    pub score: Option<Percent>,
    /// Points above the baseline, over the questions that both answered.
    pub difference: Option<f64>,
}

/// A mean with its 95% interval, in percent or points.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percent {
    /// The mean.
    pub mean: f64,
    /// Lower end.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

/// Median seconds by phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Phases {
    /// Phase 1, of contexts of which no host held anything; absent where there is none.
    pub encode: Option<f64>,
    /// Phase 2's query step.
    pub query: f64,
    /// Phase 2's decoding.
    pub decode: f64,
}

impl From<interval::Estimate> for Percent {
    fn from(estimate: interval::Estimate) -> Self {
        let (low, high) = estimate.interval.unzip();
        Self { mean: 100.0 * estimate.mean, low: low.map(|low| 100.0 * low), high: high.map(|high| 100.0 * high) }
    }
}

impl Results {
    /// Sums up answers, each given once.
    pub fn of(answers: &[Answer], scoring: Scoring) -> Self {
        let methods = distinct(answers.iter().map(|answer| answer.method.as_str()));
        let models = distinct(answers.iter().map(|answer| answer.model.as_str()));
        let suites = distinct(answers.iter().map(|answer| answer.suite.as_str()));
        let mut blocks = Vec::new();
        for suite in suites {
            let of_suite: Vec<&Answer> = answers.iter().filter(|answer| answer.suite == suite).collect();
            let mut lengths: Vec<usize> = of_suite.iter().map(|answer| answer.length).collect();
            lengths.sort_unstable();
            lengths.dedup();
            for length in lengths {
                let here: Vec<&Answer> = of_suite.iter().copied().filter(|answer| answer.length == length).collect();
                blocks.push(Block::of(&suite, length, &here, &methods, scoring));
            }
        }
        Self { scoring, models, methods, blocks }
    }

    /// The lowest average, with its block.
    pub fn lowest(&self) -> Option<(&Block, &MethodScore)> {
        let averages = self.blocks.iter().flat_map(|block| block.methods.iter().map(move |method| (block, method)));
        averages.min_by(|(_, a), (_, b)| a.average.mean.total_cmp(&b.average.mean))
    }
}

impl Block {
    fn of(suite: &str, length: usize, answers: &[&Answer], methods: &[String], scoring: Scoring) -> Self {
        let mut tasks = distinct(answers.iter().map(|answer| answer.task.as_str()));
        tasks.sort_by_key(|task| benchmark_order(task));
        let by = |method: &str| -> Vec<&Answer> {
            answers.iter().copied().filter(|answer| answer.method == method).collect()
        };
        let baseline = by(BASELINE);
        let scores = methods
            .iter()
            .map(|method| (method, by(method)))
            .filter(|(_, answers)| !answers.is_empty())
            .map(|(method, answers)| {
                let compared = if method == BASELINE { &[][..] } else { &baseline };
                MethodScore::of(method, &answers, compared, &tasks, scoring)
            })
            .collect();
        let haystack = answers.iter().find_map(|answer| answer.haystack);
        Self { suite: suite.to_owned(), length, haystack, tasks, methods: scores }
    }
}

impl MethodScore {
    fn of(method: &str, answers: &[&Answer], baseline: &[&Answer], tasks: &[String], scoring: Scoring) -> Self {
        let scores = |task: &String| -> Vec<f64> {
            answers.iter().filter(|answer| answer.task == *task).map(|answer| answer.counts(scoring)).collect()
        };
        let differences = |task: &String| -> Vec<f64> {
            let pair = |answer: &&&Answer| {
                let asked = (task, answer.sample, &answer.question);
                baseline.iter().find(|other| (&other.task, other.sample, &other.question) == asked)
            };
            let paired = answers.iter().filter(|answer| answer.task == *task);
            paired.filter_map(|answer| Some(answer.counts(scoring) - pair(&answer)?.counts(scoring))).collect()
        };
        let rows = tasks.iter().map(|task| {
            let (scores, differences) = (scores(task), differences(task));
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            TaskScore {
                task: task.clone(),
                n: scores.len(),
                score: (!scores.is_empty()).then(|| interval::of_task(&scores).into()),
                difference: (!differences.is_empty()).then(|| 100.0 * mean(&differences)),
            }
        });
        let filled = |of: &dyn Fn(&String) -> Vec<f64>| -> Vec<Vec<f64>> {
            tasks.iter().map(of).filter(|values| !values.is_empty()).collect()
        };
        let compared = filled(&differences);
        let phase = |of: fn(&Answer) -> f64| median(answers.iter().map(|answer| of(answer)).collect());
        let encoded: Vec<f64> = answers.iter().filter_map(|answer| answer.seconds.encode).collect();
        Self {
            method: method.to_owned(),
            n: answers.len(),
            average: interval::of_tasks(&filled(&scores)).into(),
            difference: (!compared.is_empty()).then(|| interval::of_differences(&compared).into()),
            tasks: rows.collect(),
            seconds: Phases {
                encode: (!encoded.is_empty()).then(|| median(encoded)),
                query: phase(|answer| answer.seconds.query),
                decode: phase(|answer| answer.seconds.decode),
            },
        }
    }
}

/// Generated tasks, then the others; depths by their number. Answers of a saved run come in any order.
fn benchmark_order(task: &str) -> (usize, usize) {
    let place = Task::all().position(|known| known.name() == task).unwrap_or(usize::MAX);
    let depth = task.strip_prefix("depth ").and_then(|rest| rest.trim_end_matches('%').parse().ok());
    (place, depth.unwrap_or(0))
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        if !distinct.iter().any(|known| known == name) {
            distinct.push(name.to_owned());
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{AnswerSeconds, answer::tests::answered};

    #[test]
    fn seconds_to_encode_are_those_of_contexts_that_nobody_held() {
        let cached = |sample| Answer {
            seconds: AnswerSeconds { encode: None, ..answered("vt", "dense", 1, true).seconds },
            ..answered("vt", "dense", sample, true)
        };
        let encode = |answers: &[Answer]| Results::of(answers, Scoring::Exact).blocks[0].methods[0].seconds.encode;
        assert_eq!(encode(&[cached(1), answered("vt", "dense", 2, true), cached(3)]), Some(1.5));
        assert_eq!(encode(&[cached(1)]), None);
    }

    #[test]
    fn differences_are_over_common_questions() {
        let answers = [
            answered("vt", "star", 1, false),
            answered("vt", "dense", 1, true),
            answered("vt", "dense", 2, true),
            answered("vt", "star", 2, true),
            answered("vt", "star", 3, false),
        ];
        let results = Results::of(&answers, Scoring::Benchmark);
        let [star, dense] = &results.blocks[0].methods[..] else { panic!("{results:?}") };
        assert!((star.average.mean - 100.0 / 3.0).abs() < 1e-9);
        assert_eq!(star.difference.unwrap().mean, -50.0);
        assert_eq!((dense.difference, dense.average.mean, dense.n), (None, 100.0, 2));
        assert_eq!(results.lowest().unwrap().1.method, "star");
    }

    #[test]
    fn tasks_stand_in_the_order_of_the_benchmark() {
        let names = ["depth 100%", "depth 25%", "qa_1", "fwe", "depth 0%", "niah_single_2"];
        let answers = names.map(|task| answered(task, "star", 1, true));
        let results = Results::of(&answers, Scoring::Exact);
        assert_eq!(results.blocks[0].tasks, ["niah_single_2", "fwe", "qa_1", "depth 0%", "depth 25%", "depth 100%"]);
    }

    #[test]
    fn lengths_rise_and_scoring_is_chosen() {
        let mut answers = vec![answered("vt", "star", 1, true); 3];
        (answers[0].length, answers[2].length) = (8192, 16_384);
        answers[0].score = 0.25;
        let means = |scoring| -> Vec<_> {
            let results = Results::of(&answers, scoring);
            results.blocks.iter().map(|block| (block.length, block.methods[0].average.mean)).collect()
        };
        assert_eq!(means(Scoring::Benchmark), [(4096, 100.0), (8192, 25.0), (16_384, 100.0)]);
        assert_eq!(means(Scoring::Exact), [(4096, 100.0), (8192, 100.0), (16_384, 100.0)]);
    }
}
