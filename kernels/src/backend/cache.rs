//! The keys and values of a layer, kept from call to call. Attends to nothing.

use std::ops::Range;

use super::elementwise::ElementwiseOps;
use crate::{Extra, Heads, KernelError, KvType};

/// A cache of keys and values.
pub trait KvOps: ElementwiseOps {
    /// Keys and values of one layer, `(kv heads, tokens, head dim)` each; grows by `kv_append`.
    type Kv: Clone + Send + Sync + 'static;

    /// Types of keys and values.
    fn kv_type(&self) -> KvType {
        KvType::computed(self.dtype())
    }

    /// Wraps `k, v (kv heads, t, dim)` as they are: what phase 1 attends to.
    fn kv(&self, k: &Self::Tensor, v: &Self::Tensor) -> Result<Self::Kv, KernelError>;
    /// The same as they are kept for phase 2, in the format of [`KvOps::kv_type`]. What is appended to them is kept alike.
    fn kv_kept(&self, k: &Self::Tensor, v: &Self::Tensor) -> Result<Self::Kv, KernelError> {
        self.kv(k, v)
    }
    /// A cache of no token of so many KV heads, kept alike.
    fn kv_none(&self, heads: Heads) -> Result<Self::Kv, KernelError> {
        let none = self.cast(&self.upload(&[heads.kv, 0, heads.dim], &[])?)?;
        self.kv_kept(&none, &none)
    }
    /// A cache in compute type of the rows of any, as attention reads them.
    fn kv_widened(&self, kv: &Self::Kv) -> Result<Self::Kv, KernelError> {
        Ok(kv.clone())
    }
    /// The same keys and values, whose scaled scores `s` are `cap tanh(s / cap)` from now on.
    fn kv_capped(&self, kv: Self::Kv, cap: f32) -> Result<Self::Kv, KernelError> {
        let _ = (kv, cap);
        Err(self.lacks(Extra::ScoreCap))
    }
    /// Appends rows in place, growing geometrically.
    fn kv_append(&self, kv: &mut Self::Kv, k: &Self::Tensor, v: &Self::Tensor) -> Result<(), KernelError>;
    /// [`KvOps::kv_append`] of some rows of `k, v (kv heads, t, dim)` to each cache.
    fn kv_append_each(
        &self,
        caches: Vec<(&mut Self::Kv, Range<usize>)>,
        k: &Self::Tensor,
        v: &Self::Tensor,
    ) -> Result<(), KernelError> {
        for (kv, rows) in caches {
            let [k, v] = [k, v].map(|x| self.narrow(x, 1, rows.start, rows.end));
            self.kv_append(kv, &k?, &v?)?;
        }
        Ok(())
    }
    /// Appends the rows of another cache in place: of one that is kept alike, or, to a cache in compute type, of any.
    fn kv_extend(&self, kv: &mut Self::Kv, more: &Self::Kv) -> Result<(), KernelError>;
    /// The rows of caches, one behind the other, in one of compute type that `more` rows can be appended to where they are.
    fn kv_joined(&self, first: &Self::Kv, others: &[&Self::Kv], more: usize) -> Result<Self::Kv, KernelError> {
        // Where caches grow geometrically, room made now gains nothing.
        let _ = more;
        let mut joined = self.kv_widened(first)?;
        others.iter().try_for_each(|kv| self.kv_extend(&mut joined, kv))?;
        Ok(joined)
    }
    /// Forgets all but the first `len` rows, of which there must be as many.
    fn kv_truncate(&self, kv: &mut Self::Kv, len: usize) -> Result<(), KernelError> {
        *kv = self.kv_rows(kv, 0, len)?;
        Ok(())
    }
    /// A copy of rows `start..end`, so that the rest can be freed.
    fn kv_rows(&self, kv: &Self::Kv, start: usize, end: usize) -> Result<Self::Kv, KernelError>;
    /// The cached keys, then the values, `(kv heads, tokens, head dim)` each in compute type. Where they are kept as they were
    /// computed, [`KvOps::kv`] of them is a cache of the same bits.
    fn kv_tensors(&self, kv: &Self::Kv) -> Result<[Self::Tensor; 2], KernelError>;
    /// Cached tokens.
    fn kv_len(&self, kv: &Self::Kv) -> usize;
    /// Bytes held, capacity included.
    fn kv_bytes(&self, kv: &Self::Kv) -> usize;
}
