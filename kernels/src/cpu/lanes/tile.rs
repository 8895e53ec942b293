//! The register-tiled inner product that linear layers and attention share. Each element of a result is summed over `k` in
//! order, whatever rows and columns stand beside it, so that the shape of a call changes no bit.

use super::vector::{Lanes, Loaded, PANEL, fetch_ahead};

/// Rows up to which the right operand takes longer to come from memory than to be multiplied. The next panels are asked for
/// meanwhile where panels are [`SHORT_PANEL`]: those the processor does not foresee, since it looks no further than a page.
const FETCHING_ROWS: usize = 2;
/// Bytes of a panel of keys, or of values, of a head of 64.
const SHORT_PANEL: usize = 8 << 10;

/// Rows of f32, `row` elements apart.
#[derive(Clone, Copy)]
pub struct LeftOperand {
    pub data: *const f32,
    pub row: usize,
}

/// Columns in panels of [`PANEL`]: element `(p, c)` is at `data + c / PANEL * panel + p * row + c % PANEL`; where `E::BESIDE` of a column
/// lie side by side, at `data + c / PANEL * panel + p / BESIDE * BESIDE * row + c % PANEL * BESIDE + p % BESIDE`.
#[derive(Clone, Copy)]
pub struct RightOperand<E> {
    pub data: *const E,
    pub panel: usize,
    pub row: usize,
}

/// How much to multiply.
#[derive(Clone, Copy)]
pub struct Extent {
    pub rows: usize,
    pub k: usize,
    pub panels: usize,
}

/// Where the sums of a tile start and what becomes of them. `row` and `column` are those of its first element.
pub trait Sums {
    /// # Safety
    /// The tile must lie within what the implementor addresses.
    #[inline(always)]
    unsafe fn start<L: Lanes, const R: usize, const V: usize>(&self, _row: usize, _column: usize) -> [[L; V]; R] {
        [[L::zero(); V]; R]
    }
    /// # Safety
    /// As [`Sums::start`].
    unsafe fn finish<L: Lanes, const R: usize, const V: usize>(&self, row: usize, column: usize, sums: [[L; V]; R]);
}

/// `left (rows, k) x right (k, panels)`, tile by tile, a column of tiles at a time.
///
/// # Safety
/// The operands must cover `extent`, and `sums` be fit for every tile of it.
#[inline(always)]
pub unsafe fn product<L: Lanes, E: Loaded, S: Sums>(
    extent: Extent,
    left: LeftOperand,
    right: RightOperand<E>,
    sums: &S,
) {
    let mut panel = 0;
    while panel < extent.panels {
        let width = extent.panels - panel;
        // SAFETY: the caller's promise; each arm covers no more than `width` panels.
        unsafe {
            panel += match (L::N, width) {
                (16, 4..) => columns::<L, E, S, 4>(extent, panel, left, right, sums),
                (16, _) => columns::<L, E, S, 1>(extent, panel, left, right, sums),
                (_, 2..) if extent.rows <= 2 && L::ROWS > 2 => columns::<L, E, S, 4>(extent, panel, left, right, sums),
                _ => columns::<L, E, S, 2>(extent, panel, left, right, sums),
            };
        }
    }
}

/// One column of tiles `V` vectors wide; returns its panels.
#[inline(always)]
unsafe fn columns<L: Lanes, E: Loaded, S: Sums, const V: usize>(
    extent: Extent,
    panel: usize,
    left: LeftOperand,
    right: RightOperand<E>,
    sums: &S,
) -> usize {
    let column = panel * PANEL;
    let mut row = 0;
    while row < extent.rows {
        // SAFETY: the caller's promise; no arm takes more rows than are left.
        unsafe {
            let right = RightOperand { data: right.data.add(panel * right.panel), ..right };
            let left = LeftOperand { data: left.data.add(row * left.row), ..left };
            let at = (row, column);
            row += match (extent.rows - row).min(L::ROWS) {
                1 => tile::<L, E, S, 1, V>(extent.k, at, left, right, sums),
                2 => tile::<L, E, S, 2, V>(extent.k, at, left, right, sums),
                3 => tile::<L, E, S, 3, V>(extent.k, at, left, right, sums),
                4 => tile::<L, E, S, 4, V>(extent.k, at, left, right, sums),
                5 => tile::<L, E, S, 5, V>(extent.k, at, left, right, sums),
                _ => tile::<L, E, S, 6, V>(extent.k, at, left, right, sums),
            };
        }
    }
    V * L::N / PANEL
}

#[inline(always)]
unsafe fn tile<L: Lanes, E: Loaded, S: Sums, const R: usize, const V: usize>(
    k: usize,
    (row, column): (usize, usize),
    left: LeftOperand,
    right: RightOperand<E>,
    sums: &S,
) -> usize {
    // SAFETY: the caller's promise: R rows of `left`, V vectors of `right`, and the tile in `sums` are there.
    unsafe {
        let mut acc: [[L; V]; R] = sums.start(row, column);
        let mut b = right.data;
        // A loop for each: in one for both, the compiler moves the sums from register to register.
        if E::BESIDE == 1 {
            for p in 0..k {
                let left = LeftOperand { data: left.data.add(p), ..left };
                step::<L, E, R, V>(0, left, RightOperand { data: b, ..right }, &mut acc);
                b = b.wrapping_add(right.row);
            }
        } else {
            for p in (0..k).step_by(4) {
                let left = LeftOperand { data: left.data.add(p), ..left };
                let right = RightOperand { data: b, ..right };
                // Written out, so that each part is a constant.
                step::<L, E, R, V>(0, left, right, &mut acc);
                if p + 1 < k {
                    step::<L, E, R, V>(1, left, right, &mut acc);
                }
                if p + 2 < k {
                    step::<L, E, R, V>(2, left, right, &mut acc);
                }
                if p + 3 < k {
                    step::<L, E, R, V>(3, left, right, &mut acc);
                }
                b = b.wrapping_add(right.row * 4);
            }
        }
        sums.finish(row, column, acc);
    }
    R
}

/// Adds the products of one of the rows that lie side by side from `right` on.
#[inline(always)]
unsafe fn step<L: Lanes, E: Loaded, const R: usize, const V: usize>(
    part: usize,
    left: LeftOperand,
    right: RightOperand<E>,
    acc: &mut [[L; V]; R],
) {
    // SAFETY: the caller's promise, which is that of `tile`.
    unsafe {
        let mut lanes = [L::zero(); V];
        let fetches = part == 0 && R <= FETCHING_ROWS && right.panel * size_of::<E>() <= SHORT_PANEL;
        for (v, lanes) in lanes.iter_mut().enumerate() {
            let c = v * L::N;
            let at = right.data.add(c / PANEL * right.panel + c % PANEL * E::BESIDE);
            *lanes = E::load_part(at, part);
            if fetches {
                fetch_ahead(at.wrapping_add(V * L::N / PANEL * right.panel));
            }
        }
        for (r, acc) in acc.iter_mut().enumerate() {
            let a = L::splat(*left.data.add(r * left.row + part));
            for (acc, b) in acc.iter_mut().zip(lanes) {
                *acc = a.mul_add(b, *acc);
            }
        }
    }
}
