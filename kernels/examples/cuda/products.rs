//! Linear layers of an 8B model by rows.

use anyhow::{Result, ensure};
use asterism_kernels::cuda::{CudaLinear, Tensor};
use asterism_kernels::prelude::*;
use asterism_kernels::{BlockFormat, HostTensor, Stored};

use crate::Bench;

/// Weights that take turns, so that none is found in the cache.
const COPIES: usize = 4;

pub fn run(bench: &Bench) -> Result<()> {
    for (name, n, k) in [("qkv", 6144, 4096), ("o", 4096, 4096), ("gate-up", 28672, 4096), ("down", 4096, 14336)] {
        let weight = |seed: usize| Ok(CudaLinear::of(bench.random(&[n, k], seed as u32, 0.02)?, None)?);
        let weights = (0..COPIES).map(weight).collect::<Result<Vec<_>>>()?;
        let all = bench.random(&[32768, k], 9, 1.0)?;
        check(bench, &weights[0], n, k)?;
        for rows in [1, 4, 16, 64, 128, 512, 1024, 2048, 4096, 8192, 32768] {
            let x = all.rows(0, rows)?;
            let reps = (1 << 17) / rows.max(2048);
            let work = |turn: usize| {
                bench.gpu.products().linear(bench.device(), &x, &weights[turn % COPIES], None).map(drop)?;
                Ok(())
            };
            let seconds = bench.time(reps, work)?;
            let (flops, bytes) = (2.0 * (rows * n * k) as f64, 2.0 * (n * k + rows * (n + k)) as f64);
            let figure = format!("{:.0} TFLOP/s, {:.2} TB/s", flops / seconds / 1e12, bytes / seconds / 1e12);
            bench.say("products", &format!("{name} {k} -> {n}, {rows} rows"), seconds, &figure)?;
        }
    }
    say_choices(bench)
}

/// Outputs and inputs of an 8B model, and of what one of two GPUs has of 70B.
const SHAPES: [(&str, usize, usize); 8] = [
    ("8B qkv", 6144, 4096),
    ("8B o", 4096, 4096),
    ("8B gate-up", 28672, 4096),
    ("8B down", 4096, 14336),
    ("half of 70B qkv", 5120, 8192),
    ("half of 70B o", 4096, 8192),
    ("half of 70B gate-up", 28672, 8192),
    ("half of 70B down", 4096, 28672),
];
/// Others: of all of 70B, and of columns of it.
const OTHERS: [(&str, usize, usize); 4] = [
    ("half of 70B o by inputs", 8192, 4096),
    ("half of 70B down by inputs", 8192, 14336),
    ("70B o", 8192, 8192),
    ("8B head", 128_256, 4096),
];

/// Seconds of a product by weights that take turns, with something added or not.
fn seconds(bench: &Bench, x: &Tensor, weights: &[CudaLinear], added: Option<&Tensor>) -> Result<f64> {
    bench.time(200, |turn| {
        let weight = &weights[turn % weights.len()];
        bench.gpu.products().linear(bench.device(), x, weight, added.cloned()).map(drop)?;
        Ok(())
    })
}

/// As many weights as no cache holds, of so many bytes each.
fn copies(bytes: usize) -> usize {
    (200 << 20) / bytes + 1
}

fn say_choices(bench: &Bench) -> Result<()> {
    for choice in bench.gpu.products().choices() {
        bench.say("algorithm", &format!("{choice:?}").replace('"', ""), 0.0, "")?;
    }
    Ok(())
}

/// Products of few rows by weights in 8-bit floats, beside those in bf16.
pub fn eight(bench: &Bench) -> Result<()> {
    for (name, n, k) in SHAPES {
        let weight = |seed: usize| Ok(CudaLinear::of(bench.random(&[n, k], seed as u32, 0.02)?, None)?);
        let plain = (0..copies(2 * n * k)).map(weight).collect::<Result<Vec<_>>>()?;
        let in_eight = |seed| Ok(weight(seed)?.in_eight_bits(bench.device())?);
        let eight = (0..copies(n * k)).map(in_eight).collect::<Result<Vec<_>>>()?;
        let (all, residual) = (bench.random(&[64, k], 9, 1.0)?, bench.random(&[64, n], 9, 1.0)?);
        for rows in [1, 8, 16, 32, 64] {
            let (x, residual) = (all.rows(0, rows)?, residual.rows(0, rows)?);
            let timed = |weights: &[CudaLinear], added| seconds(bench, &x, weights, added);
            let (beside, seconds, added) =
                (timed(&plain, None)?, timed(&eight, None)?, timed(&eight, Some(&residual))?);
            let rate = (n * k) as f64 / seconds / 1e12;
            let figure = format!(
                "{rate:.2} TB/s, {:.2} of bf16's {:.1} us; added {:.1}",
                seconds / beside,
                1e6 * beside,
                1e6 * added
            );
            bench.say("eight", &format!("{name} {k} -> {n}, {rows} rows"), seconds, &figure)?;
        }
    }
    say_choices(bench)
}

