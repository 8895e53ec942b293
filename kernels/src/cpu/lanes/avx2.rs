//! Eight f32 in an AVX register.

use std::arch::x86_64::*;

use half::bf16;

use super::vector::{Element, Lanes};

#[derive(Clone, Copy)]
pub struct Avx2(__m256);

impl Lanes for Avx2 {
    const N: usize = 8;
    const ROWS: usize = 6;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, term.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn shift_to_exponent(self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(self.0))) })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: values exist only where the processor has the instructions.
        unsafe {
            let halves = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pairs = _mm_add_ps(halves, _mm_movehl_ps(halves, halves));
            _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
        }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: values exist only where the processor has the instructions.
        unsafe {
            let halves = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let pairs = _mm_max_ps(halves, _mm_movehl_ps(halves, halves));
            _mm_cvtss_f32(_mm_max_ss(pairs, _mm_movehdup_ps(pairs)))
        }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm256_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())) };
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)) })
    }
    #[inline(always)]
    unsafe fn load_codes(from: *const i8, part: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let left = _mm_cvtsi32_si128(24 - 8 * part as i32);
            let codes = _mm256_sll_epi32(_mm256_loadu_si256(from.cast()), left);
            Self(_mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(codes)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        let (mut lanes, mut narrow) = ([0.0; 8], [bf16::ZERO; 8]);
        // SAFETY: `lanes` is that long.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for (to, x) in narrow.iter_mut().zip(lanes) {
            *to = bf16::narrow(x);
        }
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[bf16; 8]>().write(narrow) }
    }
}
