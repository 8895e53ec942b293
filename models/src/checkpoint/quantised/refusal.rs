//! Why a folder's quantisation is not read. Decides nothing.

use crate::{FieldRefusal, ModelError};

/// The file that says how weights are quantised.
pub(super) const CONFIG: &str = "config.json";

/// Why a folder's quantisation is not read.
pub(super) fn refused(
    path: &str,
    field: impl Into<String>,
    got: impl Into<String>,
    expected: impl Into<String>,
) -> ModelError {
    ModelError::Quantised(FieldRefusal::new(path, field, got, expected))
}
