//! Writes GGUF files for tests, sound ones and others.

use std::{fs, path::Path};

use safetensors::SafeTensors;
use serde_json::Value;

/// A value of the metadata, as it is written.
#[derive(Clone)]
pub enum Put {
    U32(u32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

/// A file to be written.
#[derive(Clone, Default)]
pub struct Gguf {
    pub metadata: Vec<(String, Put)>,
    pub tensors: Vec<PutTensor>,
}

#[derive(Clone)]
pub struct PutTensor {
    pub name: String,
    /// The innermost axis last.
    pub shape: Vec<u64>,
    /// By ggml's number.
    pub kind: u32,
    pub bytes: Vec<u8>,
}

impl Gguf {
    pub fn set(&mut self, key: &str, value: Put) {
        self.metadata.retain(|(other, _)| other != key);
        self.metadata.push((key.to_owned(), value));
    }

    pub fn tensor(&mut self, name: &str) -> &mut PutTensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the file")
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut to = b"GGUF\x03\0\0\0".to_vec();
        to.extend((self.tensors.len() as u64).to_le_bytes());
        to.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            text(&mut to, key);
            put(&mut to, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            text(&mut to, &tensor.name);
            to.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|axis| to.extend(axis.to_le_bytes()));
            to.extend(tensor.kind.to_le_bytes());
            to.extend(offset.to_le_bytes());
            offset += (tensor.bytes.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            to.resize(to.len().next_multiple_of(32), 0);
            to.extend(&tensor.bytes);
        }
        to
    }
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

fn put(to: &mut Vec<u8>, value: &Put) {
    let list = |to: &mut Vec<u8>, kind: u32, count: usize| {
        to.extend(9u32.to_le_bytes());
        to.extend(kind.to_le_bytes());
        to.extend((count as u64).to_le_bytes());
    };
    match value {
        Put::U32(number) => {
            to.extend(4u32.to_le_bytes());
            to.extend(number.to_le_bytes());
        }
        Put::U64(number) => {
            to.extend(10u32.to_le_bytes());
            to.extend(number.to_le_bytes());
        }
        Put::F32(number) => {
            to.extend(6u32.to_le_bytes());
            to.extend(number.to_le_bytes());
        }
        Put::Bool(flag) => {
            to.extend(7u32.to_le_bytes());
            to.push(u8::from(*flag));
        }
        Put::Text(words) => {
            to.extend(8u32.to_le_bytes());
            text(to, words);
        }
        Put::Texts(texts) => {
            list(to, 8, texts.len());
            texts.iter().for_each(|words| text(to, words));
        }
        Put::I32s(numbers) => {
            list(to, 5, numbers.len());
            numbers.iter().for_each(|number| to.extend(number.to_le_bytes()));
        }
        Put::F32s(numbers) => {
            list(to, 6, numbers.len());
            numbers.iter().for_each(|number| to.extend(number.to_le_bytes()));
        }
    }
}

/// A Hugging Face folder of the fixtures as llama.cpp converts it, in f32.
pub fn converted(folder: &Path) -> Gguf {
    let read = |file: &str| fs::read(folder.join(file)).expect("a fixture");
    let json = |file: &str| -> Value { serde_json::from_slice(&read(file)).expect("JSON") };
    let (config, tokenizer) = (json("config.json"), json("tokenizer.json"));
    let architecture = config["model_type"].as_str().expect("a name").to_owned();
    let mut file = Gguf::default();
    file.set("general.architecture", Put::Text(architecture.clone()));
    for (from, to) in [
        ("num_hidden_layers", "block_count"),
        ("max_position_embeddings", "context_length"),
        ("hidden_size", "embedding_length"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
    ] {
        file.set(&format!("{architecture}.{to}"), Put::U32(config[from].as_u64().expect("a count") as u32));
    }
    for (from, to) in [("rms_norm_eps", "attention.layer_norm_rms_epsilon"), ("rope_theta", "rope.freq_base")] {
        file.set(&format!("{architecture}.{to}"), Put::F32(config[from].as_f64().expect("a number") as f32));
    }
    vocabulary(&mut file, &tokenizer);
    file.set("tokenizer.ggml.bos_token_id", Put::U32(0));
    file.set("tokenizer.ggml.eos_token_id", Put::U32(1));
    file.set("tokenizer.ggml.add_bos_token", Put::Bool(false));
    let heads =
        ["num_attention_heads", "num_key_value_heads"].map(|key| config[key].as_u64().expect("a count") as usize);
    weights(&mut file, &read("model.safetensors"), (architecture == "llama").then_some(heads));
    file
}

fn vocabulary(file: &mut Gguf, tokenizer: &Value) {
    let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
    let mut tokens = vec![String::new(); vocab.len()];
    vocab.iter().for_each(|(token, id)| tokens[id.as_u64().expect("an id") as usize] = token.clone());
    let mut kinds = vec![1; tokens.len()];
    for added in tokenizer["added_tokens"].as_array().expect("a list") {
        let id = added["id"].as_u64().expect("an id") as usize;
        (kinds[id], tokens[id]) = (3, added["content"].as_str().expect("a text").to_owned());
    }
    let merge = |merge: &Value| match merge {
        Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().expect("a token"), pair[1].as_str().expect("a token")),
    };
    let merges = tokenizer["model"]["merges"].as_array().expect("a list").iter().map(merge).collect();
    for (key, value) in [
        ("model", Put::Text("gpt2".to_owned())),
        ("pre", Put::Text("gpt-2".to_owned())),
        ("tokens", Put::Texts(tokens)),
        ("token_type", Put::I32s(kinds)),
        ("merges", Put::Texts(merges)),
    ] {
        file.set(&format!("tokenizer.ggml.{key}"), value);
    }
}

/// The tensors; with `heads` the rows of queries and keys in the order in which ggml rotates them.
fn weights(file: &mut Gguf, bytes: &[u8], heads: Option<[usize; 2]>) {
    let tensors = SafeTensors::deserialize(bytes).expect("safetensors");
    for (name, tensor) in tensors.tensors() {
        let (name, shape) = (name_in_file(&name), tensor.shape());
        let of = heads.and_then(|heads| {
            [("attn_q.weight", heads[0]), ("attn_k.weight", heads[1])].into_iter().find(|(end, _)| name.ends_with(end))
        });
        let bytes = match of {
            Some((_, heads)) => {
                let (row, half) = (tensor.data().len() / shape[0], shape[0] / heads / 2);
                let from = |to: usize| to / (2 * half) * 2 * half + to % (2 * half) / 2 + to % 2 * half;
                (0..shape[0]).flat_map(|to| &tensor.data()[from(to) * row..][..row]).copied().collect()
            }
            None => tensor.data().to_vec(),
        };
        let shape = shape.iter().map(|axis| *axis as u64).collect();
        file.tensors.push(PutTensor { name, shape, kind: 0, bytes });
    }
}

/// What llama.cpp calls a tensor.
fn name_in_file(name: &str) -> String {
    let names = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    names.into_iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}
