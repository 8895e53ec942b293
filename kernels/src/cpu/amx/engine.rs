//! What the products and the attention need of a tile unit, and the memory layout they share.
//!
//! A tile is 16 rows of 64 bytes: 16 x 32 bf16 or 16 x 16 f32. A panel holds 32 rows (of `A`) or columns (of `B`) over
//! the whole inner dimension: for each step of 32 a pair of tiles, the first 16 rows and the last. In a tile of `B` a row
//! holds two inner indices of 16 columns, side by side, as the unit wants them; it is the tile of `A` over the same
//! numbers, transposed as 16 x 16 pairs. A block of results is 32 x 32 f32, row-major.

use crate::cpu::tensor::BlockPanels;

/// Rows and columns of a block; inner indices of a step.
pub(super) const BLOCK_SIDE: usize = 32;
/// Rows of a tile, f32 lanes of a vector.
pub(super) const LANES: usize = 16;
/// bf16 elements of a tile.
pub(super) const TILE_ELEMENTS: usize = LANES * BLOCK_SIDE;
/// bf16 elements of one step of a panel.
pub(super) const STEP_ELEMENTS: usize = 2 * TILE_ELEMENTS;
/// f32 elements of a block of results.
pub(super) const RESULT_BLOCK: usize = BLOCK_SIDE * BLOCK_SIDE;

/// A matrix of bf16 bits in memory, read only.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// First element; may dangle when `rows` or `columns` is zero.
    pub(super) data: *const u16,
    /// Elements from one row to the next.
    pub(super) stride: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Elements of a row.
    pub(super) columns: usize,
}

// SAFETY: readers on any thread; nobody writes what a `Rows` covers while it is in use.
unsafe impl Sync for Rows {}

impl Rows {
    /// Up to 32 rows from `first` on, fewer (or none) at the end.
    pub(super) fn band(&self, first: usize) -> Self {
        let rows = self.rows.saturating_sub(first).min(BLOCK_SIDE);
        Self { data: self.data.wrapping_add(first * self.stride), rows, ..*self }
    }
}

/// Where blocks of results go: `y = product + bias + residual`, summed in f32, rounded once.
#[derive(Clone, Copy)]
pub(super) struct Sink {
    /// Element 0 of the block in the result.
    pub(super) target: Target,
    /// bf16 bits added to the product, laid out as the target, which they may be; null for none.
    pub(super) residual: *const u16,
    /// 32 f32 for the columns of the block; null for none.
    pub(super) bias: *const f32,
    /// Elements between rows of the target and of the residual.
    pub(super) stride: usize,
}

/// Element type of a result.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// Single precision.
    F32(*mut f32),
    /// bf16 bits, rounded to nearest even.
    Bf16(*mut u16),
}

// SAFETY: tasks write disjoint blocks of the target, and each reads only its own block of the residual.
unsafe impl Sync for Sink {}

impl Sink {
    /// The sink of the block at `row, column`.
    ///
    /// # Safety
    /// The element must lie within the result, and `column` be a multiple of 32.
    pub(super) unsafe fn at(self, row: usize, column: usize) -> Self {
        let offset = row * self.stride + column;
        // SAFETY: the caller names an element of the result; residual and bias are as large or null.
        unsafe {
            Self {
                target: match self.target {
                    Target::F32(start) => Target::F32(start.add(offset)),
                    Target::Bf16(start) => Target::Bf16(start.add(offset)),
                },
                residual: if self.residual.is_null() { self.residual } else { self.residual.add(offset) },
                bias: if self.bias.is_null() { self.bias } else { self.bias.add(column) },
                stride: self.stride,
            }
        }
    }
}

/// Running softmax of 16 query rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Softmax {
    /// What each row's exponents are taken against: a score it has seen, at most [`SLACK`] (in powers of two) below its
    /// highest.
    pub(super) reference: [f32; LANES],
    /// Sum of the exponentials so far.
    pub(super) sum: [f32; LANES],
    /// Factor that the reference's last move puts on everything summed before.
    pub(super) decay: [f32; LANES],
    /// Keys each row sees; they are the first ones.
    pub(super) visible: [u32; LANES],
}

/// How far, in powers of two, a score may pass the reference before the reference moves. Exponentials up to `2^SLACK`
/// cost no precision in bf16 or f32, and sums rarely have to be rescaled.
pub(super) const SLACK: f32 = 8.0;
/// Reference of a row that has seen no key: finite, so that minus infinity less it is minus infinity.
pub(super) const UNSEEN: f32 = -1e30;

