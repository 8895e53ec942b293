//! Sixteen words of small integers and what these are widened to, as a trait over the instruction sets. Knows no format.

use super::vector::PANEL;

/// Numbers that codes stand for.
#[derive(Clone, Copy)]
pub struct Choice<F> {
    pub list: [F; 2],
    /// The first, where each of the others is one more than the one before it.
    pub first: Option<i8>,
}

/// Sixteen words of 32 bits. As with `Lanes`, values exist only where the processor has the instructions.
pub trait CodeLanes: Copy {
    /// Sixteen f32.
    type Floats: Copy;

    /// Sixteen words.
    ///
    /// # Safety
    /// `from` must be readable for 64 bytes.
    unsafe fn load(from: *const u8) -> Self;
    /// Sixteen bytes, with sign, as f32.
    ///
    /// # Safety
    /// `from` must be readable for 16 bytes.
    unsafe fn load_signed(from: *const u8) -> Self::Floats;
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
    /// Zeros come in from above.
    fn shift_right(self, bits: u32) -> Self;
    fn shift_left(self, bits: u32) -> Self;
    fn or(self, other: Self) -> Self;
    /// Of numbers the one that the lowest `BITS` bits say, 4 or 5.
    fn choose<const BITS: u32>(self, of: &Choice<Self::Floats>) -> Self::Floats;
    /// The `BITS` bits that begin at bit `from`, plus [`CodeLanes::lift`].
    fn lifted<const BITS: u32>(self, from: u32) -> Self::Floats;
    /// What [`CodeLanes::lifted`] adds to so many bits.
    fn lift(bits: u32) -> f32;
    fn floats(of: &[f32; PANEL]) -> Self::Floats;
    fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once or twice: the same where the product is exact, or `c` is 0.
    fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Each rounded to what bf16 has: zeros and finite numbers that are not below the normal ones, to nearest, ties to even.
    fn round(even: Self::Floats, odd: Self::Floats) -> (Self::Floats, Self::Floats);
    /// # Safety
    /// `to` must be writable for 16 f32.
    unsafe fn store(floats: Self::Floats, to: *mut f32);
    /// Writes both as bf16, the first in the lower half of each 32 bits; numbers below the normal ones may become 0.
    ///
    /// # Safety
    /// `to` must be writable for 64 bytes.
    unsafe fn store_pairs(even: Self::Floats, odd: Self::Floats, to: *mut u16);
}

