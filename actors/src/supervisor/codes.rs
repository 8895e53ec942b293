//! Codes of failures that hosts say. They become labels of metrics, so that any other is `other`.

/// Every code that a host of this version says: those of models, plans, kernels and transports.
const OF_HOSTS: &[&str] = &[
    "bind",
    "block_too_small",
    "cancelled",
    "certificate",
    "channel_closed",
    "chat_template",
    "closed",
    "context_too_long",
    "empty_context",
    "handshake",
    "host_lost",
    "internal",
    "invalid_method",
    "invalid_plan",
    "kernel",
    "kernel_device",
    "kernel_device_memory",
    "kernel_device_too_small",
    "kernel_dtype",
    "kernel_no_device",
    "kernel_shape",
    "kernel_tensor",
    "kernel_threads",
    "kernel_unknown",
    "kernel_unsupported",
    "key_count",
    "model_config_unsupported",
    "model_file_malformed",
    "model_file_missing",
    "model_file_unfit",
    "model_file_unreadable",
    "no_head",
    "not_finite_logits",
    "not_finite_partial",
    "out_of_memory",
    "parcel_missing",
    "placement_impossible",
    "protocol_version",
    "retaining_heads",
    "sampling",
    "template_limit",
    "tensor_missing",
    "tensor_shape",
    "tensor_type",
    "timed_out",
    "token_id",
    "tokenizer",
    "tokens_missing",
    "transport_closed",
    "unreachable",
    "unsupported",
    "weights_not_finite",
    "weights_not_safetensors",
    "weights_truncated",
    "wrong_role",
];

/// The code that a host says, if there is such a code.
pub fn of_host(code: &str) -> &'static str {
    OF_HOSTS.iter().find(|known| **known == code).copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codes_that_there_are_become_labels() {
        assert_eq!(of_host("kernel_device_memory"), "kernel_device_memory");
        assert_eq!(["", "Kernel", "made_up_7", "kernel\n"].map(of_host), ["other"; 4]);
        assert!(OF_HOSTS.is_sorted());
    }
}
