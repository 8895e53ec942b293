//! Why a record was not made or not read.

use std::path::PathBuf;

/// A task, a size or a file that does not do.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// No task of this name.
    #[error("no task is called {name:?}{}; known are {known}", near.map(|near| format!(" (did you mean {near:?}?)")).unwrap_or_default())]
    UnknownTask {
        /// The name given.
        name: String,
        /// The nearest name, if one is near.
        near: Option<&'static str>,
        /// The names there are.
        known: String,
    },
    /// The task does not fit.
    #[error("a {task} record needs {least} tokens at least, {tokens} were asked for; raise the number of tokens")]
    TooFewTokens {
        /// Task by name.
        task: String,
        /// Tokens of the smallest record.
        least: usize,
        /// Tokens asked for.
        tokens: usize,
    },
    /// A haystack to hide needles in has to have sentences.
    #[error("the haystack holds no sentence; give a text file whose sentences end in '.', '!' or '?'")]
    EmptyHaystack,
    /// The file could not be read as text.
    #[error("cannot read {}: {source}; check the path, and that it is UTF-8 text", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is not a record.
    #[error("{}:{line}: {reason}; a line is a JSON object of input_context, input_query and answer, or as RULER (input, outputs), LongBench (context, input, answers, dataset) or InfiniteBench (context, input, answer) publish it", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A data set of somebody else's format.
    #[error("{} is not {format}: {reason}; give a file of that format", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// The format it should have.
        format: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing to score.
    #[error("{} holds no records; give one JSON object a line", path.display())]
    NoRecords {
        /// The file.
        path: PathBuf,
    },
}

impl EvalError {
    /// Of a name that is none of `known`.
    pub fn unknown_task(name: &str, known: &[&'static str]) -> Self {
        let likeness = |near: &str| strsim::jaro_winkler(near, name);
        let near = known.iter().copied().filter(|near| likeness(near) > 0.8);
        Self::UnknownTask {
            name: name.to_owned(),
            near: near.max_by(|a, b| likeness(a).total_cmp(&likeness(b))),
            known: known.join(", "),
        }
    }

    /// A stable name for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownTask { .. } => "task_unknown",
            Self::TooFewTokens { .. } => "tokens_too_few",
            Self::EmptyHaystack => "haystack_empty",
            Self::Read { .. } => "file_unreadable",
            Self::Data { .. } => "data_invalid",
            Self::Line { .. } | Self::NoRecords { .. } => "records_invalid",
        }
    }
}
