//! Where a host computes: its device, opened as a backend, with the model on it. A build without the feature `cuda` knows the CPU
//! alone, and says so.

use std::sync::Arc;

use asterism_actors::{HostConfig, HostError, LoadedModel, ModelLoader, host};
use asterism_kernels::{Backend, KernelChoice};
use asterism_models::{Decoder, ModelConfig, ModelError, Parts, Tokenizer};
use asterism_transport::Transport;

use crate::{
    cluster::{Cluster, Host, Model},
    cluster_file::Device,
    error::CliError,
    wiring,
};

/// What a host process computes with.
pub struct Setup {
    /// Its device.
    pub device: Device,
    /// Threads, where it is the CPU.
    pub threads: usize,
    /// What it loads of the model.
    pub parts: Parts,
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
    transport: Arc<dyn Transport>,
    model: Model,
    setup: Setup,
    joined: impl FnOnce() + Send + 'static,
) -> Result<(), HostError> {
    let Setup { device, threads, parts } = setup;
    let dtype = model.dtype;
    match device {
        Device::Cpu => {
            let open = move |_: &ModelConfig| wiring::cpu(dtype, threads, KernelChoice::Auto);
            host::run(config, transport, loader(model, parts, open, joined)).await
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(index) => {
            let open = move |shape: &ModelConfig| cuda(index, dtype, shape.weight_bytes(parts, wiring::dtype(dtype)));
            host::run(config, transport, loader(model, parts, open, joined)).await
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(index) => {
            let cause = "this program was built without the feature cuda".into();
            let cause = ModelError::Kernel(asterism_kernels::KernelError::NoDevice { index, cause });
            Err(HostError::Model { host: config.name, cause })
        }
    }
}

/// A GPU with room for these weights. What is missing beside it is said once, here.
#[cfg(feature = "cuda")]
pub fn cuda(
    index: usize,
    dtype: crate::cluster_file::DType,
    weights: u64,
) -> Result<asterism_kernels::Cuda, ModelError> {
    let options = asterism_kernels::CudaOptions { device: index, dtype: wiring::dtype(dtype) };
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
    open: impl FnOnce(&ModelConfig) -> Result<B, ModelError> + Send + 'static,
    joined: impl FnOnce() + Send + 'static,
) -> ModelLoader<B> {
    Box::new(move || {
        joined();
        let checkpoint = wiring::checkpoint_of(&model)?;
        let backend = Arc::new(open(checkpoint.config())?);
        let decoder = Arc::new(Decoder::load(backend, &checkpoint, parts)?);
        Ok(LoadedModel { decoder, tokenizer: Tokenizer::from_checkpoint(&checkpoint)?, heads: model.heads })
    })
}
