//! One safetensors file in memory: its header checked against its length, its tensors as byte ranges.

pub(super) mod surplus;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use asterism_kernels::{BlockFormat, DType, HostTensor, Stored};
use memmap2::{Mmap, UncheckedAdvice};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, SafeTensorError};
use serde::Deserialize;
use serde_json::Value;

use super::digest::Hash;
use super::hash_cache::Stamp;
use super::sniffed;
use crate::ModelError;

pub(super) enum WeightFile {
    /// With the open file, which stays the one that is mapped, whatever its path names later.
    Mapped(Mmap, File),
    Embedded(&'static [u8]),
    /// Made when they are first asked for: who serves requests wants the shape alone.
    Drawn(Box<LazyLock<Vec<u8>, Draw>>),
}

/// What makes a file's bytes.
pub(super) type Draw = Box<dyn FnOnce() -> Vec<u8> + Send>;

/// Where a tensor lies in its file.
pub(super) struct TensorEntry {
    pub(super) stored: EntryType,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Range<usize>,
    pub(super) arrangement: Arrangement,
}

/// What a file says of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryType {
    /// A type of safetensors, which a decoder may not know.
    Safetensors(Dtype),
    /// One that it knows.
    Of(Stored),
}

/// As hashes of tensors name it.
impl fmt::Debug for EntryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safetensors(dtype) => dtype.fmt(f),
            Self::Of(stored) => write!(f, "{stored}"),
        }
    }
}

/// How a tensor's elements lie in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// As they are loaded.
    AsStored,
    /// Rows of each head in pairs that are rotated together, in place of first halves and second ones.
    Neighbours { heads: usize },
    /// Each with one added.
    LessOne,
}

/// A tensor as a decoder loads it: as it lies in its file, or what was made of that.
#[derive(Debug)]
pub struct Weight<'a> {
    /// How `bytes` hold the elements.
    pub stored: Stored,
    /// Row-major shape.
    pub shape: Cow<'a, [usize]>,
    /// The elements.
    pub bytes: Cow<'a, [u8]>,
}

impl<'a> Weight<'a> {
    /// Numbers that were made.
    pub(super) fn of_f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { stored: DType::F32.into(), shape: shape.to_vec().into(), bytes: Cow::Owned(bytes) }
    }

    /// Blocks that were made.
    pub(super) fn of_blocks(shape: &[usize], format: BlockFormat, bytes: Vec<u8>) -> Self {
        Self { stored: Stored::Blocks(format), shape: shape.to_vec().into(), bytes: Cow::Owned(bytes) }
    }

    /// As a device takes it.
    pub fn host(&self) -> HostTensor<'_> {
        HostTensor { stored: self.stored, shape: &self.shape, bytes: &self.bytes }
    }

    /// What lies so in a file, as it is loaded. A tensor that this does not fit has another shape than is expected.
    pub(super) fn arranged(self, arrangement: Arrangement) -> Self {
        match arrangement {
            Arrangement::AsStored => self,
            Arrangement::Neighbours { heads } => {
                let bytes = halves_first(&self.bytes, self.shape[0], heads);
                Self { bytes: Cow::Owned(bytes), ..self }
            }
            Arrangement::LessOne => {
                let less: Vec<f32> = self.host().values().iter().map(|value| value - 1.0).collect();
                Self { shape: self.shape.clone(), ..Self::of_f32(&self.shape, &less) }
            }
        }
    }
}

/// Rows whose heads have the two of each rotated pair side by side, with all first ones before the second ones.
fn halves_first(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (row, pairs) = (bytes.len() / rows, rows / heads / 2);
    let from = |to: usize| {
        let (head, half, pair) = (to / (2 * pairs), to / pairs % 2, to % pairs);
        (head * 2 * pairs + 2 * pair + half) * row
    };
    (0..rows).flat_map(|to| &bytes[from(to)..][..row]).copied().collect()
}

impl TensorEntry {
    /// A bf16 tensor from byte `start` on.
    pub(super) fn bf16(shape: &[usize], start: usize) -> Self {
        let bytes = 2 * shape.iter().product::<usize>();
        let stored = EntryType::Safetensors(Dtype::BF16);
        Self { stored, shape: shape.to_vec(), bytes: start..start + bytes, arrangement: Arrangement::AsStored }
    }

