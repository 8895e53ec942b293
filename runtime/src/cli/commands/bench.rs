//! `bench prefill|decode|attention|calibrate|transport`: what hosts run and speak through, timed in this process, without a
//! cluster; `bench links`: what the links of a running one take.

mod attention;
mod calibrate;
mod ceiling;
mod links;
mod machine;
mod phases;
mod report;
mod transport;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use asterism_kernels::{DeviceGroup, KernelChoice, KvFormat};
#[cfg(feature = "cuda")]
use asterism_models::DecoderParts;
use asterism_models::{Checkpoint, ModelConfig, ModelError};
use asterism_plan::MethodConfig;
use clap::{Args, Subcommand};

use super::jobs::arguments::MethodArgs;
use crate::{
    cli::method_spec,
    cluster::{
        Cluster,
        file::{ComputeType, DType, Device, Devices, Role},
        size::{Tokens, up_to},
    },
    error::{CliError, Exit},
    globals::Globals,
    observe::logging,
    processes::checkpoint,
};
use phases::Phase;

/// `asterism bench`
#[derive(Debug, Subcommand)]
pub enum BenchVerb {
    /// Time prompts up to their first token, by methods and lengths
    Prefill(BenchArgs),
    /// Time the tokens after prompts, by methods and lengths
    Decode(DecodeArgs),
    /// Time attention alone: causal over a prompt, and few rows on many keys
    Attention(attention::AttentionArgs),
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
    /// Tokens of the prompt; several with commas
    #[arg(long, value_name = "TOKENS", default_value = "8k", value_delimiter = ',')]
    pub tokens: Vec<Tokens>,
    /// Attention
    #[command(flatten)]
    pub method: MethodsArgs,
    /// Context hosts to plan for; their shards run one after another [default: the cluster file's, 4 without one]
    #[arg(long, value_name = "N", value_parser = up_to::<1024>)]
    pub hosts: Option<usize>,
    /// Where to compute: cpu, or cuda:N; several with commas, a context host each, which pass tensors among themselves [default:
    /// the cluster file's first context host's, cpu without one]
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub device: Vec<Device>,
    /// The machine
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Token ids of the prompt, a JSON array; sets --tokens
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub prompt_ids: Option<PathBuf>,
}

/// What computes, and how often.
#[derive(Args, Debug)]
pub struct MachineArgs {
    /// Element type of weights and products [default: the cluster file's, f32 without one]
    #[arg(long, value_enum)]
    pub dtype: Option<DType>,
    /// Threads [default: every core]
    #[arg(long, value_name = "N", value_parser = up_to::<1024>)]
    pub threads: Option<usize>,
    /// Instructions: auto, portable, avx2, avx512, avx512-bf16 or amx
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = kernels)]
    pub kernels: KernelChoice,
    /// Timed repetitions, after one that is not timed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub repeat: u16,
    /// A Hugging Face folder, a GGUF file, or ORG/NAME of the hub's cache [default: the cluster file's model, the embedded one without a
    /// file]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
}

/// Attention methods.
#[derive(Args, Debug)]
pub struct MethodsArgs {
    /// Attention methods, separated by commas, options behind colons: dense,star:block_tokens=4k [default: the cluster file's,
    /// dense without one]
    #[arg(long, visible_alias = "method", value_name = "METHODS")]
    pub methods: Option<String>,
    /// Tokens of a block of one method, such as 4k [default: the context spread over the hosts]
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<Tokens>,
    /// Tokens of the anchor of one method, such as 1k [default: a block]
    #[arg(long, value_name = "TOKENS")]
    pub anchor_size: Option<Tokens>,
}

