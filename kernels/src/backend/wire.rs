//! Tensors as they travel: in compute type, row-major, little-endian; and keys and values as they are kept. Knows no frame.

use half::bf16;

use super::cache::KvOps;
use crate::{DType, KernelError};

/// Bytes of tensors as they travel, on their way to the host.
pub trait RawBytes {
    /// How many there are.
    fn size(&self) -> usize;
    /// Those from `start` on, of which there must be as many as `to` takes; waits for them.
    fn read(&self, start: usize, to: &mut [u8]) -> Result<(), KernelError>;
    /// All of them.
    fn whole(&self) -> Result<Vec<u8>, KernelError> {
        let mut all = vec![0; self.size()];
        self.read(0, &mut all)?;
        Ok(all)
    }
}

impl RawBytes for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }

    fn read(&self, start: usize, to: &mut [u8]) -> Result<(), KernelError> {
        to.copy_from_slice(&self[start..start + to.len()]);
        Ok(())
    }
}

/// To bytes and from them.
pub trait WireOps: KvOps {
    /// Tensors as they travel, one after the other. Read piece by piece, so that the first travel while others are on the device
    /// still.
    fn raw(&self, tensors: &[Self::Tensor]) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        let mut bytes = Vec::new();
        for tensor in tensors {
            let values = self.download(tensor)?;
            match self.dtype() {
                DType::F32 => values.iter().for_each(|value| bytes.extend(value.to_le_bytes())),
                _ => values.iter().for_each(|value| bytes.extend(bf16::from_f32(*value).to_le_bytes())),
            }
        }
        Ok(Box::new(bytes))
    }
    /// A tensor of compute type as it travelled: the bytes of all `pieces`, of whole elements each.
    fn upload_raw(&self, shape: &[usize], pieces: &[&[u8]]) -> Result<Self::Tensor, KernelError> {
        let mut values: Vec<f32> = Vec::with_capacity(shape.iter().product());
        for piece in pieces {
            match self.dtype() {
                DType::F32 => values.extend(piece.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value))),
                _ => values.extend(piece.as_chunks::<2>().0.iter().map(|value| bf16::from_le_bytes(*value).to_f32())),
            }
        }
        self.cast(&self.upload(shape, &values)?)
    }
    /// Keys, then values, of a cache as they are kept: `(kv heads, tokens, row)` each, of rows of as many bytes as
    /// [`KvType::row_bytes`](crate::KvType::row_bytes) says.
    fn kept_raw(&self, kv: &Self::Kv) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        self.raw(&self.kv_tensors(kv)?)
    }
    /// A cache of `(kv heads, tokens, dim)` as it travelled: the bytes of all pieces of the keys, and of the values. It has the bits of
    /// the one that was sent.
    fn upload_kept(&self, shape: [usize; 3], [keys, values]: [&[&[u8]]; 2]) -> Result<Self::Kv, KernelError> {
        self.kv(&self.upload_raw(&shape, keys)?, &self.upload_raw(&shape, values)?)
    }
}
