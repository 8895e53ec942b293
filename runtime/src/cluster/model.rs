//! The model of a cluster: a checkpoint, or a shape with random weights, and what goes with it.

use std::path::{Path, PathBuf};

use asterism_models::{HeadsFiles, KnownShape, QuerySeparator, TemplateDate};
use asterism_plan::Method;

use super::{ClusterError, clashes::check_name};
use crate::cluster::file::{ClusterFile, DType, Device, HostSection, LinearType, ModelSection};

/// The model every host loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// A Hugging Face folder or a GGUF file; `None`: the embedded model.
    pub path: Option<PathBuf>,
    /// A shape with random weights, instead of a checkpoint.
    pub random: Option<KnownShape>,
    /// Element type of weights and products.
    pub dtype: DType,
    /// What linear layers are computed in, if not in `dtype`.
    pub linear: Option<LinearType>,
    /// Longest context accepted, when shorter than the model's own.
    pub max_context_tokens: Option<usize>,
    /// Files of APB's retaining heads, by the names that requests use.
    pub heads: HeadsFiles,
    /// What stands between context and question where a request does not say.
    pub query_separator: QuerySeparator,
    /// The date that the chat template is told where a request does not say.
    pub template_date: Option<TemplateDate>,
}

pub(super) fn resolve(file: &ClusterFile, directory: &Path) -> Result<Model, ClusterError> {
    let section = &file.model;
    if section.max_context_tokens == Some(0) {
        return Err(ClusterError::Value {
            key: "model.max_context_tokens",
            got: "0".into(),
            expected: "at least 1, or absent for the model's own maximum".into(),
        });
    }
    let random = section.random_weights.as_deref().map(str::parse::<KnownShape>).transpose();
    let random = random.map_err(|expected| ClusterError::Value {
        key: "model.random_weights",
        got: format!("{:?}", section.random_weights.as_deref().unwrap_or_default()),
        expected,
    })?;
    if let (Some(_), Some(path)) = (&random, &section.path) {
        return Err(ClusterError::Value {
            key: "model.path",
            got: format!("{:?}", path.display().to_string()),
            expected: "model.random_weights takes no checkpoint; leave one of the two out".into(),
        });
    }
    Ok(Model {
        random,
        path: section.path.as_ref().map(|path| directory.join(path)),
        dtype: section.dtype,
        linear: linear(file)?,
        max_context_tokens: section.max_context_tokens,
        heads: heads(file, directory)?,
        query_separator: section.query_separator.clone(),
        template_date: section.template_date,
    })
}

/// 8-bit linear layers are a GPU's, and go with bf16.
fn linear(file: &ClusterFile) -> Result<Option<LinearType>, ClusterError> {
    let ModelSection { linear, device, dtype, .. } = &file.model;
    let first = |host: &HostSection| host.devices.as_ref().and_then(|devices| devices.first().copied()).or(host.device);
    let on_cpu = file.hosts.iter().find(|host| first(host).unwrap_or(*device) == Device::Cpu);
    let expected = match on_cpu {
        _ if linear.is_none() => return Ok(None),
        _ if *dtype != DType::Bf16 => {
            "8-bit linear layers go with dtype = \"bf16\"; write that, or leave linear out".into()
        }
        Some(host) => {
            let name = host.name.as_str();
            format!("8-bit linear layers are computed on GPUs, and host '{name}' is on the CPU; leave linear out")
        }
        None => return Ok(*linear),
    };
    Err(ClusterError::Value { key: "model.linear", got: "\"fp8\"".into(), expected })
}

fn heads(file: &ClusterFile, directory: &Path) -> Result<HeadsFiles, ClusterError> {
    let named = &file.models.heads;
    named.keys().try_for_each(|name| check_name("models.heads", name))?;
    if let Some(wanted) = file.attention.retaining_heads().filter(|wanted| !named.contains_key(*wanted)) {
        let known: Vec<&str> = named.keys().map(String::as_str).collect();
        return Err(ClusterError::Value {
            key: "attention.apb.retaining_heads",
            got: format!("{wanted:?}"),
            expected: format!("a NAME of [models.heads.NAME]; the file has: {}", known.join(", ")),
        });
    }
    Ok(named.iter().map(|(name, heads)| (name.clone(), directory.join(&heads.path))).collect())
}
