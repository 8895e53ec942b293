//! Figures of the GPU's operations, each checked before it is timed: products, attention, few rows on many keys, whole layers.
//!
//!     cargo run --release -p asterism-kernels --features cuda --example cuda -- <out.jsonl> [part ...]

mod attention;
mod prefill;
mod products;

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use asterism_kernels::cuda::{Device, Tensor};
use asterism_kernels::{Cuda, CudaOptions, DType};

/// A GPU and where its figures go.
struct Bench {
    gpu: Cuda,
    out: File,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().context(
        "usage: cuda <out.jsonl> [copy|products|blocks|eight|half|attention|rows|codes|joined|layers-32|layers-128 ...]",
    )?;
    let mut parts: Vec<String> = arguments.collect();
    if parts.is_empty() {
        let all = ["copy", "products", "blocks", "eight", "half", "rows", "codes", "joined", "attention"];
        parts = all.into_iter().chain(["layers-32", "layers-128"]).map(String::from).collect();
    }
    let gpu = Cuda::new(CudaOptions::plain(0, DType::Bf16))?;
    println!(
        "{}, cublasLt {}, cuDNN {}",
        gpu.device().name()?,
        gpu.products().has_library(),
        gpu.attender().has_library()
    );
    let bench = Bench { gpu, out: File::create(&out).with_context(|| format!("cannot write {out}"))? };
    for part in parts {
        let done = match part.as_str() {
            "copy" => bench.copy(),
            "products" => products::run(&bench),
            "blocks" => products::blocks(&bench),
            "eight" => products::eight(&bench),
            "half" => products::half(&bench),
            "attention" => attention::prefill(&bench),
            "rows" => attention::few_rows(&bench),
            "codes" => attention::codes(&bench),
            "joined" => attention::joined(&bench),
            layers => match layers.strip_prefix("layers-").and_then(prefill::Size::parse) {
                Some(size) => prefill::run(&bench, size),
                None => anyhow::bail!("part {layers} is not known"),
            },
        };
        // One part's failure leaves the others' figures.
        if let Err(error) = done {
            bench.say(&part, "failed", 0.0, &format!("{error:#}"))?;
        }
    }
    Ok(())
}

impl Bench {
    fn device(&self) -> &Device {
        self.gpu.device()
    }

    fn random(&self, shape: &[usize], seed: u32, scale: f32) -> Result<Tensor> {
        Ok(self.device().random(shape, DType::Bf16, seed, scale)?)
    }

    /// Median seconds of one of `reps` runs of `work` in a row, over five such rows after a warm-up.
    fn time(&self, reps: usize, work: impl Fn(usize) -> Result<()>) -> Result<f64> {
        (0..reps.min(3)).try_for_each(&work)?;
        let mut times = Vec::new();
        for _ in 0..5 {
            self.device().synchronize()?;
            let start = Instant::now();
            (0..reps).try_for_each(&work)?;
            self.device().synchronize()?;
            times.push(start.elapsed().as_secs_f64() / reps as f64);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[2])
    }

    fn say(&self, name: &str, case: &str, seconds: f64, figure: &str) -> Result<()> {
        println!("{name:10} {case:44} {:10.3} ms  {figure}", seconds * 1e3);
        let quoted = figure.replace('"', "'").replace('\n', " ");
        writeln!(
            &self.out,
            "{{\"name\":\"{name}\",\"case\":\"{case}\",\"ms\":{:.5},\"figure\":\"{quoted}\"}}",
            seconds * 1e3
        )?;
        Ok(())
    }

    /// What memory allows: bytes read and written.
    fn copy(&self) -> Result<()> {
        let x = self.random(&[1 << 20, 2048], 1, 1.0)?;
        let seconds = self.time(5, |_| {
            self.device().narrow(&x, 0, 0, 1 << 20)?;
            Ok(())
        })?;
        self.say("copy", "4 GiB", seconds, &format!("{:.2} TB/s", 2.0 * (1u64 << 32) as f64 / seconds / 1e12))
    }

    /// Refuses results that are further apart than bf16's rounding.
    fn agree(&self, got: &Tensor, expected: &Tensor) -> Result<()> {
        let (got, expected) = (self.device().download(got)?, self.device().download(expected)?);
        let apart: f64 = got.iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let size: f64 = expected.iter().map(|x| f64::from(*x).powi(2)).sum();
        let distance = (apart / size).sqrt();
        ensure!(distance < 1e-2, "results are {distance:.1e} apart");
        Ok(())
    }
}
