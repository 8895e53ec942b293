//! Names of tensors that weights may have beyond those of their model, and that change no answer. Reads no tensor.

/// How such names end: what is computed anew from config.json, and constants of older masks.
const ALWAYS: [&str; 4] = ["rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "masked_bias"];
/// The last parts of names beside quantised weights: scales of what layers are given and give, of queries and of kept keys and
/// values, none of which is computed in so few bits here, and shapes, which config.json says.
const BESIDE_QUANTISED: [&str; 8] = [
    "input_scale",
    "input_scale_ub",
    "activation_scale",
    "output_scale",
    "q_scale",
    "k_scale",
    "v_scale",
    "weight_shape",
];

/// Whether a tensor of this name changes no answer, whatever is in it.
pub(in super::super) fn is_harmless(name: &str, quantised: bool) -> bool {
    let ends = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    ALWAYS.into_iter().any(ends) || quantised && BESIDE_QUANTISED.into_iter().any(ends)
}

/// The names by which a tensor of this name may be known in the whole model: its own, and those of saves that lack `model.` in front or
/// have it once more.
pub(in super::super) fn whole_names(name: &str) -> impl Iterator<Item = String> {
    let bare = name.strip_prefix("model.").map(str::to_owned);
    [Some(name.to_owned()), Some(format!("model.{name}")), bare].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_names_are_few() {
        for name in ["model.layers.3.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq", "h.0.attn.masked_bias"] {
            assert!(is_harmless(name, false), "{name}");
        }
        for name in ["model.layers.0.mlp.up_proj.input_scale", "model.layers.0.self_attn.k_scale"] {
            assert!(is_harmless(name, true) && !is_harmless(name, false), "{name}");
        }
        for name in [
            "model.layers.0.mlp.up_proj.bias",
            "model.layers.0.self_attn.q_norm.weight",
            "unmasked_bias",
            "inv_freq",
            "",
        ] {
            assert!(!is_harmless(name, true), "{name}");
        }
    }
}
