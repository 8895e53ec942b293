//! Architectures of GGUF, and what their tensors are called in transformers. Reads no numbers.

use std::collections::BTreeMap;

use super::super::weights::{Arrangement, EntryType, TensorEntry, WeightFile};
use super::{header::Header, metadata::Metadata, refusal::refused};
use crate::{ModelError, family::FAMILIES};

/// An architecture that is read.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// What transformers calls it.
    pub model_type: &'static str,
    /// Rows of queries and keys are stored in the order in which ggml rotates them: neighbours, not halves.
    rotates_neighbours: bool,
    /// Norms are stored with the one that the model adds to them.
    norms_with_one: bool,
    /// Names that only it has.
    own: &'static [(&'static str, &'static str)],
    /// Keys of metadata that only it has.
    pub keys: &'static [&'static str],
}

const fn architecture_of(name: &'static str, model_type: &'static str) -> Architecture {
    Architecture { name, model_type, rotates_neighbours: false, norms_with_one: false, own: &[], keys: &[] }
}

/// Names of tensors of layers in most architectures, without `blk.N.`; the first that fits counts.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const WHOLE_MODEL: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

const ARCHITECTURES: [Architecture; 6] = [
    Architecture { rotates_neighbours: true, ..architecture_of("llama", "llama") },
    Architecture { rotates_neighbours: true, ..architecture_of("mistral", "mistral") },
    architecture_of("qwen2", "qwen2"),
    architecture_of("qwen3", "qwen3"),
    Architecture {
        own: &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")],
        ..architecture_of("phi3", "phi3")
    },
    Architecture {
        norms_with_one: true,
        own: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ],
        keys: &["attention.sliding_window_pattern", "rope.freq_base_swa"],
        ..architecture_of("gemma3", "gemma3_text")
    },
];

/// Tensors that say how positions are turned: they become keys of the configuration.
const OF_CONFIGURATION: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

/// The architecture of a model.
pub(super) fn architecture(metadata: &Metadata<'_>) -> Result<&'static Architecture, ModelError> {
    const KEY: &str = "general.architecture";
    let name = metadata.needed(KEY, metadata.text(KEY)?)?;
    ARCHITECTURES.iter().find(|architecture| architecture.name == name).ok_or_else(|| {
        let names = ARCHITECTURES.each_ref().map(|architecture| architecture.name).join(", ");
        metadata.refuses(KEY, name, format!("one of {names}"))
    })
}

impl Architecture {
    /// What transformers calls a tensor of the file.
    fn renamed(&self, name: &str) -> Option<String> {
        let (name, suffix) = name.rsplit_once('.').filter(|(_, suffix)| matches!(*suffix, "weight" | "bias"))?;
        if let Some((_, renamed)) = WHOLE_MODEL.iter().find(|(whole, _)| *whole == name) {
            return Some(format!("{renamed}.{suffix}"));
        }
        let (layer, name) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer: usize = layer.parse().ok()?;
        let (_, renamed) = self.own.iter().chain(LAYER).find(|(own, _)| *own == name)?;
        Some(format!("model.layers.{layer}.{renamed}.{suffix}"))
    }

    /// Whether what transformers calls so has a key in its config.json.
    pub fn has(&self, key: &str) -> bool {
        FAMILIES.iter().any(|family| family.model_type == self.model_type && family.has(key))
    }

    /// How a tensor's bytes become what transformers has.
    fn arrangement(&self, name: &str, shape: &[usize], heads: [usize; 2]) -> Arrangement {
        let of = match name.rsplit('.').nth(1) {
            Some("attn_q") => heads[0],
            Some("attn_k") => heads[1],
            Some(norm) if self.norms_with_one && norm.ends_with("norm") => return Arrangement::LessOne,
            _ => return Arrangement::AsStored,
        };
        // A number of heads that does not fit is told by the shape that is expected.
        let fits = of > 0 && shape[0].is_multiple_of(2 * of);
        if self.rotates_neighbours && fits { Arrangement::Neighbours { heads: of } } else { Arrangement::AsStored }
    }
}

/// All tensors by their names in transformers, each with the number of its file.
pub(super) fn tensors(
    files: &[(String, WeightFile)],
    headers: &[Header<'_>],
    architecture: &Architecture,
    metadata: &Metadata<'_>,
) -> Result<BTreeMap<String, (usize, TensorEntry)>, ModelError> {
    let count = |key: &str| metadata.count(&format!("{}.attention.{key}", architecture.name), 1 << 12);
    let query = count("head_count")?.unwrap_or(0);
    let heads = [query, count("head_count_kv")?.unwrap_or(query)].map(|heads| heads as usize);
    let mut all = BTreeMap::new();
    for (number, ((path, _), header)) in files.iter().zip(headers).enumerate() {
        for tensor in header.tensors.iter().filter(|tensor| !OF_CONFIGURATION.contains(&tensor.name)) {
            let arrangement = architecture.arrangement(tensor.name, &tensor.shape, heads);
            // What nothing is computed with keeps its name, to be refused by it.
            let name = architecture.renamed(tensor.name).unwrap_or_else(|| tensor.name.to_owned());
            let entry = TensorEntry {
                stored: EntryType::Of(tensor.stored),
                shape: tensor.shape.clone(),
                bytes: tensor.bytes.clone(),
                arrangement,
            };
            if all.insert(name, (number, entry)).is_some() {
                return Err(refused(path, format!("tensor {}", tensor.name), "there twice", "one of each name"));
            }
        }
    }
    Ok(all)
}

/// What a tensor of transformers' name is called in files, as far as it is known.
pub(crate) fn name_in_file(name: &str) -> String {
    let Some((base, suffix)) = name.rsplit_once('.') else { return name.to_owned() };
    if let Some((whole, _)) = WHOLE_MODEL.iter().find(|(_, renamed)| *renamed == base) {
        return format!("{whole}.{suffix}");
    }
    let layer = base.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let found = layer.and_then(|(layer, base)| {
        let own = ARCHITECTURES.iter().flat_map(|architecture| architecture.own);
        let (stored, _) = LAYER.iter().chain(own).find(|(_, renamed)| *renamed == base)?;
        Some(format!("blk.{layer}.{stored}.{suffix}"))
    });
    found.unwrap_or_else(|| name.to_owned())
}
