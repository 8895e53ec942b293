//! What all ways of asking questions have in common: the embedded model, a job's form, refusals. Asks nothing.

use std::collections::BTreeMap;

use asterism_actors::api::JobRequest;
use asterism_kernels::KvFormat;
use asterism_models::QuerySeparator;
use asterism_plan::MethodConfig;

use crate::{
    cluster::{Model, file::DType},
    error::CliError,
    eval::{self, EvalRecord},
};

pub(crate) const EMBEDDED: Model = Model {
    name: None,
    path: None,
    random: None,
    linear: None,
    attention: None,
    kept: KvFormat::Computed,
    dtype: DType::F32,
    max_context_tokens: None,
    heads: BTreeMap::new(),
    query_separator: QuerySeparator::PARAGRAPH,
    template_date: None,
};

pub(crate) fn refusal(error: eval::EvalError) -> CliError {
    CliError::usage(error).hint("`asterism eval --help` shows the benchmarks, and their --help what they take")
}

/// A record as a greedy job.
pub fn question(record: &EvalRecord, method: Option<MethodConfig>, max_tokens: usize) -> JobRequest {
    let (context, query) = (record.input_context.clone().into(), record.input_query.clone().into());
    let labels = [("task".to_owned(), label(&record.task))].into();
    JobRequest {
        method,
        allow_idle_hosts: true,
        max_tokens,
        labels,
        query_separator: record.query_separator.clone(),
        chat_template: record.chat_template,
        ..JobRequest::new(Some(context), query)
    }
}

/// A task's name, which a file may have chosen, as jobs can bear it.
pub(crate) fn label(task: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let label: String = task.chars().map(plain).take(64).collect();
    match label.trim_matches('-') {
        "" => label,
        trimmed => trimmed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::label;

    #[test]
    fn a_label_has_no_sign_at_its_ends() {
        assert_eq!(["depth 0%", "niah_single", "%", "a/b"].map(label), ["depth-0", "niah_single", "-", "a-b"]);
    }
}
