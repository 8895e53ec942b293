//! Where the time of a prefill and of decoding goes, operation by operation: a backend that times another one.
//!
//!     cargo run --release -p asterism-models --example profile -- [--tokens 8192] [--decode 16] [--repeat 3]
//!         [--dtype f32|bf16] [--threads 2] [--kernels avx2] [--model DIR | --shape NAME] [--jobs 1,16] [--kept q8]
//!
//! With `--jobs`, the steps of one job and of so many are timed in turn, each with keys of its own. The prompt is that of
//! asterism-7m/transformers_bench.py. With `--shape`, weights are random, of a well-known shape, and so are keys: nothing is encoded,
//! and jobs alone are timed. Tables go to stderr, one JSON object to stdout.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use asterism_kernels::{
    AttentionOps, Backend, BatchAttention, Collectives, ComputeDevice, Cpu, CpuOptions, DType, ElementwiseOps, HeadOps,
    Heads, HostTensor, KernelChoice, KernelError, KeySets, KvFormat, KvOps, KvType, LinearOps, Mask, Partial, Rotary,
    SelectionOps, Selector, Sparse, TensorOps, WireOps, WorkQueue,
};
use asterism_models::{
    Checkpoint, Decoder, DecoderParts, EncodedShard, Generator, KnownShape, LocalContext, Sampler, Sampling, StepPart,
    encode_plan, step, synthetic_prompt,
};
use asterism_plan::methods::DenseConfig;
use asterism_plan::{Method, MethodConfig, PlanRequest};
use serde_json::json;

/// Times every operation of `inner`.
struct Timed<B> {
    inner: B,
    spent: Mutex<BTreeMap<&'static str, Duration>>,
}

impl<B> Timed<B> {
    fn time<'a, T>(&'a self, operation: &'static str, work: impl FnOnce(&'a B) -> T) -> T {
        let start = Instant::now();
        let result = work(&self.inner);
        let spent = start.elapsed();
        *self.spent.lock().expect("no holder panics").entry(operation).or_default() += spent;
        result
    }

    fn take(&self) -> BTreeMap<&'static str, Duration> {
        std::mem::take(&mut self.spent.lock().expect("no holder panics"))
    }
}

type Outcome<T> = Result<T, KernelError>;

impl<B: Backend> ComputeDevice for Timed<B> {
    fn dtype(&self) -> DType {
        self.inner.dtype()
    }
    fn numerics(&self) -> String {
        self.inner.numerics()
    }
}

impl<B: Backend> WorkQueue for Timed<B> {}

impl<B: Backend> TensorOps for Timed<B> {
    type Tensor = B::Tensor;
    fn upload(&self, shape: &[usize], values: &[f32]) -> Outcome<B::Tensor> {
        self.time("upload", |b| b.upload(shape, values))
    }
    fn download(&self, tensor: &B::Tensor) -> Outcome<Vec<f32>> {
        self.time("download", |b| b.download(tensor))
    }
    fn shape(&self, tensor: &B::Tensor) -> Vec<usize> {
        self.inner.shape(tensor)
    }
    fn cast(&self, tensor: &B::Tensor) -> Outcome<B::Tensor> {
        self.time("cast", |b| b.cast(tensor))
    }
    fn rows(&self, x: &B::Tensor, start: usize, end: usize) -> Outcome<B::Tensor> {
        self.time("rows", |b| b.rows(x, start, end))
    }
    fn narrow(&self, x: &B::Tensor, axis: usize, start: usize, end: usize) -> Outcome<B::Tensor> {
        self.time("narrow", |b| b.narrow(x, axis, start, end))
    }
    fn concat(&self, parts: &[B::Tensor], axis: usize) -> Outcome<B::Tensor> {
        self.time("concat", |b| b.concat(parts, axis))
    }
    fn gather(&self, x: &B::Tensor, rows: &[Vec<u32>]) -> Outcome<B::Tensor> {
        self.time("gather", |b| b.gather(x, rows))
    }
}

impl<B: Backend> ElementwiseOps for Timed<B> {
    fn embed(&self, table: &B::Tensor, ids: &[u32]) -> Outcome<B::Tensor> {
        self.time("embed", |b| b.embed(table, ids))
    }
    fn rms_norm(&self, x: &B::Tensor, weight: &B::Tensor, eps: f32) -> Outcome<B::Tensor> {
        self.time("rms_norm", |b| b.rms_norm(x, weight, eps))
    }
    fn gated_silu(&self, gate_up: &B::Tensor) -> Outcome<B::Tensor> {
        self.time("gated_silu", |b| b.gated_silu(gate_up))
    }
    fn silu(&self, x: &B::Tensor) -> Outcome<B::Tensor> {
        self.time("silu", |b| b.silu(x))
    }
}

