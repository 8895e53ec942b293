//! Why a GGUF file is not read. Decides nothing.

use crate::{FieldRefusal, ModelError};

/// What a file cannot be read for: the file, the field, what it is and what it should be.
pub(super) fn refused(
    path: &str,
    field: impl Into<String>,
    got: impl Into<String>,
    expected: impl Into<String>,
) -> ModelError {
    ModelError::Gguf(FieldRefusal::new(path, field, got, expected))
}
