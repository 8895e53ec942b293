//! Answered questions, one JSON object a line: what `--save` writes and `eval report` reads and merges.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{EvalError, EvalQuestion, HaystackSource, record::of_line};

/// One method's answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The question's suite.
    pub suite: String,
    /// Its task.
    pub task: String,
    /// Tokens asked for; 0 when the question was given as it is.
    pub length: usize,
    /// The method as typed.
    pub method: String,
    /// Tells the questions of a task and length apart.
    pub sample: u64,
    /// Digest of what was asked: [`EvalQuestion::digest`]. Empty in a file of before it was written.
    #[serde(default)]
    pub question: String,
    /// The model by name.
    pub model: String,
    /// Whether the answer holds the gold strings.
    pub right: bool,
    /// The benchmark's score, from 0 to 1.
    pub score: f64,
    /// What the model said.
    pub answer: String,
    /// What it should hold.
    pub gold: Vec<String>,
    /// Where the prose comes from; absent when there is none, or nobody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub haystack: Option<HaystackSource>,
    /// Where its time went.
    pub seconds: AnswerSeconds,
}

/// Wall clock of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnswerSeconds {
    /// Phase 1; absent where hosts held some of the context already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encode: Option<f64>,
    /// Phase 2's query step.
    pub query: f64,
    /// Phase 2's decoding.
    pub decode: f64,
    /// Submission to the end, waiting included.
    pub total: f64,
}

/// A question's place among those of all runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuestionKey {
    /// Its suite.
    pub suite: String,
    /// Its task.
    pub task: String,
    /// Tokens asked for.
    pub length: usize,
    /// Which of the task's questions.
    pub sample: u64,
    /// Digest of what is asked.
    pub question: String,
}

/// What a table counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// 1 when the answer holds every gold string, else 0
    Exact,
    /// The benchmark's own score
    Benchmark,
}

impl Answer {
    /// Scores what `model` said with `method`.
    pub fn new(question: &EvalQuestion, (model, method): (&str, &str), stated: &str, seconds: AnswerSeconds) -> Self {
        Self {
            suite: question.suite.clone(),
            task: question.record.task.clone(),
            length: question.length,
            method: method.to_owned(),
            sample: question.sample,
            question: question.digest.clone(),
            model: model.to_owned(),
            right: question.metric.exact(stated, &question.gold),
            score: question.metric.score(stated, &question.record.input_query, &question.gold),
            answer: stated.to_owned(),
            gold: question.gold.clone(),
            haystack: question.record.haystack,
            seconds,
        }
    }

    /// Its place among the questions of all runs.
    pub fn key(&self) -> QuestionKey {
        QuestionKey {
            suite: self.suite.clone(),
            task: self.task.clone(),
            length: self.length,
            sample: self.sample,
            question: self.question.clone(),
        }
    }

    /// What it counts.
    pub fn counts(&self, scoring: Scoring) -> f64 {
        match scoring {
            Scoring::Exact => f64::from(u8::from(self.right)),
            Scoring::Benchmark => self.score,
        }
    }
}

/// One answer each for a question, method and model: the last that was given.
pub fn merged(answers: Vec<Answer>) -> Vec<Answer> {
    let mut places = HashMap::new();
    let mut merged: Vec<Answer> = Vec::new();
    for answer in answers {
        match places.entry((answer.key(), answer.method.clone(), answer.model.clone())) {
            std::collections::hash_map::Entry::Occupied(place) => merged[*place.get()] = answer,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(answer);
            }
        }
    }
    merged
}

