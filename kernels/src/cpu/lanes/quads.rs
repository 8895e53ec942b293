//! Sixteen sums of products of bytes, four products to each, as a trait over the instruction sets. Sums are of integers, so that all
//! implementations have the same bits. Knows no format.

use half::bf16;

#[cfg(any(test, not(target_arch = "x86_64")))]
use super::vector::Element;
use super::vector::PANEL;

/// Bytes that a vector of sums takes at once: four for each.
pub const QUAD_BYTES: usize = 4 * PANEL;

/// Sixteen i32, or 64 bytes that are multiplied into them. As with `Lanes`, values exist only where the processor has the instructions.
pub trait QuadLanes: Copy {
    /// In every lane the same.
    fn splat(word: i32) -> Self;
    /// # Safety
    /// `from` must be readable for [`QUAD_BYTES`].
    unsafe fn load(from: *const i8) -> Self;
    /// Each byte with sign becomes the byte without sign that is 128 more.
    fn lift(self) -> Self;
    /// Adds to each lane the four products of bytes `unsigned` with bytes `signed`.
    fn add_products(self, unsigned: Self, signed: Self) -> Self;
    /// `256 self + low`, in integers.
    fn join(self, low: Self) -> Self;
    /// Writes `(2^16 self + low) factor scale`, where `self` has at most 24 bits and `low` is rounded to as many.
    ///
    /// # Safety
    /// `scales` must be readable, and `to` writable, for 16.
    unsafe fn store_scaled(self, low: Self, factor: f32, scales: *const bf16, to: *mut f32);
    /// Writes `self factor`.
    ///
    /// # Safety
    /// `to` must be writable for 16.
    unsafe fn store_times(self, factor: f32, to: *mut f32);
}

/// What the upper of two parts of a sum is multiplied by.
const UPPER: f32 = 65_536.0;

#[cfg(any(test, not(target_arch = "x86_64")))]
impl QuadLanes for [i32; PANEL] {
    #[inline(always)]
    fn splat(word: i32) -> Self {
        [word; PANEL]
    }
    #[inline(always)]
    unsafe fn load(from: *const i8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[u8; 4]; PANEL]>().read() }.map(i32::from_le_bytes)
    }
    #[inline(always)]
    fn lift(self) -> Self {
        self.map(|word| word ^ 0x8080_8080_u32 as i32)
    }
    #[inline(always)]
    fn add_products(self, unsigned: Self, signed: Self) -> Self {
        let products = |a: i32, b: i32| {
            let each = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            each.map(|(a, b)| i32::from(a) * i32::from(b as i8)).sum::<i32>()
        };
        std::array::from_fn(|lane| self[lane] + products(unsigned[lane], signed[lane]))
    }
    #[inline(always)]
    fn join(self, low: Self) -> Self {
        std::array::from_fn(|lane| (self[lane] << 8) + low[lane])
    }
    #[inline(always)]
    unsafe fn store_scaled(self, low: Self, factor: f32, scales: *const bf16, to: *mut f32) {
        for lane in 0..PANEL {
            let sum = self[lane] as f32 * UPPER + low[lane] as f32;
            // SAFETY: the caller's promise.
            unsafe { *to.add(lane) = sum * factor * (*scales.add(lane)).widen() };
        }
    }
    #[inline(always)]
    unsafe fn store_times(self, factor: f32, to: *mut f32) {
        for (lane, sum) in self.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *to.add(lane) = sum as f32 * factor };
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub use vnni::VnniQuads;

#[cfg(target_arch = "x86_64")]
mod vnni {
    use std::arch::x86_64::*;

    use half::bf16;

    use super::{QuadLanes, UPPER};

    /// AVX-512F and AVX-512 VNNI.
    #[derive(Clone, Copy)]
    pub struct VnniQuads(__m512i);

    impl QuadLanes for VnniQuads {
        #[inline(always)]
        fn splat(word: i32) -> Self {
            // SAFETY: values exist only where the processor has the instructions; so below.
            Self(unsafe { _mm512_set1_epi32(word) })
        }
        #[inline(always)]
        unsafe fn load(from: *const i8) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }
        #[inline(always)]
        fn lift(self) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_xor_si512(self.0, _mm512_set1_epi32(0x8080_8080_u32 as i32)) })
        }
        #[inline(always)]
        fn add_products(self, unsigned: Self, signed: Self) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_dpbusd_epi32(self.0, unsigned.0, signed.0) })
        }
        #[inline(always)]
        fn join(self, low: Self) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(self.0), low.0) })
        }
        #[inline(always)]
        unsafe fn store_scaled(self, low: Self, factor: f32, scales: *const bf16, to: *mut f32) {
            // SAFETY: the caller's promise, and as above.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(scales.cast()));
                let scales = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide));
                let (high, low) = (_mm512_cvtepi32_ps(self.0), _mm512_cvtepi32_ps(low.0));
                // The upper part times a power of two is exact: the sum is rounded once.
                let sum = _mm512_fmadd_ps(high, _mm512_set1_ps(UPPER), low);
                _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(factor)), scales));
            }
        }
        #[inline(always)]
        unsafe fn store_times(self, factor: f32, to: *mut f32) {
            // SAFETY: the caller's promise, and as above.
            unsafe { _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(self.0), _mm512_set1_ps(factor))) };
        }
    }
}
