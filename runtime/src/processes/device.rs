//! Where a host computes: its device, opened as a backend, with the model on it. A build without the feature `cuda` knows the CPU
//! alone, and says so.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use asterism_actors::{
    HostConfig, HostError, LoadedModel, ModelLoader, Transports,
    cores::Cores,
    host::{self, HostEnd},
};
use asterism_kernels::{Backend, Cpu, DeviceGroup, KernelError, KvFormat, check_heads};
use asterism_models::{DecoderParts, ModelConfig, ModelDigest, ModelError, SharedWeights, Tokenizer};

use crate::{
    cluster::{
        Cluster, Host, Model,
        file::{ComputeType, DType, Device, Devices, Recovery, Role},
    },
    error::{CliError, Exit},
    processes::cores::SharedCores,
};

#[cfg(feature = "cuda")]
use {
    asterism_actors::cores::{ComputeKind, GpuMemory},
    asterism_kernels::Cuda,
};

/// What a host process computes with.
pub struct DeviceSetup {
    /// The cluster, of which it loads the model.
    pub cluster: Cluster,
    /// The host.
    pub host: Host,
    /// Cores of this machine.
    pub cores: usize,
    /// What it loads of the model.
    pub parts: DecoderParts,
    /// What hosts of its process have loaded.
    pub weights: ProcessWeights,
}

/// What a host of this role loads of the model, or may come to load when it takes over another's work.
pub fn parts(role: Role, recovery: Recovery) -> DecoderParts {
    match (role, recovery) {
        (Role::Context, Recovery::Spare | Recovery::Fail) => DecoderParts::Context,
        _ => DecoderParts::All,
    }
}

/// Whether a host loads the output head only when it takes over a query host's work. A GPU's memory may be full by then, and random
/// weights would be kept for it.
fn takes_head_later(setup: &DeviceSetup) -> bool {
    let DeviceSetup { cluster, host, parts, .. } = setup;
    host.role != Role::Query && *parts == DecoderParts::All && host.devices.on_cpu() && cluster.model.random.is_none()
}

/// The weights of the hosts of one process: those of one device that compute alike have them once.
#[derive(Clone, Default)]
pub struct ProcessWeights {
    cpus: Registry<Cpu>,
    cpu_groups: Registry<DeviceGroup<Cpu>>,
    #[cfg(feature = "cuda")]
    gpus: Registry<Cuda>,
    #[cfg(feature = "cuda")]
    gpu_groups: Registry<DeviceGroup<Cuda>>,
}

/// Weights by device and numerics.
struct Registry<B: Backend>(Arc<Mutex<HashMap<String, Arc<SharedWeights<B>>>>>);

impl<B: Backend> Default for Registry<B> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<B: Backend> Clone for Registry<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: Backend> Registry<B> {
    /// Those that `backend` can compute with.
    fn of(&self, devices: &Devices, backend: &B) -> Arc<SharedWeights<B>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(format!("{devices} {}", backend.numerics())).or_default())
    }
}

/// What a host computes in.
#[derive(Clone, Copy)]
pub struct Numbers {
    /// Weights and products.
    pub dtype: DType,
    /// Linear layers, if not in that.
    pub linear: Option<ComputeType>,
    /// Attention of many rows, if not in that.
    pub attention: Option<ComputeType>,
    /// How keys and values are kept.
    pub kept: KvFormat,
}

impl Numbers {
    /// As the cluster file says.
    pub fn of(model: &Model) -> Self {
        Self { dtype: model.dtype, linear: model.linear, attention: model.attention, kept: model.kept }
    }

    /// Bytes that `parts` of a model of this shape take.
    pub fn weight_bytes(self, shape: &ModelConfig, parts: DecoderParts) -> u64 {
        shape.weight_bytes(
            parts,
            (crate::processes::checkpoint::dtype(self.dtype), self.linear == Some(ComputeType::Fp8)),
        )
    }
}

/// Bytes of weights that are counted as `host`'s own, of a model of this shape: of as much as any host of its process loads.
pub fn weight_bytes(cluster: &Cluster, host: &Host, shape: &ModelConfig) -> u64 {
    if !cluster.counts_weights(host) {
        return 0;
    }
    let loaded = |parts| cluster.with_weights_of(host).any(|other| self::parts(other.role, cluster.recovery) == parts);
    let parts = if loaded(DecoderParts::All) { DecoderParts::All } else { DecoderParts::Context };
    Numbers::of(&cluster.model).weight_bytes(shape, parts)
}

