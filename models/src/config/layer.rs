//! What all layers of a decoder are, as config.json and the family say.

use asterism_kernels::Activation;
use serde_json::Value;

use super::keys::{Fields, described, refused};
use crate::{
    ModelError,
    family::{Biases, Experts, FeedForward, LayerSpec},
};

/// Most outputs of gate and up.
const WIDEST: usize = 1 << 20;

pub(super) fn layer(fields: &Fields) -> Result<LayerSpec, ModelError> {
    let (family, attention_bias) = (fields.family, fields.flag("attention_bias")?);
    let [norms_before, norms_behind] = family.norms;
    let both_ways = fields.value("use_bidirectional_attention");
    if !matches!(both_ways, Value::Null | Value::Bool(false)) {
        return Err(refused(
            "use_bidirectional_attention",
            described(both_ways),
            "every token sees those before it alone",
        ));
    }
    Ok(LayerSpec {
        head_norms: family.head_norms,
        sinks: family.sinks,
        norms_before,
        norms_behind,
        norm_offset: family.norm_offset,
        activation: activation(fields)?,
        feed_forward: feed_forward(fields)?,
        biases: Biases {
            qkv: attention_bias || family.qkv_biases,
            output: attention_bias,
            mlp: fields.flag("mlp_bias")?,
        },
        names: family.names,
    })
}

fn activation(fields: &Fields) -> Result<Activation, ModelError> {
    let gelu = fields.is_read("hidden_activation");
    let (key, expected) = match gelu {
        true => ("hidden_activation", "the gated MLP of this family is computed with gelu_pytorch_tanh"),
        false => ("hidden_act", "the gated MLP is computed with silu"),
    };
    match (fields.value(key), fields.value(key).as_str()) {
        (_, Some("silu" | "swish")) if fields.is_read("swiglu_limit") => Ok(Activation::ClampedSilu {
            limit: fields.positive("swiglu_limit")? as f32,
            alpha: fields.positive("swiglu_alpha")? as f32,
        }),
        (_, Some("silu" | "swish")) if !gelu => Ok(Activation::Silu),
        (_, Some("gelu_pytorch_tanh")) if gelu => Ok(Activation::GeluTanh),
        // Older files have null where the class has its own.
        (Value::Null, _) if gelu => Ok(Activation::GeluTanh),
        (other, _) => Err(refused(key, described(other), expected)),
    }
}

fn feed_forward(fields: &Fields) -> Result<FeedForward, ModelError> {
    let (own, counted) = (fields.is_read("moe_intermediate_size"), fields.is_read("num_local_experts"));
    if !own && !counted {
        return Ok(FeedForward::Gated { intermediate: fields.count("intermediate_size", WIDEST)? });
    }
    let count = fields.count(if own { "num_experts" } else { "num_local_experts" }, 1 << 12)?;
    let used = fields.count("num_experts_per_tok", 1 << 12)?;
    if used > count {
        return Err(refused("num_experts_per_tok", used, format!("there are {count} experts")));
    }
    if own {
        let (step, dense) = (fields.value("decoder_sparse_step"), fields.value("mlp_only_layers"));
        if step.as_u64() != Some(1) {
            return Err(refused("decoder_sparse_step", described(step), "every layer has experts: expected 1"));
        }
        if !dense.is_null() && dense.as_array().is_none_or(|dense| !dense.is_empty()) {
            return Err(refused(
                "mlp_only_layers",
                described(dense),
                "every layer has experts: expected an empty list",
            ));
        }
    }
    let intermediate = fields.count(if own { "moe_intermediate_size" } else { "intermediate_size" }, WIDEST)?;
    let shares_add_up = if own { fields.flag("norm_topk_prob")? } else { true };
    let joint = fields.family.joint_experts;
    Ok(FeedForward::Experts(Experts { count, used, intermediate, shares_add_up, joint }))
}
