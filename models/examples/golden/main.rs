//! Runs golden cases through the encoder and generator that hosts use, and writes a result file for check.py.
//!
//!     cargo run --release -p asterism-models --example golden -- <inputs.json> <out.json> [--models DIR] [--device cuda]

mod case;
#[path = "../../../tests/golden/cases.rs"]
mod cases;
mod kernel;
mod model;
#[path = "../../../tests/golden/view.rs"]
mod view;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use asterism_kernels::{Backend, Cpu, CpuOptions};
use serde_json::{Value, json};

use case::{Case, CaseFile};
use model::Models;

/// Where cases find their tensors and checkpoints, and the device they run on.
struct Bench<B: Backend> {
    inputs: PathBuf,
    models: Models<B>,
    backend: Arc<B>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    match arguments.device.as_deref() {
        None => run(arguments, Cpu::new(CpuOptions::default())?),
        #[cfg(feature = "cuda")]
        Some("cuda") => {
            let options = asterism_kernels::CudaOptions::plain(0, asterism_kernels::DType::F32);
            run(arguments, asterism_kernels::Cuda::new(options)?)
        }
        Some(device) => bail!("device {device} is not known here; a build with the feature cuda knows \"cuda\""),
    }
}

fn run<B: Backend>(arguments: Arguments, backend: B) -> Result<()> {
    let text = std::fs::read_to_string(&arguments.inputs)
        .with_context(|| format!("cannot read {}", arguments.inputs.display()))?;
    let file: CaseFile = serde_json::from_str(&text).context("the input is not a case file")?;
    let backend = Arc::new(backend);
    let mut bench = Bench {
        inputs: arguments.inputs.parent().unwrap_or(Path::new("")).to_owned(),
        models: Models::new(arguments.models, Arc::clone(&backend)),
        backend,
    };
    let mut results = Vec::new();
    for case in &file.cases {
        results.push(bench.solve(case).with_context(|| case.id.clone())?);
    }
    eprintln!("{} cases run", results.len());
    std::fs::write(&arguments.output, json!({ "results": results }).to_string())
        .with_context(|| format!("cannot write {}", arguments.output.display()))
}

impl<B: Backend> Bench<B> {
    fn solve(&mut self, case: &Case) -> Result<Value> {
        let backend = &*self.backend;
        match case.kind.as_str() {
            "model" => self.models.solve(case),
            "partial_attention" => kernel::partial_attention(backend, case, &self.inputs),
            "merge_partials" => kernel::merge_partials(backend, case, &self.inputs),
            "streaming_attention" => kernel::streaming_attention(backend, case, &self.inputs),
            "anchor_attention" => kernel::anchor_attention(backend, case, &self.inputs),
            "retaining_scores" => kernel::retaining_scores(backend, case, &self.inputs),
            "chunk_scores" => kernel::chunk_scores(case, &self.inputs),
            "rope" => {
                let config = self.models.load(case.parameter("model")?)?.decoder.config();
                kernel::rope(backend, case, &self.inputs, config)
            }
            "tokenize" => {
                let tokenizer = &self.models.load(case.parameter("model")?)?.tokenizer;
                kernel::tokenize(case, tokenizer)
            }
            other => bail!("kind {other} is not known"),
        }
    }
}

struct Arguments {
    inputs: PathBuf,
    output: PathBuf,
    models: PathBuf,
    device: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let mut models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
        let (mut files, mut device, mut given) = (Vec::new(), None, std::env::args().skip(1));
        while let Some(argument) = given.next() {
            match argument.as_str() {
                "--models" => models = given.next().context("--models needs a folder")?.into(),
                "--device" => device = Some(given.next().context("--device needs a name")?),
                _ => files.push(PathBuf::from(argument)),
            }
        }
        let Ok([inputs, output]) = <[PathBuf; 2]>::try_from(files) else {
            bail!("usage: golden <inputs.json> <out.json> [--models DIR] [--device cuda]");
        };
        Ok(Self { inputs, output, models, device })
    }
}
