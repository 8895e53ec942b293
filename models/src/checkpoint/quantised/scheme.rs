//! `quantization_config` of config.json: which scheme it names. Reads no tensor.

use serde_json::Value;

use super::refusal::{CONFIG, refused};
use crate::ModelError;

/// How the weights of a folder's linear layers are quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Scheme {
    /// Floats of 8 bits (E4M3).
    Fp8(Scales),
    /// Integers of 4 bits.
    FourBits(FourBits),
}

/// What a scale of 8-bit floats is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Scales {
    Tensor,
    Channel,
    /// So many outputs and inputs.
    Block([usize; 2]),
    /// The tensor of scales says it.
    AsStored,
}

/// A layout of integers of 4 bits, of which a number of inputs share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum FourBits {
    Awq {
        group: usize,
    },
    /// `one_more`: zeros are stored less one.
    Gptq {
        group: usize,
        one_more: bool,
    },
    Packed {
        group: usize,
        zeros: bool,
    },
}

const METHOD: &str = "quant_method";
const SUPPORTED: &str =
    "fp8, fbgemm_fp8, compressed-tensors, awq or gptq; fetch a folder quantised so, or the one in bf16";

/// The group of a layer whose scales are for all inputs.
pub(super) const ALL_INPUTS: usize = usize::MAX;

impl Scheme {
    /// The scheme of a config.json, if it has one.
    pub fn read(config: &Value) -> Result<Option<Self>, ModelError> {
        let config = match &config["quantization_config"] {
            Value::Null => match &config["compression_config"] {
                Value::Null => return Ok(None),
                config => config,
            },
            config => config,
        };
        let keys = Keys(config);
        // bitsandbytes may name itself by its keys alone.
        let own = ["load_in_4bit", "load_in_8bit"].iter().any(|key| config[*key] == true);
        match keys.text(METHOD).unwrap_or(if own { "bitsandbytes" } else { "" }) {
            "fp8" => keys.fp8().map(Some),
            "fbgemm_fp8" => Ok(Some(Self::Fp8(Scales::Channel))),
            "compressed-tensors" => keys.compressed().map(Some),
            "awq" => keys.awq().map(Some),
            "gptq" => keys.gptq().map(Some),
            other => Err(keys.refuses(METHOD, if other.is_empty() { "missing" } else { other }, SUPPORTED)),
        }
    }

    /// In a few words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fp8(_) => "of 8-bit floats",
            Self::FourBits(FourBits::Awq { .. }) => "awq",
            Self::FourBits(FourBits::Gptq { .. }) => "gptq",
            Self::FourBits(FourBits::Packed { .. }) => "pack-quantized",
        }
    }
}

/// The keys of a quantization_config.
struct Keys<'a>(&'a Value);

