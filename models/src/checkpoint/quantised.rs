//! Hugging Face folders whose weights are quantised: what `quantization_config` says, and the numbers that its tensors stand for. They
//! are made when they are loaded, in f32, and rounded once to the type that is computed in; integers of 4 bits stay what they are, where
//! a block of inputs shares its scale.

mod four_bits;
mod fp8;
mod layer;
mod refusal;
pub(super) mod scheme;

use std::collections::BTreeSet;

use asterism_kernels::{BlockFormat, Stored};
use safetensors::Dtype;

use super::{
    Checkpoint, HEAD, TABLE, random,
    weights::{EntryType, Weight},
};
use crate::{
    ModelError,
    config::{BlockWeights, InBlocks},
};
use layer::Layer;
use refusal::{CONFIG, refused};
use scheme::Scheme;

/// Tensors that stand for one, by what follows the name of the layer.
const PARTS: [&str; 10] = [
    "weight",
    "weight_scale",
    "weight_scale_inv",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_zero_point",
    "weight_g_idx",
];

/// The key of config.json that says how weights are quantised.
const QUANTIZATION_KEY: &str = "quantization_config";
/// How names of tensors of packed integers end.
const PACKED_ENDS: [&str; 2] = [".qweight", ".weight_packed"];

impl Checkpoint {
    /// A linear layer's weight `(n, k)` of a quantised folder, if it is stored quantised.
    pub(super) fn quantised(&self, name: &str, expected: &[usize]) -> Result<Option<Weight<'_>>, ModelError> {
        let (Some(scheme), Some(layer)) = (&self.scheme, name.strip_suffix(".weight")) else { return Ok(None) };
        let (layer, &[n, k]) = (Layer { checkpoint: self, name: layer }, expected) else { return Ok(None) };
        Ok(match scheme {
            Scheme::Fp8(scales) => match layer.part("weight") {
                Some(weight) if weight.entry.stored == EntryType::Safetensors(Dtype::F8_E4M3) => {
                    Some(Weight::of_f32(expected, &fp8::values(&layer, &weight, *scales, [n, k])?))
                }
                _ => None,
            },
            Scheme::FourBits(kind) => {
                layer.part(kind.codes()).map(|codes| kind.weight(&layer, &codes, [n, k])).transpose()?
            }
        })
    }

    /// Whether a tensor is there, in whichever parts.
    pub(super) fn has_quantised(&self, name: &str) -> bool {
        let (Some(Scheme::FourBits(kind)), Some(layer)) = (&self.scheme, name.strip_suffix(".weight")) else {
            return false;
        };
        self.find(&format!("{layer}.{}", kind.codes())).is_some()
    }

    /// Which of its matrices lie in blocks, and what devices keep them in.
    pub(super) fn in_blocks(&self) -> InBlocks {
        let config = &self.config;
        let weights = |name: &str, shape: &[usize]| match (self.format_of(name), shape) {
            (Some(format), &[n, k]) => {
                BlockWeights { elements: (n * k) as u64, bytes: format.kept_bytes(n * k) as u64 }
            }
            _ => BlockWeights::default(),
        };
        let mut layers = BlockWeights::default();
        for (name, shape) in random::tensors(config).iter().filter(|(name, _)| ![TABLE, HEAD].contains(&name.as_str()))
        {
            let BlockWeights { elements, bytes } = weights(name, shape);
            layers.elements += elements;
            layers.bytes += bytes;
        }
        InBlocks { layers, head: weights(self.head(), &[config.vocab, config.hidden]) }
    }

    /// The blocks that a matrix is loaded as, if it is.
    fn format_of(&self, name: &str) -> Option<BlockFormat> {
        match self.find(name).map(|(_, entry)| entry.stored) {
            Some(EntryType::Of(Stored::Blocks(format))) => return Some(format),
            Some(_) => return None,
            None => {}
        }
        // In an order of their own, a block's inputs have several scales.
        let ordered = |part| self.find(&format!("{}{part}", name.trim_end_matches("weight"))).is_some();
        (self.has_quantised(name) && !ordered("g_idx") && !ordered("weight_g_idx")).then_some(BlockFormat::Int4)
    }

    /// Names of what stands for a weight.
    pub(super) fn parts_of<'a>(&self, name: &'a str) -> impl Iterator<Item = String> + use<'a> {
        let quantised = self.scheme.is_some();
        let layer = name.strip_suffix(".weight").filter(|_| quantised);
        let parts = layer.into_iter().flat_map(|layer| PARTS.iter().map(move |part| format!("{layer}.{part}")));
        parts.chain(layer.is_none().then(|| name.to_owned()))
    }

    /// Whether a tensor is one of those that stand for a weight that is needed.
    pub(super) fn is_part(&self, name: &str, needed: &BTreeSet<String>) -> bool {
        let Some((layer, part)) = name.rsplit_once('.').filter(|_| self.scheme.is_some()) else { return false };
        PARTS.contains(&part) && needed.contains(&format!("{layer}.weight"))
    }

    /// Whether the folder has what its configuration says: some tensor that is quantised so, and none where it says nothing.
    pub(super) fn check_quantised(&self) -> Result<(), ModelError> {
        let Some(scheme) = &self.scheme else { return self.check_plain() };
        let (sought, found) = match scheme {
            Scheme::Fp8(_) => {
                let eight = EntryType::Safetensors(Dtype::F8_E4M3);
                ("a tensor of type F8_E4M3", self.tensors.values().any(|(_, entry)| entry.stored == eight))
            }
            Scheme::FourBits(kind) => {
                let end = format!(".{}", kind.codes());
                (kind.codes(), self.tensors.keys().any(|name| name.ends_with(&end)))
            }
        };
        let expected = format!("{sought} among the weights: take configuration and weights of one model");
        if found { Ok(()) } else { Err(refused(CONFIG, QUANTIZATION_KEY, scheme.name(), expected)) }
    }

    /// Refuses quantised tensors of which no configuration says what they stand for.
    fn check_plain(&self) -> Result<(), ModelError> {
        let eight = [Dtype::F8_E4M3, Dtype::F8_E5M2].map(EntryType::Safetensors);
        let is_quantised =
            |name: &str, stored| eight.contains(&stored) || PACKED_ENDS.iter().any(|codes| name.ends_with(codes));
        let Some((name, (_, entry))) = self.tensors.iter().find(|(name, (_, entry))| is_quantised(name, entry.stored))
        else {
            return Ok(());
        };
        let got = format!("missing, and tensor {name} is stored as {:?}", entry.stored);
        let expected =
            "what quantised weights stand for: fetch the config.json that belongs to them, or weights in bf16";
        Err(refused(CONFIG, QUANTIZATION_KEY, got, expected))
    }
}