impl<B: Backend> LinearOps for Timed<B> {
    type Linear = (&'static str, B::Linear);
    fn weight(&self, tensor: HostTensor<'_>) -> Outcome<B::Tensor> {
        self.inner.weight(tensor)
    }
    /// Tells the layers apart by their form: three parts are qkv, two are gate and up.
    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Outcome<Self::Linear> {
        let name = match parts {
            [_, _, _] => "linear qkv",
            [_, _] => "linear gate_up",
            [part] if part.shape[0] < part.shape[1] => "linear down",
            [part] if part.shape[0] == part.shape[1] => "linear output",
            _ => "linear head",
        };
        Ok((name, self.inner.linear_weight(parts, biases)?))
    }
    fn linear(&self, x: &B::Tensor, (name, weight): &Self::Linear) -> Outcome<B::Tensor> {
        self.time(name, |b| b.linear(x, weight))
    }
    fn linear_add(&self, x: &B::Tensor, (name, weight): &Self::Linear, residual: B::Tensor) -> Outcome<B::Tensor> {
        self.time(name, |b| b.linear_add(x, weight, residual))
    }
}

impl<B: Backend> HeadOps for Timed<B> {
    fn split_rotate(
        &self,
        qkv: &B::Tensor,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Outcome<(B::Tensor, B::Tensor, B::Tensor)> {
        self.time("split_rotate", |b| b.split_rotate(qkv, heads, positions, rotary))
    }
    fn join_heads(&self, output: &B::Tensor) -> Outcome<B::Tensor> {
        self.time("join_heads", |b| b.join_heads(output))
    }
}

impl<B: Backend> KvOps for Timed<B> {
    type Kv = B::Kv;
    fn kv(&self, k: &B::Tensor, v: &B::Tensor) -> Outcome<B::Kv> {
        self.time("kv", |b| b.kv(k, v))
    }
    fn kv_type(&self) -> KvType {
        self.inner.kv_type()
    }
    fn kv_kept(&self, k: &B::Tensor, v: &B::Tensor) -> Outcome<B::Kv> {
        self.time("kv_kept", |b| b.kv_kept(k, v))
    }
    fn kv_widened(&self, kv: &B::Kv) -> Outcome<B::Kv> {
        self.time("kv_widened", |b| b.kv_widened(kv))
    }
    fn kv_append(&self, kv: &mut B::Kv, k: &B::Tensor, v: &B::Tensor) -> Outcome<()> {
        self.time("kv_append", |b| b.kv_append(kv, k, v))
    }
    fn kv_extend(&self, kv: &mut B::Kv, more: &B::Kv) -> Outcome<()> {
        self.time("kv_extend", |b| b.kv_extend(kv, more))
    }
    fn kv_rows(&self, kv: &B::Kv, start: usize, end: usize) -> Outcome<B::Kv> {
        self.time("kv_rows", |b| b.kv_rows(kv, start, end))
    }
    fn kv_tensors(&self, kv: &B::Kv) -> Outcome<[B::Tensor; 2]> {
        self.time("kv_tensors", |b| b.kv_tensors(kv))
    }
    fn kv_len(&self, kv: &B::Kv) -> usize {
        self.inner.kv_len(kv)
    }
    fn kv_bytes(&self, kv: &B::Kv) -> usize {
        self.inner.kv_bytes(kv)
    }
}

impl<B: Backend> AttentionOps for Timed<B> {
    fn attention(&self, q: &B::Tensor, kv: &B::Kv, mask: Mask) -> Outcome<Partial<B::Tensor>> {
        self.time("attention", |b| b.attention(q, kv, mask))
    }
    fn merge(&self, partials: &[Partial<B::Tensor>]) -> Outcome<Partial<B::Tensor>> {
        self.time("merge", |b| b.merge(partials))
    }
}

impl<B: Backend> SelectionOps for Timed<B> {
    fn key_scores(&self, q: &B::Tensor, k: &B::Tensor) -> Outcome<Vec<f32>> {
        self.time("key_scores", |b| b.key_scores(q, k))
    }
    fn attention_selected(&self, q: &B::Tensor, kv: &B::Kv, keys: &KeySets) -> Outcome<Partial<B::Tensor>> {
        self.time("attention_selected", |b| b.attention_selected(q, kv, keys))
    }
    fn attention_by(&self, q: &B::Tensor, kv: &B::Kv, selector: Selector) -> Sparse<'_, B> {
        let name = match selector {
            Selector::Stripes(_) => "stripe_attention",
            Selector::VerticalSlash(_) => "vertical_slash",
            Selector::Flex(_) => "flex_prefill",
        };
        self.time(name, |b| b.attention_by(q, kv, selector))
    }
}

impl<B: Backend> BatchAttention for Timed<B> {}

impl<B: Backend> WireOps for Timed<B> {}

impl<B: Backend> Collectives for Timed<B> {}

fn main() -> Result<()> {
    let arguments = Arguments::parse()?;
    if let Some(shape) = arguments.shape {
        let checkpoint = Checkpoint::random(shape)?;
        let prompt = synthetic_prompt(arguments.tokens, 1 << 15);
        let together = steps_together(&arguments, &checkpoint, &prompt)?;
        println!(
            "{}",
            json!({"program": "asterism", "shape": shape.name(), "prompt_tokens": prompt.len(), "together": together})
        );
        return Ok(());
    }
    let checkpoint = arguments.model.as_ref().map_or_else(Checkpoint::embedded, |folder| Checkpoint::open(folder))?;
    let options = arguments.options();
    let backend = Arc::new(Timed { inner: Cpu::new(options)?, spent: Mutex::default() });
    let decoder = Decoder::load(Arc::clone(&backend), &checkpoint, DecoderParts::All)?;
    let prompt = synthetic_prompt(arguments.tokens, decoder.config().vocab);
    prefill(&decoder, &prompt[..prompt.len().min(256)])?;

    let (mut prefills, mut steps, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.repeat {
        backend.take();
        let start = Instant::now();
        let mut answer = prefill(&decoder, &prompt)?;
        prefills.push(start.elapsed());
        table("prefill", prefills[prefills.len() - 1], &backend.take());
        let start = Instant::now();
        steps.extend(answer.decode(&decoder, arguments.decode)?);
        table("decode", start.elapsed(), &backend.take());
        tokens = answer.tokens;
    }
    let many = steps_together(&arguments, &checkpoint, &prompt)?;
    let prefill_seconds = median(&mut prefills);
    println!(
        "{}",
        json!({
            "program": "asterism",
            "threads": arguments.threads,
            "prompt_tokens": prompt.len(),
            "prefill_seconds": prefill_seconds,
            "prefill_tokens_per_second": prompt.len() as f64 / prefill_seconds,
            "decode_ms_per_token": 1000.0 * median(&mut steps),
            "tokens": tokens,
            "together": many,
        })
    );
    Ok(())
}

/// A prompt behind which tokens are generated.
struct Answer<B: Backend> {
    shards: Vec<EncodedShard<B>>,
    generator: Generator<B>,
    tokens: Vec<u32>,
}

/// Phase 1 over all but the last token, phase 2 over that and the first token of the answer.
fn prefill<B: Backend>(decoder: &Decoder<B>, prompt: &[u32]) -> Result<Answer<B>> {
    let (context, query) = prompt.split_at(prompt.len() - 1);
    let shape = decoder.config().shape(decoder.backend().kv_type());
    let request = PlanRequest { context, query, hosts: 1, one_device: false, shape: &shape, speeds: None };
    let plan = MethodConfig::Dense(DenseConfig::default()).plan(&request)?;
    let shards = encode_plan(decoder, &plan, context, None, &mut |_, _| true)?;
    let generator = Generator::of(&plan);
    let mut answer = Answer { shards, generator, tokens: Vec::new() };
    answer.step(decoder, query)?;
    Ok(answer)
}

impl<B: Backend> Answer<B> {
    fn step(&mut self, decoder: &Decoder<B>, ids: &[u32]) -> Result<()> {
        let mut host = LocalContext::new(decoder.backend(), &self.shards);
        let x = self.generator.step(decoder, ids, &mut host)?;
        self.tokens.push(Sampler::new(Sampling::default()).next(&decoder.logits(&x)?));
        Ok(())
    }

    /// `count` more tokens and the time of each.
    fn decode(&mut self, decoder: &Decoder<B>, count: usize) -> Result<Vec<Duration>> {
        let step = |_| {
            let (start, last) = (Instant::now(), self.tokens[self.tokens.len() - 1]);
            self.step(decoder, &[last])?;
            Ok(start.elapsed())
        };
        (0..count).map(step).collect()
    }
}

/// Times of the steps of as many jobs as are asked for, in turn, on a backend that nothing times.
fn steps_together(arguments: &Arguments, checkpoint: &Checkpoint, prompt: &[u32]) -> Result<Vec<serde_json::Value>> {
    if arguments.jobs.is_empty() {
        return Ok(Vec::new());
    }
    let decoder = Decoder::load(Arc::new(Cpu::new(arguments.options())?), checkpoint, DecoderParts::All)?;
    let first = match arguments.shape {
        Some(_) => vec![drawn(&decoder, prompt.len() - 1)?],
        None => prefill(&decoder, prompt)?.shards,
    };
    let each = arguments.jobs.iter().map(|jobs| together(&decoder, prompt, &first, *jobs));
    let mut each = each.collect::<Result<Vec<_>>>()?;
    let (mut taken, mut computed) = (vec![Vec::new(); each.len()], vec![Vec::new(); each.len()]);
    let steps = arguments.decode * arguments.repeat;
    for _ in 0..steps {
        for ((jobs, taken), computed) in each.iter_mut().zip(&mut taken).zip(&mut computed) {
            let before = computed_seconds();
            taken.push(jobs.step(&decoder)?);
            computed.push(Duration::from_secs_f64((computed_seconds() - before).max(0.0)));
        }
    }
    let told = |((jobs, taken), computed): ((&usize, &mut Vec<Duration>), &mut Vec<Duration>)| {
        let (seconds, computed) = (median(taken), median(computed));
        json!({
            "jobs": jobs,
            "step_ms": 1000.0 * seconds,
            "tokens_per_second": *jobs as f64 / seconds,
            "first_thread_ms": 1000.0 * computed,
        })
    };
    Ok(arguments.jobs.iter().zip(&mut taken).zip(&mut computed).map(told).collect())
}

/// Seconds that the first thread has computed, as the system counts them whenever it looks: with one thread all of the work, however
/// busy the machine is.
fn computed_seconds() -> f64 {
    std::thread::yield_now();
    let told = std::fs::read_to_string("/proc/self/schedstat").ok();
    let nanoseconds = told.and_then(|told| told.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or(f64::NAN, |nanoseconds| 1e-9 * nanoseconds)
}

/// Jobs that share their steps, each with a copy of the keys.
struct Together<B: Backend> {
    shards: Vec<Vec<EncodedShard<B>>>,
    generators: Vec<Generator<B>>,
    last: Vec<u32>,
}

/// A context of random keys and values.
fn drawn<B: Backend>(decoder: &Decoder<B>, tokens: usize) -> Result<EncodedShard<B>> {
    let (backend, Heads { kv, dim, .. }) = (decoder.backend(), decoder.config().heads);
    let number = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b1) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    let numbers: Vec<f32> = (0..kv * tokens * dim).map(number).collect();
    let layer = |_| {
        let x = backend.cast(&backend.upload(&[kv, tokens, dim], &numbers)?)?;
        backend.kv_kept(&x, &x)
    };
    let layers = (0..decoder.config().layers).map(layer).collect::<Result<_, _>>()?;
    Ok(EncodedShard { block: 0, tokens, position: 0, layers, digest: 0 })
}

fn together<B: Backend>(
    decoder: &Decoder<B>,
    prompt: &[u32],
    first: &[EncodedShard<B>],
    jobs: usize,
) -> Result<Together<B>> {
    let mut all = Together { shards: Vec::new(), generators: Vec::new(), last: Vec::new() };
    for job in 0..jobs {
        let copied = |shard: &EncodedShard<B>| -> Result<EncodedShard<B>> {
            let backend = decoder.backend();
            let copy = |kv: &B::Kv| backend.kv_rows(kv, 0, backend.kv_len(kv));
            Ok(EncodedShard { layers: shard.layers.iter().map(copy).collect::<Result<_, _>>()?, ..shard.clone() })
        };
        let shards: Vec<EncodedShard<B>> = first.iter().map(copied).collect::<Result<_>>()?;
        let (context, query) = prompt.split_at(prompt.len() - 1);
        let shape = decoder.config().shape(decoder.backend().kv_type());
        let request = PlanRequest { context, query, hosts: 1, one_device: false, shape: &shape, speeds: None };
        let plan = MethodConfig::Dense(DenseConfig::default()).plan(&request)?;
        all.generators.push(Generator::of(&plan));
        all.shards.push(shards);
        all.last.push(query[0] + job as u32);
    }
    Ok(all)
}

impl<B: Backend> Together<B> {
    /// The time of a step, to the choice of each job's next token.
    fn step(&mut self, decoder: &Decoder<B>) -> Result<Duration> {
        let start = Instant::now();
        let contexts = self.shards.iter().map(|shards| shards.iter().collect()).collect();
        let mut host = LocalContext::of(decoder.backend(), contexts);
        let ids = self.last.clone();
        let parts = self.generators.iter_mut().zip(&ids);
        let mut parts: Vec<StepPart<'_, B>> =
            parts.map(|(generator, id)| StepPart { generator, ids: std::slice::from_ref(id) }).collect();
        let ends = step(decoder, &mut parts, &mut host)?;
        let x: Vec<&B::Tensor> =
            ends.iter().map(|end| end.as_ref().ok().context("a part left its step")).collect::<Result<_>>()?;
        for (last, logits) in self.last.iter_mut().zip(decoder.last_logits(&x)?) {
            *last = Sampler::new(Sampling::default()).next(&logits?);
        }
        Ok(start.elapsed())
    }
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, Duration::as_secs_f64)
}

fn table(phase: &str, whole: Duration, spent: &BTreeMap<&'static str, Duration>) {
    let mut rows: Vec<_> = spent.iter().collect();
    rows.sort_by_key(|(_, time)| std::cmp::Reverse(**time));
    let known: Duration = spent.values().sum();
    eprintln!("{phase}: {:.1} ms", 1000.0 * whole.as_secs_f64());
    for (operation, time) in rows.into_iter().chain([(&"outside kernels", &whole.saturating_sub(known))]) {
        let share = 100.0 * time.as_secs_f64() / whole.as_secs_f64();
        eprintln!("  {operation:16} {:9.1} ms {share:5.1} %", 1000.0 * time.as_secs_f64());
    }
}

struct Arguments {
    tokens: usize,
    decode: usize,
    repeat: usize,
    threads: usize,
    dtype: DType,
    model: Option<PathBuf>,
    shape: Option<KnownShape>,
    jobs: Vec<usize>,
    kept: KvFormat,
    kernels: KernelChoice,
}

const USAGE: &str = "options: --tokens N --decode N --repeat N --dtype f32|bf16 --threads N --kernels NAME \
                     --model DIR --shape NAME --jobs 1,16 --kept q8";

impl Arguments {
    fn parse() -> Result<Self> {
        let mut parsed = Self {
            tokens: 8192,
            decode: 16,
            repeat: 3,
            threads: 2,
            dtype: DType::F32,
            model: None,
            shape: None,
            jobs: Vec::new(),
            kept: KvFormat::Computed,
            kernels: KernelChoice::Auto,
        };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            let value = given.next().with_context(|| format!("{name} needs a value; {USAGE}"))?;
            match name.as_str() {
                "--tokens" => parsed.tokens = value.parse()?,
                "--decode" => parsed.decode = value.parse()?,
                "--repeat" => parsed.repeat = value.parse()?,
                "--threads" => parsed.threads = value.parse()?,
                "--dtype" if value == "f32" => parsed.dtype = DType::F32,
                "--dtype" if value == "bf16" => parsed.dtype = DType::Bf16,
                "--jobs" => parsed.jobs = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
                "--kept" if value == "q8" => parsed.kept = KvFormat::Q8,
                "--kernels" => parsed.kernels = value.parse()?,
                "--shape" => parsed.shape = Some(value.parse().map_err(anyhow::Error::msg)?),
                "--model" => parsed.model = Some(value.into()),
                _ => bail!("{name} {value} is not an option; {USAGE}"),
            }
        }
        Ok(parsed)
    }

    fn options(&self) -> CpuOptions {
        let Self { dtype, kept, kernels, .. } = *self;
        CpuOptions { dtype, kept, kernels, threads: Some(self.threads) }
    }
}
