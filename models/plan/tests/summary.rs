//! Summaries against the golden fixtures, and what every summary must be.

use asterism_plan::{Heuristic, SummaryBudget, SummaryRule, chunk_scores, split_blocks, summarize};
use serde_json::Value;

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn golden_path(name: &str) -> String {
    format!("{}/../../tests/golden/public/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn golden_cases() -> Vec<Value> {
    let goldens: Value = serde_json::from_str(&std::fs::read_to_string(golden_path("goldens.json")).unwrap()).unwrap();
    list(&goldens["cases"])
}

fn rule(params: &Value) -> SummaryRule {
    let size = |name: &str| params[name].as_u64().map(|tokens| tokens as usize);
    let budget = match size("summary_tokens") {
        Some(tokens) => SummaryBudget::Tokens(tokens),
        None => SummaryBudget::Fraction(params["summary_fraction"].as_f64().unwrap()),
    };
    let heuristic: Heuristic = list(&params["heuristic"]);
    SummaryRule { heuristic, chunk_tokens: size("chunk").unwrap(), budget, ..SummaryRule::default() }
}

/// A one-dimensional tensor of a safetensors file: the length of a JSON header, the header, the data.
fn tensor(file: &str, name: &str) -> Vec<f64> {
    let bytes = std::fs::read(golden_path(file)).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..data]).unwrap();
    let [start, end]: [usize; 2] = list(&header[name]["data_offsets"]);
    let bytes = &bytes[data + start..data + end];
    match header[name]["dtype"].as_str().unwrap() {
        "F32" => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        "I32" => bytes.chunks_exact(4).map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap()))).collect(),
        other => panic!("dtype {other}"),
    }
}

#[test]
fn pulsar_plans_choose_the_same_tokens() {
    let mut agreed = 0;
    for case in golden_cases().iter().filter(|case| case["method"] == "pulsar") {
        let context: Vec<u32> = list(&case["context_ids"]);
        let blocks = split_blocks(context.len(), list(&case["params"]["block_size"]));
        let summaries = summarize(&context, &[], &blocks, &rule(&case["params"]));
        let plan = &case["expected"]["plan"];
        let indices: Vec<_> = summaries.iter().map(|summary| summary.indices.clone()).collect();
        assert_eq!(indices, list::<Vec<Vec<u32>>>(&plan["summary_indices"]), "{}", case["id"]);
        if !plan["selected_chunks"].is_null() {
            let chunks: Vec<_> = summaries.into_iter().map(|summary| summary.chunks).collect();
            assert_eq!(chunks, list::<Vec<Vec<usize>>>(&plan["selected_chunks"]), "{}", case["id"]);
        }
        agreed += 1;
    }
    assert_eq!(agreed, 12, "public pulsar cases");
}

#[test]
fn kernel_cases_score_the_same() {
    let mut agreed = 0;
    for case in golden_cases().iter().filter(|case| case["kind"] == "chunk_scores") {
        let context: Vec<u32> =
            tensor(case["inputs_file"].as_str().unwrap(), "ids").iter().map(|&id| id as u32).collect();
        let rule = rule(&case["params"]);
        let blocks = split_blocks(context.len(), list(&case["params"]["block_size"]));
        let scores = chunk_scores(&context, &[], &blocks, &rule);
        let expected = &case["expected"];
        let lengths: Vec<usize> = scores.iter().map(Vec::len).collect();
        assert_eq!(lengths, list::<Vec<usize>>(&expected["values"]["chunks_per_block"]), "{}", case["id"]);
        let exact = tensor(expected["tensors_file"].as_str().unwrap(), "scores");
        for (got, want) in scores.concat().into_iter().zip(exact) {
            // The fixture rounds 64-bit scores to 32 bits.
            assert_eq!(got as f32, want as f32, "{}", case["id"]);
        }
        let chunks: Vec<_> =
            summarize(&context, &[], &blocks, &rule).into_iter().map(|summary| summary.chunks).collect();
        assert_eq!(chunks, list::<Vec<Vec<usize>>>(&expected["values"]["selected_chunks"]), "{}", case["id"]);
        agreed += 1;
    }
    assert_eq!(agreed, 4, "public chunk_scores cases");
}
