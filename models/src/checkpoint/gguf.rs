//! A model in GGUF: one file, or one cut into parts. What its metadata says of shape, tokenizer and template is put into the words of a
//! Hugging Face folder, and its tensors get the names that transformers has for them; the rest of this program knows no difference.

mod configuration;
mod header;
mod metadata;
mod names;
pub(crate) mod patterns;
mod refusal;
mod split;
mod tokenizer;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::Value;

use super::{
    Checkpoint,
    chat_files::ChatFiles,
    random,
    weights::{TensorEntry, WeightFile},
};
use crate::{ModelConfig, ModelError};
use header::Header;
use metadata::Metadata;
use names::name_in_file;
use refusal::refused;

impl Checkpoint {
    /// Opens a GGUF file; of one that was cut into parts, any.
    pub(super) fn open_gguf(named: &Path) -> Result<Self, ModelError> {
        let paths = split::parts(named)?;
        let files: Vec<(String, WeightFile)> = paths
            .iter()
            .map(|path| Ok((path.display().to_string(), WeightFile::map(path)?)))
            .collect::<Result<_, ModelError>>()?;
        let headers: Vec<Header<'_>> =
            files.iter().map(|(path, file)| Header::read(path, file.bytes())).collect::<Result<_, _>>()?;
        split::check(&files, &headers)?;
        let read = read(&files, &headers)?;
        let name = split::stem(named);
        let Read { config, family, tensors, tokenizer, tokenizer_config } = read;
        let checkpoint = Self {
            name,
            config,
            family,
            files,
            tensors,
            tokenizer: tokenizer.to_string().into_bytes(),
            tokenizer_config: Some(tokenizer_config.to_string().into_bytes()),
            chat: ChatFiles::default(),
            gguf: true,
            scheme: None,
        };
        Ok(checkpoint.counted())
    }

    /// What the weights call a tensor.
    pub(super) fn name_in_weights(&self, name: &str) -> String {
        if self.gguf { name_in_file(name) } else { name.to_owned() }
    }

    /// A tensor of a GGUF file that is not as the metadata has it.
    pub(super) fn unfit(&self, file: usize, name: &str, got: String, expected: &[usize]) -> ModelError {
        let expected = format!("{expected:?} by the metadata, the innermost axis last");
        refused(&self.files[file].0, format!("tensor {}", name_in_file(name)), got, expected)
    }
}

/// What parts of a file come to.
struct Read {
    config: ModelConfig,
    family: String,
    tensors: BTreeMap<String, (usize, TensorEntry)>,
    tokenizer: Value,
    tokenizer_config: Value,
}

fn read(files: &[(String, WeightFile)], headers: &[Header<'_>]) -> Result<Read, ModelError> {
    let metadata = Metadata::new(&files[0].0, &headers[0]);
    let architecture = names::architecture(&metadata)?;
    let tensors = names::tensors(files, headers, architecture, &metadata)?;
    let shape = |name: &str| tensors.get(name).map(|(_, entry)| entry.shape.as_slice());
    let factors = |name: &str| {
        let numbered = headers.iter().zip(files).find_map(|(header, file)| Some((header.tensor(name)?, file)));
        numbered.map(|(tensor, (path, file))| tensor.floats(path, file.bytes())).transpose()
    };
    let json = configuration::config_json(&metadata, architecture, &shape, &factors)?;
    let config = ModelConfig::from_json(json.to_string().as_bytes(), None)?;
    let needed: BTreeSet<String> = random::tensors(&config).into_iter().map(|(name, _)| name).collect();
    if let Some((name, (file, _))) = tensors.iter().find(|(name, _)| !needed.contains(*name)) {
        let expected = format!("no such tensor in a model of {}: nothing would be computed with it", architecture.name);
        return Err(refused(&files[*file].0, format!("tensor {}", name_in_file(name)), "there", expected));
    }
    let (tokenizer, tokenizer_config) = tokenizer::files(&metadata, config.vocab)?;
    let family = architecture.model_type.to_owned();
    Ok(Read { config, family, tensors, tokenizer, tokenizer_config })
}