/// Refuses hosts whose memory limit is less than what their weights alone take.
pub fn weights_fit(cluster: &Cluster, shape: &ModelConfig) -> Result<(), CliError> {
    let over = |host: &&Host| host.memory_limit.is_some_and(|limit| limit < weight_bytes(cluster, host, shape));
    let Some(host) = cluster.hosts.iter().find(over) else { return Ok(()) };
    // In one unit, of which both have several: they may be close.
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (needed, limit) = (mib(weight_bytes(cluster, host, shape)), mib(host.memory_limit.unwrap_or_default()));
    let message = format!(
        "host '{}' needs {needed} for the weights of the model alone, without a token of context, and its memory_limit is {limit}",
        host.name
    );
    let smaller = match cluster.model.dtype {
        DType::F32 => ", compute in dtype = \"bf16\"",
        DType::Bf16 => "",
    };
    Err(CliError::new(Exit::Capacity, message)
        .hint(format!("raise memory_limit above {needed}{smaller}, or take a smaller model")))
}

/// Elements of the heads that attention is computed of in 8-bit floats.
const FLOAT8_HEAD: usize = 128;

/// Refuses 8-bit attention of a model of this shape, where there are no kernels for its heads.
pub fn attention_fits(cluster: &Cluster, shape: &ModelConfig) -> Result<(), CliError> {
    let dim = shape.heads.dim;
    if cluster.model.attention.is_none() || dim == FLOAT8_HEAD {
        return Ok(());
    }
    let message = format!(
        "attention_dtype = \"fp8\" is for models whose heads have {FLOAT8_HEAD} elements, and those of this model have {dim}"
    );
    Err(CliError::usage(message).hint("leave model.attention_dtype out"))
}

/// Bytes that each of a host's devices has of weights that take so many.
pub fn weights_of_each(bytes: u64, devices: &Devices) -> u64 {
    bytes.div_ceil(devices.count() as u64)
}

/// Refuses hosts whose devices cannot share the heads of a model of this shape.
pub fn share_heads(cluster: &Cluster, shape: &ModelConfig) -> Result<(), CliError> {
    cluster.hosts.iter().try_for_each(|host| {
        let shared = check_heads(shape.heads, host.devices.count());
        shared.map_err(|error| {
            CliError::usage(format!("host '{}' is to compute on {}: {error}", host.name, host.devices))
                .hint("change its `devices` in the cluster file")
        })
    })
}

/// Refuses hosts whose devices lack what a model of this shape needs: a CPU that computes alone lacks nothing.
pub fn has_operations(cluster: &Cluster, shape: &ModelConfig) -> Result<(), CliError> {
    let Some(extra) = shape.extras().into_iter().next() else { return Ok(()) };
    let lacks = |host: &&Host| !host.devices.on_cpu() || host.devices.count() > 1;
    let Some(host) = cluster.hosts.iter().find(lacks) else { return Ok(()) };
    let message = format!(
        "host '{}' is to compute on {}: the model needs {}, which only a CPU that computes alone has",
        host.name,
        host.devices,
        extra.name()
    );
    Err(CliError::usage(message)
        .hint("write device = \"cpu\" for it, or take a model of a family that GPUs compute (docs/models.md)"))
}

/// Refuses hosts on devices that this build knows nothing of.
pub fn known(cluster: &Cluster) -> Result<(), CliError> {
    let unknown = |host: &&Host| !host.devices.on_cpu() && !cfg!(feature = "cuda");
    match cluster.hosts.iter().find(unknown) {
        Some(host) => Err(CliError::usage(format!(
            "host '{}' computes on {}, and this program was built for CPUs only",
            host.name, host.devices
        ))
        .hint("build it with `--features cuda`, or write device = \"cpu\"")),
        None => Ok(()),
    }
}

