//! Families of decoders: which keys of config.json each computes with, what a layer of it is, and the names of its tensors. A family is
//! a file. Reads no file and computes nothing.

mod class;
mod layer;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;

#[cfg(test)]
pub(crate) use class::COMMON;
pub(crate) use class::Family;
pub use layer::{AttentionKind, Biases, FeedForward, LayerSpec, TensorNames};
pub(crate) use layer::{LinearSpec, NormSpec};

/// All that are computed.
pub(crate) const FAMILIES: [&Family; 4] =
    [&llama::LLAMA_FAMILY, &mistral::MISTRAL_FAMILY, &qwen2::QWEN2_FAMILY, &qwen3::QWEN3_FAMILY];

/// The family of a `model_type`.
pub(crate) fn family_of(model_type: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|family| family.model_type == model_type)
}
