//! Hugging Face folders whose weights are quantised: what `quantization_config` says, and the numbers that its tensors stand for. They
//! are made when they are loaded, in f32, and rounded once to the type that is computed in; integers of 4 bits stay what they are, where
//! a block of inputs shares its scale.

mod four_bits;
mod fp8;
mod layer;
mod refusal;
pub(super) mod scheme;

use safetensors::Dtype;

use super::{
    Checkpoint,
    weights::{EntryType, Weight},
};
use crate::ModelError;
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

    /// Names of what stands for a weight.
    pub(super) fn parts_of<'a>(&self, name: &'a str) -> impl Iterator<Item = String> + use<'a> {
        let quantised = self.scheme.is_some();
        let layer = name.strip_suffix(".weight").filter(|_| quantised);
        let parts = layer.into_iter().flat_map(|layer| PARTS.iter().map(move |part| format!("{layer}.{part}")));
        parts.chain(layer.is_none().then(|| name.to_owned()))
    }

    /// Whether the folder has what its configuration says: some tensor that is quantised so.
    pub(super) fn check_quantised(&self) -> Result<(), ModelError> {
        let Some(scheme) = &self.scheme else { return Ok(()) };
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
        if found { Ok(()) } else { Err(refused(CONFIG, "quantization_config", scheme.name(), expected)) }
    }
}
