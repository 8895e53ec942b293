//! The own attention kernels, launched.

mod codes;
mod float8;

use super::super::device::{Device, LaunchShape, launch, typed};
use super::super::kv::keys::Keys;
use super::super::tensor::Tensor;
use super::call::{CudaAttentionCall, MaskArgument, Pieces, Tiled};
use super::lists::Lists;
use super::mapped::{Mapped, Reach, Scaled};
use crate::{DType, KernelError, KvFormat};

/// Keys of a piece, as the kernel has it.
pub const PIECE: usize = 2048;
/// Packed rows that a block of threads combines, of few pieces and of many: so many blocks that all are there while the pieces are made.
const COMBINED: [usize; 2] = [4, 2];
/// Pieces beyond which the kernels that combine them ask for more at a time.
const DEEP_PIECES: usize = 8;
/// Warps of a block of threads that attends to codes, as the kernel has it.
const CODES_WARPS: usize = 8;
/// Rows of a call whose partials are held at a time, where its keys are many.
pub const CHUNK: usize = 64;
/// Pieces of keys up to which more rows are, in turn for what is held.
const CHUNK_PIECES: usize = 8;

/// As `attention.cu` declares it.
#[repr(C)]
struct Combination {
    pieces: Pieces,
    out: u64,
    lse: u64,
    out_head: i64,
    out_row: i64,
    lse_head: i64,
    group: i32,
    dim: i32,
    out_is_bf16: i32,
    unused: i32,
}

/// As `plain.cu` declares it.
#[repr(C)]
struct Plain {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    lse: u64,
    maxima: u64,
    offsets: u64,
    ranges: u64,
    q_head: i64,
    q_row: i64,
    kv_head: i64,
    kv_row: i64,
    out_head: i64,
    out_row: i64,
    mask: MaskArgument,
    group: i32,
    dim: i32,
    list_rows: i32,
    list_groups: i32,
    scale: f32,
    unused: i32,
}

/// How a kernel that cuts keys in pieces is spread.
pub struct Tiling {
    /// The kernel, for calls alone: `attend_` and this.
    pub name: &'static str,
    /// Packed rows of a call up to which it is taken.
    pub most: usize,
    /// Packed rows of a block of threads.
    pub tile: usize,
    pub threads: u32,
    /// Bytes of shared memory.
    pub shared: usize,
    /// Those of the version that has more keys on their way, where there is one: for a block on each processor.
    pub deep: Option<usize>,
}

impl Tiling {
    /// For calls of few packed rows and for all others, by warpgroups on Hopper.
    pub fn both(dim: usize, hopper: bool, shared_limit: usize) -> [Self; 2] {
        if hopper {
            // A tile of 64 rows or of as many keys or values; behind the tiles lies what is kept at hand.
            let tile = 64 * dim * 2;
            return [
                Self {
                    deep: Some(13 * tile + 960),
                    name: "narrow",
                    most: 64,
                    tile: 64,
                    threads: 256,
                    shared: 7 * tile + 960,
                },
                Self { deep: None, name: "wide", most: usize::MAX, tile: 256, threads: 512, shared: 12 * tile + 3328 },
            ];
        }
        let block = 2 * 32 * dim * 2;
        let (name, stages) = if 4 * 3 * block <= shared_limit { ("rows", 3) } else { ("rows_shallow", 2) };
        let shared = 4 * stages * block;
        // Without that much memory (8.6 and 8.9 have less than 8.0), few rows are a tile, too.
        let most = if shared <= shared_limit { 16 } else { 0 };
        [
            Self { deep: None, name, most, tile: 16, threads: 128, shared },
            Self { deep: None, name: "tile", most: usize::MAX, tile: 64, threads: 128, shared: 3 * block },
        ]
    }

