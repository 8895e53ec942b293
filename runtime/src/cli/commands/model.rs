//! `model pull|list|inspect|verify|rm`: models of a hub on this machine. Starts no cluster.

use std::path::{Path, PathBuf};

use asterism_models::{ChatTemplate, Checkpoint, ModelConfig, StoredTensors, Tokenizer, is_plain_path};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::{
    cli::output::{self, Table},
    client::hub::{self, CachedModel, HubAccess, HubCache, HubClient, HubError, HubName, Pulled},
    cluster::size::{self, count, grouped},
    error::{CliError, Exit},
    globals::{Format, Globals},
    processes::checkpoint,
};

/// `asterism model`
#[derive(Debug, Subcommand)]
pub enum ModelVerb {
    /// Fetch a model from a hub into the hub's cache, or one file of it
    Pull(PullArgs),
    /// Show the models of the hub's cache
    List,
    /// Show what a model is: a folder, or a name of the cache
    Inspect(ModelArgs),
    /// Read a model's tokenizer and all of its weights; of a cached one hash all of its files, too
    Verify(ModelArgs),
    /// Remove a model from the hub's cache, with all of its revisions
    Rm(RemoveArgs),
}

/// `asterism model pull`
#[derive(Args, Debug)]
pub struct PullArgs {
    /// The model, such as Qwen/Qwen3-0.6B, org/name@revision or org/name:file.gguf
    #[arg(value_name = "ORG/NAME[@REVISION][:FILE]")]
    pub name: HubName,
    /// File whose first line is the hub's token [env: HF_TOKEN_PATH, HF_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub hub_token_file: Option<PathBuf>,
}

/// `asterism model inspect` and `verify`
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// A Hugging Face folder, a GGUF file, or ORG/NAME of the hub's cache
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
}

/// `asterism model rm`
#[derive(Args, Debug)]
pub struct RemoveArgs {
    /// The model, as `model list` has it
    #[arg(value_name = "ORG/NAME")]
    pub name: HubName,
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: ModelVerb) -> Result<Exit, CliError> {
    match verb {
        ModelVerb::Pull(args) => pull(globals, &args),
        ModelVerb::List => list(globals),
        ModelVerb::Inspect(args) => inspect(globals, &args.model),
        ModelVerb::Verify(args) => verify(globals, &args.model),
        ModelVerb::Rm(args) => remove(globals, &args.name),
    }
}

fn cache() -> Result<HubCache, CliError> {
    Ok(HubCache::of_environment().ok_or(HubError::NoCache)?)
}

fn pull(globals: &Globals, args: &PullArgs) -> Result<Exit, CliError> {
    let access = HubAccess { token_file: args.hub_token_file.clone(), authorities: globals.cacert.clone() };
    let client = HubClient::of_environment(&access)?;
    let pulled = hub::pull(&client, &cache()?, &args.name, globals.quiet)?;
    let Pulled { name, revision, path, files, bytes, fetched } = &pulled;
    match globals.format {
        Format::Table => output::print_pairs(&[
            ("model", name.clone()),
            ("revision", revision.clone()),
            ("files", format!("{files}, {} bytes, {fetched} fetched", grouped(*bytes as usize))),
            ("path", path.display().to_string()),
        ])?,
        format => output::print_json(&pulled, format)?,
    }
    Ok(Exit::Success)
}

fn list(globals: &Globals) -> Result<Exit, CliError> {
    let table = |models: &[CachedModel]| {
        let mut table = Table::new(["MODEL", "REVISION", "FILES", "BYTES", "PATH"]);
        for CachedModel { name, revision, path, files, bytes } in models {
            let short: String = revision.chars().take(12).collect();
            let path = path.display().to_string();
            table.row([name.clone(), short, files.to_string(), grouped(*bytes as usize), path]);
        }
        table
    };
    let cache = cache()?;
    let models = cache.models();
    output::print_rows(&models, globals.format, table)?;
    if models.is_empty() {
        let root = cache.root().display();
        globals.note(format_args!("the hub's cache {root} has no model; `asterism model pull ORG/NAME` fetches one"));
    }
    Ok(Exit::Success)
}

/// What a model is.
#[derive(Serialize)]
struct Inspected {
    name: String,
    family: String,
    layers: usize,
    windowed_layers: usize,
    window: Option<usize>,
    query_heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    vocabulary: usize,
    max_tokens: usize,
    /// Of all files of weights.
    file_bytes: usize,
    /// What tensors are stored in.
    stored: Vec<StoredTensors>,
    /// Where it is; absent of a base model.
    chat_template: Option<String>,
    notes: Vec<String>,
}

