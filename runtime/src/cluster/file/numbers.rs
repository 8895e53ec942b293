//! What a model computes in, as the cluster file writes it.

use serde::{Deserialize, Serialize};

/// Element types a model computes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16 products, f32 sums.
    Bf16,
}

/// What keys and values are kept in, where that is not the model's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDType {
    /// 8-bit integers, with a scale for each token of a head.
    Q8,
    /// 8-bit floats, which this version has no kernels for: refused by name.
    Fp8,
}

/// What linear layers or attention are computed in, where that is not the model's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeType {
    /// 8-bit floats (e4m3) on GPUs: weights with a scale for each output, activations and queries with one for each row, keys and values
    /// with one for each 128.
    Fp8,
}
