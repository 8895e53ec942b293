//! What cuDNN's plans are built for.

use super::super::super::device::layout::Strides;
use super::super::call::CudaAttentionCall;
use crate::Mask;

/// What a plan is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub heads: [usize; 2],
    pub rows: usize,
    pub keys: usize,
    pub dim: usize,
    pub causal: bool,
    pub q: Strides,
    pub kv: Strides,
    pub out: Strides,
    pub lse_head: usize,
}

impl Shape {
    /// The first `rows` rows of a call over its first `keys` keys.
    pub fn of(call: &CudaAttentionCall<'_>, rows: usize, keys: usize) -> Self {
        let CudaAttentionCall { q, k, out, lse, mask, .. } = call;
        Self {
            heads: [q.heads, k.heads],
            rows,
            keys,
            dim: q.dim,
            causal: *mask == Mask::Causal,
            q: q.at,
            kv: k.at,
            out: out.at,
            lse_head: lse.shape[1],
        }
    }
}
