//! A checkpoint: a Hugging Face folder, memory-mapped, or the embedded model. Converts nothing: tensors are borrowed as
//! they are stored.

mod hash_cache;
mod hashing;
mod random;
mod weights;

use std::collections::BTreeMap;
use std::path::Path;

use asterism_kernels::HostTensor;
use serde::Deserialize;

use crate::config::parse;
use crate::{EMBEDDED_NAME, ModelConfig, ModelError, embedded};
pub use random::KnownShape;
use weights::{Entry, WeightFile};

/// An opened checkpoint.
pub struct Checkpoint {
    name: String,
    config: ModelConfig,
    /// Files of weights, with their paths.
    files: Vec<(String, WeightFile)>,
    /// Tensor name to the file that holds it, and where.
    tensors: BTreeMap<String, (usize, Entry)>,
    tokenizer: Vec<u8>,
    tokenizer_config: Option<Vec<u8>>,
    chat_template: Option<String>,
}

impl Checkpoint {
    /// Opens a folder with config.json, tokenizer.json and model.safetensors, whole or in shards with their index.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let required =
            |file: &str, remedy: &'static str| optional(folder, file)?.ok_or_else(|| missing(folder, file, remedy));
        let config = required(
            "config.json",
            "name a Hugging Face model folder (config.json, tokenizer.json, model.safetensors)",
        )?;
        let generation = optional(folder, "generation_config.json")?;
        let tokenizer = required(
            "tokenizer.json",
            "only the tokenizers format is read: save the tokenizer with transformers' save_pretrained",
        )?;
        let chat_template = optional(folder, "chat_template.jinja")?
            .map(|bytes| {
                String::from_utf8(bytes).map_err(|error| ModelError::Malformed {
                    path: folder.join("chat_template.jinja").display().to_string(),
                    cause: error.to_string(),
                })
            })
            .transpose()?;
        let (files, tensors) = open_weights(folder)?;
        Ok(Self {
            name: folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
            config: ModelConfig::from_json(&config, generation.as_deref())?,
            files,
            tensors,
            tokenizer,
            tokenizer_config: optional(folder, "tokenizer_config.json")?,
            chat_template,
        })
    }

    /// The embedded model.
    pub fn embedded() -> Result<Self, ModelError> {
        let file = WeightFile::embedded(embedded::weights());
        let tensors = file.entries(EMBEDDED_NAME)?.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        Ok(Self {
            name: EMBEDDED_NAME.to_owned(),
            config: ModelConfig::from_json(embedded::config(), None)?,
            files: vec![(EMBEDDED_NAME.to_owned(), file)],
            tensors,
            tokenizer: embedded::tokenizer().to_vec(),
            tokenizer_config: Some(embedded::tokenizer_config().to_vec()),
            chat_template: None,
        })
    }

    /// A shape with random weights and the embedded model's tokenizer: it says nothing, at the speed of a model of that shape.
    pub fn random(shape: KnownShape) -> Result<Self, ModelError> {
        let config = shape.config()?;
        let (file, tensors) = random::weights(&config);
        let name = format!("{} with random weights", shape.name());
        Ok(Self { name: name.clone(), config, files: vec![(name, file)], tensors, ..Self::embedded()? })
    }

    /// Name of the folder, or of the embedded model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The decoder's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Names of all tensors, in alphabetical order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Bytes of all weight files.
    pub fn weight_bytes(&self) -> usize {
        self.files.iter().map(|(_, file)| file.bytes().len()).sum()
    }

    /// A tensor of the shape that config.json implies.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<HostTensor<'_>, ModelError> {
        let Some((file, entry)) = self.tensors.get(name) else {
            return Err(ModelError::MissingTensor {
                checkpoint: self.name.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                nearest: self.nearest(name),
            });
        };
        if entry.shape != expected {
            return Err(ModelError::TensorShape {
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                got: entry.shape.clone(),
            });
        }
        Ok(HostTensor {
            dtype: entry.dtype(name)?,
            shape: &entry.shape,
            bytes: &self.files[*file].1.bytes()[entry.bytes.clone()],
        })
    }

    /// [`Checkpoint::tensor`], every element of which is a finite number: one pass over its bytes.
    pub(crate) fn finite_tensor(&self, name: &str, expected: &[usize]) -> Result<HostTensor<'_>, ModelError> {
        let tensor = self.tensor(name, expected)?;
        match weights::first_not_finite(tensor.dtype, tensor.bytes) {
            None => Ok(tensor),
            Some((element, got)) => {
                let file = self.files[self.tensors[name].0].0.clone();
                Err(ModelError::WeightNotFinite { file, tensor: name.to_owned(), element, got })
            }
        }
    }

    pub(crate) fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer
    }

    pub(crate) fn tokenizer_config_json(&self) -> Option<&[u8]> {
        self.tokenizer_config.as_deref()
    }

    pub(crate) fn chat_template_file(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    fn nearest(&self, name: &str) -> Option<String> {
        let closeness = |candidate: &&str| (strsim::jaro_winkler(name, candidate) * 1e6) as u64;
        self.tensor_names().max_by_key(closeness).map(str::to_owned)
    }
}

type Weights = (Vec<(String, WeightFile)>, BTreeMap<String, (usize, Entry)>);

