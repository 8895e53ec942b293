//! Tensor payloads: little-endian f32 or bfloat16, row-major. A payload has the compute type of what it holds, so that
//! nothing is lost on the wire and nothing padded. Keys and values in 8 bits move as bytes, which only kernels read.

use asterism_kernels::{DType, Heads};
use asterism_transport::PayloadType;
use bytes::Bytes;
use thiserror::Error;

/// Bytes of a piece, unless told otherwise: small enough that one travels while the next is fetched from the device, and that
/// memory for it is not new each time, neither here nor where it arrives.
pub const PIECE_BYTES: usize = 4 << 20;
/// Most pieces of a parcel: 4 GiB. What is larger is refused where it is planned.
pub const MOST_PIECES: u32 = 1024;

/// The payload type of tensors in a compute type.
pub fn payload_type(dtype: DType) -> PayloadType {
    match dtype {
        DType::F32 => PayloadType::F32,
        DType::Bf16 | DType::F16 => PayloadType::Bf16,
    }
}

/// A payload of another size than its frame says.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "expected a payload of {count} {kind:?} values, got {bytes} bytes; do all hosts have one model and one version?"
)]
pub struct WrongPayload {
    count: usize,
    kind: PayloadType,
    bytes: usize,
}

/// Whether so many bytes are exactly `count` values.
///
/// # Errors
/// [`WrongPayload`].
pub fn check(bytes: usize, count: usize, kind: PayloadType) -> Result<(), WrongPayload> {
    match count.checked_mul(element_bytes(kind)) == Some(bytes) {
        true => Ok(()),
        false => Err(WrongPayload { count, kind, bytes }),
    }
}

/// Reads exactly `count` values.
///
/// # Errors
/// [`WrongPayload`], also of bytes that are no values.
pub fn read(bytes: &[u8], count: usize, kind: PayloadType) -> Result<Vec<f32>, WrongPayload> {
    check(bytes.len(), count, kind)?;
    Ok(match kind {
        PayloadType::None => Vec::new(),
        PayloadType::Bytes => return Err(WrongPayload { count, kind, bytes: bytes.len() }),
        PayloadType::F32 => {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| f32::from_le_bytes(*word)).collect()
        }
        PayloadType::Bf16 => {
            let (words, _) = bytes.as_chunks::<2>();
            words.iter().map(|word| f32::from_bits(u32::from(u16::from_le_bytes(*word)) << 16)).collect()
        }
    })
}

/// Appends values, where a payload of this type has any. As bfloat16 they are rounded to the nearest, ties to even.
pub fn write(bytes: &mut Vec<u8>, values: &[f32], kind: PayloadType) {
    match kind {
        PayloadType::None | PayloadType::Bytes => {}
        PayloadType::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        PayloadType::Bf16 => bytes.extend(values.iter().flat_map(|value| rounded(*value).to_le_bytes())),
    }
}

/// Whether partials can be merged. A row that sees none of a shard's keys has a log-sum-exp of minus infinity.
pub fn are_numbers(heads: Heads, packed: &[f32]) -> bool {
    packed.chunks_exact(heads.packed_row()).all(|row| {
        let (output, lse) = row.split_at(heads.query * heads.dim);
        output.iter().fold(true, |all, value| all & value.is_finite())
            && lse.iter().fold(true, |all, &value| all & (value < f32::INFINITY))
    })
}

/// A payload of f32 values, read where it lies.
pub struct Floats(Bytes);

impl Floats {
    /// Takes whole values; copies once where they do not lie on their boundary.
    pub fn new(bytes: Bytes) -> Option<Self> {
        match bytemuck::try_cast_slice::<u8, f32>(&bytes) {
            Ok(_) => Some(Self(bytes)),
            Err(bytemuck::PodCastError::TargetAlignmentGreaterAndInputNotAligned) => {
                let values: Vec<f32> = read(&bytes, bytes.len() / 4, PayloadType::F32).ok()?;
                Some(Self(Self::of(values)))
            }
            Err(_) => None,
        }
    }

    /// The bytes of values, as they travel. Nothing is copied.
    pub fn of(values: Vec<f32>) -> Bytes {
        struct Owner(Vec<f32>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        Bytes::from_owner(Owner(values))
    }
}

impl AsRef<[f32]> for Floats {
    fn as_ref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}

#[cfg(not(target_endian = "little"))]
compile_error!("values travel as they lie in memory, little-endian");

/// Bytes of one value.
pub fn element_bytes(kind: PayloadType) -> usize {
    match kind {
        PayloadType::None => 0,
        PayloadType::F32 => 4,
        PayloadType::Bf16 => 2,
        PayloadType::Bytes => 1,
    }
}

/// The upper half of the bits, rounded.
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    match value.is_nan() {
        true => ((bits >> 16) | 0x40) as u16,
        false => ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_back() {
        let values = [0.0, -1.5, 3.0e30, f32::NEG_INFINITY, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0];
        let back = |kind| {
            let mut bytes = Vec::new();
            write(&mut bytes, &values, kind);
            assert!(read(&bytes, values.len() + 1, kind).is_err());
            read(&bytes, values.len(), kind).unwrap()
        };
        assert!(read(&[0; 8], (1 << 62) + 2, PayloadType::F32).is_err(), "its bytes are more than can be counted");
        assert_eq!(back(PayloadType::F32), values);
        let rounded = back(PayloadType::Bf16);
        assert_eq!(rounded[..2], values[..2]);
        assert_eq!(rounded[3..], [f32::NEG_INFINITY, 1.0, 1.0 + 4.0 / 256.0], "ties go to even");
    }
}