impl MethodsArgs {
    /// The methods, each as typed, or else the cluster's.
    fn resolve(&self, cluster: Option<&Cluster>) -> Result<Vec<(String, MethodConfig)>, CliError> {
        let several = self.methods.as_deref().map(method_spec::parse_list).transpose()?;
        let sized = self.block_size.is_some() || self.anchor_size.is_some();
        let one = match several {
            Some(several) if !sized => return Ok(several),
            Some(several) if several.len() > 1 => {
                return Err(CliError::usage("--block-size and --anchor-size are of one method, and several are named")
                    .hint("write sizes behind their method, such as star:block_tokens=4k"));
            }
            _ => {
                MethodArgs { method: self.methods.clone(), block_size: self.block_size, anchor_size: self.anchor_size }
                    .resolve()?
            }
        };
        let method = match (one, cluster) {
            (Some(method), _) => method,
            (None, Some(cluster)) => cluster.method.clone(),
            (None, None) => "dense".parse().map_err(CliError::usage)?,
        };
        Ok(vec![(method.name().to_owned(), method)])
    }
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
    match verb {
        BenchVerb::Prefill(args) => phases(globals, &args, Phase::Prefill),
        BenchVerb::Decode(args) => phases(globals, &args.prompt, Phase::Decode(args.max_tokens.0)),
        BenchVerb::Attention(args) => attention(globals, &args),
        BenchVerb::Calibrate => calibrate::run(globals),
        BenchVerb::Links => links::run(globals),
        BenchVerb::Transport(args) => transport::run(globals, &args),
    }
}

fn phases(globals: &Globals, args: &BenchArgs, phase: Phase) -> Result<Exit, CliError> {
    let cluster = globals.cluster_if_any()?;
    let given = BenchTarget::of(&args.machine, (&args.device, args.hosts), cluster.as_ref());
    let (numbers, threads, kernels) = ((given.dtype, given.kept()), given.threads, args.machine.kernels);
    if given.devices.iter().any(|device| (*device == Device::Cpu) != (given.devices[0] == Device::Cpu)) {
        return Err(
            CliError::usage("--device mixes cpu and GPUs").hint("name GPUs only, such as --device cuda:0,cuda:1")
        );
    }
    match (given.devices[0], given.shared.clone()) {
        (Device::Cpu, None) => {
            phases::run(globals, args, phase, (given, |_, _| checkpoint::cpu(numbers, threads, kernels)))
        }
        (Device::Cpu, Some(shared)) => {
            let open = |_, shape: &ModelConfig| {
                let cpu =
                    |_: &Device| checkpoint::cpu(numbers, (threads / shared.count()).max(1), kernels).map(Arc::new);
                let cpus = shared.all().iter().map(cpu).collect::<Result<_, _>>()?;
                Ok(DeviceGroup::new(cpus, shape.heads)?)
            };
            phases::run(globals, args, phase, (given, open))
        }
        #[cfg(feature = "cuda")]
        (Device::Cuda(_), None) => {
            let numbers = given.numbers();
            let open = |device: Device, shape: &ModelConfig| {
                let gpu = gpu(device, numbers)?;
                gpu.require(numbers.weight_bytes(shape, DecoderParts::All))?;
                Ok(gpu)
            };
            phases::run(globals, args, phase, (given, open))
        }
        #[cfg(feature = "cuda")]
        (Device::Cuda(_), Some(shared)) => {
            let numbers = given.numbers();
            let open = |_, shape: &ModelConfig| {
                let each = numbers.weight_bytes(shape, DecoderParts::All).div_ceil(shared.count() as u64);
                let gpus = shared.all().iter().map(|device| gpu(*device, numbers)).collect::<Result<Vec<_>, _>>()?;
                gpus.iter().try_for_each(|gpu| gpu.require(each))?;
                Ok(asterism_kernels::Cuda::group(gpus, shape.heads)?)
            };
            phases::run(globals, args, phase, (given, open))
        }
        #[cfg(not(feature = "cuda"))]
        (Device::Cuda(_), _) => Err(no_gpus()),
    }
}

