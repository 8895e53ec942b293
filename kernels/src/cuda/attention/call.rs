//! Calls of attention: as they are made, and as the own kernels declare them. Launches nothing.

use super::super::kv::keys::Keys;
use super::super::tensor::{Tensor, View};
use crate::{DType, KernelError, Mask};

/// What attention of `q` over `k, v` is given. Views are of one type; `lse` is `(query heads, rows)` f32.
#[derive(Clone, Copy)]
pub struct CudaAttentionCall<'a> {
    /// `(query heads, rows, dim)`.
    pub q: View<'a>,
    /// `(kv heads, keys, dim)`.
    pub k: View<'a>,
    /// As `k`, and lying as `k` does.
    pub v: View<'a>,
    /// Which keys a row sees.
    pub mask: Mask,
    /// `(query heads, rows, dim)`, f32 or, from bf16, bf16: written.
    pub out: View<'a>,
    /// Written.
    pub lse: &'a Tensor,
}

impl CudaAttentionCall<'_> {
    /// Refuses shapes and types that do not fit each other.
    pub fn check(&self) -> Result<(), KernelError> {
        let Self { q, k, v, out, lse, .. } = self;
        let fits = k.heads > 0
            && q.heads.is_multiple_of(k.heads)
            && (k.heads, k.rows, k.dim, k.at) == (v.heads, v.rows, v.dim, v.at)
            && q.dim == k.dim
            && (q.heads, q.rows, q.dim) == (out.heads, out.rows, out.dim)
            && lse.shape == [q.heads, q.rows];
        if !fits {
            let expected = "q and out (a multiple of kv heads, t, dim), k and v (kv heads, keys, dim), lse (heads, t)";
            let got: [&[usize]; 3] =
                [&[q.heads, q.rows, q.dim], &[k.heads, k.rows, k.dim], &[out.heads, out.rows, out.dim]];
            return Err(KernelError::shape("attention", expected, &got));
        }
        let types = [k.dtype, v.dtype] == [q.dtype; 2] && lse.dtype == DType::F32;
        if !types || (out.dtype != DType::F32 && out.dtype != q.dtype) {
            return Err(KernelError::DType { operation: "attention", got: k.dtype });
        }
        Ok(())
    }

    /// Whether the matrix kernels take it.
    pub fn tiled(&self) -> bool {
        let aligned = [self.q, self.k, self.v, self.out].iter().all(|x| x.pointer.is_multiple_of(16));
        let strides = [self.q.at, self.k.at, self.out.at].iter().all(|at| at.row % 8 == 0 && at.head % 8 == 0);
        self.q.dtype == DType::Bf16 && matches!(self.q.dim, 64 | 128) && aligned && strides
    }
}

/// `Mask` as the kernels declare it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MaskArgument {
    kind: i32,
    queries: i32,
    keys: i32,
    first: i32,
    numbers: [i64; 4],
}

impl MaskArgument {
    /// Of a call of so many queries and keys, from row `first` on.
    pub fn of(mask: Mask, (queries, keys): (usize, usize), first: usize) -> Self {
        // What is beyond any token is as good as this.
        let number = |x: usize| x.min(1 << 40) as i64;
        let (kind, numbers) = match mask {
            Mask::None => (0, [0; 4]),
            Mask::Causal => (1, [0; 4]),
            Mask::From { row } => (2, [number(row), 0, 0, 0]),
            Mask::Streaming { sink, window, first_row, first_key } => {
                (3, [sink, window, first_row, first_key].map(number))
            }
        };
        Self { kind, queries: queries as i32, keys: keys as i32, first: first as i32, numbers }
    }
}

/// As `attention.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tiled {
    q: u64,
    k: u64,
    v: u64,
    pub out: u64,
    pub lse: u64,
    sums: u64,
    q_head: i64,
    q_row: i64,
    kv_head: i64,
    kv_row: i64,
    pub out_head: i64,
    pub out_row: i64,
    pub lse_head: i64,
    mask: MaskArgument,
    pub group: i32,
    rows: i32,
    pub out_is_bf16: i32,
    scale: f32,
}

/// Partials of the pieces of a call, as `attention.cu` declares them: `(kv head, piece, packed rows)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pieces {
    outputs: u64,
    maxima: u64,
    sums: u64,
    pub pieces: i32,
    pub packed: i32,
}

impl Pieces {
    /// Bytes of `count` pieces of so many packed rows: outputs, then maxima and sums.
    pub fn bytes(kv: usize, count: usize, packed: usize, dim: usize) -> [usize; 2] {
        let rows = kv * count * packed * 4;
        [rows * dim, 2 * rows]
    }

    /// At these addresses.
    pub fn at([outputs, statistics]: [u64; 2], kv: usize, count: usize, packed: usize) -> Self {
        let sums = statistics + (kv * count * packed * 4) as u64;
        Self { outputs, maxima: statistics, sums, pieces: count as i32, packed: packed as i32 }
    }
}

impl Tiled {
    /// Rows `first..first + rows` of a call.
    pub fn of(call: &CudaAttentionCall<'_>, first: usize, rows: usize) -> Self {
        let CudaAttentionCall { q, k, v, out, lse, mask } = call;
        let asking = Self::asking(*q, Keys::Computed([*k, *v]), *mask, (first, rows));
        asking.to(out.part(first, first + rows), lse, first)
    }

    /// The same, with a place for the results of its rows, whose first has the log-sum-exps of row `first`.
    pub fn to(self, out: View<'_>, lse: &Tensor, first: usize) -> Self {
        Self {
            out: out.pointer,
            lse: lse.pointer() + 4 * first as u64,
            out_head: out.at.head,
            out_row: out.at.row,
            lse_head: lse.shape[1] as i64,
            out_is_bf16: i32::from(out.dtype == DType::Bf16),
            ..self
        }
    }

    /// The same of a call whose results have no place yet.
    pub fn asking(q: View<'_>, keys: Keys<'_>, mask: Mask, (first, rows): (usize, usize)) -> Self {
        let (asking, ([k, v], at)) = (q.part(first, first + rows), keys.places());
        Self {
            q: asking.pointer,
            k,
            v,
            out: 0,
            lse: 0,
            sums: 0,
            q_head: q.at.head,
            q_row: q.at.row,
            kv_head: at.head,
            kv_row: at.row,
            out_head: 0,
            out_row: 0,
            lse_head: 0,
            mask: MaskArgument::of(mask, (q.rows, keys.tokens()), first),
            group: (q.heads / keys.heads()) as i32,
            rows: rows as i32,
            out_is_bf16: 0,
            scale: std::f32::consts::LOG2_E / (q.dim as f32).sqrt(),
        }
    }

    /// The same, with partials of its pieces to write.
    pub fn in_pieces(self, pieces: &Pieces) -> Self {
        Self { out: pieces.outputs, lse: pieces.maxima, sums: pieces.sums, out_row: 0, ..self }
    }

    /// The same of one piece, with a place for each row's outputs, for its log-sum-exps unless 0, and elements from row to row.
    pub fn placed(self, [out, lse]: [u64; 2], row: i64) -> Self {
        Self { out, lse, out_row: row, ..self }
    }

    /// Rows of the tiles that it is computed in: by query heads that share a KV head, times rows.
    pub fn packed(&self) -> usize {
        (self.rows * self.group) as usize
    }
}
