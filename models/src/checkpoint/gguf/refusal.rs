//! Why a GGUF file is not read. Decides nothing.

use crate::{FieldRefusal, ModelError};

/// What a file cannot be read for: the file, the field, what it is and what it should be.
pub(super) fn refused(
    path: &str,
    field: impl Into<String>,
    got: impl Into<String>,
    expected: impl Into<String>,
) -> ModelError {
    // What a file says of itself may be as long as the file.
    const LONGEST_WORDS: usize = 200;
    let clipped = |words: String| match words.char_indices().nth(LONGEST_WORDS) {
        Some((end, _)) => format!("{}...", &words[..end]),
        None => words,
    };
    let (field, got) = (clipped(field.into()), clipped(got.into()));
    ModelError::Gguf(Box::new(FieldRefusal { path: path.to_owned(), field, got, expected: expected.into() }))
}
