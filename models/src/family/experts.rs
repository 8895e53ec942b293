//! Families whose layers end in a mixture of experts.

mod mixtral;
mod qwen3_moe;

pub(super) use mixtral::MIXTRAL_FAMILY;
pub(super) use qwen3_moe::QWEN3_MOE_FAMILY;
