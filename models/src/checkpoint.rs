//! A checkpoint: a Hugging Face folder or a GGUF file, memory-mapped, or the embedded model. Computes nothing: tensors are borrowed as
//! they are stored, unless their elements lie otherwise than a decoder has them.

pub(crate) mod chat_files;
pub(crate) mod digest;
mod disk;
mod embedded;
mod folder;
pub(crate) mod gguf;
mod hash_cache;
mod hashing;
mod quantised;
mod random;
mod sniffed;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use asterism_kernels::{BlockFormat, HostTensor};
use serde::{Deserialize, Serialize};

use crate::config::parse;
use crate::{FieldRefusal, ModelConfig, ModelError};
use chat_files::ChatFiles;
use disk::{optional, present, regular};
pub use embedded::EMBEDDED_NAME;
use folder::ModelFolder;
pub use folder::is_plain_path;
use quantised::scheme::Scheme;
pub use random::KnownShape;
use sniffed::ForeignFormat;
pub use weights::Weight;
use weights::{TensorEntry, WeightFile, surplus};

/// An opened checkpoint.
pub struct Checkpoint {
    name: String,
    /// `model_type` of config.json.
    family: String,
    config: ModelConfig,
    /// Files of weights, with their paths.
    files: Vec<(String, WeightFile)>,
    /// Tensor name to the file that holds it, and where.
    tensors: BTreeMap<String, (usize, TensorEntry)>,
    tokenizer: Vec<u8>,
    tokenizer_config: Option<Vec<u8>>,
    chat: ChatFiles,
    gguf: bool,
    /// How weights of a folder are quantised.
    scheme: Option<Scheme>,
}

