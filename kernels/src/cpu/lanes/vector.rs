//! A vector of f32 as a trait, and what is stored as f32 or bf16 and loaded into one. Knows no instruction set.

use half::bf16;

use crate::DType;

/// Columns of one panel of a packed operand. Every vector width divides it.
pub const PANEL: usize = 16;

/// `N` f32 in a vector register. Values exist only inside `KernelSet::run`, which has checked that the processor has the
/// instructions; that is why arithmetic is safe to call.
pub trait Lanes: Copy {
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
    /// Whether the processor multiplies codes in 8 bits as they are.
    fn multiplies_codes() -> bool {
        false
    }
    /// Sum over the lanes, in an order that depends on nothing but `N`.
    fn sum(self) -> f32;
    fn largest(self) -> f32;

    /// # Safety
    /// `from` must be readable for `N` elements.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load_bf16(from: *const bf16) -> Self;
    /// Of `N` words of four codes the code that `part` says of each.
    ///
    /// # Safety
    /// `from` must be readable for `4 N` codes.
    unsafe fn load_codes(from: *const i8, part: usize) -> Self;
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
pub fn fetch_ahead<E>(at: *const E) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it, and it never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// What kernels load into vectors: elements, or the codes of 8-bit keys and values.
pub trait Loaded: Copy + Default + Send + Sync + 'static {
    /// Whether what is loaded stands for numbers only together with a scale.
    const SCALED: bool;
    /// How many of a row of the right operand lie side by side in each column of a panel.
    const BESIDE: usize;

    /// Of what lies side by side the element that `part` says, in `L::N` columns.
    ///
    /// # Safety
    /// `from` must be readable for `L::N` columns.
    unsafe fn load_part<L: Lanes>(from: *const Self, part: usize) -> L;
}

impl Loaded for i8 {
    const SCALED: bool = true;
    const BESIDE: usize = 4;

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(from: *const i8, part: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_codes(from, part) }
    }
}

impl Loaded for f32 {
    const SCALED: bool = false;
    const BESIDE: usize = 1;

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(from: *const f32, _: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(from) }
    }
}

impl Loaded for bf16 {
    const SCALED: bool = false;
    const BESIDE: usize = 1;

    #[inline(always)]
    unsafe fn load_part<L: Lanes>(from: *const bf16, _: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(from) }
    }
}

/// What matrices are stored in: f32, or bf16 that kernels widen as they load.
pub trait Element: Loaded {
    /// The type, named.
    const DTYPE: DType;

    /// # Safety
    /// `from` must be readable for `L::N` elements.
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { Self::load_part(from, 0) }
    }
    /// # Safety
    /// `to` must be writable for `L::N` elements.
    unsafe fn store<L: Lanes>(to: *mut Self, lanes: L);
    /// The elements themselves, where they are f32.
    fn as_f32(elements: &[Self]) -> Option<&[f32]>;
    /// The elements themselves, where they are bf16.
    #[cfg(target_arch = "x86_64")]
    fn as_bf16(elements: &[Self]) -> Option<&[bf16]>;
    fn widen(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut f32, lanes: L) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store(to) }
    }
    #[inline(always)]
    fn as_f32(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn as_bf16(_: &[f32]) -> Option<&[bf16]> {
        None
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
    const DTYPE: DType = DType::Bf16;

    #[inline(always)]
    unsafe fn store<L: Lanes>(to: *mut bf16, lanes: L) {
        // SAFETY: the caller's promise.
        unsafe { lanes.store_bf16(to) }
    }
    #[inline(always)]
    fn as_f32(_: &[bf16]) -> Option<&[f32]> {
        None
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn as_bf16(elements: &[bf16]) -> Option<&[bf16]> {
        Some(elements)
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
pub unsafe fn load_some<L: Lanes, E: Element>(from: *const E, count: usize) -> L {
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
pub unsafe fn store_some<L: Lanes, E: Element>(to: *mut E, count: usize, lanes: L) {
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
pub trait Kernel {
    fn run<L: Lanes>(self);
}