/// Runs a host whose model is loaded onto its device once it has joined; `joined` is called before.
pub async fn run_host(
    config: HostConfig,
    transports: Transports,
    setup: DeviceSetup,
    joined: impl FnOnce() + Send + 'static,
) -> Result<HostEnd, HostError> {
    let weights = setup.weights.clone();
    match (setup.host.devices.on_cpu(), setup.host.devices.count()) {
        (true, 1) => {
            let open = |setup: &DeviceSetup, _: &ModelConfig| {
                let (mut cpus, cores) = cpus(setup)?;
                Ok((cpus.remove(0), cores))
            };
            host::run(config, transports, loader(setup, (weights.cpus, |_, _| Ok(())), open, joined)).await
        }
        (true, _) => {
            let open = |setup: &DeviceSetup, shape: &ModelConfig| {
                let (cpus, cores) = cpus(setup)?;
                Ok((DeviceGroup::new(cpus.into_iter().map(Arc::new).collect(), shape.heads)?, cores))
            };
            host::run(config, transports, loader(setup, (weights.cpu_groups, |_, _| Ok(())), open, joined)).await
        }
        #[cfg(feature = "cuda")]
        (false, 1) => {
            let open = |setup: &DeviceSetup, _: &ModelConfig| {
                let (mut gpus, cores) = gpus(setup)?;
                Ok((gpus.remove(0), cores))
            };
            let room = |gpu: &Cuda, bytes| Ok(gpu.require(bytes)?);
            host::run(config, transports, loader(setup, (weights.gpus, room), open, joined)).await
        }
        #[cfg(feature = "cuda")]
        (false, _) => {
            let open = |setup: &DeviceSetup, shape: &ModelConfig| {
                let (gpus, cores) = gpus(setup)?;
                Ok((Cuda::group(gpus, shape.heads)?, cores))
            };
            let room = |group: &DeviceGroup<Cuda>, bytes: u64| {
                let each = bytes.div_ceil(group.members().len() as u64);
                Ok(group.members().iter().try_for_each(|gpu| gpu.require(each))?)
            };
            host::run(config, transports, loader(setup, (weights.gpu_groups, room), open, joined)).await
        }
        #[cfg(not(feature = "cuda"))]
        (false, _) => {
            let gpu = |device: &Device| if let Device::Cuda(index) = device { Some(*index) } else { None };
            let index = setup.host.devices.all().iter().find_map(gpu).unwrap_or_default();
            let cause = "this program was built without the feature cuda".into();
            let cause = ModelError::Kernel(asterism_kernels::KernelError::NoDevice { index, cause });
            Err(HostError::Model { host: config.name, cause })
        }
    }
}

/// A host's processor, as often as it is to be a device, with the cores that these share.
fn cpus(setup: &DeviceSetup) -> Result<(Vec<Cpu>, Arc<dyn Cores>), ModelError> {
    let DeviceSetup { cluster, host, cores, .. } = setup;
    let (numbers, devices) = ((cluster.model.dtype, cluster.model.kept), host.devices.count());
    let threads = (host.threads.unwrap_or(*cores) / devices).max(1);
    let cpu = |_| crate::processes::checkpoint::cpu(numbers, threads, host.kernels);
    keeps_so(setup)?;
    let cpus = (0..devices).map(cpu).collect::<Result<Vec<_>, _>>()?;
    let limits = cpus.iter().map(Cpu::thread_limit).collect();
    Ok((cpus, Arc::new(SharedCores::new(cluster, host, *cores, limits))))
}

/// Refuses 8-bit keys and values on several devices, which do not keep them: `validate` does so for the hosts of a cluster file, and a host
/// that joins later may have others.
fn keeps_so(DeviceSetup { cluster, host, .. }: &DeviceSetup) -> Result<(), ModelError> {
    if cluster.model.kept == KvFormat::Computed || host.devices.count() == 1 {
        return Ok(());
    }
    Err(KernelError::NoKernel { operation: "8-bit keys and values", device: host.devices.to_string() }.into())
}

/// A host's GPUs.
#[cfg(feature = "cuda")]
fn gpus(setup: &DeviceSetup) -> Result<(Vec<Cuda>, Arc<dyn Cores>), ModelError> {
    keeps_so(setup)?;
    let numbers = Numbers::of(&setup.cluster.model);
    let index = |device: &Device| if let Device::Cuda(index) = device { Some(*index) } else { None };
    let indices = setup.host.devices.all().iter().filter_map(index);
    let gpus = indices.map(|index| cuda(index, numbers)).collect::<Result<Vec<_>, _>>()?;
    let cores = OwnGpus(gpus.iter().map(|gpu| gpu.device().gauge()).collect());
    Ok((gpus, Arc::new(cores)))
}

/// A host's GPUs: it lends nobody cores.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct OwnGpus(Vec<asterism_kernels::cuda::Gauge>);

#[cfg(feature = "cuda")]
impl Cores for OwnGpus {
    fn begin(&self, _: ComputeKind) {}

    fn end(&self, _: ComputeKind) {}

    fn threads(&self) -> usize {
        0
    }

    fn gpu_memory(&self) -> Option<GpuMemory> {
        let each = self.0.iter().map(|gpu| gpu.memory().ok()).collect::<Option<Vec<_>>>()?;
        let (free, all) = each.iter().fold((0, 0), |(free, all), of| (free + of.0, all + of.1));
        Some(GpuMemory { used: (all - free) as u64, free: free as u64 })
    }
}