impl CodeLanes for [u32; PANEL] {
    type Floats = [f32; PANEL];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[u8; 4]; PANEL]>().read() }.map(u32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn load_signed(from: *const u8) -> [f32; PANEL] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i8; PANEL]>().read() }.map(f32::from)
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
        self.map(|word| word >> bits)
    }
    #[inline(always)]
    fn shift_left(self, bits: u32) -> Self {
        self.map(|word| word << bits)
    }
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] | other[lane])
    }
    #[inline(always)]
    fn choose<const BITS: u32>(self, of: &Choice<[f32; PANEL]>) -> [f32; PANEL] {
        let code = |word: u32| word & ((1 << BITS) - 1);
        match of.first {
            Some(first) => self.map(|word| (code(word) as i32 + i32::from(first)) as f32),
            None => self.map(|word| of.list.as_flattened()[code(word) as usize]),
        }
    }
    #[inline(always)]
    fn lifted<const BITS: u32>(self, from: u32) -> [f32; PANEL] {
        self.map(|word| (word >> from & ((1 << BITS) - 1)) as i32 as f32)
    }
    #[inline(always)]
    fn lift(_: u32) -> f32 {
        0.0
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
    fn round(even: [f32; PANEL], odd: [f32; PANEL]) -> ([f32; PANEL], [f32; PANEL]) {
        let round = |x| f32::from_bits(rounded(x) & 0xffff_0000);
        (even.map(round), odd.map(round))
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

    use super::super::pairs::Pairs;
    use super::{Choice, CodeLanes, PANEL};

    /// AVX-512F. What `BF16` says is rounded by AVX-512BF16 and AVX-512BW, which pairs of bf16 always need.
    #[derive(Clone, Copy)]
    pub struct Avx512Codes<const BF16: bool>(__m512i);

    /// Where a row of sixteen stands whose elements become the upper halves of sixteen words; the lower ones are masked.
    static SPREAD: [u16; 32] = {
        let (mut places, mut at) = ([0; 32], 0);
        while at < 32 {
            places[at] = (at / 2) as u16;
            at += 1;
        }
        places
    };

    impl<const BF16: bool> CodeLanes for Avx512Codes<BF16> {
        type Floats = __m512;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Self {
            // SAFETY: the caller's promise.
            Self(unsafe { _mm512_loadu_si512(from.cast()) })
        }
        #[inline(always)]
        unsafe fn load_signed(from: *const u8) -> __m512 {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
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
        fn or(self, other: Self) -> Self {
            // SAFETY: as above.
            Self(unsafe { _mm512_or_si512(self.0, other.0) })
        }
        #[inline(always)]
        fn choose<const BITS: u32>(self, of: &Choice<__m512>) -> __m512 {
            // SAFETY: as above. Both read no bits above those.
            unsafe {
                match BITS {
                    4 => _mm512_permutexvar_ps(self.0, of.list[0]),
                    _ => _mm512_permutex2var_ps(of.list[0], self.0, of.list[1]),
                }
            }
        }
        /// As the upper bits of a significand, whose exponent makes them whole numbers.
        #[inline(always)]
        fn lifted<const BITS: u32>(self, from: u32) -> __m512 {
            let at = 23 - BITS;
            let moved = if from > at { self.shift_right(from - at) } else { self.shift_left(at - from) };
            // SAFETY: as above. The table: the first operand where the second has a one, or else what the third has.
            unsafe {
                let significand = _mm512_set1_epi32(((1 << BITS) - 1) << at);
                let exponent = _mm512_set1_epi32(((127 + BITS) << 23) as i32);
                _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xea>(moved.0, significand, exponent))
            }
        }
        #[inline(always)]
        fn lift(bits: u32) -> f32 {
            (1 << bits) as f32
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
        fn round(even: __m512, odd: __m512) -> (__m512, __m512) {
            if !BF16 {
                return (round(even), round(odd));
            }
            // SAFETY: as above.
            unsafe {
                let rows: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
                let places = _mm512_loadu_si512(SPREAD.as_ptr().cast());
                let upper = _mm512_add_epi16(places, _mm512_set1_epi16(PANEL as i16));
                let even = _mm512_maskz_permutexvar_epi16(0xaaaa_aaaa, places, rows);
                let odd = _mm512_maskz_permutexvar_epi16(0xaaaa_aaaa, upper, rows);
                (_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
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
            unsafe { Pairs::rounded(even, odd).store(to.cast()) };
        }
    }

    #[inline(always)]
    fn round(floats: __m512) -> __m512 {
        // SAFETY: values exist only where the processor has the instructions.
        unsafe {
            let bits = _mm512_castps_si512(floats);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(-0x1_0000)))
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn rounds_to_nearest_even<C: CodeLanes>() {
        // Every fourth lies in the middle between two.
        let middle = |i: u32, bits: u32| if i.is_multiple_of(4) { bits & !0x7fff | 0x8000 } else { bits };
        let bits = (0..1u32 << 14).map(|i| middle(i, i.wrapping_mul(0x9e37_79b1)));
        let x: Vec<f32> = bits.map(f32::from_bits).map(|x| if x.is_normal() { x } else { 0.0 }).collect();
        for pair in x.chunks_exact(2 * PANEL) {
            let mut rounded = [0.0; 2 * PANEL];
            let [even, odd] = [0, PANEL].map(|at| C::floats(pair[at..][..PANEL].try_into().unwrap()));
            let (even, odd) = C::round(even, odd);
            // SAFETY: sixteen each.
            unsafe {
                C::store(even, rounded.as_mut_ptr());
                C::store(odd, rounded[PANEL..].as_mut_ptr());
            }
            for (x, got) in pair.iter().zip(rounded) {
                assert_eq!(bf16::from_f32(*x).to_f32().to_bits(), got.to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn every_way_to_round_gives_the_same() {
        rounds_to_nearest_even::<[u32; PANEL]>();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            rounds_to_nearest_even::<Avx512Codes<false>>();
            if super::super::Pairs::available() {
                rounds_to_nearest_even::<Avx512Codes<true>>();
            }
        }
    }
}
