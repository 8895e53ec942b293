//! Families of decoders: which keys of config.json each computes with, what a layer of it is, and the names of its tensors. A family is
//! a file. Reads no file and computes nothing.

mod class;
mod experts;
mod gemma;
mod layer;
mod llama;
mod mistral;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
mod table;

#[cfg(test)]
pub(crate) use class::COMMON;
pub(crate) use class::{Family, Windows};
pub use layer::{Biases, Experts, FeedForward, HeadNorms, LayerAttention, LayerSpec, Rotation, TensorNames};
pub(crate) use layer::{LinearSpec, NormSpec};
pub use table::{SupportedFamily, supported_families};

/// All that are computed.
pub(crate) const FAMILIES: [&Family; 12] = [
    &llama::LLAMA_FAMILY,
    &mistral::MISTRAL_FAMILY,
    &qwen2::QWEN2_FAMILY,
    &qwen3::QWEN3_FAMILY,
    &phi3::PHI3_FAMILY,
    &gemma::GEMMA2_FAMILY,
    &gemma::GEMMA3_FAMILY,
    &smollm3::SMOLLM3_FAMILY,
    &olmo2::OLMO2_FAMILY,
    &experts::MIXTRAL_FAMILY,
    &experts::QWEN3_MOE_FAMILY,
    &experts::GPT_OSS_FAMILY,
];

/// The family of a `model_type`.
pub(crate) fn family_of(model_type: &str) -> Option<&'static Family> {
    FAMILIES.into_iter().find(|family| family.model_type == model_type)
}