impl Softmax {
    /// 16 rows that have seen nothing.
    pub(super) const EMPTY: Self =
        Self { reference: [UNSEEN; LANES], sum: [0.0; LANES], decay: [1.0; LANES], visible: [0; LANES] };

    /// Moves the reference of each row whose `peak` (highest new score) passes it by more than the slack; says whether
    /// any did. `scale` turns scores into powers of two.
    pub(super) fn advance(&mut self, peak: &[f32; LANES], scale: f32) -> bool {
        let mut moved = false;
        for (lane, &peak) in peak.iter().enumerate() {
            let old = self.reference[lane];
            let passes = (peak - old) * scale > SLACK;
            self.reference[lane] = if passes { peak } else { old };
            self.decay[lane] = if passes { ((old - peak) * scale).exp2() } else { 1.0 };
            self.sum[lane] *= self.decay[lane];
            moved |= passes;
        }
        moved
    }
}

/// `C (32 x 32) = or += A (32 x 32 steps) B (32 steps x 32)`.
#[derive(Clone, Copy)]
pub(super) struct Product {
    /// A panel of `A`.
    pub(super) a: *const u16,
    /// A panel of `B`.
    pub(super) b: *const u16,
    /// Steps of 32 inner indices, at least one.
    pub(super) steps: usize,
    /// A block.
    pub(super) c: *mut f32,
    /// Whether to add to what the block holds.
    pub(super) accumulate: bool,
    /// Whether only the first 16 columns are wanted; what the block holds of the others is undefined afterwards.
    pub(super) narrow: bool,
    /// Elements from `a` to what is asked for from memory meanwhile, which need not be there; 0 for nothing.
    pub(super) prefetch: usize,
}

/// Scores of 32 keys for 16 query rows, on their way to weights.
#[derive(Clone, Copy)]
pub(super) struct Exponentials {
    /// 32 rows of scores, 32 f32 from key to key.
    pub(super) scores: *const f32,
    /// What turns scores into powers of two.
    pub(super) scale: f32,
    /// The rows' state.
    pub(super) softmax: *mut Softmax,
    /// A tile of `B`.
    pub(super) weights: *mut u16,
}

/// The operations that touch tiles. Pointers to tiles, blocks and [`Softmax`] are aligned to 64 bytes.
///
/// # Safety
/// Every function asks that its pointers cover the ranges named, that nobody else writes them meanwhile, and that the
/// engine suits this machine.
pub(super) trait Engine {
    /// The unit's state on one thread.
    type Session;

    /// Rows that [`Engine::product_of_few`] takes; 0 where tiles are as good.
    const FEW: usize;

    /// Prepares the unit on this thread.
    unsafe fn begin() -> Self::Session;

    /// Computes one product.
    unsafe fn product(session: &mut Self::Session, product: Product);

    /// The first `rows` rows of a block, at most [`Engine::FEW`], to the bits that [`Engine::product`] gives them: rows of
    /// `32 * steps` elements that were bf16, by a panel of `B`. Needs no session.
    unsafe fn product_of_few(x: *const f32, rows: usize, b: *const u16, steps: usize, c: *mut f32);

    /// Writes `2^(scale (score - reference))` as weights and adds it to `softmax.sum`, while the tile unit computes
    /// `products`, in order. The last one's block is undefined until the next product or `settle`.
    unsafe fn exponentials(session: &mut Self::Session, work: Exponentials, products: &[Product]);

    /// Completes the block that `exponentials` left open.
    unsafe fn settle(session: &mut Self::Session);

    /// Packs up to 32 rows as a panel of `A`; missing rows and columns are zero.
    unsafe fn pack_rows(source: Rows, panel: *mut u16);

    /// Packs up to 32 rows of 16 columns, transposed, as one tile of `A`: column `j` becomes row `j`.
    unsafe fn pack_transposed(source: Rows, tile: *mut u16);

    /// Widens a panel of `B`, rounded to bf16; outputs that are missing are zero.
    unsafe fn widen(blocks: &BlockPanels, index: usize, panel: *mut u16);

    /// Transposes 16 x 16 elements of 32 bits in place.
    unsafe fn transpose(tile: *mut u32);

    /// Writes the first `rows x columns` of a block through its sink.
    unsafe fn store(block: *const f32, rows: usize, columns: usize, sink: Sink);

    /// Shows `softmax` the highest of 32 scores (32 f32 from key to key) of each of 16 query rows; says whether a
    /// reference moved.
    unsafe fn observe(scores: *const f32, scale: f32, softmax: *mut Softmax) -> bool;
}
