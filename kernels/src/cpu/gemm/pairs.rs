//! Rows of bf16 by panels of pairs of inputs, tile by tile. Each element of a result is summed over pairs in order, the second input of
//! each first, whatever rows and columns stand beside it. Widens nothing.

use half::bf16;

use super::super::lanes::{Avx512, Extent, PANEL, Pairs, RightOperand, Sums};

/// Rows of bf16, `row` elements apart.
#[derive(Clone, Copy)]
pub struct LeftPairs {
    pub data: *const bf16,
    pub row: usize,
}

/// `left (rows, k) x right (k, panels)` for an even `k`. A panel of `right` has for each pair of inputs the pairs of its columns.
///
/// # Safety
/// The operands must cover `extent`, `sums` be fit for every tile of it, and the processor have what [`Pairs`] need.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub unsafe fn product<S: Sums>(extent: Extent, left: LeftPairs, right: RightOperand<bf16>, sums: &S) {
    let mut panel = 0;
    while panel < extent.panels {
        // SAFETY: the caller's promise; neither covers more panels than are left.
        unsafe {
            panel += match extent.panels - panel {
                4.. => columns::<S, 4>(extent, panel, left, right, sums),
                _ => columns::<S, 1>(extent, panel, left, right, sums),
            };
        }
    }
}

/// One column of tiles `V` vectors wide; returns its panels.
#[inline(always)]
unsafe fn columns<S: Sums, const V: usize>(
    extent: Extent,
    panel: usize,
    left: LeftPairs,
    right: RightOperand<bf16>,
    sums: &S,
) -> usize {
    let mut row = 0;
    while row < extent.rows {
        // SAFETY: the caller's promise; no arm takes more rows than are left.
        unsafe {
            let right = RightOperand { data: right.data.add(panel * right.panel), ..right };
            let left = LeftPairs { data: left.data.add(row * left.row), ..left };
            let at = (row, panel * PANEL);
            row += match extent.rows - row {
                1 => tile::<S, 1, V>(extent.k, at, left, right, sums),
                2 => tile::<S, 2, V>(extent.k, at, left, right, sums),
                3 => tile::<S, 3, V>(extent.k, at, left, right, sums),
                4 => tile::<S, 4, V>(extent.k, at, left, right, sums),
                5 => tile::<S, 5, V>(extent.k, at, left, right, sums),
                _ => tile::<S, 6, V>(extent.k, at, left, right, sums),
            };
        }
    }
    V
}

#[inline(always)]
unsafe fn tile<S: Sums, const R: usize, const V: usize>(
    k: usize,
    (row, column): (usize, usize),
    left: LeftPairs,
    right: RightOperand<bf16>,
    sums: &S,
) -> usize {
    // SAFETY: the caller's promise: R rows of `left`, V panels of `right`, and the tile in `sums` are there.
    unsafe {
        let mut acc: [[Avx512; V]; R] = sums.start(row, column);
        for p in (0..k).step_by(2) {
            let lanes: [Pairs; V] = Pairs::load_each(right.data.add(p * right.row), right.panel);
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = Pairs::splat(left.data.add(r * left.row + p));
                for (acc, b) in acc.iter_mut().zip(lanes) {
                    *acc = acc.add_pairs(a, b);
                }
            }
        }
        sums.finish(row, column, acc);
    }
    R
}
