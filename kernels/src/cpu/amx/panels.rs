//! Packing of rows into panels: plain loops, compiled into each engine with the vectors it has.

use super::engine::{BLOCK_SIDE, Engine, LANES, Rows, STEP_ELEMENTS, TILE_ELEMENTS};
use crate::cpu::lanes::CodeLanes;
use crate::cpu::tensor::{BlockPanels, PairSink};

/// Packs up to 32 rows as a panel of `A`; missing rows and columns are zero.
///
/// # Safety
/// `source` must be readable and `panel` hold `columns` rounded up to steps.
#[inline(always)]
pub(super) unsafe fn pack_rows(source: Rows, panel: *mut u16) {
    let steps = source.columns.div_ceil(BLOCK_SIDE);
    for row in 0..BLOCK_SIDE {
        for step in 0..steps {
            let width = BLOCK_SIDE.min(source.columns - step * BLOCK_SIDE);
            // SAFETY: `row * 32` lies within the step's two tiles; the source is read only where it has the row.
            unsafe {
                let target = panel.add(step * STEP_ELEMENTS + row * BLOCK_SIDE);
                if row >= source.rows {
                    target.write_bytes(0, BLOCK_SIDE);
                    continue;
                }
                let start = source.data.add(row * source.stride + step * BLOCK_SIDE);
                if width == BLOCK_SIDE {
                    target.cast::<[u16; BLOCK_SIDE]>().write(start.cast::<[u16; BLOCK_SIDE]>().read_unaligned());
                } else {
                    target.write_bytes(0, BLOCK_SIDE);
                    target.copy_from_nonoverlapping(start, width);
                }
            }
        }
    }
}

/// Packs up to 32 rows as columns, a panel of `B`.
///
/// # Safety
/// As [`pack_rows`], on a machine that suits the engine.
pub(super) unsafe fn pack_columns<E: Engine>(source: Rows, panel: *mut u16) {
    // SAFETY: the caller's promise; a panel of `columns` has two tiles a step.
    unsafe {
        E::pack_rows(source, panel);
        for tile in 0..2 * source.columns.div_ceil(BLOCK_SIDE) {
            E::transpose(panel.add(tile * TILE_ELEMENTS).cast());
        }
    }
}

/// Widens a panel of `B`, rounded to bf16; outputs that are missing are zero.
///
/// # Safety
/// `panel` must hold as many steps as `blocks` has, and the panel exist, on a machine that suits the lanes.
#[inline(always)]
pub(super) unsafe fn widen<C: CodeLanes>(blocks: &BlockPanels, index: usize, panel: *mut u16) {
    let steps = blocks.k / BLOCK_SIDE;
    for half in 0..2 {
        if 2 * index + half >= blocks.panels() {
            for step in 0..steps {
                // SAFETY: a tile of the panel.
                unsafe { panel.add(step * STEP_ELEMENTS + half * TILE_ELEMENTS).write_bytes(0, TILE_ELEMENTS) };
            }
            continue;
        }
        blocks.widen::<C, false, 1>([2 * index + half], 0..steps, &mut Tiles { panel, half });
    }
}

/// The tiles of a half of a panel, a row for two inputs.
struct Tiles {
    panel: *mut u16,
    half: usize,
}

impl<C: CodeLanes> PairSink<C> for Tiles {
    #[inline(always)]
    fn write(&mut self, _: usize, pair: usize, even: C::Floats, odd: C::Floats) {
        let at = pair / LANES * STEP_ELEMENTS + self.half * TILE_ELEMENTS + pair % LANES * BLOCK_SIDE;
        // SAFETY: `widen` gives as many pairs as the panel has.
        unsafe { C::store_pairs(even, odd, self.panel.add(at)) };
    }
}