/// The answers of a file that `--save` wrote. A last line without its end was being written when the run was killed, or the disk full:
/// it is left out.
///
/// # Errors
/// [`EvalError::Read`], [`EvalError::Data`] with the first line that is no answer.
pub fn read_answers(path: &Path) -> Result<Vec<Answer>, EvalError> {
    let bytes = fs::read(path).map_err(|source| EvalError::Read { path: path.to_owned(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    let (whole, torn) = text.rsplit_once('\n').unwrap_or(("", &text));
    let torn = Some(torn).filter(|line| of_line::<Answer>(line).is_ok());
    let lines = whole.lines().chain(torn).enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            of_line(line).map_err(|reason| EvalError::Data {
                path: path.to_owned(),
                format: "a file of --save",
                reason: format!("line {}: {reason}", index + 1),
            })
        })
        .collect()
}

/// How every line begins.
const LINE_START: &str = "{\"suite\":\"";

/// Opens a file of `--save`, new or not, to append to it; and whether it ended in a torn line, which is cut off. What is no part of an
/// answer stays.
///
/// # Errors
/// When it cannot be read or written.
pub fn append_answers(path: &Path) -> io::Result<(File, bool)> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    let end = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let last = &*String::from_utf8_lossy(&content[end..]);
    if last.is_empty() {
        return Ok((file, false));
    }
    let torn = last.starts_with(LINE_START) && of_line::<Answer>(last).is_err() || LINE_START.starts_with(last);
    if torn {
        file.set_len(end as u64)?
    } else {
        file.write_all(b"\n")?
    }
    Ok((file, torn))
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    /// An answer at 4,096 tokens that is right or wrong.
    pub fn answered(task: &str, method: &str, sample: u64, right: bool) -> Answer {
        Answer {
            suite: "ruler".into(),
            task: task.into(),
            length: 4096,
            method: method.into(),
            sample,
            question: "5f".into(),
            model: "asterism-7m".into(),
            right,
            score: f64::from(u8::from(right)),
            answer: "7".into(),
            gold: vec!["7".into()],
            haystack: None,
            seconds: AnswerSeconds { encode: Some(1.5), query: 0.25, decode: 0.5, total: 2.5 },
        }
    }

    #[test]
    fn the_last_of_duplicates_counts_once() {
        let merged = merged(vec![
            answered("vt", "dense", 1, true),
            answered("vt", "star", 1, true),
            answered("vt", "dense", 1, false),
            Answer { length: 8192, ..answered("vt", "dense", 1, true) },
            Answer { question: "of another file".into(), ..answered("vt", "dense", 1, true) },
        ]);
        assert_eq!(merged.len(), 4);
        assert!(!merged[0].right && merged[0].method == "dense");
    }

    #[test]
    fn answers_survive_their_file() {
        let answers = vec![answered("vt", "dense", 1, true), answered("cwe", "star:block_tokens=1024", 2, false)];
        let mut file = tempfile::NamedTempFile::new().unwrap();
        answers.iter().for_each(|answer| writeln!(file, "{}", serde_json::to_string(answer).unwrap()).unwrap());
        assert_eq!(read_answers(file.path()).unwrap(), answers);
        writeln!(file, "{{}}").unwrap();
        let error = read_answers(file.path()).unwrap_err().to_string();
        assert!(error.contains("is not a file of --save: line 3: missing field `suite`"), "{error}");
    }

    #[test]
    fn a_torn_last_line_is_no_answer_and_does_not_stay() {
        let first = answered("vt", "dense", 1, true);
        let line = serde_json::to_string(&Answer { answer: "é".into(), ..first.clone() }).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved.jsonl");
        let whole = line.clone() + "\n";
        let character = line.find('é').unwrap();
        for (torn, answers) in [(0, 1), (20, 1), (character + 1, 1), (line.len() - 1, 1), (line.len(), 2)] {
            fs::write(&path, [whole.as_bytes(), &line.as_bytes()[..torn]].concat()).unwrap();
            assert_eq!(read_answers(&path).unwrap().len(), answers, "{torn}");
            let (mut file, was_torn) = append_answers(&path).unwrap();
            assert_eq!(was_torn, answers == 1 && torn > 0, "{torn}");
            writeln!(file, "{line}").unwrap();
            assert_eq!(read_answers(&path).unwrap().len(), answers + 1, "{torn}");
        }
        for (others, answer_part) in [("my notes", false), ("{\"input_context\": 1}", false), ("{\"sui", true)] {
            fs::write(&path, format!("{whole}{others}")).unwrap();
            assert_eq!(append_answers(&path).unwrap().1, answer_part, "{others}");
            let kept = fs::read_to_string(&path).unwrap();
            assert_eq!(kept, if answer_part { whole.clone() } else { format!("{whole}{others}\n") });
        }
        fs::remove_file(&path).unwrap();
        assert!(!append_answers(&path).unwrap().1 && read_answers(&path).unwrap().is_empty());
    }
}
