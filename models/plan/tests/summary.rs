//! Summaries against the golden fixtures, and what every summary must be.

use std::time::{Duration, Instant};

use asterism_plan::{
    BudgetSpread, Heuristic, Summary, SummaryBudget, SummaryRule, TieBreak, chunk_scores, split_blocks, summarize,
};
use proptest::prelude::*;
use serde_json::Value;

const HEURISTICS: [Heuristic; 6] = [
    Heuristic::MaxIdf,
    Heuristic::TfIdf,
    Heuristic::Bm25,
    Heuristic::Entropy,
    Heuristic::EvenSpaced,
    Heuristic::QueryAware,
];
const TIES: [TieBreak; 5] =
    [TieBreak::LowIndex, TieBreak::HighIndex, TieBreak::Strided, TieBreak::Count, TieBreak::Rarity];

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

#[test]
fn names_are_kebab_case() {
    let names = |value: Value| value.to_string();
    assert_eq!(
        names(serde_json::to_value(HEURISTICS).unwrap()),
        r#"["max-idf","tf-idf","bm25","entropy","even-spaced","query-aware"]"#
    );
    assert_eq!(names(serde_json::to_value(TIES).unwrap()), r#"["low-index","high-index","strided","count","rarity"]"#);
}

#[test]
fn rules_that_choose_nothing_sensible_are_refused() {
    let refused = |rule: SummaryRule| rule.check().unwrap_err().to_string();
    let default = SummaryRule::default();
    assert_eq!(refused(SummaryRule { chunk_tokens: 0, ..default }), "chunk_tokens is 0, expected at least 1");
    for share in [-0.1, 1.5, f64::NAN] {
        let message = refused(SummaryRule { budget: SummaryBudget::Fraction(share), ..default });
        assert!(message.contains(&share.to_string()) && message.contains("from 0 to 1"), "{message}");
    }
    assert_eq!(default.check(), Ok(()));
    assert_eq!(SummaryRule::query_aware().check(), Ok(()));
}

fn budget() -> impl Strategy<Value = SummaryBudget> {
    prop_oneof![
        (0_usize..300).prop_map(SummaryBudget::Tokens),
        (0.0..=1.0).prop_map(SummaryBudget::Fraction),
        (0.0..=1.0, 0_usize..300).prop_map(|(share, least)| SummaryBudget::InAll { share, least, most: least + 200 }),
        (0_usize..300).prop_map(|least| SummaryBudget::Ample { least }),
    ]
}

prop_compose! {
    fn rules()(
        heuristic in prop::sample::select(HEURISTICS.to_vec()),
        ties in prop::sample::select(TIES.to_vec()),
        chunk_tokens in 1_usize..40,
        budget in budget(),
        shared in any::<bool>(),
    ) -> SummaryRule {
        let spread = if shared { BudgetSpread::Shared } else { BudgetSpread::PerBlock };
        SummaryRule { heuristic, ties, chunk_tokens, budget, spread }
    }
}

/// Few enough ids to repeat within a block, or hardly any repeats.
fn tokens(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![prop::collection::vec(0_u32..50, 0..longest), prop::collection::vec(any::<u32>(), 0..longest)]
}

fn lengths(summaries: &[Summary]) -> Vec<usize> {
    summaries.iter().map(|summary| summary.indices.len()).collect()
}

proptest! {
    #[test]
    fn summaries_are_ordered_parts_of_their_blocks_within_budget(
        rule in rules(), context in tokens(600), query in tokens(40), block in 1_usize..200,
    ) {
        let blocks = split_blocks(context.len(), block);
        let summaries = summarize(&context, &query, &blocks, &rule);
        prop_assert_eq!(summaries.len(), blocks.len());
        prop_assert_eq!(&summaries, &summarize(&context, &query, &blocks, &rule));
        let mut shares = Vec::new();
        for (summary, block) in summaries.iter().zip(&blocks) {
            prop_assert!(summary.indices.is_sorted_by(|a, b| a < b));
            prop_assert!(summary.indices.iter().all(|&index| block.contains(&(index as usize))));
            if rule.heuristic != Heuristic::EvenSpaced {
                let chunk = |number: &usize| {
                    let start = block.start + number * rule.chunk_tokens;
                    (start..block.end.min(start + rule.chunk_tokens)).map(|index| index as u32)
                };
                prop_assert_eq!(&summary.chunks.iter().flat_map(chunk).collect::<Vec<_>>(), &summary.indices);
            }
            shares.push(match rule.budget {
                SummaryBudget::Tokens(tokens) => tokens,
                SummaryBudget::Fraction(share) => (share * block.len() as f64) as usize,
                SummaryBudget::InAll { share, least, most } => {
                    let read = (blocks.len() - 1).max(1);
                    ((share * (block.len() * read) as f64) as usize).max(least).min(most).div_ceil(read)
                }
                SummaryBudget::Ample { least } => {
                    let read = (blocks.len() - 1).max(1);
                    least.max((block.len() * read / 8).min(4096)).div_ceil(read)
                }
            });
        }
        let lengths = lengths(&summaries);
        if let (BudgetSpread::Shared, Some((last, others))) = (rule.spread, shares.split_last()) {
            prop_assert!(lengths[..others.len()].iter().sum::<usize>() <= others.iter().sum());
            prop_assert!(lengths[others.len()] <= *last);
        } else {
            prop_assert!(lengths.iter().zip(&shares).all(|(length, share)| length <= share));
        }
    }

    #[test]
    fn a_budget_of_everything_takes_everything(rule in rules(), context in tokens(600), block in 1_usize..200) {
        let blocks = split_blocks(context.len(), block);
        let rule = SummaryRule { budget: SummaryBudget::Tokens(usize::MAX), ..rule };
        let indices: Vec<u32> =
            summarize(&context, &[], &blocks, &rule).into_iter().flat_map(|summary| summary.indices).collect();
        prop_assert!(indices.into_iter().eq(0..context.len() as u32));
    }

    /// Ids are names: other names, same choice.
    #[test]
    fn renaming_tokens_changes_nothing(
        rule in rules(), context in tokens(600), query in tokens(40), block in 1_usize..200, mask in any::<u32>(),
    ) {
        let blocks = split_blocks(context.len(), block);
        let renamed = |ids: &[u32]| ids.iter().map(|id| id.rotate_left(7) ^ mask).collect::<Vec<_>>();
        prop_assert_eq!(
            summarize(&context, &query, &blocks, &rule),
            summarize(&renamed(&context), &renamed(&query), &blocks, &rule)
        );
    }

    #[test]
    fn only_query_awareness_reads_the_query(
        rule in rules(), context in tokens(600), query in tokens(40), block in 1_usize..200,
    ) {
        prop_assume!(rule.heuristic != Heuristic::QueryAware);
        let blocks = split_blocks(context.len(), block);
        prop_assert_eq!(summarize(&context, &query, &blocks, &rule), summarize(&context, &[], &blocks, &rule));
    }

    /// One score a chunk, none of them NaN or negative.
    #[test]
    fn every_chunk_has_a_score(rule in rules(), context in tokens(600), query in tokens(40), block in 1_usize..200) {
        let blocks = split_blocks(context.len(), block);
        let scores = chunk_scores(&context, &query, &blocks, &rule);
        prop_assert_eq!(scores.len(), blocks.len());
        for (scores, block) in scores.iter().zip(&blocks) {
            let chunks = block.len().div_ceil(rule.chunk_tokens);
            prop_assert_eq!(scores.len(), if rule.heuristic == Heuristic::EvenSpaced { 0 } else { chunks });
            prop_assert!(scores.iter().all(|&score| score >= 0.0 && score.is_finite()));
        }
    }
}

/// A bound far above what it takes, to catch work that grows with the square of the context.
#[test]
fn a_million_tokens_take_no_time() {
    let count = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let mut state = 1_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 33) as f64 / f64::from(1_u32 << 31);
        (uniform * uniform * uniform * 150_000.0) as u32
    };
    let context: Vec<u32> = (0..count).map(|_| draw()).collect();
    let query: Vec<u32> = (0..2000).map(|_| draw()).collect();
    let blocks = split_blocks(count, count / 64);
    for heuristic in HEURISTICS {
        let rule = SummaryRule { heuristic, chunk_tokens: 8, ties: TieBreak::Rarity, ..SummaryRule::default() };
        let start = Instant::now();
        let summaries = summarize(&context, &query, &blocks, &rule);
        assert!(start.elapsed() < Duration::from_secs(10), "{heuristic:?} took {:?}", start.elapsed());
        assert!(lengths(&summaries).iter().sum::<usize>() > count / 10);
    }
}
