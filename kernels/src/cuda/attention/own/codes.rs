//! Attention of few rows over keys and values in 8 bits, which are never widened in memory.

use super::super::super::device::{Device, SPLIT_KEY_ROWS};
use super::super::super::kv::CudaKv;
use super::super::super::tensor::Tensor;
use super::super::call::Tiled;
use super::rows_at_a_time;
use crate::backend::Partial;
use crate::{DType, KernelError, KvFormat, KvType, Mask};

impl Device {
    /// Attention of `q (query heads, rows, dim)` over a cache in 8 bits, in f32, where there are kernels for it.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for queries of other heads.
    pub(in super::super::super) fn attend_codes(
        &self,
        q: &Tensor,
        kv: &CudaKv,
        mask: Mask,
    ) -> Result<Option<Partial<Tensor>>, KernelError> {
        let ((query, rows, dim), ([heads, of_keys], of)) = (q.cube("attention")?, kv.of());
        if dim != of_keys || heads == 0 || !query.is_multiple_of(heads) {
            let expected = format!("q (a multiple of {heads}, t, {of_keys})");
            return Err(KernelError::shape("attention", expected, &[q.shape()]));
        }
        let like = KvType { computed: DType::Bf16, kept: KvFormat::Q8 };
        if of != like || q.dtype() != DType::Bf16 || !matches!(dim, 64 | 128) || rows > SPLIT_KEY_ROWS {
            return Ok(None);
        }
        let (turned, lse) = (self.turned(q.heads_first()?)?, self.empty(&[query, rows], DType::F32)?);
        let partial = Partial { output: self.empty_by_rows([query, rows, dim], DType::F32)?, lse };
        let (from, out, keys) = (turned.token_major(query)?, partial.output.heads_first()?, kv.keys(0, kv.len()));
        let chunk = rows_at_a_time(kv.len());
        for first in (0..rows).step_by(chunk) {
            let count = chunk.min(rows - first);
            let asking = Tiled::asking(from, keys, mask, (first, count));
            self.attend_pieces(asking.to(out.part(first, first + count), &partial.lse, first), keys)?;
        }
        Ok(Some(partial))
    }
}
