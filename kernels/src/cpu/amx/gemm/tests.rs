//! Tile products against double precision, on every engine this machine runs.

use half::bf16;

use super::super::engine::Engine;
use super::super::portable::PortableEngine;
use super::super::samples::{alone, numbers, relative, threads};
use super::{AmxWeights, GemmOutput, Parallel, gemm, gemm_with, operands};

/// `(m, k, n)`: ragged in each, one pass and several over the inner dimension, and deep enough for the other loop.
const GEMM_SHAPES: [(usize, usize, usize); 11] = [
    (1, 16, 16),
    (2, 2100, 70),
    (3, 32, 40),
    (4, 300, 530),
    (33, 48, 70),
    (100, 100, 64),
    (64, 256, 96),
    (130, 300, 33),
    (70, 768, 260),
    (200, 2080, 65),
    (17, 2100, 530),
];

struct Case {
    x: Vec<bf16>,
    residual: Vec<bf16>,
    weights: AmxWeights,
    /// `x W^T + b`.
    exact: Vec<f64>,
    n: usize,
}

fn case((m, k, n): (usize, usize, usize), bias: bool) -> Case {
    let (x, w, residual) = (numbers(1, m * k), numbers(2, n * k), numbers(3, m * n));
    let b: Vec<f32> = numbers(4, n).iter().map(|b| if bias { b.to_f32() * 3.0 } else { 0.0 }).collect();
    let exact = (0..m * n)
        .map(|at| {
            let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
            x.iter().zip(w).map(|(x, w)| x.to_f64() * w.to_f64()).sum::<f64>() + f64::from(b[at % n])
        })
        .collect();
    let weights = AmxWeights::pack(&w, n, k, &threads);
    let weights = if bias { weights.with_bias(&b) } else { weights };
    Case { x, residual, weights, exact, n }
}

/// Elements before and after a result, which must keep their poison.
const MARGIN: usize = 40;

/// `x W^T + b` in f32.
fn single<E: Engine>(case: &Case, parallel: Parallel<'_>) -> Vec<f32> {
    let range = MARGIN..MARGIN + case.exact.len();
    let mut memory = vec![f32::NAN; range.end + MARGIN];
    let (x, sink) = operands(&case.x, &case.weights, GemmOutput::F32(&mut memory[range.clone()]));
    // SAFETY: the callers name an engine that suits the machine; the operands fit one another.
    unsafe { gemm_with::<E>(x, &case.weights, sink, parallel) };
    assert!(memory[..range.start].iter().chain(&memory[range.end..]).all(|outside| outside.is_nan()));
    memory[range].to_vec()
}

/// `x W^T + b` in bf16, and with the residual, once apart and once in place.
fn rounded<E: Engine>(case: &Case) -> [Vec<f32>; 3] {
    let range = MARGIN..MARGIN + case.exact.len();
    [0, 1, 2].map(|variant| {
        let mut memory = vec![bf16::NAN; range.end + MARGIN];
        let y = &mut memory[range.clone()];
        let output = match variant {
            0 => GemmOutput::Bf16(y),
            1 => GemmOutput::SumBf16(y, &case.residual),
            _ => {
                y.copy_from_slice(&case.residual);
                GemmOutput::AddBf16(y)
            }
        };
        let (x, sink) = operands(&case.x, &case.weights, output);
        // SAFETY: as above.
        unsafe { gemm_with::<E>(x, &case.weights, sink, &threads) };
        assert!(memory[..range.start].iter().chain(&memory[range.end..]).all(|outside| outside.is_nan()));
        memory[range.clone()].iter().map(|value| value.to_f32()).collect()
    })
}

fn agrees<E: Engine>() {
    for shape in GEMM_SHAPES {
        for bias in [false, true] {
            let case = case(shape, bias);
            let error = relative(&single::<E>(&case, &threads), &case.exact);
            assert!(error < 2e-6, "{shape:?} in f32: {error}");
            let [plain, apart, in_place] = rounded::<E>(&case);
            let error = relative(&plain, &case.exact);
            assert!(error < 2.5e-3, "{shape:?} in bf16: {error}");
            let sum: Vec<f64> = case.exact.iter().zip(&case.residual).map(|(y, r)| y + r.to_f64()).collect();
            let error = relative(&apart, &sum);
            assert!(error < 2.5e-3, "{shape:?} with residual: {error}");
            assert_eq!(in_place, apart, "{shape:?}: in place and apart differ");
        }
    }
}

fn rows_stand_alone<E: Engine>() {
    for shape in GEMM_SHAPES {
        let whole = case(shape, true);
        let y = single::<E>(&whole, &alone);
        assert_eq!(y, single::<E>(&whole, &threads), "{shape:?} depends on threads");
        let (row, n) = (shape.0 / 2, whole.n);
        let x = whole.x[row * shape.1..][..shape.1].to_vec();
        let one = Case { x, exact: whole.exact[row * n..][..n].to_vec(), ..whole };
        assert_eq!(single::<E>(&one, &alone), y[row * n..][..n], "{shape:?}: row {row} depends on the others");
    }
}

#[test]
fn scalar_engine_agrees_with_f64() {
    agrees::<PortableEngine>();
}

#[test]
fn rows_stand_alone_on_the_scalar_engine() {
    rows_stand_alone::<PortableEngine>();
}

#[test]
fn nothing_in_gives_nothing_out() {
    let weights = AmxWeights::pack(&numbers(1, 64), 2, 32, &alone);
    gemm(&[], &weights, GemmOutput::F32(&mut []), &alone);
    assert_eq!((weights.outputs(), weights.inputs(), weights.bytes()), (2, 32, 2048));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod on_the_tile_unit {
    use super::super::super::native::Amx;
    use super::super::super::samples::without_unit;
    use super::*;

    #[test]
    fn tile_unit_agrees_with_f64() {
        if without_unit() {
            return;
        }
        agrees::<Amx>();
        rows_stand_alone::<Amx>();
    }

    /// Numbers about the smallest normal one, where the unit gives zero instead of a smaller one.
    #[test]
    fn a_row_has_the_same_bits_among_few_and_many_however_small() {
        if without_unit() {
            return;
        }
        let (k, n) = (96, 64);
        for scale in [1e-19, 3e-20, 1e-38, 1e-39] {
            let small = |seed, count| -> Vec<bf16> {
                numbers(seed, count).iter().map(|value| bf16::from_f32(value.to_f32() * scale)).collect()
            };
            let of = |x: Vec<bf16>| {
                let exact = vec![0.0; x.len() / k * n];
                Case { x, residual: Vec::new(), weights: AmxWeights::pack(&small(2, n * k), n, k, &alone), exact, n }
            };
            let x = small(1, 40 * k);
            let many = single::<Amx>(&of(x.clone()), &alone);
            for rows in 1..=<Amx as Engine>::FEW {
                let few = single::<Amx>(&of(x[..rows * k].to_vec()), &alone);
                assert_eq!(few, many[..rows * n], "{rows} rows of {scale:e}");
            }
        }
    }

    #[test]
    fn tile_unit_sums_in_the_documented_order() {
        if without_unit() {
            return;
        }
        for shape in GEMM_SHAPES {
            let case = case(shape, false);
            assert_eq!(single::<Amx>(&case, &threads), single::<PortableEngine>(&case, &threads), "{shape:?}");
        }
    }
}
