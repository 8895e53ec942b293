//! `bench prefill|decode|calibrate|transport`: what hosts run and speak through, timed in this process, without a cluster;
//! `bench links`: what the links of a running one take.

mod calibrate;
mod links;
mod transport;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use asterism_kernels::{Backend, KernelChoice};
use asterism_models::{
    Decoder, Generator, HeadsFiles, ModelConfig, ModelError, Parts, RetainingHeads, Sampler, Sampling, TeamContext,
    encode_plan, encode_together, synthetic_prompt,
};
use asterism_plan::{Method, MethodConfig, PlanRequest};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::job::MethodArgs;
use crate::{
    cluster::Cluster,
    cluster_file::{DType, Device, Role},
    error::{CliError, Exit},
    globals::{Format, Globals},
    logging,
    output::{self, Table},
    size::{Tokens, grouped, up_to},
    wiring,
};

/// `asterism bench`
#[derive(Debug, Subcommand)]
pub enum BenchVerb {
    /// Time a prompt up to its first token
    Prefill(BenchArgs),
    /// Time the tokens after a prompt
    Decode(DecodeArgs),
    /// Measure this machine for the cluster's model and hosts, so that `plan` can tell times
    Calibrate,
    /// Have the hosts of the running cluster time their links to each other, and write that down for `plan`
    Links,
    /// Time links between two ends on this machine: within a process, QUIC, and plain TCP beside them
    Transport(transport::TransportArgs),
}

/// What is timed.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Tokens of the prompt
    #[arg(long, value_name = "TOKENS", default_value = "8k")]
    pub tokens: Tokens,
    /// Attention; the cluster file's unless named, dense without one
    #[command(flatten)]
    pub method: MethodArgs,
    /// Context hosts to plan for; their shards run one after another [default: the cluster file's, 4 without one]
    #[arg(long, value_name = "N", value_parser = up_to::<1024>)]
    pub hosts: Option<usize>,
    /// Where to compute: cpu, or cuda:N; several with commas, a context host each, which pass tensors among themselves [default:
    /// the cluster file's first context host's, cpu without one]
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub device: Vec<Device>,
    /// Element type of weights and products [default: the cluster file's, f32 without one]
    #[arg(long, value_enum)]
    pub dtype: Option<DType>,
    /// Threads [default: every core]
    #[arg(long, value_name = "N", value_parser = up_to::<1024>)]
    pub threads: Option<usize>,
    /// Instructions: auto, portable, avx2, avx512 or amx
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = kernels)]
    pub kernels: KernelChoice,
    /// Timed repetitions, after one that is not timed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// A Hugging Face folder [default: the cluster file's model, the embedded one without a file]
    #[arg(long, value_name = "FOLDER")]
    pub model: Option<PathBuf>,
    /// Token ids of the prompt, a JSON array; sets --tokens
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub prompt_ids: Option<PathBuf>,
}

/// What is timed, and for how many tokens.
#[derive(Args, Debug)]
pub struct DecodeArgs {
    /// The prompt
    #[command(flatten)]
    pub prompt: BenchArgs,
    /// Tokens to generate and time
    #[arg(long, value_name = "N", default_value = "32")]
    pub max_tokens: Tokens,
}

/// Times and prints.
pub fn run(globals: &Globals, verb: BenchVerb) -> Result<Exit, CliError> {
    logging::client(globals);
    let (args, what) = match &verb {
        BenchVerb::Prefill(args) => (args, ("prefill", 1)),
        BenchVerb::Calibrate => return calibrate::run(globals),
        BenchVerb::Links => return links::run(globals),
        BenchVerb::Transport(args) => return transport::run(globals, args),
        BenchVerb::Decode(args) => (&args.prompt, ("decode", args.max_tokens.0 + 1)),
    };
    let cluster = globals.cluster_if_any()?;
    let given = Given::of(args, cluster.as_ref());
    let (dtype, threads, kernels) = (given.dtype, given.threads, args.kernels);
    let devices = given.devices.clone();
    if devices.iter().any(|device| (*device == Device::Cpu) != (devices[0] == Device::Cpu)) {
        return Err(
            CliError::usage("--device mixes cpu and GPUs").hint("name GPUs only, such as --device cuda:0,cuda:1")
        );
    }
    match devices[0] {
        Device::Cpu => time(globals, what, Bench::load(args, given, |_, _| wiring::cpu(dtype, threads, kernels))?),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            let open = |device: Device, shape: &ModelConfig| {
                let index = match device {
                    Device::Cuda(index) => index,
                    Device::Cpu => unreachable!("no processor is among GPUs"),
                };
                let linear = cluster.as_ref().and_then(|cluster| cluster.model.linear);
                let numbers = crate::device::Numbers { dtype, linear };
                let gpu = crate::device::cuda(index, numbers)?;
                gpu.require(numbers.weight_bytes(shape, Parts::All))?;
                Ok(gpu)
            };
            time(globals, what, Bench::load(args, given, open)?)
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => Err(CliError::usage("this program was built for CPUs only")
            .hint("build it with `--features cuda`, or leave --device out")),
    }
}