/// The tensors of a checkpoint that are stored in one type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoredTensors {
    /// The type, such as `Q4_K` or `BF16`.
    pub stored: String,
    /// How many there are.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Checkpoint {
    /// Opens a folder with config.json, tokenizer.json and model.safetensors, whole or in shards with their index; of a repository
    /// of the hub's cache (`models--ORG--NAME`) the newest snapshot. Or a GGUF file; of one in parts, any of them.
    pub fn open(named: &Path) -> Result<Self, ModelError> {
        match disk::look(named)? {
            folder::FoundPath::File(begins) if sniffed::of(&begins) == Some(ForeignFormat::Gguf) => {
                Self::open_gguf(named)
            }
            _ => Self::open_folder(named),
        }
    }

    fn open_folder(named: &Path) -> Result<Self, ModelError> {
        let ModelFolder { path: folder, name } = folder::locate(named, disk::hub().as_deref(), &disk::look)?;
        let folder = folder.as_path();
        let required = |file: &str, remedy: &str| optional(folder, file)?.ok_or_else(|| missing(folder, file, remedy));
        let config = required(
            "config.json",
            "name a Hugging Face model folder (config.json, tokenizer.json, model.safetensors)",
        )?;
        let generation = optional(folder, "generation_config.json")?;
        let family = parse::<FamilyName>("config.json", &config)?.model_type;
        // Of a model that is not supported the other files may be anything.
        let scheme = Scheme::read(&parse("config.json", &config)?);
        let config = ModelConfig::from_json(&config, generation.as_deref())?;
        let scheme = scheme?;
        let tokenizer = required(
            "tokenizer.json",
            "only the tokenizers format is read: save the tokenizer with transformers' save_pretrained",
        )?;
        let (files, tensors) = open_weights(folder)?;
        let checkpoint = Self {
            name,
            config,
            family,
            files,
            tensors,
            tokenizer,
            tokenizer_config: optional(folder, "tokenizer_config.json")?,
            chat: ChatFiles::open(folder)?,
            gguf: false,
            scheme,
        };
        checkpoint.check_quantised()?;
        checkpoint.check_head()?;
        checkpoint.check_surplus()?;
        Ok(checkpoint.counted())
    }

    /// With what its weights take.
    fn counted(mut self) -> Self {
        self.config.in_blocks = self.in_blocks();
        self
    }

    /// What config.json calls the family of models that it is of.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// The family that decides over the class of its tokenizer; none where the tokenizer is taken as it is written.
    pub(crate) fn tokenizer_family(&self) -> &str {
        if self.gguf { "" } else { &self.family }
    }

    /// The embedded model.
    pub fn embedded() -> Result<Self, ModelError> {
        let file = WeightFile::embedded(embedded::weights());
        let tensors = file.entries(EMBEDDED_NAME)?.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        Ok(Self {
            name: EMBEDDED_NAME.to_owned(),
            config: ModelConfig::from_json(embedded::config(), None)?,
            family: parse::<FamilyName>("config.json", embedded::config())?.model_type,
            files: vec![(EMBEDDED_NAME.to_owned(), file)],
            tensors,
            tokenizer: embedded::tokenizer().to_vec(),
            tokenizer_config: Some(embedded::tokenizer_config().to_vec()),
            chat: ChatFiles::default(),
            gguf: false,
            scheme: None,
        })
    }

    /// A shape with random weights and the embedded model's tokenizer: it says nothing, at the speed of a model of that shape.
    pub fn random(shape: KnownShape) -> Result<Self, ModelError> {
        Self::random_in(shape, None)
    }

    /// The same; with a format, its matrices are stored in blocks of it.
    pub fn random_in(shape: KnownShape, format: Option<BlockFormat>) -> Result<Self, ModelError> {
        let config = shape.config()?;
        let (file, tensors) = random::weights(&config, format);
        let name = format!("{} with random weights", shape.name());
        let checkpoint = Self { name: name.clone(), config, files: vec![(name, file)], tensors, ..Self::embedded()? };
        Ok(checkpoint.counted())
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

    /// What types the tensors are stored in, those that take most bytes first.
    pub fn stored_types(&self) -> Vec<StoredTensors> {
        let mut types: BTreeMap<String, StoredTensors> = BTreeMap::new();
        for (_, entry) in self.tensors.values() {
            let name = format!("{:?}", entry.stored);
            let of_type = types.entry(name.to_uppercase()).or_default();
            of_type.tensors += 1;
            of_type.bytes += entry.bytes.len();
        }
        let mut types: Vec<_> =
            types.into_iter().map(|(stored, of_type)| StoredTensors { stored, ..of_type }).collect();
        types.sort_by(|a, b| (b.bytes, &a.stored).cmp(&(a.bytes, &b.stored)));
        types
    }

    /// A tensor of the shape that config.json implies.
    pub fn tensor(&self, name: &str, expected: &[usize]) -> Result<Weight<'_>, ModelError> {
        if let Some(weight) = self.quantised(name, expected)? {
            return Ok(weight);
        }
        let Some((file, entry)) = self.find(name) else {
            if self.gguf {
                return Err(self.unfit(0, name, "missing".to_owned(), expected));
            }
            return Err(ModelError::MissingTensor {
                checkpoint: self.name.clone(),
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                nearest: self.nearest(name),
            });
        };
        if entry.shape != expected {
            if self.gguf {
                return Err(self.unfit(*file, name, format!("{:?}", entry.shape), expected));
            }
            return Err(ModelError::TensorShape {
                tensor: name.to_owned(),
                expected: expected.to_vec(),
                got: entry.shape.clone(),
            });
        }
        let weight = Weight {
            stored: entry.stored(name)?,
            shape: entry.shape.as_slice().into(),
            bytes: self.files[*file].1.bytes()[entry.bytes.clone()].into(),
        };
        Ok(weight.arranged(entry.arrangement))
    }

    /// Whether the weights have a tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.find(name).is_some() || self.has_quantised(name)
    }

    /// A tensor by its name in the whole model. Saves of the decoder without its head lack `model.` in front, and those of a model
    /// within a model have it once more: transformers takes both.
    fn find(&self, name: &str) -> Option<&(usize, TensorEntry)> {
        let bare = || name.strip_prefix("model.").and_then(|bare| self.tensors.get(bare));
        self.tensors.get(name).or_else(bare).or_else(|| self.tensors.get(&format!("model.{name}")))
    }

    /// Where no head is stored and it is not the embedding table either, transformers draws one at random.
    fn check_head(&self) -> Result<(), ModelError> {
        if self.config.tied || self.has(HEAD) {
            return Ok(());
        }
        let supported = format!(
            "a model has an output head: {HEAD} is not among its weights, and this key does not make the embedding table it. \
             Fetch all of the weights, or set it to true if the model was trained so"
        );
        Err(ModelError::Config { key: "tie_word_embeddings", got: "false".to_owned(), supported })
    }

    /// Refuses tensors that nothing would be computed with, but for those that change no answer: an answer without them would be another
    /// model's. Where tensors are missing, loading names those.
    fn check_surplus(&self) -> Result<(), ModelError> {
        let mut needed: BTreeSet<String> = random::tensors(&self.config).into_iter().map(|(name, _)| name).collect();
        let placed = |name: &String| if name == TABLE { self.has(self.table()) } else { self.has(name) };
        if !needed.iter().all(placed) {
            return Ok(());
        }
        needed.insert(HEAD.to_owned());
        let is_surplus = |(name, found): &(&String, &(usize, TensorEntry))| {
            let harmless = surplus::is_harmless(name, self.scheme.is_some()) || self.is_no_bias(name, found);
            !harmless && !self.is_computed_with(name, found, &needed)
        };
        let mut surplus = self.tensors.iter().filter(is_surplus);
        let Some((name, (file, _))) = surplus.next() else { return Ok(()) };
        let got = match surplus.count() {
            0 => "there".to_owned(),
            others => format!("there, one of {} that are", others + 1),
        };
        let expected = format!(
            "no such tensor in a model of {} with this config.json: nothing would be computed with it. Take configuration and weights of \
             one model",
            self.family
        );
        Err(ModelError::Field(FieldRefusal::new(&self.files[*file].0, format!("tensor {name}"), got, expected)))
    }

    /// Whether a stored tensor is what a decoder loads for one of the tensors that it needs, or a part of that.
    fn is_computed_with(&self, name: &str, found: &(usize, TensorEntry), needed: &BTreeSet<String>) -> bool {
        surplus::whole_names(name).any(|whole| {
            let loaded = self.find(&whole).is_some_and(|loaded| std::ptr::eq(loaded, found));
            loaded && (needed.contains(&whole) || self.is_part(&whole, needed))
        })
    }

    /// Whether a tensor is a bias that adds nothing, as tools for quantised weights save beside every layer.
    fn is_no_bias(&self, name: &str, (file, entry): &(usize, TensorEntry)) -> bool {
        let Some(stored) = entry.stored(name).ok().filter(|_| name.ends_with(".bias")) else { return false };
        let bytes = &self.files[*file].1.bytes()[entry.bytes.clone()];
        HostTensor { stored, shape: &entry.shape, bytes }.values().iter().all(|value| *value == 0.0)
    }

    /// [`Checkpoint::tensor`], every element of which is a finite number: one pass over its bytes.
    pub(crate) fn finite_tensor(&self, name: &str, expected: &[usize]) -> Result<Weight<'_>, ModelError> {
        let tensor = self.tensor(name, expected)?;
        match weights::first_not_finite(tensor.stored, &tensor.bytes) {
            None => Ok(tensor),
            Some((element, got)) => {
                let file = self.find(name).map_or(0, |(file, _)| *file);
                let file = self.files[file].0.clone();
                let tensor = self.name_in_weights(name);
                Err(ModelError::WeightNotFinite { file, tensor, element, got })
            }
        }
    }

    /// Looks at every tensor that a decoder loads as loading does: its name, shape, type, and whether its numbers are finite. Keeps
    /// none.
    pub fn verify(&self) -> Result<(), ModelError> {
        let needed = random::tensors(&self.config);
        // Tied weights may be stored as the head, and a head beside them is another.
        let needed = needed.iter().map(|(name, shape)| (if name == TABLE { self.table() } else { name }, shape));
        let head = [self.config.vocab, self.config.hidden].to_vec();
        needed.chain([(self.head(), &head)]).try_for_each(|(name, shape)| {
            self.finite_tensor(name, shape)?;
            self.leave(name);
            Ok(())
        })
    }

    /// Where the embedding table is: tied weights are one tensor under the name that is there.
    pub(crate) fn table(&self) -> &'static str {
        if self.config.tied && !self.has(TABLE) { HEAD } else { TABLE }
    }

    /// Where the output head is. One of the file's own is the model's, whatever its config.json says of ties: an adapter may have been
    /// merged into it.
    pub(crate) fn head(&self) -> &'static str {
        if self.config.tied && !self.has(HEAD) { TABLE } else { HEAD }
    }

    /// Gives back the memory that a tensor's bytes take while they are read, which the system has again from the file.
    pub(crate) fn leave(&self, name: &str) {
        for name in self.parts_of(name) {
            if let Some((file, entry)) = self.find(&name) {
                self.files[*file].1.leave(entry.bytes.clone());
            }
        }
    }

    pub(crate) fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer
    }

    pub(crate) fn tokenizer_config_json(&self) -> Option<&[u8]> {
        self.tokenizer_config.as_deref()
    }

    pub(crate) fn chat_files(&self) -> &ChatFiles {
        &self.chat
    }

    fn nearest(&self, name: &str) -> Option<String> {
        let closeness = |candidate: &&str| (strsim::jaro_winkler(name, candidate) * 1e6) as u64;
        self.tensor_names().max_by_key(closeness).map(str::to_owned)
    }
}

