//! What the last rows of a sequence attend to, and MInference's choice by that, on the device.

use super::super::device::{Device, LaunchShape, launch, typed};
use super::super::kv::CudaKv;
use super::super::tensor::{Tensor, View};
use super::call::CudaAttentionCall;
use super::lists::{Grouped, Lists};
use crate::sparse::vertical_slash::{FOREMOST, SLASH};
use crate::{DType, KernelError, Mask, VerticalSlashRule};

/// Keys of a block of threads, its threads, and the distance of its rows of weights in shared memory, as the kernel has them.
const MASS_KEYS: usize = 64;
const MASS_THREADS: u32 = 256;
const WEIGHT_STRIDE: usize = MASS_KEYS + 8;

/// As `estimates.cu` declares it.
#[repr(C)]
struct MassesCall {
    q: u64,
    k: u64,
    lse: u64,
    columns: u64,
    diagonals: u64,
    q_head: i64,
    q_row: i64,
    kv_head: i64,
    kv_row: i64,
    tokens: i32,
    rows: i32,
    group: i32,
    dim: i32,
    first: i32,
    unused: i32,
    scale: f32,
    unused_too: f32,
}

/// As `estimates.cu` declares it.
#[repr(C)]
struct Offsets {
    diagonals: u64,
    offsets: u64,
    tokens: i32,
    rows: i32,
    blocks: i32,
    first: i32,
}

impl Device {
    /// By key, and by how far the key lies before the row: sums of the causal attention weights of the last `rows` rows of each query
    /// head, `(2 query heads, tokens)` f32. Of the first so many of either they are infinite.
    pub(in super::super) fn masses(
        &self,
        q: View<'_>,
        kv: &CudaKv,
        rows: usize,
        first: [usize; 2],
    ) -> Result<Tensor, KernelError> {
        let (heads, tokens, dim) = (q.heads, q.rows, q.dim);
        let [k, v] = kv.view(0, kv.len());
        let q = q.part(tokens - rows, tokens);
        let output = self.empty_by_rows([heads, rows, dim], DType::F32)?;
        let lse = self.empty(&[heads, rows], DType::F32)?;
        let call = CudaAttentionCall { q, k, v, mask: Mask::Causal, out: output.heads_first()?, lse: &lse };
        self.attend_few(call)?;
        let blocks = tokens.div_ceil(MASS_KEYS);
        let sums = self.empty(&[2 * heads, tokens], DType::F32)?;
        let diagonals = self.alloc(4 * heads * blocks * (rows + MASS_KEYS - 1))?;
        let masses = MassesCall {
            q: q.pointer,
            k: k.pointer,
            lse: lse.pointer(),
            columns: sums.pointer(),
            diagonals: diagonals.pointer,
            q_head: q.at.head,
            q_row: q.at.row,
            kv_head: k.at.head,
            kv_row: k.at.row,
            tokens: tokens as i32,
            rows: rows as i32,
            group: (heads / k.heads) as i32,
            dim: dim as i32,
            first: first[0].min(tokens) as i32,
            unused: 0,
            scale: std::f32::consts::LOG2_E / (dim as f32).sqrt(),
            unused_too: 0.0,
        };
        let (name, shared) = match call.tiled() {
            true => (format!("masses_{dim}"), MASS_KEYS * dim * 2 + 4 * rows * WEIGHT_STRIDE),
            false => (typed("plain_masses", q.dtype), 0),
        };
        launch!(self, &name, LaunchShape { blocks: (blocks, heads), threads: MASS_THREADS, shared }, masses)?;
        let offsets = Offsets {
            diagonals: diagonals.pointer,
            offsets: sums.pointer() + (4 * heads * tokens) as u64,
            tokens: tokens as i32,
            rows: rows as i32,
            blocks: blocks as i32,
            first: first[1].min(tokens) as i32,
        };
        let spread = LaunchShape { blocks: (tokens.div_ceil(256), heads), threads: 256, shared: 0 };
        launch!(self, "join_diagonals", spread, offsets)?;
        Ok(sums)
    }

    /// MInference's keys, of a sequence of at least one token.
    pub(in super::super) fn vertical_slash(
        &self,
        q: View<'_>,
        kv: &CudaKv,
        rule: VerticalSlashRule,
    ) -> Result<Lists, KernelError> {
        let masses = self.masses(q, kv, q.rows.min(SLASH), FOREMOST)?;
        let [vertical, slash] = rule.kept();
        let (columns, offsets) = (masses.rows(0, q.heads)?, masses.rows(q.heads, 2 * q.heads)?);
        let (columns, offsets) = (self.top_k(&columns, vertical)?, self.top_k(&offsets, slash)?);
        let of = Grouped { heads: q.heads, rows: SLASH, tokens: q.rows };
        self.lists_of_lines(of, [&columns, &offsets])
    }
}
