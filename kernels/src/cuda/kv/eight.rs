//! The kernels of keys and values in 8 bits, launched: rows become codes and the other way round, and travel. Attends to nothing.

use super::super::device::layout::Strides;
use super::super::device::{Device, LaunchShape, launch, typed};
use super::super::tensor::{Tensor, View};
use super::keys::Codes;
use crate::{DType, KernelError};

/// Rows that a block of threads takes at a time, as the kernels have it.
const ROWS_OF_BLOCK: usize = 8;
/// Elements of a head that there is room for.
const LONGEST_HEAD: usize = 256;
/// Caches of a launch, as the kernels have it.
const KEPT_RUNS: usize = 32;
/// Blocks of threads that widen the keys, or the values, of one cache, at most.
const WIDENING_BLOCKS: usize = 512;

/// As `kept.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CodesArgument {
    codes: [u64; 2],
    scales: [u64; 2],
}

impl From<Codes<'_>> for CodesArgument {
    fn from(Codes { codes, scales, .. }: Codes<'_>) -> Self {
        Self { codes, scales }
    }
}

/// As `kept.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KeptRun {
    to: CodesArgument,
    first: i32,
    count: i32,
}

/// As `kept.cu` declares it.
#[repr(C)]
struct Keeping {
    k: u64,
    v: u64,
    k_at: Strides,
    v_at: Strides,
    heads: i32,
    dim: i32,
    runs: [KeptRun; KEPT_RUNS],
}

/// As `kept.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct WidenedRun {
    from: CodesArgument,
    to: [u64; 2],
    rows: i64,
}

/// As `kept.cu` declares it.
#[repr(C)]
struct Widening {
    runs: [WidenedRun; KEPT_RUNS],
    dim: i32,
    unused: i32,
}

/// As `kept.cu` declares it.
#[repr(C)]
struct Travelling {
    codes: CodesArgument,
    bytes: u64,
    tokens: i64,
    heads: i32,
    dim: i32,
}

impl KeptRun {
    /// Rows from `first` on, to as many tokens as there are codes for.
    pub fn of(codes: Codes<'_>, first: usize) -> Self {
        Self { to: codes.into(), first: first as i32, count: codes.tokens as i32 }
    }
}

impl WidenedRun {
    /// What these codes stand for, to rows of keys and of values that lie as codes do.
    pub fn of(codes: Codes<'_>, to: [View<'_>; 2]) -> Self {
        let rows = codes.heads * codes.tokens;
        Self { from: codes.into(), to: to.map(|view| view.pointer), rows: rows as i64 }
    }
}

impl Travelling {
    /// All of these, and how the kernels are spread.
    fn of(codes: Codes<'_>, bytes: u64) -> (Self, LaunchShape) {
        let Codes { heads, tokens, dim, .. } = codes;
        let spread = LaunchShape::new(blocks(2 * heads * tokens), 256);
        (Self { codes: codes.into(), bytes, tokens: tokens as i64, heads: heads as i32, dim: dim as i32 }, spread)
    }
}

/// Blocks of threads for so many rows.
fn blocks(rows: usize) -> usize {
    rows.div_ceil(ROWS_OF_BLOCK)
}

/// Refuses heads that the kernels have no room for.
pub fn check_head(dim: usize) -> Result<(), KernelError> {
    match dim {
        1..=LONGEST_HEAD => Ok(()),
        _ => Err(KernelError::shape("kv", format!("heads of at most {LONGEST_HEAD} elements"), &[&[dim]])),
    }
}