/// Times rounds and prints what came out.
fn time<B: Backend>(
    globals: &Globals,
    (phase, generated): (&'static str, usize),
    bench: Bench<B>,
) -> Result<Exit, CliError> {
    let Given { dtype, threads, hosts, ref devices, .. } = bench.given;
    let method = bench.given.method.name();
    let device = devices.iter().map(Device::to_string).collect::<Vec<_>>().join(",");
    let computing = if devices[0] == Device::Cpu { format!("{threads} threads") } else { device.clone() };
    globals.note(format_args!("{phase} of {} with {method}, {hosts} hosts, {computing}", bench.model));
    let mut reference = None;
    let mut seconds = Vec::new();
    for round in 0..=bench.repeat {
        let run = bench.round(generated).map_err(CliError::usage)?;
        // What is timed must be right first: every round makes the same tokens.
        match &reference {
            None => reference = Some(run.tokens),
            Some(tokens) if *tokens != run.tokens => {
                return Err(CliError::new(Exit::JobFailed, format!("round {round} made other tokens than the first"))
                    .hint("the kernels of this machine are not deterministic; try --kernels portable"));
            }
            Some(_) => seconds.push(if phase == "prefill" { run.prefill_s } else { run.decode_s }),
        }
    }
    seconds.sort_by(f64::total_cmp);
    let timed_tokens = if phase == "prefill" { bench.ids.len() } else { generated - 1 };
    let median_s = seconds[seconds.len() / 2];
    let setup = Setup {
        model: bench.model.clone(),
        method,
        device,
        dtype: if dtype == DType::F32 { "f32" } else { "bf16" },
        kernels: bench.kernels,
        threads,
        prompt_tokens: bench.ids.len(),
    };
    let report = Report {
        phase,
        setup,
        timed_tokens,
        best_s: seconds[0],
        median_s,
        tokens_per_s: timed_tokens as f64 / median_s,
        ms_per_token: 1e3 * median_s / timed_tokens as f64,
        seconds,
        tokens: reference.unwrap_or_default(),
    };
    show(globals, &report)?;
    Ok(Exit::Success)
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Report {
    phase: &'static str,
    #[serde(flatten)]
    setup: Setup,
    timed_tokens: usize,
    /// Sorted.
    seconds: Vec<f64>,
    best_s: f64,
    median_s: f64,
    /// At the median.
    tokens_per_s: f64,
    ms_per_token: f64,
    /// Greedy tokens, for comparison with a peer's.
    tokens: Vec<u32>,
}

/// What was timed.
#[derive(Serialize)]
struct Setup {
    model: String,
    method: &'static str,
    device: String,
    dtype: &'static str,
    kernels: &'static str,
    threads: usize,
    prompt_tokens: usize,
}

fn show(globals: &Globals, report: &Report) -> Result<(), CliError> {
    if globals.format != Format::Table {
        return output::print_json(report, globals.format);
    }
    let mut table = Table::new([
        "PHASE", "METHOD", "DTYPE", "THREADS", "PROMPT", "TIMED", "BEST S", "MEDIAN S", "TOKENS/S", "MS/TOKEN",
    ]);
    table.row([
        report.phase.into(),
        report.setup.method.into(),
        report.setup.dtype.into(),
        report.setup.threads.to_string(),
        grouped(report.setup.prompt_tokens),
        grouped(report.timed_tokens),
        format!("{:.3}", report.best_s),
        format!("{:.3}", report.median_s),
        format!("{:.1}", report.tokens_per_s),
        format!("{:.3}", report.ms_per_token),
    ]);
    output::print(&table.to_string())
}

/// What is timed and on what: the command line's, else the cluster file's.
struct Given<'a> {
    devices: Vec<Device>,
    dtype: DType,
    threads: usize,
    hosts: usize,
    method: MethodConfig,
    cluster: Option<&'a Cluster>,
}

impl<'a> Given<'a> {
    fn of(args: &BenchArgs, cluster: Option<&'a Cluster>) -> Self {
        let contexts = |cluster: &'a Cluster| cluster.with_role(Role::Context);
        let device = |cluster: &'a Cluster| contexts(cluster).next().map(|host| host.device);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let devices = match &args.device[..] {
            [] => vec![cluster.and_then(device).unwrap_or_default()],
            devices => devices.to_vec(),
        };
        let given_hosts = args.hosts.or((devices.len() > 1).then_some(devices.len()));
        Self {
            devices,
            dtype: args.dtype.or(cluster.map(|cluster| cluster.model.dtype)).unwrap_or(DType::F32),
            threads: args.threads.unwrap_or(cores),
            hosts: given_hosts.or(cluster.map(|cluster| contexts(cluster).count())).unwrap_or(4).max(1),
            method: MethodConfig::default(),
            cluster,
        }
    }
}

struct Bench<'a, B: Backend> {
    /// One for each device; steps are taken on the first.
    decoders: Vec<Decoder<B>>,
    model: String,
    kernels: &'static str,
    repeat: u16,
    given: Given<'a>,
    ids: Vec<u32>,
    heads: HeadsFiles,
}

