//! Times what phase 2 spends on keys: rows of one job over keys and values that lie in memory, kept as f32, as bf16 and in 8 bits, in
//! turn within one run. Results are compared before anything is timed. One thread is timed by its own CPU time, since machines are
//! shared; several by the clock.
//!
//! `cargo run --release --workspace --example kept -- [THREADS]`

#[path = "../tests/common/numbers.rs"]
mod numbers;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use asterism_kernels::cpu::CpuKv;
use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, CpuOptions, DType, Heads, KvFormat, Mask};
use numbers::numbers;

/// Bytes of keys that no cache of the processor holds, in bf16.
const FROM_MEMORY: usize = 128 << 20;
/// Passes of each kind, in turn.
const PASSES: usize = 7;

/// A kind of cache, and layers of it.
struct Kind {
    name: &'static str,
    cpu: Cpu,
    layers: Vec<CpuKv>,
    seconds: Vec<f64>,
}

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).map(|threads| threads.parse().context("THREADS must be a number"));
    let threads = threads.transpose()?.unwrap_or(1);
    for (name, heads) in [
        ("8B", Heads { query: 32, kv: 8, dim: 128 }),
        ("0.5B", Heads { query: 14, kv: 2, dim: 64 }),
        ("one query head a KV head", Heads { query: 8, kv: 8, dim: 128 }),
    ] {
        for keys in [32 << 10, 128 << 10] {
            for rows in [1, 4] {
                measure(name, heads, (keys, rows, threads))?;
            }
        }
    }
    Ok(())
}

fn measure(name: &str, heads: Heads, (keys, rows, threads): (usize, usize, usize)) -> Result<()> {
    let kind = |name, dtype, kept| -> Result<Kind> {
        let cpu = Cpu::new(CpuOptions { dtype, kept, threads: Some(threads), ..CpuOptions::default() })?;
        Ok(Kind { name, cpu, layers: Vec::new(), seconds: Vec::new() })
    };
    let mut kinds = [
        kind("f32", DType::F32, KvFormat::Computed)?,
        kind("bf16", DType::Bf16, KvFormat::Computed)?,
        kind("q8", DType::Bf16, KvFormat::Q8)?,
    ];
    let count = (FROM_MEMORY / (4 * heads.kv * keys * heads.dim)).max(1);
    let dims = [heads.kv, keys, heads.dim];
    for layer in 0..count as u64 {
        let [k, v] = [2 * layer, 2 * layer + 1].map(|seed| numbers(dims.iter().product(), seed));
        for Kind { cpu, layers, .. } in &mut kinds {
            let [k, v] = [&k, &v].map(|x| cpu.cast(&cpu.upload(&dims, x)?));
            layers.push(cpu.kv_kept(&k?, &v?)?);
        }
    }
    let q: Vec<f32> = numbers(heads.query * rows * heads.dim, 7).into_iter().map(|x| 3.0 * x).collect();
    let outputs = kinds.each_ref().map(|kind| kind.pass(heads, rows, &q).map(|(output, _)| output));
    let [exact, rounded, kept] = outputs;
    let exact = exact?;
    for (what, other) in [("bf16", rounded?), ("q8", kept?)] {
        let worst = exact.iter().zip(&other).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        ensure!(worst < 1e-2, "{what} differs from f32 by {worst}");
    }
    for _ in 0..PASSES {
        for kind in &mut kinds {
            let (_, seconds) = kind.pass(heads, rows, &q)?;
            kind.seconds.push(seconds);
        }
    }
    let [_, bf16, _] = kinds.each_ref().map(Kind::least);
    for kind in &kinds {
        let bytes: usize = kind.layers.iter().map(|kv| kind.cpu.kv_bytes(kv)).sum::<usize>() / count;
        println!(
            "{name:24} {:3}k keys, {rows} rows, {:4} {:7.3} ms a layer, {:5.1} GB/s, {:5.3} of bf16, {:5.1} MiB ({} kernels, {} threads)",
            keys >> 10,
            kind.name,
            kind.least() * 1e3,
            bytes as f64 / kind.least() / 1e9,
            kind.least() / bf16,
            bytes as f64 / f64::from(1 << 20),
            kind.cpu.kernels(),
            kind.cpu.threads(),
        );
    }
    Ok(())
}

impl Kind {
    /// Outputs of the last layer, and seconds a layer.
    fn pass(&self, heads: Heads, rows: usize, q: &[f32]) -> Result<(Vec<f32>, f64)> {
        let q = self.cpu.cast(&self.cpu.upload(&[heads.query, rows, heads.dim], q)?)?;
        let (clock, mut last) = (Clock::start(self.cpu.threads()), None);
        for kv in &self.layers {
            last = Some(self.cpu.attention(&q, kv, Mask::None)?);
        }
        let seconds = clock.seconds()? / self.layers.len() as f64;
        let last = last.context("there is a layer")?;
        Ok((self.cpu.download(&last.output)?, seconds))
    }

    /// The fastest pass: the machine is shared.
    fn least(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// The time of one thread, or of all.
enum Clock {
    /// Nanoseconds that the thread had run.
    Thread(u64),
    Wall(Instant),
}

impl Clock {
    fn start(threads: usize) -> Self {
        match thread_nanoseconds() {
            Some(ran) if threads == 1 => Self::Thread(ran),
            _ => Self::Wall(Instant::now()),
        }
    }

    fn seconds(&self) -> Result<f64> {
        match self {
            Self::Wall(start) => Ok(start.elapsed().as_secs_f64()),
            Self::Thread(start) => {
                let now = thread_nanoseconds().context("the thread's time could be read before")?;
                Ok((now - start) as f64 / 1e9)
            }
        }
    }
}

/// What Linux says of the calling thread, which it counts up to the last time that it looked: so it is made to look.
fn thread_nanoseconds() -> Option<u64> {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok()
}