    /// The tensor's type, if a decoder's weights may have it.
    pub(super) fn stored(&self, tensor: &str) -> Result<Stored, ModelError> {
        match self.stored {
            EntryType::Of(stored) => Ok(stored),
            EntryType::Safetensors(Dtype::F32) => Ok(DType::F32.into()),
            EntryType::Safetensors(Dtype::BF16) => Ok(DType::Bf16.into()),
            EntryType::Safetensors(Dtype::F16) => Ok(DType::F16.into()),
            EntryType::Safetensors(other) => {
                Err(ModelError::TensorType { tensor: tensor.to_owned(), got: format!("{other:?}") })
            }
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
        Ok(Self::Mapped(map, file))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Embedded(bytes) => bytes,
            Self::Drawn(bytes) => bytes,
        }
    }

    /// Takes pages of a mapped file out of this process's memory; the system keeps them as long as it likes.
    #[allow(unsafe_code)]
    pub(super) fn leave(&self, bytes: Range<usize>) {
        if let Self::Mapped(map, _) = self {
            // SAFETY: the map is private, read-only and of a file, so that what is left is read from the file again, byte for byte.
            // A refusal leaves the pages to the system, which takes them when it needs memory.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len()) };
        }
    }

    /// Every tensor of the file; `path` names it in errors.
    pub(super) fn entries(&self, path: &str) -> Result<Vec<(String, TensorEntry)>, ModelError> {
        let bytes = self.bytes();
        let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| refusal(path, bytes, error))?;
        let data = LENGTH_BYTES + header;
        let entry = |name: String| {
            let info = metadata.info(&name).expect("a key of this very header");
            let (start, end) = info.data_offsets;
            let (stored, arrangement) = (EntryType::Safetensors(info.dtype), Arrangement::AsStored);
            let entry = TensorEntry { stored, shape: info.shape.clone(), bytes: data + start..data + end, arrangement };
            (name, entry)
        };
        Ok(metadata.offset_keys().into_iter().map(entry).collect())
    }
}

/// Bytes that are read and hashed at a time: they stay in a core's cache, and are enough for the widest instructions.
const PIECE: usize = 256 << 10;
/// Slowest that whoever hashes a file is believed to work, bytes a second, and what it gets beyond that.
const SLOWEST: u64 = 100 << 20;
const GRACE: Duration = Duration::from_secs(1);

impl WeightFile {
    /// Which file it is, if it is one.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Mapped(_, file) => file.metadata().ok().as_ref().map(Stamp::of),
            Self::Embedded(_) | Self::Drawn(_) => None,
        }
    }

    /// The hash of a tensor's type, shape and bytes; of drawn ones, of where they are drawn from. `piece` is a buffer.
    pub(super) fn hash(&self, entry: &TensorEntry, piece: &mut Vec<u8>) -> io::Result<Hash> {
        let TensorEntry { stored, shape, bytes, .. } = entry;
        let mut hasher = blake3::Hasher::new();
        let drawn = matches!(self, Self::Drawn(_)).then_some(bytes.start);
        hasher.update(format!("{stored:?} {shape:?} {drawn:?}\n").as_bytes());
        match self {
            Self::Mapped(_, file) => {
                piece.resize(PIECE, 0);
                for start in bytes.clone().step_by(PIECE) {
                    let piece = &mut piece[..PIECE.min(bytes.end - start)];
                    file.read_exact_at(piece, start as u64)?;
                    hasher.update(piece);
                }
            }
            Self::Embedded(all) => drop(hasher.update(&all[bytes.clone()])),
            Self::Drawn(_) => {}
        }
        Ok(*hasher.finalize().as_bytes())
    }

    /// Waits until no other process of this machine hashes this file, as long as one may take for it; then it is this one's turn
    /// until what comes out is dropped. Where files cannot be locked all hash at once.
    pub(super) fn turn(&self) -> Option<ReadTurn<'_>> {
        let Self::Mapped(map, file) = self else { return None };
        let patience = GRACE + Duration::from_secs(map.len() as u64 / SLOWEST);
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(ReadTurn(file)),
                Err(std::fs::TryLockError::WouldBlock) if began.elapsed() < patience => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(_) => return None,
            }
        }
    }
}

