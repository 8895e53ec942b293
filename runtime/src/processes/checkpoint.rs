//! The model that the cluster file names, opened for this process. Loads no weights onto a device.

use std::path::Path;

use asterism_actors::supervisor::ModelFront;
use asterism_kernels::{Cpu, CpuOptions, DType, KernelChoice, KvFormat, KvType};
use asterism_models::{Checkpoint, ModelError, TemplateSource, WeightsDigest};

use crate::{
    client::hub,
    cluster::{Model, file as cluster_file},
    error::CliError,
    processes::template,
};

/// The model of a cluster: its checkpoint, or random weights.
pub fn checkpoint_of(model: &Model) -> Result<Checkpoint, ModelError> {
    match model.random {
        Some(shape) => Checkpoint::random(shape),
        None => checkpoint(model.path.as_deref()),
    }
}

/// Opens a folder with a checkpoint, or what the hub's cache has of a name; or the embedded model.
pub fn checkpoint(path: Option<&Path>) -> Result<Checkpoint, ModelError> {
    match path {
        Some(folder) => Checkpoint::open(&hub::located(folder)),
        None => Checkpoint::embedded(),
    }
}

/// The model as clients and the supervisor know it: tokenizer, template and limits, no weights.
pub fn model_front(model: &Model) -> Result<ModelFront, CliError> {
    let renderer = |source: TemplateSource| match &model.path {
        Some(_) => template::apart(source),
        None => source.in_process(),
    };
    let front = checkpoint_of(model)
        .and_then(|checkpoint| ModelFront::load(&checkpoint, model.max_context_tokens, renderer))
        .and_then(|front| front.with_heads(&model.heads))
        .map(|front| front.named(model.name.as_deref()))
        .map(|front| front.with_separator(model.query_separator.clone()).with_template_date(model.template_date));
    front.map_err(|error| model_refusal(&error))
}

/// Why a cluster's model is none.
pub fn model_refusal(error: &ModelError) -> CliError {
    let hint = match error {
        ModelError::RetainingHeads { .. } => "correct [models.heads] in the cluster file",
        _ => "set [model] path to a Hugging Face folder or a GGUF file, or leave it out for the embedded model",
    };
    CliError::usage(format!("the model cannot be used: {error}")).hint(hint)
}

/// The digest of what is computed with: weights, and retaining heads. `folder` is where it is kept if not beside the weights.
pub fn weights_digest(checkpoint: &Checkpoint, model: &Model, folder: &Path) -> Result<WeightsDigest, ModelError> {
    checkpoint.weights_digest(folder)?.with_heads(&model.heads)
}

/// The CPU backend with these threads.
pub fn cpu(
    (dtype, kept): (cluster_file::DType, KvFormat),
    threads: usize,
    kernels: KernelChoice,
) -> Result<Cpu, ModelError> {
    let dtype = super::checkpoint::dtype(dtype);
    Ok(Cpu::new(CpuOptions { dtype, kept, threads: Some(threads), kernels })?)
}

/// Types of a model's keys and values.
pub fn kv_type(model: &Model) -> KvType {
    KvType { computed: dtype(model.dtype), kept: model.kept }
}

/// The kernels' type of this name.
pub fn dtype(dtype: cluster_file::DType) -> DType {
    match dtype {
        cluster_file::DType::F32 => DType::F32,
        cluster_file::DType::Bf16 => DType::Bf16,
    }
}
