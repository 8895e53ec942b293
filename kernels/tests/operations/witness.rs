//! What an independent library computes of the same numbers: candle's tensors, on the processor, in f32. It shares no line with the
//! kernels nor with the slow versions beside them, so that an error of thought in both is found.

use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, DType, HostTensor, Mask};
use candle_core::{D, Device, Result, Tensor};

use super::common::{backends, numbers};

const ROWS: usize = 33;
const WIDTH: usize = 64;

fn cpu() -> impl Iterator<Item = &'static Cpu> {
    backends().iter().filter(|cpu| cpu.dtype() == DType::F32)
}

fn candle(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

fn check(got: &[f32], expected: &Tensor) {
    let expected: Vec<f32> = expected.flatten_all().and_then(|all| all.to_vec1()).unwrap();
    assert_eq!(got.len(), expected.len());
    let close = |(got, expected): (&f32, &f32)| (got - expected).abs() <= 1e-4 + 1e-4 * expected.abs();
    assert!(got.iter().zip(&expected).all(close));
}

fn softmax(scores: &Tensor) -> Result<Tensor> {
    let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
    weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)
}

#[test]
fn norm_product_and_activation_are_candles() {
    let (x, norm, weight) = (numbers(ROWS * WIDTH, 1), numbers(WIDTH, 2), numbers(2 * WIDTH * WIDTH, 3));
    let expected = || {
        let rows = candle(&[ROWS, WIDTH], &x);
        let root = ((rows.sqr()?.mean_keepdim(1)? + 1e-5)?).sqrt()?;
        let normed = rows.broadcast_div(&root)?.broadcast_mul(&candle(&[WIDTH], &norm))?;
        let both = normed.matmul(&candle(&[2 * WIDTH, WIDTH], &weight).t()?)?;
        both.narrow(1, 0, WIDTH)?.silu()? * both.narrow(1, WIDTH, WIDTH)?
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (norm_bytes, weight_bytes) = (bytes(&norm), bytes(&weight));
    let host = |shape, bytes| HostTensor { stored: DType::F32.into(), shape, bytes };
    for cpu in cpu() {
        let norm = cpu.weight(host(&[WIDTH], &norm_bytes)).unwrap();
        let linear = cpu.linear_weight(&[host(&[2 * WIDTH, WIDTH], &weight_bytes)], &[]).unwrap();
        let rows = cpu.upload(&[ROWS, WIDTH], &x).unwrap();
        let gated = cpu.gated_silu(&cpu.norm_linear(&rows, (&norm, 1e-5), &linear).unwrap()).unwrap();
        check(&cpu.download(&gated).unwrap(), &expected().unwrap());
    }
}

#[test]
fn causal_attention_is_candles() {
    let (query, kv, dim) = (4, 2, 16);
    let [q, k, v] = [(query, 4), (kv, 5), (kv, 6)].map(|(heads, seed)| numbers(heads * ROWS * dim, seed));
    let hidden: Vec<f32> =
        (0..ROWS * ROWS).map(|at| if at % ROWS > at / ROWS { f32::NEG_INFINITY } else { 0.0 }).collect();
    let expected = || {
        // Query heads share their key and value heads two by two.
        let shared = |values: &[f32]| {
            let heads = candle(&[kv, 1, ROWS, dim], values);
            heads.broadcast_as((kv, query / kv, ROWS, dim))?.reshape((query, ROWS, dim))
        };
        let scores = (candle(&[query, ROWS, dim], &q).matmul(&shared(&k)?.t()?)? / (dim as f64).sqrt())?;
        softmax(&scores.broadcast_add(&candle(&[ROWS, ROWS], &hidden))?)?.matmul(&shared(&v)?)
    };
    for cpu in cpu() {
        let up = |heads: usize, values: &[f32]| cpu.upload(&[heads, ROWS, dim], values).unwrap();
        let cache = cpu.kv(&up(kv, &k), &up(kv, &v)).unwrap();
        let partial = cpu.attention(&up(query, &q), &cache, Mask::Causal).unwrap();
        check(&cpu.download(&partial.output).unwrap(), &expected().unwrap());
    }
}
