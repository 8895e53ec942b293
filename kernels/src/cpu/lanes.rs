//! Vectors of f32 as one trait over the instruction sets, so that each kernel is written once. Holds no kernel.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use half::bf16;

use super::choice::KernelSet;

/// Columns of one panel of a packed operand. Every vector width divides it.
pub(super) const PANEL: usize = 16;

/// `N` f32 in a vector register. Values exist only inside [`KernelSet::run`], which has checked that the processor has the
/// instructions; that is why arithmetic is safe to call.
pub(super) trait Lanes: Copy {
    const N: usize;
    /// Rows of a register tile: what the registers hold.
    const ROWS: usize;

    fn splat(x: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + term`, rounded once where the processor can.
    fn mul_add(self, factor: Self, term: Self) -> Self;
    /// The larger; `other` where one is not a number.
    fn max(self, other: Self) -> Self;
    /// Bits shifted left by 23, as [`Lanes::exp2`] needs them.
    fn shift_to_exponent(self) -> Self;
    /// Sum over the lanes, in an order that depends on nothing but `N`.
    fn sum(self) -> f32;
    fn largest(self) -> f32;

    /// # Safety
    /// `from` must be readable for `N` elements.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// # Safety
    /// `to` must be writable for `N` elements.
    unsafe fn store(self, to: *mut f32);
    /// Rounds to nearest, ties to even.
    /// # Safety
    /// As [`Lanes::store`].
    unsafe fn store_bf16(self, to: *mut bf16);

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    /// `2^self` to a relative error of 1e-7 for values up to 127, exactly 0 below -126.5.
    #[inline(always)]
    fn exp2(self) -> Self {
        // Adding this rounds to an integer and leaves the biased exponent in the low bits.
        const ROUND: f32 = 12_582_912.0 + 127.0;
        let t = Self::splat(-127.0).max(self);
        let biased = t.add(Self::splat(ROUND));
        let f = t.sub(biased.sub(Self::splat(ROUND)));
        let mut p = Self::splat(EXP2[EXP2.len() - 1]);
        for c in EXP2.iter().rev().skip(1) {
            p = p.mul_add(f, Self::splat(*c));
        }
        p.mul(biased.shift_to_exponent())
    }
}

/// Minimax polynomial of `2^x` in relative error on [-0.5, 0.5], with the first coefficient held at 1.
const EXP2: [f32; 7] =
    [1.0, std::f32::consts::LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_5, 0.000_153_533_62];

/// Asks for the memory at `at`, which need not be readable, without waiting for it.
#[inline(always)]
pub(super) fn fetch_ahead<E>(at: *const E) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it, and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// What matrices are stored in: f32, or bf16 that kernels widen as they load.
pub(super) trait Element: candle_core::WithDType + Default {
    /// # Safety
    /// `from` must be readable for `L::N` elements.
    unsafe fn load<L: Lanes>(from: *const Self) -> L;
    /// # Safety
    /// `to` must be writable for `L::N` elements.
    unsafe fn store<L: Lanes>(to: *mut Self, lanes: L);
    /// The elements themselves, where they are f32.
    fn as_f32(elements: &[Self]) -> Option<&[f32]>;
    fn widen(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const f32) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(from) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut f32, lanes: L) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store(to) }
    }
    #[inline(always)]
    fn as_f32(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }
}

impl Element for bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const bf16) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut bf16, lanes: L) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store_bf16(to) }
    }
    #[inline(always)]
    fn as_f32(_: &[bf16]) -> Option<&[f32]> {
        None
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn narrow(x: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded })
    }
}

/// The first `count` elements at `from`, at most `N`; the other lanes are 0.
///
/// # Safety
/// `from` must be readable for that many.
#[inline(always)]
pub(super) unsafe fn load_some<L: Lanes, E: Element>(from: *const E, count: usize) -> L {
    // SAFETY: the caller's promise; the array holds the widest vector.
    unsafe {
        if count >= L::N {
            return E::load(from);
        }
        let mut lanes = [E::default(); PANEL];
        lanes.as_mut_ptr().copy_from_nonoverlapping(from, count);
        E::load(lanes.as_ptr())
    }
}

/// Writes the first `count` lanes, at most `N`.
///
/// # Safety
/// `to` must be writable for that many.
#[inline(always)]
pub(super) unsafe fn store_some<L: Lanes, E: Element>(to: *mut E, count: usize, lanes: L) {
    // SAFETY: the caller's promise; the array holds the widest vector.
    unsafe {
        if count >= L::N {
            return E::store(to, lanes);
        }
        let mut array = [E::default(); PANEL];
        E::store(array.as_mut_ptr(), lanes);
        to.copy_from_nonoverlapping(array.as_ptr(), count);
    }
}

/// A kernel, written once over [`Lanes`]. `run` must be `#[inline(always)]`, to be compiled for each instruction set.
pub(super) trait Kernel {
    fn run<L: Lanes>(self);
}

impl KernelSet {
    /// Runs `kernel` with this set's vectors.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn with_avx2<K: Kernel>(kernel: K) {
            kernel.run::<avx2::Avx2>();
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        fn with_avx512<K: Kernel>(kernel: K) {
            kernel.run::<avx512::Avx512>();
        }
        match self {
            // SAFETY: `resolve` hands out a set only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx2 => unsafe { with_avx2(kernel) },
            // SAFETY: as above; AMX needs AVX-512.
            #[cfg(target_arch = "x86_64")]
            KernelSet::Avx512 | KernelSet::Amx => unsafe { with_avx512(kernel) },
            _ => kernel.run::<portable::Portable>(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::DType;

    /// Every set of vectors that this machine runs.
    pub(in super::super) fn vector_sets() -> Vec<KernelSet> {
        [KernelSet::Portable, KernelSet::Avx2, KernelSet::Avx512]
            .into_iter()
            .filter(|set| set.available(DType::F32))
            .collect()
    }

    struct Exp2<'a>(&'a [f32], &'a mut [f32]);
    impl Kernel for Exp2<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            for (x, y) in self.0.chunks_exact(L::N).zip(self.1.chunks_exact_mut(L::N)) {
                // SAFETY: both chunks are N long.
                unsafe { L::load(x.as_ptr()).exp2().store(y.as_mut_ptr()) };
            }
        }
    }

    #[test]
    fn exp2_is_exact_to_1e_7() {
        let x: Vec<f32> = (0..PANEL * 20_000).map(|i| 3.0 - i as f32 * (129.0 / (PANEL * 20_000) as f32)).collect();
        for set in vector_sets() {
            let mut y = vec![0.0; x.len()];
            set.run(Exp2(&x, &mut y));
            for (x, y) in x.iter().zip(&y) {
                let exact = (*x as f64).exp2();
                assert!((*y as f64 / exact - 1.0).abs() < 1.2e-7, "{set:?}: 2^{x} = {exact}, got {y}");
            }
            let edges = [0.0, -126.6, -1e30, f32::NEG_INFINITY, f32::NAN, 1.0, -1.0, -126.0];
            let x: Vec<f32> = edges.into_iter().cycle().take(PANEL).collect();
            set.run(Exp2(&x, &mut y[..PANEL]));
            assert_eq!(y[..4], [1.0, 0.0, 0.0, 0.0], "{set:?}");
            assert!(y[4].is_nan());
            assert_eq!(y[5..8], [2.0, 0.5, f32::MIN_POSITIVE], "{set:?}");
        }
    }

    struct Round<'a>(&'a [f32], &'a mut [bf16]);
    impl Kernel for Round<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            for (x, y) in self.0.chunks_exact(L::N).zip(self.1.chunks_exact_mut(L::N)) {
                // SAFETY: both chunks are N long.
                unsafe {
                    L::load(x.as_ptr()).store_bf16(y.as_mut_ptr());
                    L::load_bf16(y.as_ptr()).store_bf16(y.as_mut_ptr());
                }
            }
        }
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        let x: Vec<f32> = (0..1u32 << 14).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b1))).collect();
        for set in vector_sets() {
            let mut y = vec![bf16::ZERO; x.len()];
            set.run(Round(&x, &mut y));
            for (x, y) in x.iter().zip(&y) {
                let expected = bf16::from_f32(*x);
                assert!(expected == *y || expected.is_nan() && y.is_nan(), "{set:?}: {x} became {y}");
            }
        }
    }
}