/// The output head, and the embedding table.
pub(crate) const HEAD: &str = "lm_head.weight";
pub(crate) const TABLE: &str = "model.embed_tokens.weight";

type Weights = (Vec<(String, WeightFile)>, BTreeMap<String, (usize, TensorEntry)>);

/// config.json, as far as it names a family.
#[derive(Deserialize)]
struct FamilyName {
    #[serde(default)]
    model_type: String,
}

fn open_weights(folder: &Path) -> Result<Weights, ModelError> {
    let names = weight_names(folder)?;
    let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
    for (number, name) in names.iter().enumerate() {
        let path = folder.join(name);
        if !present(&path)? {
            return Err(missing(
                folder,
                name,
                "its index names it: fetch the weights as safetensors, all shards of them",
            ));
        }
        regular(&path, u64::MAX)?;
        let file = WeightFile::map(&path)?;
        let path = path.display().to_string();
        let entries = file.entries(&path)?;
        tensors.extend(entries.into_iter().map(|(name, entry)| (name, (number, entry))));
        files.push((path, file));
    }
    match files.first().filter(|_| tensors.is_empty()) {
        Some((path, _)) => Err(empty(path, "header", "the tensors of a model: fetch the file again")),
        None => Ok((files, tensors)),
    }
}

/// The files that have the weights.
fn weight_names(folder: &Path) -> Result<Vec<String>, ModelError> {
    if present(&folder.join(folder::WEIGHTS))? {
        return Ok(vec![folder::WEIGHTS.to_owned()]);
    }
    let Some(index) = optional(folder, INDEX)? else { return Err(folder::no_weights(folder, &disk::look)?) };
    let path = folder.join(INDEX).display().to_string();
    let index: Index = parse(&path, &index)?;
    if index.weight_map.is_empty() {
        return Err(empty(
            &path,
            "weight_map",
            "the file of each tensor: fetch the index again, and all files that it names",
        ));
    }
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    Ok(names.into_iter().collect())
}

