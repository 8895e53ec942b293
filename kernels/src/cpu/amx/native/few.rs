//! Products of a few rows by AVX-512: a tile of 16 rows for one is mostly waiting. The same sums in the same order as the tile
//! unit's, so that a row has the same bits whichever computes it.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::engine::{BLOCK_SIDE, LANES, STEP_ELEMENTS, TILE_ELEMENTS};

/// Rows that this is faster for.
pub(super) const MOST_FEW: usize = 4;

/// The unit takes numbers below the normal ones as zero and makes none. While this lives, so do vectors; it holds nothing but
/// the thread's control register.
struct FlushToZero(u32);

impl FlushToZero {
    const BITS: u32 = 0x8040;

    fn begin() -> Self {
        let mut before = 0u32;
        // SAFETY: writes four bytes.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut before, options(nostack, preserves_flags)) };
        Self::set(before | Self::BITS);
        Self(before)
    }

    fn set(control: u32) {
        // SAFETY: a value that the register had, but for flushing to zero.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags, readonly)) };
    }
}

impl Drop for FlushToZero {
    fn drop(&mut self) {
        Self::set(self.0);
    }
}

/// The first `rows` rows of a block: rows of `x`, widened and padded to whole steps, by a panel of `B`.
///
/// # Safety
/// `x` must hold `rows` rows of `32 * steps`, `b` a panel of `steps`, `c` a block, and the machine have AVX-512. `rows` is at
/// most [`MOST_FEW`].
pub(super) unsafe fn product(x: *const f32, rows: usize, b: *const u16, steps: usize, c: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match rows {
            1 => sums::<1>(x, b, steps, c),
            2 => sums::<2>(x, b, steps, c),
            3 => sums::<3>(x, b, steps, c),
            _ => sums::<4>(x, b, steps, c),
        }
    }
}

/// Within a step the even and the odd inner indices are summed apart, then both into the result.
#[inline(never)]
#[target_feature(enable = "avx512f")]
unsafe fn sums<const ROWS: usize>(x: *const f32, b: *const u16, steps: usize, c: *mut f32) {
    let _flushing = FlushToZero::begin();
    let zero = _mm512_setzero_ps();
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let mut sums = [[zero; 2]; ROWS];
    for step in 0..steps {
        let mut parts = [[[zero; 2]; 2]; ROWS];
        for pair in 0..LANES {
            for half in 0..2 {
                // SAFETY: a row of a tile of the panel: two inner indices of 16 columns.
                let both = unsafe {
                    _mm512_load_si512(b.add(step * STEP_ELEMENTS + half * TILE_ELEMENTS + pair * BLOCK_SIDE).cast())
                };
                let even = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(both));
                let odd = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
                for (row, parts) in parts.iter_mut().enumerate() {
                    // SAFETY: elements of a row that is there.
                    let [left, right] =
                        unsafe { *x.add((row * steps + step) * BLOCK_SIDE + 2 * pair).cast::<[f32; 2]>() };
                    parts[half][0] = _mm512_fmadd_ps(_mm512_set1_ps(left), even, parts[half][0]);
                    parts[half][1] = _mm512_fmadd_ps(_mm512_set1_ps(right), odd, parts[half][1]);
                }
            }
        }
        for (sums, parts) in sums.iter_mut().zip(&parts) {
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum = _mm512_add_ps(*sum, _mm512_add_ps(part[0], part[1]));
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: the block's row, aligned.
            unsafe { _mm512_store_ps(c.add(row * BLOCK_SIDE + half * LANES), *sum) };
        }
    }
}
