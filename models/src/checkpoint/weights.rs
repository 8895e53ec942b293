//! One safetensors file in memory: its header checked against its length, its tensors as byte ranges.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use asterism_kernels::DType;
use memmap2::Mmap;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, SafeTensorError};
use serde::Deserialize;
use serde_json::Value;

use crate::ModelError;

pub(super) enum WeightFile {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

/// Where a tensor lies in its file.
pub(super) struct Entry {
    stored: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Range<usize>,
}

impl Entry {
    /// The tensor's type, if a decoder's weights may have it.
    pub(super) fn dtype(&self, tensor: &str) -> Result<DType, ModelError> {
        match self.stored {
            Dtype::F32 => Ok(DType::F32),
            Dtype::BF16 => Ok(DType::Bf16),
            Dtype::F16 => Ok(DType::F16),
            other => Err(ModelError::TensorType { tensor: tensor.to_owned(), got: format!("{other:?}") }),
        }
    }
}

impl WeightFile {
    pub(super) fn embedded(bytes: &'static [u8]) -> Self {
        Self::Embedded(bytes)
    }

    #[allow(unsafe_code)]
    pub(super) fn map(path: &Path) -> Result<Self, ModelError> {
        let unreadable = |cause| ModelError::Unreadable { path: path.display().to_string(), cause };
        let file = File::open(path).map_err(unreadable)?;
        // SAFETY: the map is read-only and private to this process; checkpoints are not written while they are served,
        // and one that is cut short underneath us ends the process with a bus error rather than with wrong tokens.
        let map = unsafe { Mmap::map(&file) }.map_err(unreadable)?;
        Ok(Self::Mapped(map))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }

    /// Every tensor of the file; `path` names it in errors.
    pub(super) fn entries(&self, path: &str) -> Result<Vec<(String, Entry)>, ModelError> {
        let bytes = self.bytes();
        let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| refusal(path, bytes, error))?;
        let data = LENGTH_BYTES + header;
        let entry = |name: String| {
            let info = metadata.info(&name).expect("a key of this very header");
            let (start, end) = info.data_offsets;
            let entry = Entry { stored: info.dtype, shape: info.shape.clone(), bytes: data + start..data + end };
            (name, entry)
        };
        Ok(metadata.offset_keys().into_iter().map(entry).collect())
    }
}

/// A safetensors file begins with the length of its header as a 64-bit integer.
const LENGTH_BYTES: usize = 8;
/// Longest header the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Tells a file that lacks its end from one of another format.
fn refusal(path: &str, bytes: &[u8], error: SafeTensorError) -> ModelError {
    let (path, got) = (path.to_owned(), bytes.len() as u64);
    let header = bytes.first_chunk().map(|length| u64::from_le_bytes(*length)).filter(|header| *header <= MAX_HEADER);
    match header {
        Some(header) if header + LENGTH_BYTES as u64 > got => {
            ModelError::Truncated { path, expected: header + LENGTH_BYTES as u64, got }
        }
        Some(header) if matches!(error, SafeTensorError::MetadataIncompleteBuffer) => {
            let expected = header + LENGTH_BYTES as u64 + data_length(&bytes[LENGTH_BYTES..][..header as usize]);
            ModelError::Truncated { path, expected, got }
        }
        _ => ModelError::NotSafetensors { path, cause: error.to_string() },
    }
}

/// Bytes of tensor data by the header.
fn data_length(header: &[u8]) -> u64 {
    #[derive(Deserialize)]
    struct Offsets {
        data_offsets: (u64, u64),
    }
    let tensors: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap_or_default();
    let end = |value: Value| serde_json::from_value::<Offsets>(value).ok().map(|offsets| offsets.data_offsets.1);
    tensors.into_values().filter_map(end).max().unwrap_or(0)
}