fn open_weights(folder: &Path) -> Result<Weights, ModelError> {
    let mut names = vec!["model.safetensors".to_owned()];
    if !folder.join(&names[0]).exists()
        && let Some(index) = optional(folder, INDEX)?
    {
        let index: Index = parse(&folder.join(INDEX).display().to_string(), &index)?;
        names = index.weight_map.into_values().collect();
        names.sort_unstable();
        names.dedup();
    }
    let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
    for (number, name) in names.iter().enumerate() {
        let path = folder.join(name);
        if !path.exists() {
            return Err(missing(folder, name, "fetch the weights as safetensors, all shards of them"));
        }
        regular(&path, u64::MAX)?;
        let file = WeightFile::map(&path)?;
        let path = path.display().to_string();
        let entries = file.entries(&path)?;
        tensors.extend(entries.into_iter().map(|(name, entry)| (name, (number, entry))));
        files.push((path, file));
    }
    Ok((files, tensors))
}

const INDEX: &str = "model.safetensors.index.json";

/// The index of a checkpoint in shards: tensor name to file name.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Longest text file of a model folder.
const MOST_TEXT: u64 = 256 << 20;

fn optional(folder: &Path, file: &str) -> Result<Option<Vec<u8>>, ModelError> {
    let path = folder.join(file);
    if matches!(std::fs::metadata(&path), Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    regular(&path, MOST_TEXT)?;
    std::fs::read(&path).map(Some).map_err(|cause| ModelError::Unreadable { path: path.display().to_string(), cause })
}

/// Refuses what is no file, whose reading might never end, and what is longer than `most` bytes.
fn regular(path: &Path, most: u64) -> Result<(), ModelError> {
    let shown = || path.display().to_string();
    let metadata = std::fs::metadata(path).map_err(|cause| ModelError::Unreadable { path: shown(), cause })?;
    let (got, expected) = match metadata.len() {
        _ if !metadata.is_file() => ("no regular file".to_owned(), "one, or a link to one".to_owned()),
        length if length > most => (format!("{length} bytes long"), format!("at most {most}")),
        _ => return Ok(()),
    };
    Err(ModelError::Unfit { path: shown(), got, expected })
}

fn missing(folder: &Path, file: &str, remedy: &'static str) -> ModelError {
    ModelError::MissingFile { file: file.to_owned(), folder: folder.display().to_string(), remedy }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn tiny() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models/tiny-qwen2")
    }

    /// A copy of the tiny checkpoint to damage.
    fn copy() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(tiny().join(file), folder.path().join(file)).unwrap();
        }
        folder
    }

    fn refused(folder: &Path) -> ModelError {
        Checkpoint::open(folder).err().expect("a damaged checkpoint")
    }

    #[test]
    fn the_embedded_model_opens() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let config = checkpoint.config();
        assert_eq!((checkpoint.name(), config.layers, config.vocab), (EMBEDDED_NAME, 8, 4096));
        let table = checkpoint.tensor("model.embed_tokens.weight", &[config.vocab, config.hidden]).unwrap();
        assert_eq!(table.bytes.len(), config.vocab * config.hidden * 2);
    }

    #[test]
    fn a_missing_file_is_named() {
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            let folder = copy();
            fs::remove_file(folder.path().join(file)).unwrap();
            let error = refused(folder.path());
            assert_eq!(error.code(), "model_file_missing");
            assert!(error.to_string().contains(file), "{error}");
        }
    }

    #[test]
    fn truncated_weights_say_both_lengths() {
        let folder = copy();
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        for length in [bytes.len() - 1, 20, 8] {
            fs::write(&path, &bytes[..length]).unwrap();
            let ModelError::Truncated { expected, got, .. } = refused(folder.path()) else {
                panic!("{length} of {} bytes", bytes.len());
            };
            assert!(expected > got && got == length as u64);
        }
        fs::write(&path, b"PK\x03\x04 a zip archive, not safetensors").unwrap();
        assert_eq!(refused(folder.path()).code(), "weights_not_safetensors");
        fs::write(&path, b"").unwrap();
        assert_eq!(refused(folder.path()).code(), "weights_not_safetensors");
    }

    #[test]
    fn a_tensor_is_missed_by_name_and_shape() {
        let checkpoint = Checkpoint::open(&tiny()).unwrap();
        let missed = checkpoint.tensor("model.layers.0.self_attn.query_proj.weight", &[96, 96]).unwrap_err();
        assert!(missed.to_string().contains("(nearest name: model.layers.0.self_attn."), "{missed}");
        assert!(missed.to_string().contains("[96, 96]"), "{missed}");
        let other = checkpoint.tensor("model.norm.weight", &[97]).unwrap_err();
        assert!(other.to_string().contains("expected shape [97] by config.json, got [96]"), "{other}");
    }

    #[test]
    fn shards_are_found_through_their_index() {
        let folder = copy();
        fs::rename(folder.path().join("model.safetensors"), folder.path().join("model-00001-of-00002.safetensors"))
            .unwrap();
        let index = |file: &str| format!(r#"{{"metadata": {{}}, "weight_map": {{"model.norm.weight": "{file}"}}}}"#);
        fs::write(folder.path().join(INDEX), index("model-00001-of-00002.safetensors")).unwrap();
        Checkpoint::open(folder.path()).unwrap().tensor("model.norm.weight", &[96]).unwrap();
        fs::write(folder.path().join(INDEX), index("model-00002-of-00002.safetensors")).unwrap();
        assert!(refused(folder.path()).to_string().contains("model-00002-of-00002.safetensors"));
    }
}