    /// The same over codes, for packed rows of one column of products and of several.
    fn of_codes(dim: usize) -> [Self; 2] {
        // What the warps made of eight rows, their maxima and their sums; queries lie there before, and are no more than that.
        let shared = CODES_WARPS * 8 * (dim + 2) * 4;
        let of = |name, most, tile| Self { deep: None, name, most, tile, threads: 32 * CODES_WARPS as u32, shared };
        [of("eight_few", 8, 8), of("eight", usize::MAX, 32)]
    }

    /// Which of both is taken.
    pub fn which(both: &[Self; 2], packed: usize) -> usize {
        usize::from(packed > both[0].most)
    }
}

/// Rows of a call over so many keys that are computed by one launch.
pub(super) fn rows_at_a_time(keys: usize) -> usize {
    CHUNK * (CHUNK_PIECES / keys.div_ceil(PIECE).max(1)).max(1)
}

/// How the pieces of some packed rows are combined: what the kernel's name has, and how it is spread for each KV head and call.
pub fn combining(pieces: usize, packed: usize) -> (&'static str, LaunchShape) {
    let (depth, rows) = if pieces > DEEP_PIECES { ("_deep", COMBINED[1]) } else { ("", COMBINED[0]) };
    (depth, LaunchShape::new(packed.div_ceil(rows), 128))
}

impl Device {
    /// All keys of a row in one block of threads.
    pub(super) fn attend_whole(&self, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let (rows, dim) = (call.q.rows, call.q.dim);
        let argument = Tiled::of(&call, 0, rows);
        let tiles = (rows * argument.group as usize).div_ceil(128);
        let spread = LaunchShape { blocks: (tiles, call.k.heads), threads: 256, shared: 2 * 2 * 64 * dim * 2 };
        launch!(self, &format!("attend_whole_{dim}"), spread, argument)
    }

    /// Attention over few keys, merged into the output (bf16) and the log-sum-exp of others that are there.
    pub(super) fn attend_into(&self, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let (rows, dim) = (call.q.rows, call.q.dim);
        let argument = Tiled::of(&call, 0, rows);
        let tiles = (rows * argument.group as usize).div_ceil(64);
        let spread = LaunchShape { blocks: (tiles, call.k.heads), threads: 128, shared: 2 * 2 * 32 * dim * 2 };
        launch!(self, &format!("attend_into_{dim}"), spread, argument)
    }

    /// How calls of few packed rows are spread, and all others, over keys that are kept so.
    pub(in super::super) fn tilings(&self, dim: usize, kept: KvFormat) -> [Tiling; 2] {
        match kept {
            KvFormat::Computed => Tiling::both(dim, self.is_hopper(), self.shared_limit()),
            KvFormat::Q8 => Tiling::of_codes(dim),
        }
    }

    /// A tiling's kernel for so many blocks of threads, and how these are spread.
    pub(in super::super) fn tiled(&self, tiling: &Tiling, blocks: (usize, usize)) -> (String, LaunchShape) {
        let &Tiling { name, threads, shared, deep, .. } = tiling;
        let (name, shared) = match deep.filter(|_| self.room().each(blocks) == 1) {
            Some(deep) => (format!("{name}_deep"), deep),
            None => (name.to_string(), shared),
        };
        (name, self.room().evenly(LaunchShape { blocks, threads, shared }))
    }

    /// The keys in pieces, their partials combined.
    pub(super) fn attend_rows(&self, call: CudaAttentionCall<'_>) -> Result<(), KernelError> {
        let (keys, chunk) = (Keys::Computed([call.k, call.v]), rows_at_a_time(call.k.rows));
        for first in (0..call.q.rows).step_by(chunk) {
            self.attend_pieces(Tiled::of(&call, first, chunk.min(call.q.rows - first)), keys)?;
        }
        Ok(())
    }

