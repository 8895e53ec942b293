//! Families whose layers end in a mixture of experts.

mod gpt_oss;
mod mixtral;
mod qwen3_moe;

pub(super) use gpt_oss::GPT_OSS_FAMILY;
pub(super) use mixtral::MIXTRAL_FAMILY;
pub(super) use qwen3_moe::QWEN3_MOE_FAMILY;
