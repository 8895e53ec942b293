//! Seconds and memory to choose summaries of a long context, for each heuristic. Checks what it times; measures no quality.
//!
//! `cargo run --release -p asterism-plan --example selection -- [TOKENS] [BLOCKS] [VOCABULARY]`

use std::time::Instant;

use asterism_plan::{BudgetSpread, Heuristic, SummaryRule, TieBreak, split_blocks, summarize};

/// Tokens of the query.
const QUERY: usize = 2_000;

fn main() {
    let mut sizes = std::env::args().skip(1).map(|size| size.parse().expect("sizes are whole numbers"));
    let mut size = |default: usize| sizes.next().unwrap_or(default);
    let (tokens, blocks, vocabulary) = (size(1_000_000), size(16), size(150_000));
    let mut state = 1;
    let mut draw = || skewed(&mut state, vocabulary);
    let context: Vec<u32> = (0..tokens).map(|_| draw()).collect();
    // Half of the query stands in the context.
    let query: Vec<u32> = (0..QUERY).map(|i| if i % 2 == 0 { draw() } else { context[i * tokens / QUERY] }).collect();
    let blocks = split_blocks(tokens, tokens.div_ceil(blocks));
    let before = peak_bytes();
    println!("{tokens} tokens, {} blocks, ids below {vocabulary}, a query of {QUERY}", blocks.len());
    println!("{:>12} {:>8} {:>8} {:>9} {:>16}", "heuristic", "ties", "seconds", "chosen", "peak RSS added");
    for (heuristic, ties, chunk_tokens) in [
        (Heuristic::MaxIdf, TieBreak::LowIndex, 32),
        (Heuristic::MaxIdf, TieBreak::Rarity, 32),
        (Heuristic::TfIdf, TieBreak::LowIndex, 32),
        (Heuristic::Bm25, TieBreak::LowIndex, 32),
        (Heuristic::Entropy, TieBreak::Strided, 32),
        (Heuristic::EvenSpaced, TieBreak::LowIndex, 32),
        (Heuristic::QueryAware, TieBreak::LowIndex, 8),
    ] {
        let spread = BudgetSpread::Shared;
        let rule = SummaryRule { heuristic, ties, chunk_tokens, spread, ..SummaryRule::default() };
        let start = Instant::now();
        let summaries = summarize(&context, &query, &blocks, &rule);
        let seconds = start.elapsed().as_secs_f64();
        let chosen: usize = summaries.iter().map(|summary| summary.indices.len()).sum();
        assert!(chosen <= tokens / 8, "{chosen} of {tokens} tokens exceed the budget");
        let added = (peak_bytes() - before) >> 20;
        println!("{heuristic:>12?} {ties:>8?} {seconds:>8.3} {chosen:>9} {added:>12} MiB");
    }
}

/// A token id, the small ones far more often: the product of three uniform draws.
fn skewed(state: &mut u64, vocabulary: usize) -> u32 {
    let mut uniform = || {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as f64 / f64::from(1_u32 << 31)
    };
    (uniform() * uniform() * uniform() * vocabulary as f64) as u32
}

/// Most memory this process has held, in bytes; 0 where the system does not tell.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0) << 10
}
