//! Time of sparse prefill on this machine beside dense attention, with the share of its pairs. Stripes are checked against
//! dense attention with an infinite threshold before they are timed.
//!
//! `cargo run --release -p asterism-kernels --example sparse [-- TOKENS [DTYPE [THREADS]]]`

#[path = "../tests/common/numbers.rs"]
mod numbers;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, CpuOptions, DType, FlexRule, Heads, Mask, Selector, StripeRule, VerticalSlashRule};
use numbers::numbers;

const HEADS: Heads = Heads { query: 4, kv: 2, dim: 64 };

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let tokens: usize = args.next().map_or(Ok(8192), |tokens| tokens.parse()).context("TOKENS must be a number")?;
    let mut options = CpuOptions::default();
    if args.next().is_some_and(|dtype| dtype == "bf16") {
        options.dtype = DType::Bf16;
    }
    if let Some(threads) = args.next() {
        options.threads = Some(threads.parse().context("THREADS must be a number")?);
    }
    let cpu = Cpu::new(options)?;
    println!("{} kernels, {:?}, {} threads, {tokens} tokens", cpu.kernels(), cpu.dtype(), cpu.threads());
    let tensor = |heads: usize, values: &[f32]| cpu.cast(&cpu.upload(&[heads, tokens, HEADS.dim], values)?);
    // Queries that share a direction, so that pooled ones tell keys apart.
    let (mut q, shared) = (numbers(HEADS.query * tokens * HEADS.dim, 1), numbers(HEADS.dim, 4));
    q.iter_mut().zip(shared.iter().cycle()).for_each(|(q, shared)| *q = 3.0 * *q + 2.0 * shared);
    let [k, v] = [2, 3].map(|seed| numbers(HEADS.kv * tokens * HEADS.dim, seed));
    let (q, k, v) = (tensor(HEADS.query, &q)?, tensor(HEADS.kv, &k)?, tensor(HEADS.kv, &v)?);
    let kv = cpu.kv(&k, &v)?;
    let dense_pairs = (HEADS.query * tokens * (tokens + 1) / 2) as f64;
    let rule = |theta: f32| StripeRule { theta, step: 16, block_q: 128, block_kv: 128 };
    let all = cpu.attention_by(&q, &kv, Selector::Stripes(rule(f32::INFINITY)))?.0;
    let (dense, seconds) = timed(|| cpu.attention(&q, &kv, Mask::Causal))?;
    for (a, b) in cpu.download(&all.output)?.iter().zip(cpu.download(&dense.output)?) {
        ensure!((a - b).abs() <= 1e-2 * (1.0 + b.abs()), "stripes that select everything are not dense");
    }
    let report = |name: &str, pairs: f64, took: f64| {
        println!(
            "{name:<28} {:>6.1} % of pairs {:>8.1} ms {:>6.2} x dense",
            100.0 * pairs / dense_pairs,
            took * 1e3,
            took / seconds
        );
    };
    report("dense", dense_pairs, seconds);
    let anchor = (HEADS.query as u64 * rule(0.0).anchor_pairs(tokens)) as f64;
    for theta in [-1000.0, 2.5, 3.0, 3.5, f32::INFINITY] {
        let ((_, stripes), took) = timed(|| cpu.attention_by(&q, &kv, Selector::Stripes(rule(theta))))?;
        report(&format!("stripes, theta {theta}"), anchor + stripes.pairs() as f64, took);
    }
    let streaming = Mask::Streaming { sink: 128, window: tokens / 16, first_row: 0, first_key: 0 };
    let seen = (0..tokens).map(|row| (row + 1).min(128 + tokens / 16)).sum::<usize>();
    report("streaming", (HEADS.query * seen) as f64, timed(|| cpu.attention(&q, &kv, streaming))?.1);
    let slash = VerticalSlashRule { vertical: tokens / 64, slash: tokens / 16 };
    let flex = FlexRule { gamma: 0.2, tau: 0.1, min_budget: 512 };
    let ((_, slash), slash_took) = timed(|| cpu.attention_by(&q, &kv, Selector::VerticalSlash(slash)))?;
    let ((_, flex), flex_took) = timed(|| cpu.attention_by(&q, &kv, Selector::Flex(flex)))?;
    for (name, keys, took) in [("vertical-slash", slash, slash_took), ("FlexPrefill", flex, flex_took)] {
        let lists = keys.lists()?;
        let attending = timed(|| cpu.attention_selected(&q, &kv, &lists))?.1;
        report(&format!("{name}, estimate"), 0.0, took - attending);
        report(name, keys.pairs() as f64, attending);
    }
    Ok(())
}

/// The result and the least time of three runs, in seconds.
fn timed<T, E>(work: impl Fn() -> Result<T, E>) -> Result<(T, f64), E> {
    let mut least = f64::INFINITY;
    let mut result = None;
    for _ in 0..3 {
        let start = Instant::now();
        result = Some(work()?);
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok((result.expect("three runs"), least))
}
