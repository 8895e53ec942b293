//! Vectors of f32 as one trait over the instruction sets, so that each kernel is written once. Holds no kernel.

mod aligned;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod portable;
mod quads;
mod tile;
mod vector;

pub(super) use aligned::Aligned;
#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(target_arch = "x86_64")]
pub(super) use codes::Avx512Codes;
pub(super) use codes::{Choice, CodeLanes};
#[cfg(target_arch = "x86_64")]
pub(super) use pairs::Pairs;
pub(super) use portable::PortableLanes;
#[cfg(target_arch = "x86_64")]
pub(super) use quads::VnniQuads;
pub(super) use quads::{QUAD_BYTES, QuadLanes};
pub(super) use tile::{Extent, LeftOperand, RightOperand, Sums, product};
pub(super) use vector::{Element, Kernel, Lanes, Loaded, PANEL, fetch_ahead, load_some, store_some};

#[cfg(test)]
pub(super) mod tests {
    use half::bf16;

    use super::*;
    use crate::DType;
    use crate::cpu::choice::KernelSet;

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