struct Round {
    prefill_s: f64,
    decode_s: f64,
    tokens: Vec<u32>,
}

impl<'a, B: Backend> Bench<'a, B> {
    fn load(
        args: &BenchArgs,
        mut given: Given<'a>,
        open: impl Fn(Device, &ModelConfig) -> Result<B, ModelError>,
    ) -> Result<Self, CliError> {
        let unusable = |error: ModelError| CliError::usage(error).hint("`asterism bench prefill --help`");
        let cluster = given.cluster;
        given.method = match (args.method.resolve()?, cluster) {
            (Some(method), _) => method,
            (None, Some(cluster)) => cluster.method.clone(),
            (None, None) => "dense".parse().map_err(CliError::usage)?,
        };
        let checkpoint = match (&args.model, cluster) {
            (None, Some(cluster)) => wiring::checkpoint_of(&cluster.model),
            (folder, _) => wiring::checkpoint(folder.as_deref()),
        };
        let checkpoint = checkpoint.map_err(unusable)?;
        let config = checkpoint.config();
        let load = |(at, device): (usize, &Device)| {
            let parts = if at == 0 { Parts::All } else { Parts::Context };
            Decoder::load(Arc::new(open(*device, config)?), &checkpoint, parts)
        };
        let ids = match &args.prompt_ids {
            Some(path) => read_ids(path)?,
            None => synthetic_prompt(args.tokens.0, config.vocab),
        };
        if ids.len() < 2 {
            return Err(CliError::usage("a prompt needs at least 2 tokens").hint("--tokens 8k"));
        }
        if ids.len() > config.max_position {
            let (got, most) = (grouped(ids.len()), grouped(config.max_position));
            return Err(CliError::usage(format!(
                "the prompt has {got} tokens, and {} takes at most {most}",
                checkpoint.name()
            ))
            .hint("lower --tokens, or name another --model"));
        }
        Ok(Self {
            model: checkpoint.name().to_owned(),
            decoders: given.devices.iter().enumerate().map(load).collect::<Result<_, _>>().map_err(unusable)?,
            kernels: args.kernels.name(),
            repeat: args.repeat,
            ids,
            heads: cluster.map(|cluster| cluster.model.heads.clone()).unwrap_or_default(),
            given,
        })
    }

    /// The prompt but for its last token as context, the last as query, then `generated` greedy tokens.
    fn round(&self, generated: usize) -> Result<Round, ModelError> {
        let (context, query) = self.ids.split_at(self.ids.len() - 1);
        let decoder = &self.decoders[0];
        let backend = decoder.backend();
        let shape = decoder.config().shape(backend.dtype());
        // One process encodes all shards, as hosts of one machine would.
        let request =
            PlanRequest { context, query, hosts: self.given.hosts, one_machine: true, shape: &shape, speeds: None };
        let method = &self.given.method;
        let plan = method.review(&request).and_then(|()| method.plan(&request));
        let plan = plan.map_err(|error| ModelError::Unsupported { what: error.to_string() })?;
        let load = |name: &str| {
            let path = self.heads.get(name).ok_or_else(|| ModelError::NoRetainingHeads { name: name.into() })?;
            RetainingHeads::load(backend, path, decoder.config())
        };
        let heads = plan.exchange.retaining_heads().map(load).transpose()?;
        let started = Instant::now();
        let shards = match &self.decoders[..] {
            [one] => vec![encode_plan(one, &plan, context, heads.as_ref(), &mut |_, _| true)?],
            _ if heads.is_some() => {
                let what = "retaining heads on several devices of one process".into();
                return Err(ModelError::Unsupported { what });
            }
            several => encode_together(&several.iter().collect::<Vec<_>>(), &plan, context)?,
        };
        let held = self.decoders.iter().zip(&shards).map(|(decoder, shards)| (decoder.backend(), &shards[..]));
        let mut held = TeamContext::new(&held.collect::<Vec<_>>());
        let mut generator = Generator::of(&plan);
        let mut sampler = Sampler::new(Sampling::default());
        let mut tokens = vec![sampler.next(&decoder.logits(&generator.step(decoder, query, &mut held)?)?)];
        let prefill_s = started.elapsed().as_secs_f64();
        let started = Instant::now();
        while tokens.len() < generated {
            let last = [tokens[tokens.len() - 1]];
            tokens.push(sampler.next(&decoder.logits(&generator.step(decoder, &last, &mut held)?)?));
        }
        Ok(Round { prefill_s, decode_s: started.elapsed().as_secs_f64(), tokens })
    }
}

fn read_ids(path: &Path) -> Result<Vec<u32>, CliError> {
    let refused = |cause: String| {
        CliError::usage(format!("{}: {cause}", path.display())).hint("a JSON array of token ids, such as [1, 523, 88]")
    };
    let bytes = fs::read(path).map_err(|error| refused(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))
}

fn kernels(name: &str) -> Result<KernelChoice, String> {
    name.parse().map_err(|error: asterism_kernels::KernelError| error.to_string())
}