    /// A call of as many rows as [`rows_at_a_time`] says at most: the pieces of its keys, combined.
    fn attend_pieces(&self, alone: Tiled, keys: Keys<'_>) -> Result<(), KernelError> {
        let (kv, dim) = (keys.heads(), keys.dim());
        let (pieces, packed) = (keys.tokens().div_ceil(PIECE).max(1), alone.packed());
        let [outputs, statistics] = Pieces::bytes(kv, pieces, packed, dim);
        let (outputs, statistics) = (self.alloc(outputs)?, self.alloc(statistics)?);
        let partials = Pieces::at([outputs.pointer, statistics.pointer], kv, pieces, packed);
        let argument = alone.in_pieces(&partials);
        let combination = Combination {
            pieces: partials,
            out: alone.out,
            lse: alone.lse,
            out_head: alone.out_head,
            out_row: alone.out_row,
            lse_head: alone.lse_head,
            group: alone.group,
            dim: dim as i32,
            out_is_bf16: alone.out_is_bf16,
            unused: 0,
        };
        let both = self.tilings(dim, keys.kept());
        let tiling = &both[self.spread_best(&both, packed, pieces * kv)];
        let (name, spread) = self.tiled(tiling, (pieces * packed.div_ceil(tiling.tile), kv));
        let kernel = format!("attend_{name}_{dim}");
        match self.reach(keys)? {
            Reach::Maps(laid) => launch!(self, &kernel, spread, Mapped::of(argument, laid))?,
            Reach::Scales(scales) => launch!(self, &kernel, spread, Scaled { call: argument, scales })?,
            Reach::Addresses => launch!(self, &kernel, spread, argument)?,
        }
        let (depth, spread) = combining(pieces, packed);
        let spread = LaunchShape { blocks: (spread.blocks.0, kv), ..spread };
        launch!(self, &format!("combine{depth}_{dim}"), spread, combination)
    }

    /// Which of both tilings takes a call alone: the small one, too, where all its blocks of threads are computed at once.
    fn spread_best(&self, both: &[Tiling; 2], packed: usize, pieces: usize) -> usize {
        let at_once = packed.div_ceil(both[0].tile) * pieces <= self.room().processors();
        if at_once && both[0].most > 0 { 0 } else { Tiling::which(both, packed) }
    }

    /// Any type, head size and list of keys, slowly.
    pub(super) fn attend_plain(
        &self,
        call: CudaAttentionCall<'_>,
        selected: Option<(&Lists, Option<&Tensor>)>,
    ) -> Result<(), KernelError> {
        let keys = selected.map(|(keys, _)| keys);
        let CudaAttentionCall { q, k, v, out, lse, .. } = call;
        if q.dim > 256 || out.dtype != DType::F32 {
            let expected = "heads of at most 256 elements and an f32 output";
            return Err(KernelError::shape("attention", expected, &[&[q.heads, q.rows, q.dim]]));
        }
        let argument = Plain {
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            out: out.pointer,
            lse: lse.pointer(),
            maxima: selected.and_then(|(_, maxima)| maxima).map_or(0, Tensor::pointer),
            offsets: keys.map_or(0, |keys| keys.offsets.pointer),
            ranges: keys.map_or(0, |keys| keys.ranges.pointer),
            q_head: q.at.head,
            q_row: q.at.row,
            kv_head: k.at.head,
            kv_row: k.at.row,
            out_head: out.at.head,
            out_row: out.at.row,
            mask: MaskArgument::of(call.mask, (q.rows, k.rows), 0),
            group: (q.heads / k.heads) as i32,
            dim: q.dim as i32,
            list_rows: keys.map_or(1, |keys| keys.of.clipped()),
            list_groups: keys.map_or(0, |keys| keys.of.groups() as i32),
            scale: 1.0 / (q.dim as f32).sqrt(),
            unused: 0,
        };
        debug_assert!(q.dtype.size() >= 2);
        let spread = LaunchShape { blocks: (q.rows, q.heads), threads: 128, shared: 0 };
        launch!(self, &typed("attend_plain", q.dtype), spread, argument)
    }
}
