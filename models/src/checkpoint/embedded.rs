//! The default model, compiled into the binary, so that a cluster needs no file at all.
//!
//! Its bytes stand in functions that are never inlined: constants would be written into the metadata of this crate, which every
//! compilation of a crate above reads.

/// Name of the embedded model.
pub const EMBEDDED_NAME: &str = "asterism-7m";

#[inline(never)]
pub(crate) fn config() -> &'static [u8] {
    include_bytes!("../../asterism-7m/config.json")
}

#[inline(never)]
pub(crate) fn weights() -> &'static [u8] {
    include_bytes!("../../asterism-7m/model.safetensors")
}

#[inline(never)]
pub(crate) fn tokenizer() -> &'static [u8] {
    include_bytes!("../../asterism-7m/tokenizer.json")
}

#[inline(never)]
pub(crate) fn tokenizer_config() -> &'static [u8] {
    include_bytes!("../../asterism-7m/tokenizer_config.json")
}
