//! The tensors that a quantised layer's weight is stored as, checked against their shapes. Computes nothing.

use asterism_kernels::HostTensor;
use safetensors::Dtype;

use super::super::{
    Checkpoint,
    weights::{EntryType, TensorEntry},
};
use super::refusal::refused;
use crate::ModelError;

/// Tensors of one layer.
pub(super) struct Layer<'a> {
    pub checkpoint: &'a Checkpoint,
    /// Its name.
    pub name: &'a str,
}

/// One of them.
pub(super) struct Part<'a> {
    pub name: String,
    pub path: &'a str,
    pub entry: &'a TensorEntry,
    pub bytes: &'a [u8],
}

impl<'a> Layer<'a> {
    pub fn part(&self, part: &str) -> Option<Part<'a>> {
        let name = format!("{}.{part}", self.name);
        let (file, entry) = self.checkpoint.find(&name)?;
        let (path, file) = &self.checkpoint.files[*file];
        Some(Part { name, path, entry, bytes: &file.bytes()[entry.bytes.clone()] })
    }

    /// A part that must be there.
    pub fn needed(&self, part: &str, beside: &Part<'_>) -> Result<Part<'a>, ModelError> {
        let missing = || {
            refused(
                beside.path,
                format!("tensor {}.{part}", self.name),
                "missing",
                format!("it beside {}", beside.name),
            )
        };
        self.part(part).ok_or_else(missing)
    }
}

impl Part<'_> {
    pub fn refuses(&self, got: impl Into<String>, expected: impl Into<String>) -> ModelError {
        refused(self.path, format!("tensor {}", self.name), got, expected)
    }

    /// Checks its shape.
    pub fn of_shape(&self, expected: &[usize], why: &str) -> Result<(), ModelError> {
        match self.entry.shape == expected {
            true => Ok(()),
            false => Err(self.refuses(format!("of shape {:?}", self.entry.shape), format!("{expected:?} by {why}"))),
        }
    }

    /// Its numbers, which are plain.
    pub fn floats(&self) -> Result<Vec<f32>, ModelError> {
        let (shape, stored) = (&self.entry.shape, self.entry.stored(&self.name)?);
        Ok(HostTensor { stored, shape, bytes: self.bytes }.values())
    }

    /// Its 32-bit words.
    pub fn words(&self) -> Result<Vec<u32>, ModelError> {
        match self.entry.stored {
            EntryType::Safetensors(Dtype::I32 | Dtype::U32) => {
                Ok(self.bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
            }
            other => Err(self.refuses(format!("stored as {other:?}"), "I32")),
        }
    }
}
