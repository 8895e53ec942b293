//! Throughput of attention and linear layers on this machine, GFLOP/s. Each result is checked before it is timed: attention
//! against the reference, products against plain sums.
//!
//! `cargo run --release -p asterism-kernels --example throughput [-- KERNELS [DTYPE [THREADS]]]`

#[path = "../tests/common/numbers.rs"]
mod numbers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use asterism_kernels::prelude::*;
use asterism_kernels::reference::{self, AttentionShape};
use asterism_kernels::{Cpu, CpuOptions, DType, Heads, HostTensor, Mask};
use numbers::numbers;

const BUDGET: Duration = Duration::from_millis(600);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut options = CpuOptions::default();
    if let Some(name) = args.next() {
        options.kernels = name.parse()?;
    }
    if let Some(name) = args.next() {
        options.dtype = if name == "bf16" { DType::Bf16 } else { DType::F32 };
    }
    if let Some(threads) = args.next() {
        options.threads = Some(threads.parse().context("THREADS must be a number")?);
    }
    let cpu = Cpu::new(options)?;
    println!("{} kernels, {:?}, {} threads", cpu.kernels(), cpu.dtype(), cpu.threads());
    let heads = Heads { query: 4, kv: 2, dim: 64 };
    for (queries, keys, mask) in [
        (2048, 2048, Mask::Causal),
        (8192, 8192, Mask::Causal),
        (2048, 8192, Mask::None),
        (32, 8192, Mask::None),
        (96, 1024, Mask::None),
        (1, 8192, Mask::None),
        (1, 1024, Mask::None),
    ] {
        attention(&cpu, AttentionShape { heads, queries, keys, mask })?;
    }
    for keys in [1024, 3500, 8192] {
        from_memory(&cpu, heads, keys)?;
    }
    for (rows, k, n) in [
        (8192, 256, 512),
        (8192, 256, 256),
        (8192, 256, 1536),
        (8192, 768, 256),
        (192, 256, 512),
        (192, 768, 256),
        (2048, 576, 1536),
        (1, 256, 1536),
        (1, 256, 4096),
        (1, 2048, 8192),
        (4, 2048, 2048),
        (16, 2048, 2048),
        (64, 2048, 2048),
        (512, 2048, 2048),
        (16, 2048, 8192),
        (16, 8192, 2048),
    ] {
        linear(&cpu, rows, k, n)?;
    }
    Ok(())
}

fn attention(cpu: &Cpu, shape: AttentionShape) -> Result<()> {
    let Heads { query, kv, dim } = shape.heads;
    let k = rounded(cpu, numbers(kv * shape.keys * dim, 1));
    let v = rounded(cpu, numbers(kv * shape.keys * dim, 2));
    let q = rounded(cpu, numbers(query * shape.queries * dim, 3).into_iter().map(|x| 3.0 * x).collect());
    let tensor = |dims: &[usize], x: &[f32]| cpu.cast(&cpu.upload(dims, x)?);
    let dims = [kv, shape.keys, dim];
    let cache = cpu.kv(&tensor(&dims, &k)?, &tensor(&dims, &v)?)?;
    let queries = tensor(&[query, shape.queries, dim], &q)?;
    let output = cpu.download(&cpu.attention(&queries, &cache, shape.mask)?.output)?;
    // The reference is slow: one row of each head, the last, which sees every key.
    let last = |h: usize| (h * shape.queries + shape.queries - 1) * dim;
    let rows: Vec<f32> = (0..query).flat_map(|h| q[last(h)..last(h) + dim].to_vec()).collect();
    let (expected, _) = reference::attention(&rows, &k, &v, AttentionShape { queries: 1, mask: Mask::None, ..shape });
    for h in 0..query {
        close(cpu, &output[last(h)..][..dim], &expected[h * dim..][..dim])?;
    }
    let seconds = time(|| cpu.attention(&queries, &cache, shape.mask).map(drop))?;
    let name = format!("attention {:?} {} x {}", shape.mask, shape.queries, shape.keys);
    println!("{name:32} {:8.1} GFLOP/s {:9.3} ms", shape.flops() / seconds / 1e9, seconds * 1e3);
    Ok(())
}

/// One row after another over caches that do not fit any cache of the processor, as decoding does layer by layer.
fn from_memory(cpu: &Cpu, heads: Heads, keys: usize) -> Result<()> {
    let layers = 100_000 / keys;
    let tensor = |dims: &[usize], seed| cpu.cast(&cpu.upload(dims, &numbers(dims.iter().product(), seed))?);
    let dims = [heads.kv, keys, heads.dim];
    let kept = (0..layers as u64).map(|layer| cpu.kv(&tensor(&dims, layer)?, &tensor(&dims, layer + 99)?));
    let kept = kept.collect::<Result<Vec<_>, _>>()?;
    let q = tensor(&[heads.query, 1, heads.dim], 3)?;
    let pass = || kept.iter().try_for_each(|kv| cpu.attention(&q, kv, Mask::None).map(drop));
    let seconds = time(pass)? / layers as f64;
    let bytes: usize = kept.iter().map(|kv| cpu.kv_bytes(kv)).sum::<usize>() / layers;
    let name = format!("attention from memory 1 x {keys}");
    println!("{name:32} {:8.1} GB/s     {:9.3} ms", bytes as f64 / seconds / 1e9, seconds * 1e3);
    Ok(())
}

fn linear(cpu: &Cpu, rows: usize, k: usize, n: usize) -> Result<()> {
    let (x, w) = (rounded(cpu, numbers(rows * k, 4)), rounded(cpu, numbers(n * k, 5)));
    let bytes: Vec<u8> = w.iter().flat_map(|w| w.to_le_bytes()).collect();
    let weight = cpu.linear_weight(&[HostTensor { stored: DType::F32.into(), shape: &[n, k], bytes: &bytes }], &[])?;
    let x_tensor = cpu.cast(&cpu.upload(&[rows, k], &x)?)?;
    let y = cpu.download(&cpu.linear(&x_tensor, &weight)?)?;
    for i in [0, rows / 2, rows - 1] {
        let dot = |j: usize| x[i * k..][..k].iter().zip(&w[j * k..]).map(|(x, w)| x * w).sum();
        close(cpu, &y[i * n..][..n], &(0..n).map(dot).collect::<Vec<f32>>())?;
    }
    let seconds = time(|| cpu.linear(&x_tensor, &weight).map(drop))?;
    let name = format!("linear {rows} x {k} x {n}");
    println!("{name:32} {:8.1} GFLOP/s {:9.3} ms", (2 * rows * k * n) as f64 / seconds / 1e9, seconds * 1e3);
    Ok(())
}

/// The fastest of the runs that fit the budget: the machine may be shared.
fn time(mut work: impl FnMut() -> Result<(), asterism_kernels::KernelError>) -> Result<f64> {
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < BUDGET {
        let lap = Instant::now();
        work()?;
        best = best.min(lap.elapsed());
    }
    Ok(best.as_secs_f64())
}

fn close(cpu: &Cpu, got: &[f32], expected: &[f32]) -> Result<()> {
    let (absolute, relative) = if cpu.dtype() == DType::F32 { (1e-4, 1e-5) } else { (1e-2, 1e-2) };
    for (got, expected) in got.iter().zip(expected) {
        ensure!((got - expected).abs() <= absolute + relative * expected.abs(), "got {got}, expected {expected}");
    }
    Ok(())
}

fn rounded(cpu: &Cpu, values: Vec<f32>) -> Vec<f32> {
    match cpu.dtype() {
        DType::Bf16 => values.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect(),
        _ => values,
    }
}
