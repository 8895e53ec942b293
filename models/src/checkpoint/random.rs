//! Well-known shapes with random weights, for runs that measure speed where there is no checkpoint. All tensors are cut from one
//! drawn block of bf16 numbers, each from a place of its own.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::LazyLock;

use asterism_kernels::{BlockFormat, Stored};
use serde_json::json;

use super::weights::{Arrangement, EntryType, TensorEntry, WeightFile};
use crate::{ModelConfig, ModelError};

/// The shape of a model that many have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownShape {
    name: &'static str,
    /// Its `model_type`.
    family: &'static str,
    layers: usize,
    hidden: usize,
    intermediate: usize,
    /// Query heads, KV heads, and elements of one.
    heads: [usize; 3],
    vocab: usize,
    tied: bool,
}

const KNOWN: [KnownShape; 7] = [
    shape("llama-3.2-1b", "llama", 16, [2048, 8192], [32, 8, 64], 128_256).tied(),
    shape("llama-3.1-8b", "llama", 32, [4096, 14_336], [32, 8, 128], 128_256),
    shape("llama-3.1-70b", "llama", 80, [8192, 28_672], [64, 8, 128], 128_256),
    shape("qwen2.5-7b", "qwen2", 28, [3584, 18_944], [28, 4, 128], 152_064),
    shape("qwen2.5-14b", "qwen2", 48, [5120, 13_824], [40, 8, 128], 152_064),
    shape("qwen3-8b", "qwen3", 36, [4096, 12_288], [32, 8, 128], 151_936),
    shape("yi-34b", "llama", 60, [7168, 20_480], [56, 8, 128], 64_000),
];

/// Longest context: speed is measured beyond what such models were trained for.
const MAX_POSITION: usize = 4 << 20;
/// Largest weight: the sums of a row of products stay near 1.
const SPREAD: f32 = 0.03;
/// Numbers that are drawn; the block repeats them.
const DRAWN: usize = 1 << 20;
/// Places where tensors can begin, and elements between two of them.
const PLACES: usize = 4096;
const STEP: usize = 8;

const fn shape(
    name: &'static str,
    family: &'static str,
    layers: usize,
    [hidden, intermediate]: [usize; 2],
    heads: [usize; 3],
    vocab: usize,
) -> KnownShape {
    KnownShape { name, family, layers, hidden, intermediate, heads, vocab, tied: false }
}

impl KnownShape {
    const fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    /// Its name, as the cluster file has it.
    pub fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn config(&self) -> Result<ModelConfig, ModelError> {
        let [query, kv, dim] = self.heads;
        let config = json!({
            "model_type": self.family, "num_hidden_layers": self.layers, "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_attention_heads": query, "num_key_value_heads": kv,
            "head_dim": dim, "vocab_size": self.vocab, "max_position_embeddings": MAX_POSITION, "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0, "tie_word_embeddings": self.tied, "bos_token_id": 0,
        });
        ModelConfig::from_json(config.to_string().as_bytes(), None)
    }
}

impl FromStr for KnownShape {
    type Err = String;

    /// The error says which names there are.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = KNOWN.iter().find(|shape| shape.name == name).copied();
        known.ok_or_else(|| format!("expected one of {}", KNOWN.map(|shape| shape.name).join(", ")))
    }
}

/// Every tensor of a decoder of this shape; with `format`, matrices in blocks of it.
pub(super) fn weights(
    config: &ModelConfig,
    format: Option<BlockFormat>,
) -> (WeightFile, BTreeMap<String, (usize, TensorEntry)>) {
    let shapes = tensors(config);
    let longest = shapes.iter().map(|(_, shape)| shape.iter().product::<usize>()).max().unwrap_or_default();
    let (ones, elements) = (config.hidden, longest + PLACES * STEP * format.map_or(1, BlockFormat::elements));
    let mut tensors = BTreeMap::new();
    for (place, (name, shape)) in shapes.into_iter().enumerate() {
        let (norm, place) = (name.ends_with("norm.weight"), place * 193 % PLACES * STEP);
        let entry = match format.filter(|_| !norm) {
            Some(format) => in_blocks(&shape, format, 2 * ones + place * format.bytes()),
            None => TensorEntry::bf16(&shape, if norm { 0 } else { 2 * (ones + place) }),
        };
        tensors.insert(name, (0, entry));
    }
    let drawn = move || match format {
        Some(format) => draw_blocks(ones, elements, format),
        None => draw(ones, elements),
    };
    (WeightFile::Drawn(Box::new(LazyLock::new(Box::new(drawn)))), tensors)
}

