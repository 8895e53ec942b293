//! Where a host computes: its device, opened as a backend, with the model on it. A build without the feature `cuda` knows the CPU
//! alone, and says so.

use std::sync::Arc;

use asterism_actors::{HostConfig, HostError, LoadedModel, ModelLoader, Transports, cores::Cores, host};
#[cfg(feature = "cuda")]
use asterism_actors::{cores::Work, messages::GpuMemory};
use asterism_kernels::Backend;
use asterism_models::{Decoder, ModelConfig, ModelError, Parts, Tokenizer};

use crate::{
    cluster::{Cluster, Host, Model},
    cluster_file::{DType, Device, LinearType},
    cores::SharedCores,
    error::CliError,
    wiring,
};

/// What a host process computes with.
pub struct Setup {
    /// The cluster, of which it loads the model.
    pub cluster: Cluster,
    /// The host.
    pub host: Host,
    /// Cores of this machine.
    pub cores: usize,
    /// What it loads of the model.
    pub parts: Parts,
}

/// What a host computes in.
#[derive(Clone, Copy)]
pub struct Numbers {
    /// Weights and products.
    pub dtype: DType,
    /// Linear layers, if not in that.
    pub linear: Option<LinearType>,
}

impl Numbers {
    /// As the cluster file says.
    pub fn of(model: &Model) -> Self {
        Self { dtype: model.dtype, linear: model.linear }
    }
}

/// Refuses hosts on devices that this build knows nothing of.
pub fn known(cluster: &Cluster) -> Result<(), CliError> {
    let unknown = |host: &&Host| host.device != Device::Cpu && !cfg!(feature = "cuda");
    match cluster.hosts.iter().find(unknown) {
        Some(host) => Err(CliError::usage(format!(
            "host '{}' computes on {}, and this program was built for CPUs only",
            host.name, host.device
        ))
        .hint("build it with `--features cuda`, or write device = \"cpu\"")),
        None => Ok(()),
    }
}

/// Runs a host whose model is loaded onto its device once it has joined; `joined` is called before.
pub async fn run_host(
    config: HostConfig,
    transports: Transports,
    setup: Setup,
    joined: impl FnOnce() + Send + 'static,
) -> Result<(), HostError> {
    let Setup { cluster, host: of, cores, parts } = setup;
    let (model, numbers) = (cluster.model.clone(), Numbers::of(&cluster.model));
    match of.device {
        Device::Cpu => {
            let open = move |_: &ModelConfig| {
                let cpu = wiring::cpu(numbers.dtype, of.threads.unwrap_or(cores), of.kernels)?;
                let cores: Arc<dyn Cores> = Arc::new(SharedCores::new(&cluster, &of, cores, cpu.thread_limit()));
                Ok((cpu, cores))
            };
            host::run(config, transports, loader(model, parts, open, joined)).await
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            let open = move |shape: &ModelConfig| {
                let gpu = cuda(index, numbers, shape.weight_bytes(parts, wiring::dtype(numbers.dtype)))?;
                let cores: Arc<dyn Cores> = Arc::new(OwnGpu(gpu.device().gauge()));
                Ok((gpu, cores))
            };
            host::run(config, transports, loader(model, parts, open, joined)).await
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(index) => {
            let cause = "this program was built without the feature cuda".into();
            let cause = ModelError::Kernel(asterism_kernels::KernelError::NoDevice { index, cause });
            Err(HostError::Model { host: config.name, cause })
        }
    }
}

/// A GPU that a host shares with no other of this cluster.
#[cfg(feature = "cuda")]
#[derive(Debug)]
struct OwnGpu(asterism_kernels::cuda::Gauge);

#[cfg(feature = "cuda")]
impl Cores for OwnGpu {
    fn begin(&self, _: Work) {}

    fn end(&self, _: Work) {}

    fn threads(&self) -> usize {
        0
    }

    fn gpu_memory(&self) -> Option<GpuMemory> {
        let (free, all) = self.0.memory().ok()?;
        Some(GpuMemory { used: (all - free) as u64, free: free as u64 })
    }
}

/// A GPU with room for these weights. What is missing beside it is said once, here.
#[cfg(feature = "cuda")]
pub fn cuda(index: usize, numbers: Numbers, weights: u64) -> Result<asterism_kernels::Cuda, ModelError> {
    let options = asterism_kernels::CudaOptions {
        device: index,
        dtype: wiring::dtype(numbers.dtype),
        eight_bits: numbers.linear == Some(LinearType::Fp8),
    };
    let gpu = asterism_kernels::Cuda::new(options)?;
    gpu.require(weights)?;
    if !gpu.attender().has_library() {
        tracing::warn!("cuDNN is not there: attention goes through own kernels, at half the speed in prefill");
    }
    if !gpu.products().has_library() {
        tracing::warn!("cublasLt is not there: linear layers go through own kernels, many times slower");
    }
    tracing::info!(device = index, name = gpu.device().name()?, "computing on a GPU");
    Ok(gpu)
}

fn loader<B: Backend>(
    model: Model,
    parts: Parts,
    open: impl FnOnce(&ModelConfig) -> Result<(B, Arc<dyn Cores>), ModelError> + Send + 'static,
    joined: impl FnOnce() + Send + 'static,
) -> ModelLoader<B> {
    Box::new(move || {
        joined();
        let checkpoint = wiring::checkpoint_of(&model)?;
        let (backend, cores) = open(checkpoint.config())?;
        let decoder = Arc::new(Decoder::load(Arc::new(backend), &checkpoint, parts)?);
        Ok(LoadedModel { decoder, tokenizer: Tokenizer::from_checkpoint(&checkpoint)?, heads: model.heads, cores })
    })
}