/// A GPU. What is missing beside it is said once, here.
#[cfg(feature = "cuda")]
pub fn cuda(index: usize, numbers: Numbers) -> Result<Cuda, ModelError> {
    let options = asterism_kernels::CudaOptions {
        device: index,
        dtype: crate::processes::checkpoint::dtype(numbers.dtype),
        eight_bits: numbers.linear == Some(ComputeType::Fp8),
        float8_attention: numbers.attention == Some(ComputeType::Fp8),
        kept: numbers.kept,
    };
    let gpu = Cuda::new(options)?;
    if !gpu.attender().has_library() {
        tracing::warn!("cuDNN is not there: attention goes through own kernels, at half the speed in prefill");
    }
    if !gpu.products().has_library() {
        tracing::warn!("cublasLt is not there: linear layers go through own kernels, many times slower");
    }
    tracing::info!(device = index, name = gpu.device().name()?, "computing on a GPU");
    Ok(gpu)
}

/// Loads what hosts of this process have not loaded yet, once `room` has found room for so many bytes of it.
fn loader<B: Backend>(
    setup: DeviceSetup,
    (weights, room): (Registry<B>, impl FnOnce(&B, u64) -> Result<(), ModelError> + Send + 'static),
    open: impl FnOnce(&DeviceSetup, &ModelConfig) -> Result<(B, Arc<dyn Cores>), ModelError> + Send + 'static,
    joined: impl FnOnce() + Send + 'static,
) -> ModelLoader<B> {
    let load = move || {
        joined();
        let Model { heads, .. } = setup.cluster.model.clone();
        let checkpoint = Arc::new(crate::processes::checkpoint::checkpoint_of(&setup.cluster.model)?);
        let (backend, cores) = open(&setup, checkpoint.config())?;
        let weights = weights.of(&setup.host.devices, &backend);
        let mut loading = weights.loading();
        let bytes = |parts| Numbers::of(&setup.cluster.model).weight_bytes(checkpoint.config(), parts);
        room(&backend, bytes(setup.parts).saturating_sub(loading.loaded().map_or(0, bytes)))?;
        let Cluster { model, data_dir, .. } = &setup.cluster;
        let later = takes_head_later(&setup);
        let parts = if later { DecoderParts::Context } else { setup.parts };
        let (decoder, digest) = std::thread::scope(|scope| {
            let hashed = scope.spawn(|| crate::processes::checkpoint::weights_digest(&checkpoint, model, data_dir));
            let decoder = loading.decoder(Arc::new(backend), &checkpoint, parts);
            (decoder, hashed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        drop(loading);
        let (mut decoder, tokenizer) = (decoder?, Tokenizer::from_checkpoint(&checkpoint)?);
        let digest = ModelDigest { front: checkpoint.front_digest(), weights: digest? };
        if later {
            decoder = decoder.with_late_head(checkpoint, weights)?;
        }
        Ok(LoadedModel { decoder: Arc::new(decoder), tokenizer, digest, heads, cores })
    };
    // What helps a context that is too long for a GPU helps no model that is.
    Box::new(|| {
        load().map_err(|error| match error {
            ModelError::Kernel(KernelError::DeviceMemory { bytes, free }) => {
                KernelError::NoRoomToLoad { bytes, free }.into()
            }
            other => other,
        })
    })
}

#[cfg(test)]
mod tests {
    use asterism_kernels::{KernelChoice, KvFormat};
    use asterism_models::{Checkpoint, Decoder};

    use super::*;

    /// A cluster of a context and a query host with `keys` of the first and for recovery.
    fn cluster(limit: &str, recovery: &str, process: &str) -> Cluster {
        let text = format!(
            "version = 1\n[supervisor]\nrecovery = \"{recovery}\"\n[[node]]\nname = \"local\"\naddress = \"127.0.0.1\"\n\
             [[host]]\nname = \"context-0\"\nrole = \"context\"\n{limit}{process}[[host]]\nname = \"query-0\"\nrole = \"query\"\n{process}"
        );
        let file = crate::cluster::file::parse(&text, []).unwrap();
        Cluster::resolve(&file, std::path::Path::new("/")).unwrap()
    }

    #[test]
    fn weights_are_counted_as_they_are_loaded() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let shape = checkpoint.config();
        let [context, all] = [DecoderParts::Context, DecoderParts::All].map(|parts| {
            Numbers { dtype: DType::F32, linear: None, attention: None, kept: KvFormat::Computed }
                .weight_bytes(shape, parts)
        });
        let counted = |recovery: &str, process: &str| {
            let cluster = cluster("", recovery, process);
            cluster.hosts.iter().map(|host| weight_bytes(&cluster, host, shape)).collect::<Vec<_>>()
        };
        assert_eq!(counted("redistribute", ""), [all, all]);
        assert_eq!(counted("fail", ""), [context, all]);
        assert_eq!(counted("fail", "process = \"both\"\n"), [all, 0], "the query host's head is in the process, too");
    }

    #[test]
    fn weights_beyond_a_hosts_limit_are_refused_with_both_numbers() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let refused = |limit: &str| weights_fit(&cluster(limit, "redistribute", ""), checkpoint.config());
        refused("").unwrap();
        refused("memory_limit = \"64MiB\"\n").unwrap();
        let error = refused("memory_limit = \"20MiB\"\n").unwrap_err();
        assert_eq!(error.exit, Exit::Capacity);
        assert!(error.message.contains("host 'context-0' needs 3") && error.message.contains("is 20.0 MiB"), "{error}");
        assert!(error.hint.unwrap().contains("bf16"));
    }

    #[test]
    fn attention_in_8_bits_is_refused_for_heads_that_it_has_no_kernels_for() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (mut cluster, mut shape) = (cluster("", "redistribute", ""), checkpoint.config().clone());
        attention_fits(&cluster, &shape).unwrap();
        cluster.model.attention = Some(ComputeType::Fp8);
        let error = attention_fits(&cluster, &shape).unwrap_err();
        assert!(error.message.contains("have 128 elements, and those of this model have 64"), "{error}");
        shape.heads.dim = 128;
        attention_fits(&cluster, &shape).unwrap();
    }

    #[test]
    fn operations_that_a_device_lacks_are_refused_by_name() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let (plain, mut behind) = (checkpoint.config().clone(), checkpoint.config().clone());
        behind.layer.norms_behind = true;
        has_operations(&cluster("", "redistribute", ""), &behind).unwrap();
        for (keys, devices) in [("device = \"cuda:1\"\n", "cuda:1"), ("devices = [\"cpu\", \"cpu\"]\n", "cpu,cpu")] {
            let cluster = cluster(keys, "redistribute", "");
            has_operations(&cluster, &plain).unwrap();
            let error = has_operations(&cluster, &behind).unwrap_err();
            let words = format!("host 'context-0' is to compute on {devices}: the model needs sums of rows");
            assert!(error.exit == Exit::Usage && error.message.starts_with(&words), "{error}");
            assert!(error.hint.unwrap().contains("device = \"cpu\""));
        }
    }

    #[test]
    fn hosts_of_a_process_that_compute_alike_have_their_weights_once() {
        let (weights, checkpoint) = (ProcessWeights::default(), Checkpoint::embedded().unwrap());
        let load = |dtype, parts| {
            let numbers = (dtype, KvFormat::Computed);
            let cpu = crate::processes::checkpoint::cpu(numbers, 1, KernelChoice::Auto).unwrap();
            let shared = weights.clone().cpus.of(&Device::Cpu.into(), &cpu);
            let mut loading = shared.loading();
            let before = loading.loaded();
            (before, loading.decoder(Arc::new(cpu), &checkpoint, parts).unwrap())
        };
        let (first, context) = load(DType::F32, DecoderParts::Context);
        let (second, query) = load(DType::F32, DecoderParts::Query);
        let (third, other) = load(DType::F32, DecoderParts::Context);
        let (fourth, rounded) = load(DType::Bf16, DecoderParts::Context);
        assert_eq!([first, second, third, fourth], [None, Some(DecoderParts::Context), Some(DecoderParts::All), None]);
        assert!(context.shares_weights(&query) && other.shares_weights(&query) && !rounded.shares_weights(&query));
        let logits = |decoder: &Decoder<Cpu>| decoder.logits(&decoder.embed(&[1, 2, 3]).unwrap());
        assert!(logits(&context).is_err(), "a context host has no head");
        drop(context);
        let numbers = (DType::F32, KvFormat::Computed);
        let alone = crate::processes::checkpoint::cpu(numbers, 1, KernelChoice::Auto).unwrap();
        let alone = Decoder::load(Arc::new(alone), &checkpoint, DecoderParts::All).unwrap();
        assert!(!alone.shares_weights(&query));
        assert_eq!(logits(&query).unwrap(), logits(&alone).unwrap());
    }
}