fn inspect(globals: &Globals, model: &Path) -> Result<Exit, CliError> {
    let checkpoint = opened(model)?;
    let config: &ModelConfig = checkpoint.config();
    let windows = config.attention.iter().filter_map(|layer| layer.window);
    let template = Tokenizer::from_checkpoint(&checkpoint)
        .and_then(|tokenizer| ChatTemplate::place(&checkpoint, &tokenizer))
        .map_err(|error| checkpoint::model_refusal(&error))?;
    let inspected = Inspected {
        name: checkpoint.name().to_owned(),
        family: checkpoint.family().to_owned(),
        layers: config.layers,
        windowed_layers: windows.clone().count(),
        window: windows.max(),
        query_heads: config.heads.query,
        kv_heads: config.heads.kv,
        head_dim: config.heads.dim,
        hidden: config.hidden,
        vocabulary: config.vocab,
        max_tokens: config.max_position,
        file_bytes: checkpoint.weight_bytes(),
        stored: checkpoint.stored_types(),
        chat_template: template,
        notes: config.notes.clone(),
    };
    match globals.format {
        Format::Table => {
            let windows = match inspected.window {
                Some(window) => format!(", {} of them with a window of {}", inspected.windowed_layers, grouped(window)),
                None => String::new(),
            };
            output::print_pairs(&[
                ("model", inspected.name),
                ("family", inspected.family),
                ("layers", format!("{}{windows}", inspected.layers)),
                (
                    "heads",
                    format!(
                        "{} of queries, {} of keys, {} elements",
                        config.heads.query, config.heads.kv, config.heads.dim
                    ),
                ),
                ("hidden", grouped(config.hidden)),
                ("vocabulary", grouped(config.vocab)),
                ("max tokens", grouped(config.max_position)),
                ("files", count(inspected.file_bytes, "byte")),
                ("stored in", inspected.stored.iter().map(of_type).collect::<Vec<_>>().join(", ")),
                ("template", inspected.chat_template.unwrap_or_else(|| "none: it is asked without one".into())),
            ])?;
            inspected.notes.iter().try_for_each(|note| output::print(&format!("note: {note}\n")))?;
        }
        format => output::print_json(&inspected, format)?,
    }
    Ok(Exit::Success)
}

fn of_type(StoredTensors { stored, tensors, bytes }: &StoredTensors) -> String {
    format!("{stored} ({}, {})", count(*tensors, "tensor"), size::bytes(*bytes as u64))
}

fn verify(globals: &Globals, model: &Path) -> Result<Exit, CliError> {
    let mut said = Vec::new();
    let named = !model.exists() && !is_plain_path(model);
    let cached = model.to_str().filter(|_| named).and_then(|typed| typed.parse::<HubName>().ok());
    if let Some(name) = &cached {
        let (damaged, seen) = hub::damaged(&cache()?, name)?;
        if !damaged.is_empty() {
            let paths = damaged.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            let message = format!("{} of {seen} files have another hash than their name says: {paths}", damaged.len());
            let hint = format!("remove them, then `asterism model pull {name}`");
            return Err(CliError::new(Exit::JobFailed, message).hint(hint));
        }
        said.push(("files", format!("{seen}, all with the right hash")));
    }
    // A file of its own may be of a format that other commands read.
    if cached.as_ref().is_none_or(|name| name.file.is_none()) {
        let checkpoint = opened(model)?;
        let refusal = |error| checkpoint::model_refusal(&error);
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).map_err(refusal)?;
        tokenizer.check_ids(checkpoint.config()).map_err(refusal)?;
        said.push(("tokenizer", "of this model's vocabulary".to_owned()));
        checkpoint.verify().map_err(refusal)?;
        said.push(("weights", "all there, of the right shapes, and finite".to_owned()));
    }
    match globals.format {
        Format::Table => output::print_pairs(&said)?,
        format => {
            let said: std::collections::BTreeMap<_, _> = said.into_iter().collect();
            output::print_json(&said, format)?;
        }
    }
    Ok(Exit::Success)
}

fn remove(globals: &Globals, name: &HubName) -> Result<Exit, CliError> {
    let removed = cache()?.remove(name).map_err(|error| match error {
        HubError::NotCached { .. } => CliError::from(error).hint("`asterism model list` shows what it has"),
        error => error.into(),
    });
    let bytes = removed?;
    if !globals.quiet {
        eprintln!("removed {}: {} bytes", name.repository, grouped(bytes as usize));
    }
    Ok(Exit::Success)
}

/// A model, as far as it is read without its weights.
pub fn opened(model: &Path) -> Result<Checkpoint, CliError> {
    // What is missing is named as it was looked for, wherever that began.
    let is_file = is_plain_path(model) && model.extension().is_some_and(|end| end == "gguf");
    let absolute = std::path::absolute(model).ok().filter(|_| is_file);
    let model = absolute.as_deref().unwrap_or(model);
    if model.is_absolute() && model.parent().is_some_and(|parent| !parent.exists()) {
        let message = format!("the model cannot be used: {} does not exist", model.display());
        return Err(CliError::usage(message).hint("name a Hugging Face folder, a GGUF file, or ORG/NAME of the hub"));
    }
    checkpoint::checkpoint(Some(model)).map_err(|error| {
        let refused = checkpoint::model_refusal(&error);
        match hub::name_of(model).filter(|_| !hub::located(model).exists()) {
            Some(name) => refused.hint(format!("`asterism model pull {name}` fetches it")),
            None => refused,
        }
    })
}
