//! The models of a cluster, each of them a checkpoint, or a shape with random weights, and what goes with it.

use std::path::{Path, PathBuf};

use asterism_kernels::KvFormat;
use asterism_models::{HeadsFiles, KnownShape, QuerySeparator, TemplateDate};
use asterism_plan::Method;

use super::{ClusterError, clashes::check_name};
use crate::cluster::file::{ClusterFile, ComputeType, DType, Device, HostSection, KvDType, ModelSection};

/// The model that hosts load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// What requests and hosts call it; `None`: its folder's name, and no name.
    pub name: Option<String>,
    /// A Hugging Face folder or a GGUF file; `None`: the embedded model.
    pub path: Option<PathBuf>,
    /// A shape with random weights, instead of a checkpoint.
    pub random: Option<KnownShape>,
    /// Element type of weights and products.
    pub dtype: DType,
    /// What linear layers are computed in, if not in `dtype`.
    pub linear: Option<ComputeType>,
    /// What attention of many rows is computed in, if not in `dtype`.
    pub attention: Option<ComputeType>,
    /// How keys and values are kept.
    pub kept: KvFormat,
    /// Longest context accepted, when shorter than the model's own.
    pub max_context_tokens: Option<usize>,
    /// Files of APB's retaining heads, by the names that requests use.
    pub heads: HeadsFiles,
    /// What stands between context and question where a request does not say.
    pub query_separator: QuerySeparator,
    /// The date that the chat template is told where a request does not say.
    pub template_date: Option<TemplateDate>,
}

impl Model {
    /// What its hosts and contexts are labelled with.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }
}

/// All models of a file, each under a name of its own.
pub(super) fn resolve_all(file: &ClusterFile, directory: &Path) -> Result<Vec<Model>, ClusterError> {
    let models: Vec<&ModelSection> = file.model.iter().collect();
    for (at, section) in models.iter().enumerate() {
        match &section.name {
            Some(name) if models[..at].iter().any(|other| other.name.as_ref() == Some(name)) => {
                return Err(ClusterError::Duplicate { kind: "model", name: name.clone() });
            }
            Some(name) => check_name("model.name", name)?,
            None if at == 0 => {}
            None => {
                let expected = format!(
                    "[[model]] {} of {} has none; of several only the first may go without",
                    at + 1,
                    models.len()
                );
                return Err(ClusterError::Value { key: "model.name", got: "nothing".into(), expected });
            }
        }
    }
    check_heads(file)?;
    let models = models.iter().enumerate();
    models.map(|(at, section)| resolve(file, section, (directory, at == 0))).collect()
}

fn resolve(
    file: &ClusterFile,
    section: &ModelSection,
    (directory, is_first): (&Path, bool),
) -> Result<Model, ClusterError> {
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
        name: section.name.clone(),
        random,
        path: section.path.as_ref().map(|path| directory.join(path)),
        dtype: section.dtype,
        linear: on_gpus(file, section, ("model.linear", section.linear), "8-bit linear layers")?,
        attention: on_gpus(
            file,
            section,
            ("model.attention_dtype", section.attention_dtype),
            "8-bit products of attention",
        )?,
        kept: kept(file, section)?,
        max_context_tokens: section.max_context_tokens,
        heads: heads(file, directory, |of| of == section.name.as_deref() || is_first && of.is_none()),
        query_separator: section.query_separator.clone(),
        template_date: section.template_date,
    })
}

/// What is computed in 8-bit floats is a GPU's, and goes with bf16. `what` it is, of several.
fn on_gpus(
    file: &ClusterFile,
    section: &ModelSection,
    (key, asked): (&'static str, Option<ComputeType>),
    what: &str,
) -> Result<Option<ComputeType>, ClusterError> {
    let ModelSection { name, device, dtype, .. } = section;
    let first = |host: &HostSection| host.devices.as_ref().and_then(|devices| devices.first().copied()).or(host.device);
    let mut own = file.hosts.iter().filter(|host| file.model_of(host).0 == name.as_deref());
    let on_cpu = own.find(|host| first(host).unwrap_or(*device) == Device::Cpu);
    let leave = key.trim_start_matches("model.");
    let expected = match on_cpu {
        _ if asked.is_none() => return Ok(None),
        _ if *dtype != DType::Bf16 => format!("{what} go with dtype = \"bf16\"; write that, or leave {leave} out"),
        Some(host) => {
            let name = host.name.as_str();
            format!("{what} are computed on GPUs, and host '{name}' is on the CPU; leave {leave} out")
        }
        None => return Ok(asked),
    };
    Err(ClusterError::Value { key, got: "\"fp8\"".into(), expected })
}

/// 8-bit keys and values are those of hosts that are one device each.
fn kept(file: &ClusterFile, section: &ModelSection) -> Result<KvFormat, ClusterError> {
    let refused = |got: &str, expected: String| {
        Err(ClusterError::Value { key: "model.kv_dtype", got: format!("{got:?}"), expected })
    };
    match section.kv_dtype {
        None => Ok(KvFormat::Computed),
        Some(KvDType::Fp8) => {
            let expected = "\"q8\", which takes as many bytes and is closer: 8-bit integers with a scale for each token of a head; this version has no kernels for keys in 8-bit floats";
            refused("fp8", expected.into())
        }
        Some(KvDType::Q8) => {
            let devices = |host: &HostSection| match &host.devices {
                Some(devices) => devices.clone(),
                None => vec![host.device.unwrap_or(section.device)],
            };
            let mut own = file.hosts.iter().filter(|host| file.model_of(host).0 == section.name.as_deref());
            let other = own.find_map(|host| Some((host, devices(host).len())).filter(|(_, of)| *of != 1));
            let Some((host, of)) = other else { return Ok(KvFormat::Q8) };
            let what = format!("host '{}' has {of} devices, and 8-bit keys are of hosts with one", host.name);
            refused("q8", format!("{what}; leave kv_dtype out, or give every device a host of its own"))
        }
    }
}

/// The heads that were trained for a model: those whose `model` `is_own`.
fn heads(file: &ClusterFile, directory: &Path, is_own: impl Fn(Option<&str>) -> bool) -> HeadsFiles {
    let own = file.models.heads.iter().filter(|(_, heads)| is_own(heads.model.as_deref()));
    own.map(|(name, heads)| (name.clone(), directory.join(&heads.path))).collect()
}

fn check_heads(file: &ClusterFile) -> Result<(), ClusterError> {
    let named = &file.models.heads;
    named.keys().try_for_each(|name| check_name("models.heads", name))?;
    let models: Vec<&str> = file.model.iter().filter_map(|model| model.name.as_deref()).collect();
    for heads in named.values() {
        if let Some(model) = heads.model.as_deref().filter(|model| !models.contains(model)) {
            return Err(ClusterError::Value {
                key: "models.heads.NAME.model",
                got: format!("{model:?}"),
                expected: format!(
                    "the name of a [[model]], or absent for the first; the file has: {}",
                    models.join(", ")
                ),
            });
        }
    }
    if let Some(wanted) = file.attention.retaining_heads().filter(|wanted| !named.contains_key(*wanted)) {
        let known: Vec<&str> = named.keys().map(String::as_str).collect();
        return Err(ClusterError::Value {
            key: "attention.apb.retaining_heads",
            got: format!("{wanted:?}"),
            expected: format!("a NAME of [models.heads.NAME]; the file has: {}", known.join(", ")),
        });
    }
    Ok(())
}