const INDEX: &str = "model.safetensors.index.json";

/// The index of a checkpoint in shards: tensor name to file name.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// A field of a file of weights in which there is nothing.
fn empty(path: &str, field: &str, expected: &str) -> ModelError {
    ModelError::Field(FieldRefusal::new(path, field, "empty", expected))
}

fn missing(folder: &Path, file: &str, remedy: &str) -> ModelError {
    let (file, folder, remedy) = (file.to_owned(), folder.display().to_string(), remedy.to_owned());
    ModelError::MissingFile { file, folder, remedy }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use safetensors::{Dtype, SafeTensors, tensor::TensorView};
    use serde_json::{Value, json};
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
        let [types] = &checkpoint.stored_types()[..] else { panic!("{:?}", checkpoint.stored_types()) };
        assert_eq!((types.stored.as_str(), types.tensors), ("BF16", checkpoint.tensor_names().count()));
        assert!(types.bytes < checkpoint.weight_bytes() && types.bytes > checkpoint.weight_bytes() / 10 * 9);
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
        fs::write(&path, b"something else that is longer than eight bytes").unwrap();
        assert_eq!(refused(folder.path()).code(), "weights_not_safetensors");
        fs::write(&path, b"").unwrap();
        assert_eq!(refused(folder.path()).code(), "weights_not_safetensors");
    }

    #[test]
    fn what_lies_in_the_place_of_a_file_is_named() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 988097824\n";
        for (file, text, words) in [
            ("model.safetensors", pointer, "is a Git LFS pointer to a file of 988097824 bytes"),
            ("model.safetensors", "PK\x03\x04 and more", "is a zip archive, as torch.save writes it"),
            ("tokenizer.json", pointer, "tokenizer.json is a Git LFS pointer"),
            ("config.json", "<!DOCTYPE html>\n", "config.json is a web page"),
        ] {
            let folder = copy();
            fs::write(folder.path().join(file), text).unwrap();
            let stated = refused(folder.path());
            assert!(stated.code() == "model_file_unfit" && stated.to_string().contains(words), "{stated}");
        }
    }

    #[test]
    fn a_model_that_is_not_supported_is_named_before_the_files_it_lacks() {
        let folder = copy();
        fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        fs::write(folder.path().join("config.json"), r#"{"model_type": "t5", "quantization_config": {}}"#).unwrap();
        assert!(refused(folder.path()).to_string().contains("model_type = t5"));
    }

    #[test]
    fn a_link_to_nothing_is_not_an_absent_file() {
        for file in ["model.safetensors", "generation_config.json", "config.json"] {
            let folder = copy();
            let path = folder.path().join(file);
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink("../../blobs/0123", &path).unwrap();
            let stated = refused(folder.path()).to_string();
            assert!(stated.contains("is a link to ../../blobs/0123, which is not there"), "{stated}");
        }
    }

    #[test]
    fn a_repository_of_the_cache_opens_by_its_name() {
        let (cache, model) = (tempfile::tempdir().unwrap(), copy());
        let repository = cache.path().join("models--org--tiny");
        let snapshots = repository.join("snapshots");
        fs::create_dir_all(&snapshots).unwrap();
        fs::rename(model.path(), snapshots.join("0123456789abcdef0123456789abcdef01234567")).unwrap();
        assert_eq!(Checkpoint::open(&repository).unwrap().name(), "org/tiny");
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

    /// The folder with its config.json and its tensors' names changed.
    fn renamed(changes: &[(&str, Value)], name: impl Fn(&str) -> String) -> TempDir {
        let folder = copy();
        let path = folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        fs::write(&path, config.to_string()).unwrap();
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensors: Vec<_> = tensors.tensors().into_iter().map(|(from, tensor)| (name(&from), tensor)).collect();
        fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        folder
    }

    #[test]
    fn names_that_transformers_takes_are_found() {
        let whole = Checkpoint::open(&tiny()).unwrap();
        let (name, shape) = (
            "model.layers.0.mlp.up_proj.weight",
            [whole.config.layer.feed_forward.intermediate(), whole.config.hidden],
        );
        let bytes = whole.tensor(name, &shape).unwrap().bytes;
        let bare = renamed(&[], |name| name.strip_prefix("model.").unwrap_or(name).to_owned());
        let nested = renamed(&[], |name| format!("model.{name}"));
        for folder in [&bare, &nested] {
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            assert_eq!(checkpoint.finite_tensor(name, &shape).unwrap().bytes, bytes);
            assert_eq!(checkpoint.has(HEAD), whole.has(HEAD));
        }
    }

    #[test]
    fn a_head_that_nobody_stored_is_not_made_up() {
        let without = |name: &str| name.replace(HEAD, "head.weight");
        let error = refused(renamed(&[("tie_word_embeddings", json!(false))], without).path());
        assert!(error.to_string().contains("tie_word_embeddings = false"), "{error}");
        Checkpoint::open(renamed(&[("tie_word_embeddings", json!(true))], without).path()).unwrap();
    }

    /// The folder with a tensor more, all of one number.
    fn with_another(name: &str, shape: &[usize], value: f32) -> TempDir {
        let folder = copy();
        let path = folder.path().join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let data = value.to_le_bytes().repeat(shape.iter().product());
        let another = TensorView::new(Dtype::F32, shape.to_vec(), &data).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        let tensors: Vec<_> = tensors.into_iter().chain([(name.to_owned(), another)]).collect();
        fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        folder
    }

    #[test]
    fn tensors_that_nothing_is_computed_with_are_refused_by_name() {
        for name in [
            "model.layers.0.self_attn.o_proj.bias",
            "model.layers.1.mlp.down_proj.bias",
            "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.pre_feedforward_layernorm.weight",
            "model.layers.0.self_attn.q_proj.lora_A.weight",
            "model.layers.99.input_layernorm.weight",
            "model.layers.0.mlp.up_proj.input_scale",
            "lm_head.bias",
            "v_head.summary.weight",
            // What is there under another name already.
            "norm.weight",
        ] {
            let folder = with_another(name, &[96], 1.0);
            let error = refused(folder.path());
            let (path, stated) = (folder.path().join("model.safetensors"), error.to_string());
            assert_eq!(error.code(), "model_file_unfit");
            let words =
                format!("{}: tensor {name} is there; expected no such tensor in a model of qwen2", path.display());
            assert!(stated.starts_with(&words), "{stated}");
        }
        let fewer = renamed(&[("num_hidden_layers", json!(1))], str::to_owned);
        let stated = refused(fewer.path()).to_string();
        assert!(stated.contains("tensor model.layers.1.") && stated.contains(" is there, one of "), "{stated}");
    }

    #[test]
    fn tensors_that_change_no_answer_are_passed_over() {
        for (name, shape, value) in [
            ("model.layers.0.self_attn.rotary_emb.inv_freq", &[8][..], 1.0),
            ("model.layers.0.self_attn.masked_bias", &[], -1e4),
            // Adds nothing.
            ("model.layers.0.self_attn.o_proj.bias", &[96], 0.0),
            // The model's, whatever config.json says of ties.
            (HEAD, &[512, 96], 1.0),
        ] {
            Checkpoint::open(with_another(name, shape, value).path()).unwrap().verify().unwrap();
        }
    }

    #[test]
    fn where_tensors_are_missing_those_are_named() {
        let other = renamed(&[], |name| name.replace("mlp.up_proj", "mlp.up_projection"));
        let error = Checkpoint::open(other.path()).unwrap().verify().unwrap_err();
        assert!(error.to_string().contains("no tensor model.layers.0.mlp.up_proj.weight"), "{error}");
    }

    #[test]
    fn weights_in_which_there_is_nothing_are_named() {
        let folder = copy();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, safetensors::serialize(Vec::<(String, TensorView<'_>)>::new(), None).unwrap()).unwrap();
        let stated = refused(folder.path()).to_string();
        assert!(stated.starts_with(&format!("{}: header is empty; expected the tensors", path.display())), "{stated}");
        fs::remove_file(&path).unwrap();
        fs::write(folder.path().join(INDEX), r#"{"metadata": {"total_size": 0}, "weight_map": {}}"#).unwrap();
        let stated = refused(folder.path()).to_string();
        let index = folder.path().join(INDEX);
        assert!(
            stated.starts_with(&format!("{}: weight_map is empty; expected the file", index.display())),
            "{stated}"
        );
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
