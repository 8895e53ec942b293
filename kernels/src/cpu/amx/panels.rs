//! Packing of rows into panels: plain loops, compiled into each engine with the vectors it has.

use super::engine::{Engine, LANES, Rows, SIDE, STEP, TILE};

/// Packs up to 32 rows as a panel of `A`; missing rows and columns are zero.
///
/// # Safety
/// `source` must be readable and `panel` hold `columns` rounded up to steps.
#[inline(always)]
pub(super) unsafe fn pack_rows(source: Rows, panel: *mut u16) {
    let steps = source.columns.div_ceil(SIDE);
    for row in 0..SIDE {
        for step in 0..steps {
            let width = SIDE.min(source.columns - step * SIDE);
            // SAFETY: `row * 32` lies within the step's two tiles; the source is read only where it has the row.
            unsafe {
                let target = panel.add(step * STEP + row * SIDE);
                if row >= source.rows {
                    target.write_bytes(0, SIDE);
                    continue;
                }
                let start = source.data.add(row * source.stride + step * SIDE);
                if width == SIDE {
                    target.cast::<[u16; SIDE]>().write(start.cast::<[u16; SIDE]>().read_unaligned());
                } else {
                    target.write_bytes(0, SIDE);
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
        for tile in 0..2 * source.columns.div_ceil(SIDE) {
            E::transpose(panel.add(tile * TILE).cast());
        }
    }
}

/// Interleaves up to 32 rows of 16 columns by twos: pair `p` holds `(row 2p, row 2p + 1)` of each column.
///
/// # Safety
/// `source` must be readable and `tile` hold a tile.
#[inline(always)]
pub(super) unsafe fn interleave(source: Rows, tile: *mut u16) {
    let row = |index: usize| {
        if index < source.rows && source.columns >= LANES {
            // SAFETY: the row exists and has 16 columns.
            unsafe { source.data.add(index * source.stride).cast::<[u16; LANES]>().read_unaligned() }
        } else {
            [0; LANES]
        }
    };
    for pair in 0..LANES {
        let (even, odd) = (row(2 * pair), row(2 * pair + 1));
        let mut both = [0u32; LANES];
        for ((both, even), odd) in both.iter_mut().zip(even).zip(odd) {
            *both = u32::from(even) | u32::from(odd) << 16;
        }
        // SAFETY: 16 pairs of 64 bytes are the tile.
        unsafe { tile.add(pair * SIDE).cast::<[u32; LANES]>().write(both) };
    }
}