impl Device {
    /// Rows of `k, v (kv heads, t, dim)` to caches in 8 bits, by few launches.
    pub(super) fn keep_rows(&self, [k, v]: [View<'_>; 2], runs: &[KeptRun]) -> Result<(), KernelError> {
        let name = typed("keep_rows", k.dtype);
        for some in runs.chunks(KEPT_RUNS) {
            let mut sent = [KeptRun::default(); KEPT_RUNS];
            sent[..some.len()].copy_from_slice(some);
            let most = some.iter().map(|run| run.count as usize).max().unwrap_or(0);
            let keeping = Keeping {
                k: k.pointer,
                v: v.pointer,
                k_at: k.at,
                v_at: v.at,
                heads: k.heads as i32,
                dim: k.dim as i32,
                runs: sent,
            };
            let spread = LaunchShape { blocks: (blocks(2 * k.heads * most), some.len()), threads: 256, shared: 0 };
            launch!(self, &name, spread, keeping)?;
        }
        Ok(())
    }

    /// What codes of heads of `dim` elements stand for, in `dtype`, by few launches.
    pub(super) fn widen_rows(&self, dim: usize, dtype: DType, runs: &[WidenedRun]) -> Result<(), KernelError> {
        let name = typed("widen_rows", dtype);
        for some in runs.chunks(KEPT_RUNS) {
            let mut sent = [WidenedRun::default(); KEPT_RUNS];
            sent[..some.len()].copy_from_slice(some);
            let most = some.iter().map(|run| run.rows as usize).max().unwrap_or(0);
            let widening = Widening { runs: sent, dim: dim as i32, unused: 0 };
            let each = (blocks(most).min(WIDENING_BLOCKS), 2 * some.len());
            launch!(self, &name, LaunchShape { blocks: each, threads: 256, shared: 0 }, widening)?;
        }
        Ok(())
    }

    /// Codes and scales to `bytes`, as they travel: `(keys and values, kv heads, tokens)` rows of codes and their scale.
    pub(super) fn pack_codes(&self, codes: Codes<'_>, bytes: u64) -> Result<(), KernelError> {
        let (travelling, spread) = Travelling::of(codes, bytes);
        launch!(self, "pack_codes", spread, travelling)
    }

    /// The way back.
    pub(super) fn unpack_codes(&self, bytes: u64, codes: Codes<'_>) -> Result<(), KernelError> {
        let (travelling, spread) = Travelling::of(codes, bytes);
        launch!(self, "unpack_codes", spread, travelling)
    }

    /// Queries `(query heads, rows, dim)` bf16 as they are asked of keys in 8 bits: turned as these are, `(rows, query heads dim)` f32.
    pub(in super::super) fn turned(&self, q: View<'_>) -> Result<Tensor, KernelError> {
        let out = self.empty(&[q.rows, q.heads * q.dim], DType::F32)?;
        let (from, at, to) = (q.pointer, q.at, out.pointer());
        let [heads, rows, dim] = [q.heads, q.rows, q.dim].map(|size| size as i32);
        let spread = LaunchShape::new(blocks(q.heads * q.rows), 256);
        launch!(self, "turn_queries", spread, from, at, to, heads, rows, dim)?;
        Ok(out)
    }
}

/// Rows of a step on their way to caches in 8 bits, as `kept.cu` declares it: where a row's key goes in the first layer, and how far from
/// it are its scale, its value and that of the next layer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PlacedCodes {
    pub key: u64,
    pub scale: u64,
    pub value: u64,
    pub layer: u64,
}

impl Device {
    /// A layer's queries `(t, query heads dim)`, keys and values `(t, kv heads dim)`, all bf16, to where each belongs: queries turned, to
    /// `queries` in f32.
    pub(in super::super) fn place_codes(
        &self,
        [query, kv, dim]: [usize; 3],
        [q, k, v]: [&Tensor; 3],
        (queries, to): (&Tensor, u64),
        layer: usize,
    ) -> Result<(), KernelError> {
        let spread = LaunchShape { blocks: (q.shape[0], blocks(query + 2 * kv)), threads: 256, shared: 0 };
        let (q, k, v, queries) = (q.pointer(), k.pointer(), v.pointer(), queries.pointer());
        let [query, kv, dim, layer] = [query, kv, dim, layer].map(|size| size as i32);
        launch!(self, "place_rows_eight", spread, q, k, v, queries, to, query, kv, dim, layer)
    }
}
