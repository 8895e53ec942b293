//! Sizes as requests and cluster files type them: bounded where they enter, so that sums of them cannot overflow.

use serde::{Deserialize, Deserializer, de::Error};

/// Most tokens, rows or keys that a size of a method may count.
pub const MOST: usize = 1 << 30;

/// Reads a size.
pub fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    bounded(usize::deserialize(deserializer)?)
}

/// Reads a size that may be absent.
pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    Option::<usize>::deserialize(deserializer)?.map(bounded).transpose()
}

fn bounded<E: Error>(size: usize) -> Result<usize, E> {
    match size {
        0..=MOST => Ok(size),
        _ => Err(E::custom(format_args!("a size is {size}, expected at most {MOST}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::MethodConfig;

    #[test]
    fn sizes_beyond_any_context_are_refused() {
        for size in [json!(u64::MAX), json!(1_u64 << 32), json!(-1), json!(1e308), json!(0.5)] {
            for method in [
                json!({"star": {"block_tokens": size}}),
                json!({"star": {"anchor_tokens": size}}),
                json!({"star": {"local_attention": {"streaming": {"window_tokens": size}}}}),
                json!({"pulsar": {"sink_tokens": size}}),
                json!({"pulsar": {"chunk_tokens": size}}),
                json!({"pulsar": {"summary_tokens": size}}),
                json!({"pulsar": {"least_summary_tokens": size}}),
                json!({"apb": {"query_insert_at": size}}),
                json!({"apb": {"passing_tokens": size}}),
                json!({"apb": {"score_pool": size}}),
                json!({"auto": {"dense_below_tokens": size}}),
                json!({"streaming": {"sink_tokens": size}}),
                json!({"anchor": {"step": size}}),
                json!({"minference": {"slash": size}}),
                json!({"flexprefill": {"min_budget": size}}),
            ] {
                assert!(serde_json::from_value::<MethodConfig>(method.clone()).is_err(), "{method}");
            }
        }
        let large = json!({"star": {"block_tokens": 1 << 30, "anchor_tokens": null}});
        assert!(serde_json::from_value::<MethodConfig>(large).is_ok());
    }
}