/// Products of few rows by weights in bf16, and who multiplies.
pub fn half(bench: &Bench) -> Result<()> {
    for (name, n, k) in SHAPES.into_iter().chain(OTHERS) {
        let weight = |seed: usize| Ok(CudaLinear::of(bench.random(&[n, k], seed as u32, 0.02)?, None)?);
        let weights = (0..copies(2 * n * k)).map(weight).collect::<Result<Vec<_>>>()?;
        check(bench, &weights[0], n, k)?;
        let (all, residuals) = (bench.random(&[65, k], 9, 1.0)?, bench.random(&[65, n], 9, 1.0)?);
        for rows in [1, 16, 17, 32, 33, 64, 65] {
            let (x, residual) = (all.rows(0, rows)?, residuals.rows(0, rows)?);
            let added = seconds(bench, &x, &weights, Some(&residual))?;
            let seconds = seconds(bench, &x, &weights, None)?;
            let choices = bench.gpu.products().choices();
            let of_shape = choices.iter().filter(|choice| (choice.n, choice.k) == (n, k) && rows <= choice.rows);
            let class = of_shape.clone().map(|choice| choice.rows).min();
            let chosen = of_shape.filter(|choice| Some(choice.rows) == class);
            let who: Vec<&str> = chosen.map(|choice| if choice.taken.is_some() { "library" } else { "own" }).collect();
            let figure = format!(
                "{:.1} us, {:.2} TB/s; added {:.1} us; {}",
                1e6 * seconds,
                2.0 * (n * k) as f64 / seconds / 1e12,
                1e6 * added,
                who.join(", ")
            );
            bench.say("half", &format!("{name} {k} -> {n}, {rows} rows"), seconds, &figure)?;
        }
    }
    Ok(())
}

/// Products of few rows by weights in blocks, beside those in bf16.
pub fn blocks(bench: &Bench) -> Result<()> {
    for (name, n, k) in [("qkv", 6144, 4096), ("o", 4096, 4096), ("gate-up", 28672, 4096), ("down", 4096, 14336)] {
        let copies = copies(n * k / 2);
        let weight = |seed: usize| Ok(CudaLinear::of(bench.random(&[n, k], seed as u32, 0.02)?, None)?);
        let plain = (0..copies.min(COPIES)).map(weight).collect::<Result<Vec<_>>>()?;
        let all = bench.random(&[64, k], 9, 1.0)?;
        let timed = |rows: usize, weights: &[CudaLinear]| {
            let x = all.rows(0, rows)?;
            bench.time(200, |turn| {
                bench.gpu.linear(&x, &weights[turn % weights.len()]).map(drop)?;
                Ok(())
            })
        };
        let rows = [1, 8, 16, 32, 64];
        let beside = rows.map(|rows| timed(rows, &plain)).into_iter().collect::<Result<Vec<_>>>()?;
        for format in [BlockFormat::Q4K, BlockFormat::Int4, BlockFormat::Q6K, BlockFormat::Q8_0] {
            let mut state = 1u64;
            let mut bytes: Vec<u8> = (0..n * k / format.elements() * format.bytes())
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            format.set_factors(&mut bytes, 3e-5);
            let host = HostTensor { stored: Stored::Blocks(format), shape: &[n, k], bytes: &bytes };
            let weights =
                (0..copies).map(|_| Ok(bench.gpu.linear_weight(&[host], &[])?)).collect::<Result<Vec<_>>>()?;
            for (rows, plain) in rows.into_iter().zip(&beside) {
                let seconds = timed(rows, &weights)?;
                let rate = bytes.len() as f64 / seconds / 1e12;
                let figure = format!("{rate:.2} TB/s, {:.2} of bf16's {:.1} us", seconds / plain, 1e6 * plain);
                bench.say("blocks", &format!("{format} {name} {k} -> {n}, {rows} rows"), seconds, &figure)?;
            }
        }
    }
    Ok(())
}

/// A few outputs against double precision.
fn check(bench: &Bench, weight: &CudaLinear, n: usize, k: usize) -> Result<()> {
    let (x, w) = (bench.random(&[64, k], 9, 1.0)?, bench.random(&[n, k], 0, 0.02)?);
    let y = bench.device().download(&bench.gpu.products().linear(bench.device(), &x, weight, None)?)?;
    let (x, w) = (bench.device().download(&x)?, bench.device().download(&w)?);
    for at in (0..64 * n).step_by(64 * n / 97) {
        let (x, w) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
        let expected: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        ensure!(
            (f64::from(y[at]) - expected).abs() < 1e-2 * expected.abs() + 2e-2,
            "output {at}: {} {expected}",
            y[at]
        );
    }
    Ok(())
}