impl Keys<'_> {
    fn refuses(&self, key: &str, got: impl Into<String>, expected: impl Into<String>) -> ModelError {
        refused(CONFIG, format!("quantization_config.{key}"), got, expected)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.0[key].as_str()
    }

    /// A key that must have one of these values, or be absent.
    fn only(&self, key: &str, values: &[Value]) -> Result<(), ModelError> {
        let got = &self.0[key];
        if got.is_null() || values.contains(got) {
            return Ok(());
        }
        let values: Vec<String> = values.iter().map(Value::to_string).collect();
        Err(self.refuses(key, got.to_string(), values.join(" or ")))
    }

    fn fp8(&self) -> Result<Scheme, ModelError> {
        self.only("fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
        Ok(Scheme::Fp8(match &self.0["weight_block_size"] {
            Value::Null => Scales::AsStored,
            sizes => Scales::Block(self.sizes("weight_block_size", sizes)?),
        }))
    }

    fn sizes(&self, key: &str, sizes: &Value) -> Result<[usize; 2], ModelError> {
        let size = |at: usize| sizes[at].as_u64().filter(|size| (1..=1 << 20).contains(size)).map(|size| size as usize);
        match (size(0), size(1), sizes[2].is_null()) {
            (Some(n), Some(k), true) => Ok([n, k]),
            _ => Err(self.refuses(key, sizes.to_string(), "two sizes, such as [128, 128]")),
        }
    }

    fn compressed(&self) -> Result<Scheme, ModelError> {
        // Weights that stand for others, behind a rotation of what they are multiplied with, or without what is zero.
        let transforms = self.0["transform_config"]["config_groups"].as_object();
        if let Some((name, _)) = transforms.and_then(|groups| groups.iter().next()) {
            return Err(self.refuses("transform_config.config_groups", name, "none"));
        }
        match self.0["sparsity_config"]["format"].as_str() {
            None | Some("dense") => {}
            Some(other) => return Err(self.refuses("sparsity_config.format", other, "dense")),
        }
        let groups = self.0["config_groups"].as_object().filter(|groups| groups.len() == 1);
        let Some(group) = groups.and_then(|groups| groups.values().next()) else {
            return Err(self.refuses(
                "config_groups",
                self.0["config_groups"].to_string(),
                "one group, of all linear layers",
            ));
        };
        let weights = &group["weights"];
        let (kind, bits) = (weights["type"].as_str().unwrap_or_default(), weights["num_bits"].as_u64().unwrap_or(0));
        let strategy = weights["strategy"].as_str().unwrap_or_default();
        match (kind, bits, strategy) {
            ("float", 8, "tensor") => Ok(Scheme::Fp8(Scales::Tensor)),
            ("float", 8, "channel") => Ok(Scheme::Fp8(Scales::Channel)),
            ("float", 8, "block") => self
                .sizes("config_groups.weights.block_structure", &weights["block_structure"])
                .map(|sizes| Scheme::Fp8(Scales::Block(sizes))),
            ("int", 4, "group" | "channel") => {
                let format = group["format"].as_str().or(self.text("format")).unwrap_or_default();
                if format != "pack-quantized" {
                    return Err(self.refuses("format", format, "pack-quantized, of integers of 4 bits"));
                }
                let zeros = weights["symmetric"].as_bool() == Some(false);
                let group = if strategy == "channel" { ALL_INPUTS } else { self.group(weights)? };
                Ok(Scheme::FourBits(FourBits::Packed { group, zeros }))
            }
            _ => {
                let got = format!("{kind} of {bits} bits by {strategy}");
                let expected = "float of 8 bits by tensor, channel or block, or int of 4 bits by group or channel";
                Err(self.refuses("config_groups.weights", got, expected))
            }
        }
    }

    /// Inputs that share a scale; -1 stands for all.
    fn group(&self, keys: &Value) -> Result<usize, ModelError> {
        match keys["group_size"].as_i64() {
            Some(-1) => Ok(ALL_INPUTS),
            Some(group @ 1..=0x10_0000) => Ok(group as usize),
            _ => Err(self.refuses(
                "group_size",
                keys["group_size"].to_string(),
                "a number of inputs, such as 128, or -1",
            )),
        }
    }

    fn awq(&self) -> Result<Scheme, ModelError> {
        self.only("bits", &[4.into()])?;
        self.only("version", &["gemm".into(), "GEMM".into()])?;
        self.only("zero_point", &[true.into()])?;
        Ok(Scheme::FourBits(FourBits::Awq { group: self.group(self.0)? }))
    }

    fn gptq(&self) -> Result<Scheme, ModelError> {
        self.only("bits", &[4.into()])?;
        self.only("checkpoint_format", &["gptq".into(), "gptq_v2".into()])?;
        let one_more = self.text("checkpoint_format") != Some("gptq_v2");
        Ok(Scheme::FourBits(FourBits::Gptq { group: self.group(self.0)?, one_more }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> Result<Option<Scheme>, ModelError> {
        Scheme::read(&json!({"quantization_config": config}))
    }

    #[test]
    fn schemes_are_told_by_their_keys() {
        let weights = |weights: Value| json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"weights": weights}}});
        for (config, expected) in [
            (json!({"quant_method": "fp8", "weight_block_size": [128, 64]}), Scheme::Fp8(Scales::Block([128, 64]))),
            (json!({"quant_method": "fp8", "activation_scheme": "static"}), Scheme::Fp8(Scales::AsStored)),
            (json!({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}), Scheme::Fp8(Scales::Channel)),
            (weights(json!({"type": "float", "num_bits": 8, "strategy": "tensor"})), Scheme::Fp8(Scales::Tensor)),
            (
                weights(
                    json!({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": false}),
                ),
                Scheme::FourBits(FourBits::Packed { group: 64, zeros: true }),
            ),
            (
                json!({"quant_method": "gptq", "bits": 4, "group_size": -1}),
                Scheme::FourBits(FourBits::Gptq { group: ALL_INPUTS, one_more: true }),
            ),
            (
                json!({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"}),
                Scheme::FourBits(FourBits::Awq { group: 128 }),
            ),
        ] {
            assert_eq!(read(config.clone()).unwrap(), Some(expected), "{config}");
        }
        assert_eq!(Scheme::read(&json!({"quantization_config": null})).unwrap(), None);
    }

    #[test]
    fn others_are_refused_by_name() {
        for (config, words) in [
            (json!({"quant_method": "bitsandbytes"}), "quant_method is bitsandbytes; expected fp8"),
            (json!({}), "quant_method is missing"),
            (json!({"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}), "quant_method is bitsandbytes"),
            (json!({"quant_method": "gptq", "bits": 3, "group_size": 128}), "bits is 3; expected 4"),
            (json!({"quant_method": "awq", "version": "marlin"}), "version is \"marlin\""),
            (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size is [128]"),
            (json!({"quant_method": "compressed-tensors", "config_groups": {}}), "config_groups is {}"),
            (
                json!({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R4": {}}}}),
                "transform_config.config_groups is R4; expected none",
            ),
            (
                json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}),
                "sparsity_config.format is sparse-24-bitmask; expected dense",
            ),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"type": "int", "num_bits": 8, "strategy": "channel"}}}}),
                "int of 8 bits by channel; expected float of 8 bits",
            ),
        ] {
            let stated = read(config).unwrap_err().to_string();
            assert!(stated.starts_with("config.json: quantization_config") && stated.contains(words), "{stated}");
        }
    }
}