/// The turn to hash a file.
pub(super) struct ReadTurn<'a>(&'a File);

impl Drop for ReadTurn<'_> {
    fn drop(&mut self) {
        // It goes with the open file otherwise.
        let _ = self.0.unlock();
    }
}

/// A safetensors file begins with the length of its header as a 64-bit integer.
const LENGTH_BYTES: usize = 8;
/// Longest header the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// The first element that is infinite or no number, and what it is.
pub(super) fn first_not_finite(stored: Stored, bytes: &[u8]) -> Option<(usize, f32)> {
    // An exponent of ones alone is looked for, in pieces that the compiler turns into wide instructions.
    const SCANNED_PIECE: usize = 16 << 10;
    let dtype = match stored {
        Stored::Plain(dtype) => dtype,
        Stored::Blocks(format) => return format.first_not_finite(bytes),
    };
    match dtype {
        DType::F32 => find(bytes, SCANNED_PIECE, |bits: [u8; 4]| f32::from_le_bytes(bits)),
        DType::Bf16 => find(bytes, SCANNED_PIECE, |[low, high]: [u8; 2]| f32::from_le_bytes([0, 0, low, high])),
        DType::F16 => find(bytes, SCANNED_PIECE, |bits: [u8; 2]| half(u16::from_le_bytes(bits))),
    }
}

fn find<const N: usize>(bytes: &[u8], piece: usize, value: impl Fn([u8; N]) -> f32) -> Option<(usize, f32)> {
    let suspect =
        |piece: &[u8]| piece.as_chunks::<N>().0.iter().fold(false, |any, bits| any | !value(*bits).is_finite());
    let at = bytes.chunks(piece).position(suspect)? * piece;
    let rest = bytes[at..].as_chunks::<N>().0;
    let element = rest.iter().position(|bits| !value(*bits).is_finite())?;
    Some((at / N + element, value(rest[element])))
}

/// An f16 as f32, as far as finiteness goes: a finite one is 0.
fn half(bits: u16) -> f32 {
    match (bits & 0x7c00 == 0x7c00, bits & 0x03ff) {
        (false, _) => 0.0,
        (true, 0) => f32::INFINITY,
        (true, _) => f32::NAN,
    }
}

/// Tells a file that lacks its end from one of another format.
fn refusal(path: &str, bytes: &[u8], error: SafeTensorError) -> ModelError {
    let (path, got) = (path.to_owned(), bytes.len() as u64);
    if let Some(other) = sniffed::of(bytes) {
        return ModelError::Unfit {
            path,
            got: other.to_string(),
            expected: format!("safetensors: {}", other.remedy()),
        };
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_element_that_is_no_number_is_found() {
        let mut f32s: Vec<f32> = (0..9000).map(|at| at as f32 - 4000.0).collect();
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(first_not_finite(DType::F32.into(), &bytes(&f32s)), None);
        (f32s[8500], f32s[8501]) = (f32::NEG_INFINITY, f32::NAN);
        assert_eq!(first_not_finite(DType::F32.into(), &bytes(&f32s)), Some((8500, f32::NEG_INFINITY)));
        let halves = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(first_not_finite(DType::Bf16.into(), &halves(&[0x7f7f, 0xff7f, 0x0001])), None);
        assert_eq!(first_not_finite(DType::Bf16.into(), &halves(&[0x7f7f, 0x7f80])), Some((1, f32::INFINITY)));
        assert_eq!(first_not_finite(DType::F16.into(), &halves(&[0x7bff, 0xfbff, 0x0001])), None);
        let (element, got) = first_not_finite(DType::F16.into(), &halves(&[0x7bff, 0x3c00, 0x7e00])).unwrap();
        assert!(element == 2 && got.is_nan());
    }

    #[test]
    fn pairs_become_halves() {
        // Two heads of four rows of two bytes; a row is named by its head, half and pair.
        let stored = [[0, 0], [0, 10], [0, 1], [0, 11], [1, 0], [1, 10], [1, 1], [1, 11]];
        let expected = [[0, 0], [0, 1], [0, 10], [0, 11], [1, 0], [1, 1], [1, 10], [1, 11]];
        assert_eq!(halves_first(stored.as_flattened(), 8, 2), expected.as_flattened());
    }
}
