//! Eight f32 in plain Rust, which the compiler turns into whatever vectors its target has.

use half::bf16;

use super::vector::{Element, Lanes};

#[derive(Clone, Copy)]
pub struct PortableLanes([f32; 8]);

impl PortableLanes {
    // A loop, not `from_fn` or `map`: those keep the compiler from using vectors.
    #[inline(always)]
    fn zip(mut self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        for i in 0..8 {
            self.0[i] = f(self.0[i], other.0[i]);
        }
        self
    }
}

impl Lanes for PortableLanes {
    const N: usize = 8;
    const ROWS: usize = 2;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, factor: Self, term: Self) -> Self {
        // Two roundings: a fused one is a library call where the target lacks the instruction.
        self.mul(factor).add(term)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn shift_to_exponent(self) -> Self {
        self.zip(self, |x, _| f32::from_bits(x.to_bits() << 23))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.cast::<[f32; 8]>().read() })
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        let narrow = unsafe { from.cast::<[bf16; 8]>().read() };
        let mut lanes = [0.0; 8];
        for (lane, x) in lanes.iter_mut().zip(narrow) {
            *lane = x.widen();
        }
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn load_codes(from: *const i8, part: usize) -> Self {
        // SAFETY: the caller's promise.
        let words = unsafe { from.cast::<[[u8; 4]; 8]>().read() };
        let mut lanes = [0.0; 8];
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (i32::from_le_bytes(word) << (24 - 8 * part) >> 24) as f32;
        }
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; 8]>().write(self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16) {
        let mut narrow = [bf16::ZERO; 8];
        for (to, x) in narrow.iter_mut().zip(self.0) {
            *to = bf16::narrow(x);
        }
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[bf16; 8]>().write(narrow) }
    }
}
