//! Hugging Face folders whose weights are quantised: what `quantization_config` says, and the numbers that its tensors stand for. They
//! are made when they are loaded, in f32, and rounded once to the type that is computed in.

mod four_bits;
mod fp8;
mod scheme;

use safetensors::Dtype;

use super::{
    Checkpoint,
    weights::{EntryType, TensorEntry, Weight},
};
use crate::ModelError;
pub(super) use scheme::Scheme;
use scheme::{FourBits, Scales};

const CONFIG: &str = "config.json";

/// Why a folder's quantisation is not read.
fn refused(path: &str, field: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) -> ModelError {
    ModelError::Quantised { path: path.to_owned(), field: field.into(), got: got.into(), expected: expected.into() }
}

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

/// Tensors of one layer.
struct Layer<'a> {
    checkpoint: &'a Checkpoint,
    /// Its name.
    name: &'a str,
}

/// One of them.
struct Part<'a> {
    name: String,
    path: &'a str,
    entry: &'a TensorEntry,
    bytes: &'a [u8],
}

impl Checkpoint {
    /// A linear layer's weight `(n, k)` of a quantised folder, if it is stored quantised.
    pub(super) fn quantised(&self, name: &str, expected: &[usize]) -> Result<Option<Weight<'_>>, ModelError> {
        let (Some(scheme), Some(layer)) = (&self.scheme, name.strip_suffix(".weight")) else { return Ok(None) };
        let (layer, &[n, k]) = (Layer { checkpoint: self, name: layer }, expected) else { return Ok(None) };
        let values = match scheme {
            Scheme::Fp8(scales) => match layer.part("weight") {
                Some(weight) if weight.entry.stored == EntryType::Safetensors(Dtype::F8_E4M3) => {
                    Some(fp8::values(&layer, &weight, *scales, [n, k])?)
                }
                _ => None,
            },
            Scheme::FourBits(kind) => {
                layer.part(kind.codes()).map(|codes| kind.values(&layer, &codes, [n, k])).transpose()?
            }
        };
        Ok(values.map(|values| Weight::of_f32(expected, &values)))
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

impl<'a> Layer<'a> {
    fn part(&self, part: &str) -> Option<Part<'a>> {
        let name = format!("{}.{part}", self.name);
        let (file, entry) = self.checkpoint.find(&name)?;
        let (path, file) = &self.checkpoint.files[*file];
        Some(Part { name, path, entry, bytes: &file.bytes()[entry.bytes.clone()] })
    }

    /// A part that must be there.
    fn needed(&self, part: &str, beside: &Part<'_>) -> Result<Part<'a>, ModelError> {
        let missing = || {
            refused(
                beside.path,
                format!("tensor {}.{part}", self.name),
                "missing",
                format!("it beside {}", beside.name),
            )
        };
        self.part(part).ok_or_else(missing)
    }
}

impl Part<'_> {
    fn refuses(&self, got: impl Into<String>, expected: impl Into<String>) -> ModelError {
        refused(self.path, format!("tensor {}", self.name), got, expected)
    }

    /// Checks its shape.
    fn of_shape(&self, expected: &[usize], why: &str) -> Result<(), ModelError> {
        match self.entry.shape == expected {
            true => Ok(()),
            false => Err(self.refuses(format!("of shape {:?}", self.entry.shape), format!("{expected:?} by {why}"))),
        }
    }

    /// Its numbers, which are plain.
    fn floats(&self) -> Result<Vec<f32>, ModelError> {
        let (shape, stored) = (&self.entry.shape, self.entry.stored(&self.name)?);
        Ok(asterism_kernels::HostTensor { stored, shape, bytes: self.bytes }.values())
    }

    /// Its 32-bit words.
    fn words(&self) -> Result<Vec<u32>, ModelError> {
        match self.entry.stored {
            EntryType::Safetensors(Dtype::I32 | Dtype::U32) => {
                Ok(self.bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
            }
            other => Err(self.refuses(format!("stored as {other:?}"), "I32")),
        }
    }
}