/// A tensor of blocks from byte `start` on.
fn in_blocks(shape: &[usize], format: BlockFormat, start: usize) -> TensorEntry {
    let bytes = shape.iter().product::<usize>() / format.elements() * format.bytes();
    let stored = EntryType::Of(Stored::Blocks(format));
    TensorEntry { stored, shape: shape.to_vec(), bytes: start..start + bytes, arrangement: Arrangement::AsStored }
}

/// As many ones, bf16, then blocks of as many random numbers.
fn draw_blocks(ones: usize, elements: usize, format: BlockFormat) -> Vec<u8> {
    // Scales of blocks have factors of their own up to some 60, and codes reach some tens.
    const FACTOR: f32 = SPREAD / 1000.0;
    let mut blocks = vec![0; elements.div_ceil(format.elements()) * format.bytes()];
    let mut state = 0u64;
    for byte in &mut blocks {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
    format.set_factors(&mut blocks, FACTOR);
    let mut bytes = bf16(1.0).to_le_bytes().repeat(ones);
    bytes.append(&mut blocks);
    bytes
}

/// The upper half of an f32.
fn bf16(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

/// As many ones, then as many random numbers, bf16.
fn draw(ones: usize, elements: usize) -> Vec<u8> {
    let mut state = 0u64;
    let drawn: Vec<u8> = (0..DRAWN)
        .flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            bf16(unit * SPREAD).to_le_bytes()
        })
        .collect();
    let mut bytes = bf16(1.0).to_le_bytes().repeat(ones);
    bytes.reserve_exact(2 * elements);
    while bytes.len() < 2 * (ones + elements) {
        let left = 2 * (ones + elements) - bytes.len();
        bytes.extend_from_slice(&drawn[..left.min(drawn.len())]);
    }
    bytes
}

/// Names and shapes of what a decoder loads.
pub(super) fn tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let &ModelConfig { hidden, vocab, heads, ref layer, .. } = config;
    let names = layer.names;
    let weight = |name: &str| format!("{name}.weight");
    let mut all = vec![(weight(names.table), vec![vocab, hidden]), (weight(names.norm), vec![hidden])];
    if !config.tied {
        all.push((weight(names.head), vec![vocab, hidden]));
    }
    let of_layer = layer.tensors(hidden, heads);
    for at in 0..config.layers {
        all.extend(of_layer.iter().map(|(name, shape)| (layer.name(at, name), shape.clone())));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use asterism_kernels::{Cpu, CpuOptions, DType, KernelChoice};

    use super::*;
    use crate::{Checkpoint, Decoder, DecoderParts};

    #[test]
    fn every_known_shape_has_a_config_and_all_tensors() {
        for shape in KNOWN {
            let config = shape.config().unwrap();
            let bytes: usize = tensors(&config).iter().map(|(_, shape)| 2 * shape.iter().product::<usize>()).sum();
            let laid_again = if config.tied { 2 * config.vocab * config.hidden } else { 0 };
            assert_eq!(
                config.weight_bytes(DecoderParts::All, (DType::Bf16, false)),
                (bytes + laid_again) as u64,
                "{}",
                shape.name
            );
            assert_eq!(shape.name.parse(), Ok(shape));
        }
        assert!("gpt-2".parse::<KnownShape>().unwrap_err().contains("llama-3.1-8b"));
    }

    #[test]
    fn a_decoder_of_random_weights_loads_and_computes() {
        let small = shape("small", "qwen2", 2, [64, 96], [4, 2, 16], 4096);
        let checkpoint = Checkpoint::random(small).unwrap();
        let options =
            CpuOptions { dtype: DType::F32, threads: Some(1), kernels: KernelChoice::Auto, ..CpuOptions::default() };
        let decoder = Decoder::load(Arc::new(Cpu::new(options).unwrap()), &checkpoint, DecoderParts::All).unwrap();
        let logits = decoder.logits(&decoder.embed(&[1, 2, 3]).unwrap()).unwrap();
        assert!(logits.iter().any(|logit| *logit != logits[0]));
    }
}