fn attention(globals: &Globals, args: &attention::AttentionArgs) -> Result<Exit, CliError> {
    let cluster = globals.cluster_if_any()?;
    let given = BenchTarget::of(&args.machine, (args.device.as_slice(), None), cluster.as_ref());
    let (numbers, threads, kernels) = ((given.dtype, given.kept()), given.threads, args.machine.kernels);
    match given.devices[0] {
        Device::Cpu => attention::run(globals, args, &given, |_| checkpoint::cpu(numbers, threads, kernels)),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => attention::run(globals, args, &given, |device| gpu(device, given.numbers())),
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => Err(no_gpus()),
    }
}

#[cfg(feature = "cuda")]
fn gpu(device: Device, numbers: crate::processes::device::Numbers) -> Result<asterism_kernels::Cuda, ModelError> {
    match device {
        Device::Cuda(index) => crate::processes::device::cuda(index, numbers),
        Device::Cpu => unreachable!("no processor is among GPUs"),
    }
}

#[cfg(not(feature = "cuda"))]
fn no_gpus() -> CliError {
    CliError::usage("this program was built for CPUs only")
        .hint("build it with `--features cuda`, or leave --device out")
}

/// What is timed and on what: the command line's, else the cluster file's.
struct BenchTarget<'a> {
    devices: Vec<Device>,
    /// Those of a host of the cluster file that shares its model with several, which are timed as one.
    shared: Option<Devices>,
    dtype: DType,
    threads: usize,
    hosts: usize,
    cluster: Option<&'a Cluster>,
}

impl<'a> BenchTarget<'a> {
    fn of(args: &MachineArgs, (devices, hosts): (&[Device], Option<usize>), cluster: Option<&'a Cluster>) -> Self {
        let contexts = |cluster: &'a Cluster| cluster.with_role(Role::Context);
        let of_first = |cluster: &'a Cluster| contexts(cluster).next().map(|host| &host.devices);
        let of_file = cluster.and_then(of_first).filter(|_| devices.is_empty());
        let shared = of_file.filter(|devices| devices.count() > 1).cloned();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let devices = match devices {
            [] => vec![of_file.map(|devices| devices.all()[0]).unwrap_or_default()],
            devices => devices.to_vec(),
        };
        let given_hosts = hosts.or((devices.len() > 1).then_some(devices.len()));
        Self {
            devices,
            shared,
            dtype: args.dtype.or(cluster.map(|cluster| cluster.model.dtype)).unwrap_or(DType::F32),
            threads: args.threads.unwrap_or(cores),
            hosts: given_hosts.or(cluster.map(|cluster| contexts(cluster).count())).unwrap_or(4).max(1),
            cluster,
        }
    }

    /// The model of `folder`, else the cluster file's.
    fn checkpoint(&self, folder: Option<&Path>) -> Result<Checkpoint, ModelError> {
        match (folder, self.cluster) {
            (None, Some(cluster)) => checkpoint::checkpoint_of(&cluster.model),
            (folder, _) => checkpoint::checkpoint(folder),
        }
    }

    /// How keys and values are kept.
    fn kept(&self) -> KvFormat {
        self.cluster.filter(|_| self.shared.is_none()).map_or(KvFormat::Computed, |cluster| cluster.model.kept)
    }

    /// What linear layers compute in, if not in the type of the rest.
    fn linear(&self) -> Option<ComputeType> {
        self.cluster.and_then(|cluster| cluster.model.linear).filter(|_| self.devices[0] != Device::Cpu)
    }

    /// What attention of many rows computes in, likewise.
    #[cfg(feature = "cuda")]
    fn attention(&self) -> Option<ComputeType> {
        self.cluster.and_then(|cluster| cluster.model.attention).filter(|_| self.devices[0] != Device::Cpu)
    }

    #[cfg(feature = "cuda")]
    fn numbers(&self) -> crate::processes::device::Numbers {
        let (linear, attention) = (self.linear(), self.attention());
        crate::processes::device::Numbers { dtype: self.dtype, linear, attention, kept: self.kept() }
    }
}

fn kernels(name: &str) -> Result<KernelChoice, String> {
    name.parse().map_err(|error: asterism_kernels::KernelError| error.to_string())
}
