//! Sixteen f32 in an AVX-512 register.

use std::arch::x86_64::*;

use half::bf16;

use super::vector::{Element, Lanes};

#[derive(Clone, Copy)]
pub struct Avx512(pub(super) __m512);

impl Lanes for Avx512 {
    const N: usize = 16;
    const ROWS: usize = 6;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_div_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, term.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn shift_to_exponent(self) -> Self {
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self.0))) })
    }
    #[inline(always)]
    fn multiplies_codes() -> bool {
        is_x86_feature_detected!("avx512vnni")
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: values exist only where the processor has the instructions.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: values exist only where the processor has the instructions.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_ps(from) })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        let wide = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())) };
        // SAFETY: values exist only where the processor has the instructions.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)) })
    }
    #[inline(always)]
    unsafe fn load_codes(from: *const i8, part: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let left = _mm_cvtsi32_si128(24 - 8 * part as i32);
            let codes = _mm512_sll_epi32(_mm512_loadu_si512(from.cast()), left);
            Self(_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(codes)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        let (mut lanes, mut narrow) = ([0.0; 16], [bf16::ZERO; 16]);
        // SAFETY: `lanes` is that long.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for (to, x) in narrow.iter_mut().zip(lanes) {
            *to = bf16::narrow(x);
        }
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[bf16; 16]>().write(narrow) }
    }
}
