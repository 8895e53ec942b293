//! The default model, compiled into the binary, so that a cluster needs no file at all.

/// Name of the embedded model.
pub const EMBEDDED_NAME: &str = "asterism-7m";

pub(crate) const CONFIG: &[u8] = include_bytes!("../asterism-7m/config.json");
pub(crate) const WEIGHTS: &[u8] = include_bytes!("../asterism-7m/model.safetensors");
pub(crate) const TOKENIZER: &[u8] = include_bytes!("../asterism-7m/tokenizer.json");
pub(crate) const TOKENIZER_CONFIG: &[u8] = include_bytes!("../asterism-7m/tokenizer_config.json");
