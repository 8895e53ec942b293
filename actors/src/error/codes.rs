//! Codes of failures. They become labels of metrics, so that any other that a host says is `other`.

/// Every code that a host of this version says: those of models, and `internal` for what panics.
const OF_HOSTS: &[&str] = &[
    "cancelled",
    "chat_template",
    "constraint",
    "context_too_long",
    "gguf",
    "host_lost",
    "internal",
    "kernel",
    "key_count",
    "merge_order",
    "model_config_unsupported",
    "model_file_malformed",
    "model_file_missing",
    "model_file_unfit",
    "model_file_unreadable",
    "model_ids",
    "no_head",
    "not_finite_logits",
    "not_finite_partial",
    "parcel_missing",
    "quantised",
    "retaining_heads",
    "sampling",
    "template_limit",
    "tensor_missing",
    "tensor_shape",
    "tensor_type",
    "token_id",
    "tokenizer",
    "tokens_missing",
    "unsupported",
    "weights_not_finite",
    "weights_not_safetensors",
    "weights_truncated",
];

/// What the supervisor itself fails jobs with, beyond those of hosts.
const OF_SUPERVISOR: &[&str] = &[
    "input_mismatch",
    MODEL_CHANGED,
    "placement_impossible",
    "replay_mismatch",
    "session_expired",
    "session_failed",
    "session_not_found",
    "shard_mismatch",
    "timeout",
];

/// Work of another model than the cluster's.
pub const MODEL_CHANGED: &str = "model_changed";

/// What no code is known of.
const OTHER: &str = "other";

/// The code that a host says, if there is such a code.
pub fn of_host(code: &str) -> &'static str {
    OF_HOSTS.iter().find(|known| **known == code).copied().unwrap_or(OTHER)
}

/// Every code that a job can fail with.
pub fn all() -> impl Iterator<Item = &'static str> {
    OF_HOSTS.iter().chain(OF_SUPERVISOR).copied().chain([OTHER])
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    #[test]
    fn only_codes_that_there_are_become_labels() {
        assert_eq!(of_host("not_finite_logits"), "not_finite_logits");
        assert_eq!(["", "Kernel", "made_up_7", "kernel\n"].map(of_host), ["other"; 4]);
        assert!(OF_HOSTS.is_sorted());
    }

    /// The texts in quotes of a piece of source.
    fn quoted(source: &str) -> impl Iterator<Item = &str> {
        source.split('"').skip(1).step_by(2)
    }

    /// The part of a file that ships.
    fn shipped(path: &Path) -> String {
        let text = fs::read_to_string(path).expect("a source");
        text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
    }

    /// Those of a folder, and of folders in it.
    fn sources(folder: &Path) -> Vec<String> {
        let inside = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
        inside.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![shipped(&path)] }).collect()
    }

    /// A job fails with a code that stands as a text, or with a host's; those of sessions that ended are `JobError`'s.
    #[test]
    fn every_code_that_the_supervisor_fails_jobs_with_is_known() {
        let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/supervisor"));
        let mut stated = BTreeSet::new();
        for source in &sources {
            for before in ["fail_context(number, \"", ".fail(number, \"", ".fail(job, \"", "Outcome::Failed { code: \""]
            {
                stated.extend(source.split(before).skip(1).filter_map(|rest| rest.split('"').next()));
            }
        }
        assert!(stated.len() > 3, "{stated:?}");
        assert!(stated.iter().all(|code| all().any(|known| known == *code)), "{stated:?}");
        assert_eq!(all().collect::<BTreeSet<_>>().len(), all().count(), "each once");
    }

    /// Hosts say the codes of `ModelError`, and those that stand as texts where they tell of a failure.
    #[test]
    fn every_code_that_a_host_can_say_is_known_and_no_other() {
        let actors = Path::new(env!("CARGO_MANIFEST_DIR"));
        let errors = shipped(&actors.join("../models/src/error.rs"));
        let (_, code) = errors.split_once("fn code(&self)").expect("errors have codes");
        let mut stated: BTreeSet<&str> = quoted(code).collect();
        let sides = ["context_host", "query_host", "host"].map(|side| actors.join("src").join(side));
        let sources: Vec<String> = sides.iter().flat_map(|side| sources(side)).collect();
        for source in &sources {
            for before in ["failed(\"", "(code, message) = (\"", "code: \""] {
                stated.extend(source.split(before).skip(1).filter_map(|rest| rest.split('"').next()));
            }
        }
        assert!(stated.len() > 20, "{stated:?}");
        assert_eq!(stated, OF_HOSTS.iter().copied().collect());
    }
}
