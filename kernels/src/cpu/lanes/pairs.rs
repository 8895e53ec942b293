//! Sixteen pairs of bf16 in an AVX-512 register, and their products by AVX512-BF16. Numbers below the normal ones count as zero.

use std::arch::x86_64::*;

use half::bf16;

use super::avx512::Avx512;
use super::vector::PANEL;

/// Sixteen pairs. As with `Lanes`, values exist only where the processor has the instructions.
#[derive(Clone, Copy)]
pub struct Pairs(__m512i);

/// Where in two rows of sixteen the pairs stand that are side by side in one of 32.
static SIDE_BY_SIDE: [u16; 32] = {
    let (mut places, mut at) = ([0; 32], 0);
    while at < 32 {
        places[at] = (at / 2 + at % 2 * PANEL) as u16;
        at += 1;
    }
    places
};

impl Pairs {
    /// Whether the processor has AVX512-BF16, and AVX-512BW, which pairs need too.
    pub fn available() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16")
    }

    /// # Safety
    /// `from` must be readable for 32 elements, and the processor have the instructions.
    #[inline(always)]
    pub unsafe fn load(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    /// Those at `from` and from each place to the next, `stride` elements apart.
    ///
    /// # Safety
    /// As [`Pairs::load`] for each.
    #[inline(always)]
    pub unsafe fn load_each<const V: usize>(from: *const bf16, stride: usize) -> [Self; V] {
        // SAFETY: the caller's promise.
        let mut each = [unsafe { Self::load(from) }; V];
        for (v, pairs) in each.iter_mut().enumerate().skip(1) {
            // SAFETY: as above.
            *pairs = unsafe { Self::load(from.add(v * stride)) };
        }
        each
    }

    /// The same pair sixteen times.
    ///
    /// # Safety
    /// `from` must be readable for two elements, and the processor have the instructions.
    #[inline(always)]
    pub unsafe fn splat(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) })
    }

    /// Both rounded to nearest, ties to even; the first of each pair from `even`.
    ///
    /// # Safety
    /// The processor must have the instructions.
    #[inline(always)]
    pub unsafe fn rounded(even: __m512, odd: __m512) -> Self {
        // SAFETY: the caller's promise; the places are as many.
        unsafe {
            let rows: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
            let places = _mm512_loadu_si512(SIDE_BY_SIDE.as_ptr().cast());
            Self(_mm512_permutexvar_epi16(places, rows))
        }
    }

    /// # Safety
    /// `to` must be writable for 32 elements.
    #[inline(always)]
    pub unsafe fn store(self, to: *mut bf16) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) };
    }

    /// Adds to each sum the product of the second numbers of a pair, then that of the first ones, rounded each time.
    #[inline(always)]
    pub fn add_products(self, other: Self, sums: __m512) -> __m512 {
        // SAFETY: values exist only where the processor has the instructions; pairs are plain bits.
        unsafe {
            let [left, right] = [self.0, other.0].map(|pairs| std::mem::transmute::<__m512i, __m512bh>(pairs));
            _mm512_dpbf16_ps(sums, left, right)
        }
    }
}

impl Avx512 {
    /// As [`Pairs::add_products`].
    #[inline(always)]
    pub fn add_pairs(self, left: Pairs, right: Pairs) -> Self {
        Self(left.add_products(right, self.0))
    }
}
