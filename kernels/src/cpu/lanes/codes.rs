//! Sixteen small integers and what they are widened to, as a trait over the instruction sets. Knows no format.

use super::vector::PANEL;

/// Sixteen integers. As with `Lanes`, values exist only where the processor has the instructions.
pub trait CodeLanes: Copy {
    /// Sixteen f32.
    type Floats: Copy;

    /// Sixteen bytes, without sign.
    ///
    /// # Safety
    /// `from` must be readable for 16 bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// Sixteen bytes, with sign.
    ///
    /// # Safety
    /// As [`CodeLanes::load`].
    unsafe fn load_signed(from: *const u8) -> Self;
    /// Sixteen f16.
    ///
    /// # Safety
    /// `from` must be readable for 32 bytes.
    unsafe fn load_halves(from: *const u8) -> Self::Floats;
    /// Sixteen upper halves of f32.
    ///
    /// # Safety
    /// As [`CodeLanes::load_halves`].
    unsafe fn load_upper(from: *const u8) -> Self::Floats;
    fn shift_right(self, bits: u32) -> Self;
    fn shift_left(self, bits: u32) -> Self;
    fn and(self, mask: i32) -> Self;
    /// Bits of `other` where `mask` has ones, its own elsewhere.
    fn take(self, other: Self, mask: i32) -> Self;
    /// Of 32 numbers the one that the lowest five bits say.
    fn choose(self, of: &[Self::Floats; 2]) -> Self::Floats;
    /// Each less a number.
    fn widen_less(self, less: i32) -> Self::Floats;
    fn floats(of: &[f32; PANEL]) -> Self::Floats;
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once or twice: the same where the product is exact, or `c` is 0.
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Each rounded to what bf16 has: finite numbers, to nearest, ties to even.
    fn round(floats: Self::Floats) -> Self::Floats;
    /// # Safety
    /// `to` must be writable for 16 f32.
    unsafe fn store(floats: Self::Floats, to: *mut f32);
    /// Writes both as bf16, the first in the lower half of each 32 bits; numbers below the normal ones may become 0.
    ///
    /// # Safety
    /// `to` must be writable for 64 bytes.
    unsafe fn store_pairs(even: Self::Floats, odd: Self::Floats, to: *mut u16);
}

impl CodeLanes for [i32; PANEL] {
    type Floats = [f32; PANEL];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u8; PANEL]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_signed(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i8; PANEL]>().read() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_halves(from: *const u8) -> [f32; PANEL] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[u8; 2]; PANEL]>().read() }.map(|bits| half::f16::from_le_bytes(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn load_upper(from: *const u8) -> [f32; PANEL] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[u8; 2]; PANEL]>().read() }.map(|[low, high]| f32::from_le_bytes([0, 0, low, high]))
    }
    #[inline(always)]
    fn shift_right(self, bits: u32) -> Self {
        self.map(|code| code >> bits)
    }
    #[inline(always)]
    fn shift_left(self, bits: u32) -> Self {
        self.map(|code| code << bits)
    }
    #[inline(always)]
    fn and(self, mask: i32) -> Self {
        self.map(|code| code & mask)
    }
    #[inline(always)]
    fn take(self, other: Self, mask: i32) -> Self {
        std::array::from_fn(|lane| self[lane] & !mask | other[lane] & mask)
    }
    #[inline(always)]
    fn choose(self, of: &[[f32; PANEL]; 2]) -> [f32; PANEL] {
        self.map(|code| of.as_flattened()[code as usize % (2 * PANEL)])
    }
    #[inline(always)]
    fn widen_less(self, less: i32) -> [f32; PANEL] {
        self.map(|code| (code - less) as f32)
    }
    #[inline(always)]
    fn floats(of: &[f32; PANEL]) -> [f32; PANEL] {
        *of
    }
    #[inline(always)]
    fn mul(a: [f32; PANEL], b: [f32; PANEL]) -> [f32; PANEL] {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    fn mul_add(a: [f32; PANEL], b: [f32; PANEL], c: [f32; PANEL]) -> [f32; PANEL] {
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn round(floats: [f32; PANEL]) -> [f32; PANEL] {
        floats.map(|x| f32::from_bits(rounded(x) & 0xffff_0000))
    }
    #[inline(always)]
    unsafe fn store(floats: [f32; PANEL], to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; PANEL]>().write_unaligned(floats) };
    }
    #[inline(always)]
    unsafe fn store_pairs(even: [f32; PANEL], odd: [f32; PANEL], to: *mut u16) {
        let pairs: [u32; PANEL] =
            std::array::from_fn(|lane| rounded(even[lane]) >> 16 | rounded(odd[lane]) & 0xffff_0000);
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u32; PANEL]>().write_unaligned(pairs) };
    }
}

