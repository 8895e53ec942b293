//! Products with weights in blocks: picoseconds a weight of one row and of several, each compared with the same weights widened
//! before it is timed.
//!
//! `cargo run --release -p asterism-kernels --example blocks [-- KERNELS [DTYPE [THREADS [FORMAT]]]]`

#[path = "../tests/common/blocks.rs"]
mod blocks;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use asterism_kernels::prelude::*;
use asterism_kernels::{BlockFormat, Cpu, CpuOptions, DType, HostTensor, KernelChoice, Stored};

const BUDGET: Duration = Duration::from_millis(400);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let kernels = args.next().map_or(Ok(KernelChoice::Auto), |name| name.parse())?;
    let dtype = if args.next().as_deref() == Some("f32") { DType::F32 } else { DType::Bf16 };
    let threads = Some(args.next().map_or(Ok(1), |threads| threads.parse()).context("THREADS must be a number")?);
    let only = args.next();
    let cpu = Cpu::new(CpuOptions { dtype, threads, kernels, ..CpuOptions::default() })?;
    println!("{}, {} threads: picoseconds a weight", cpu.numerics(), cpu.threads());
    for format in BlockFormat::ALL.into_iter().filter(|format| only.as_ref().is_none_or(|name| name == format.name())) {
        let times = [1, 4, 16, 64, 512].map(|rows| product(&cpu, format, rows, [1024, 1024], 1));
        let [one, four, sixteen, many, most] = times;
        let from_memory = product(&cpu, format, 1, [8192, 4864], 4)?;
        let name = format.name();
        println!(
            "{name:8} {:6.1} {:6.1} {:6.1} {:6.1} {:6.1} of 1, 4, 16, 64 and 512 rows; {from_memory:6.1} from memory",
            one?, four?, sixteen?, many?, most?
        );
    }
    Ok(())
}

/// Picoseconds of one pass over equal layers.
fn product(cpu: &Cpu, format: BlockFormat, rows: usize, shape: [usize; 2], layers: usize) -> Result<f64> {
    let [n, k] = shape;
    let bytes = blocks::drawn(format, n * k, 7);
    let wide = blocks::widened(format, &bytes);
    let of = |stored, bytes| cpu.linear_weight(&[HostTensor { stored, shape: &shape, bytes }], &[]);
    let weights = (0..layers).map(|_| of(Stored::Blocks(format), &bytes)).collect::<Result<Vec<_>, _>>()?;
    let x: Vec<f32> = (0..rows * k).map(|at| ((at * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
    let x = cpu.cast(&cpu.upload(&[rows, k], &x)?)?;
    let [got, expected] =
        [&weights[0], &of(DType::F32.into(), &wide)?].map(|weight| cpu.download(&cpu.linear(&x, weight)?));
    ensure!(got? == expected?, "{format}, {rows} rows");
    let (mut best, start) = (Duration::MAX, Instant::now());
    while start.elapsed() < BUDGET {
        let lap = Instant::now();
        weights.iter().try_for_each(|weight| cpu.linear(&x, weight).map(drop))?;
        best = best.min(lap.elapsed());
    }
    Ok(best.as_secs_f64() * 1e12 / (n * k * layers) as f64)
}
