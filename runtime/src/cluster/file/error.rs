//! Why a cluster file was not read.

/// Why the text is no cluster file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// A line is at fault.
    #[error("line {line}: {cause}")]
    Line {
        /// Line, from 1.
        line: usize,
        /// What is wrong there, what was expected, and the nearest known key.
        cause: String,
    },
    /// Nothing is in it.
    #[error("the file is empty; `asterism init` prints one that runs as it stands")]
    Empty,
    /// An environment override is at fault.
    #[error("environment variable {variable}: {cause}")]
    Override {
        /// The variable.
        variable: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A path that begins with a home that is not known.
    #[error("path \"{path}\": {cause}")]
    Home {
        /// As typed.
        path: String,
        /// Why it means nothing.
        cause: String,
    },
}
