//! What is done to the scores of a block of keys before they become weights.

use std::ops::Range;

use super::super::engine::{BLOCK_SIDE, LANES};
use super::plan::AMX_BLOCK_KEYS;

/// Sets the scores that a row may not see to minus infinity.
///
/// # Safety
/// `scores` must be `AMX_BLOCK_KEYS` rows of 32, from the half tile's first lane on.
pub(super) unsafe fn hide(scores: *mut f32, first: usize, visible: &[u32; LANES]) {
    for key in 0..AMX_BLOCK_KEYS {
        // SAFETY: the caller's promise.
        let line = unsafe { &mut *scores.add(key * BLOCK_SIDE).cast::<[f32; LANES]>() };
        for (score, &visible) in line.iter_mut().zip(visible) {
            if first + key >= visible as usize {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}

/// Sets the scores of hidden keys to minus infinity.
///
/// # Safety
/// As [`hide`].
pub(super) unsafe fn punch(scores: *mut f32, first: usize, hidden: &[Range<usize>]) {
    for (lane, hidden) in hidden.iter().enumerate() {
        for key in hidden.start.max(first)..hidden.end.min(first + AMX_BLOCK_KEYS) {
            // SAFETY: the caller's promise.
            unsafe { *scores.add((key - first) * BLOCK_SIDE + lane) = f32::NEG_INFINITY };
        }
    }
}

/// Sets the scores of some keys of the block to minus infinity.
///
/// # Safety
/// As [`hide`].
pub(super) unsafe fn blank(scores: *mut f32, keys: Range<usize>) {
    for key in keys {
        // SAFETY: the caller's promise.
        unsafe { scores.add(key * BLOCK_SIDE).cast::<[f32; LANES]>().write([f32::NEG_INFINITY; LANES]) };
    }
}

/// Raises the peaks of 16 rows to their highest scores.
///
/// # Safety
/// As [`hide`].
pub(super) unsafe fn raise(scores: *const f32, peaks: &mut [f32; LANES]) {
    for key in 0..AMX_BLOCK_KEYS {
        // SAFETY: the caller's promise.
        let line = unsafe { &*scores.add(key * BLOCK_SIDE).cast::<[f32; LANES]>() };
        for (peak, score) in peaks.iter_mut().zip(line) {
            *peak = peak.max(*score);
        }
    }
}
