//! Packing of rows into panels: plain loops, compiled into each engine with the vectors it has.

use super::engine::{BLOCK_SIDE, Engine, Rows, STEP_ELEMENTS, TILE_ELEMENTS};

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