/// The bits of a finite number, of which the upper half is the nearest bf16.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    x.to_bits().wrapping_add(0x7fff + (x.to_bits() >> 16 & 1))
}

#[cfg(target_arch = "x86_64")]
pub use wide::Avx512Codes;

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::*;

    use super::{CodeLanes, PANEL};

    /// AVX-512F; pairs of bf16 need AVX-512BW and AVX-512BF16, too.
    #[derive(Clone, Copy)]
    pub struct Avx512Codes(__m512i);

    /// Where in two rows of sixteen the pairs stand that are side by side in one of 32.
    static SIDE_BY_SIDE: [u16; 32] = {
        let (mut places, mut at) = ([0; 32], 0);
        while at < 32 {
            places[at] = (at / 2 + at % 2 * PANEL) as u16;
            at += 1;
        }
        places
    };

    impl CodeLanes for Avx512Codes {
        type Floats = __m512;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) })
        }
        #[inline(always)]
        unsafe fn load_signed(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) })
        }
        #[inline(always)]
        unsafe fn load_halves(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
        }
        #[inline(always)]
        unsafe fn load_upper(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        fn shift_right(self, bits: u32) -> Self {
            // SAFETY: the processor has AVX-512F, or there were no value; so below.
            Self(unsafe { _mm512_srlv_epi32(self.0, _mm512_set1_epi32(bits as i32)) })
        }
        #[inline(always)]
        fn shift_left(self, bits: u32) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_sllv_epi32(self.0, _mm512_set1_epi32(bits as i32)) })
        }
        #[inline(always)]
        fn and(self, mask: i32) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_and_si512(self.0, _mm512_set1_epi32(mask)) })
        }
        #[inline(always)]
        fn take(self, other: Self, mask: i32) -> Self {
            // SAFETY: as above. The table: the second operand where the third has a one, else the first.
            Self(unsafe { _mm512_ternarylogic_epi32::<0xd8>(self.0, other.0, _mm512_set1_epi32(mask)) })
        }
        #[inline(always)]
        fn choose(self, of: &[__m512; 2]) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_permutex2var_ps(of[0], self.0, of[1]) }
        }
        #[inline(always)]
        fn widen_less(self, less: i32) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_cvtepi32_ps(_mm512_sub_epi32(self.0, _mm512_set1_epi32(less))) }
        }
        #[inline(always)]
        fn floats(of: &[f32; PANEL]) -> __m512 {
            // SAFETY: as above; the array is as long.
            unsafe { _mm512_loadu_ps(of.as_ptr()) }
        }
        #[inline(always)]
        fn mul(a: __m512, b: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn round(floats: __m512) -> __m512 {
            // SAFETY: as above.
            unsafe {
                let bits = _mm512_castps_si512(floats);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(-0x1_0000)))
            }
        }
        #[inline(always)]
        unsafe fn store(floats: __m512, to: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to, floats) };
        }
        #[inline(always)]
        unsafe fn store_pairs(even: __m512, odd: __m512, to: *mut u16) {
            // SAFETY: the caller's promise, and that the processor has the instructions.
            unsafe {
                let rows: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
                let places = _mm512_loadu_si512(SIDE_BY_SIDE.as_ptr().cast());
                _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(places, rows));
            }
        }
    }
}
