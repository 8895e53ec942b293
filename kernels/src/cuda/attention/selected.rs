//! Attention over lists of keys: in tiles for bf16 and the head sizes of most models, plain for all else.

use super::super::device::{Device, LaunchShape, launch};
use super::super::tensor::Tensor;
use super::call::CudaAttentionCall;
use super::lists::Lists;
use crate::{DType, KernelError};

/// Rows of a block of threads, and keys of a block, as the kernel has them.
const LISTED_ROWS: usize = 64;
const LISTED_KEYS: usize = 64;

/// As `selected.cu` declares it.
#[repr(C)]
struct SelectedCall {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    lse: u64,
    offsets: u64,
    ranges: u64,
    maxima: u64,
    q_head: i64,
    q_row: i64,
    kv_head: i64,
    kv_row: i64,
    out_head: i64,
    out_row: i64,
    tokens: i32,
    group: i32,
    rows: i32,
    groups: i32,
    scale: f32,
    unused: i32,
}

impl Device {
    /// Attention of `q` over listed keys: row `i` of head `h` sees the keys of `(h, i / rows)` that do not come after it. The rows'
    /// highest scores go to `maxima (heads, rows)` f32, if it is there.
    pub(in super::super) fn attend_selected(
        &self,
        call: CudaAttentionCall<'_>,
        keys: &Lists,
        maxima: Option<&Tensor>,
    ) -> Result<(), KernelError> {
        call.check()?;
        let wide = call.out.dtype == DType::F32;
        if call.q.rows > 0 && wide && call.tiled() {
            self.attend_lists(call, keys, maxima)
        } else {
            self.attend_plain(call, Some((keys, maxima)))
        }
    }

    fn attend_lists(
        &self,
        call: CudaAttentionCall<'_>,
        keys: &Lists,
        maxima: Option<&Tensor>,
    ) -> Result<(), KernelError> {
        let CudaAttentionCall { q, k, v, out, lse, .. } = call;
        let argument = SelectedCall {
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            out: out.pointer,
            lse: lse.pointer(),
            offsets: keys.offsets.pointer,
            ranges: keys.ranges.pointer,
            maxima: maxima.map_or(0, Tensor::pointer),
            q_head: q.at.head,
            q_row: q.at.row,
            kv_head: k.at.head,
            kv_row: k.at.row,
            out_head: out.at.head,
            out_row: out.at.row,
            tokens: q.rows as i32,
            group: (q.heads / k.heads) as i32,
            rows: keys.of.clipped(),
            groups: keys.of.groups() as i32,
            scale: std::f32::consts::LOG2_E / (q.dim as f32).sqrt(),
            unused: 0,
        };
        let blocks = (keys.of.groups() * (keys.of.clipped() as usize).div_ceil(LISTED_ROWS), q.heads);
        // Queries and three blocks of keys and values, or two of both; the numbers of three blocks.
        let shared = 4 * LISTED_KEYS * q.dim * 2 + 3 * LISTED_KEYS * 4;
        let kernel = if self.is_hopper() { "attend_selected_warpgroup" } else { "attend_selected" };
        launch!(self, &format!("{kernel}_{}", q.dim), LaunchShape { blocks, threads: 128, shared }, argument)
    }
}
