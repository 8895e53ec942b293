//! Golden cases in this project's words. Runs nothing.

use asterism_plan::MethodConfig;
use asterism_plan::methods::{
    AnchorContent, AnchorPosition, ApbConfig, FirstSkip, Permutation, PulsarConfig, RandomTokens, StarConfig,
};
use serde_json::{Value, json};

/// A parameter as a value of ours.
pub fn list<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn size(params: &Value, name: &str) -> Option<usize> {
    params[name].as_u64().map(|tokens| tokens as usize)
}

/// A method by its name and parameters in the fixtures, and the hosts it plans for. `heads` is what the model's retaining
/// heads are called.
pub fn method(name: &str, params: &Value, context: usize, heads: &str) -> (MethodConfig, usize) {
    let blocks = size(params, "block_size").map_or(1, |block| context.div_ceil(block));
    (config(name, params, heads), size(params, "hosts").unwrap_or(blocks))
}

fn config(name: &str, params: &Value, heads: &str) -> MethodConfig {
    let size = |name| size(params, name).unwrap();
    let plain = |value: Value| list(&value);
    match name {
        "star" => MethodConfig::Star(star(params)),
        "pulsar" => MethodConfig::Pulsar(pulsar(params)),
        "apb" => MethodConfig::Apb(apb(params, heads)),
        "ring" => plain(json!({"ring": {"layout": "contiguous"}})),
        "ulysses" => plain(json!({"ulysses": {}})),
        "dense" => plain(json!({"dense": {}})),
        "anchor" => plain(json!({"anchor": params})),
        "streaming" => plain(json!({"streaming": {"sink_tokens": size("sink"), "window_tokens": size("window"),
                                                  "phase2": params["phase2"]}})),
        other => panic!("method {other}"),
    }
}

fn star(params: &Value) -> StarConfig {
    StarConfig {
        block_tokens: size(params, "block_size"),
        anchor_tokens: size(params, "anchor_size"),
        anchor_position: match params["anchor_position"].as_str().unwrap() {
            "first" => AnchorPosition::First,
            "previous" => AnchorPosition::Previous,
            "given" => AnchorPosition::Given(list(&params["anchor_positions"])),
            other => panic!("position {other}"),
        },
        anchor_content: match params["anchor_content"].as_str().unwrap() {
            "first" => AnchorContent::First,
            "previous" => AnchorContent::Previous,
            "constant" => AnchorContent::Constant { token: list(&params["constant_token"]) },
            "shuffled" => AnchorContent::Shuffled(Permutation::Permutation(list(&params["permutation"]))),
            "random" => AnchorContent::Random(RandomTokens::Tokens(list(&params["random_tokens"]))),
            other => panic!("content {other}"),
        },
        ..StarConfig::default()
    }
}

fn pulsar(params: &Value) -> PulsarConfig {
    let (block, chunk) = (size(params, "block_size"), size(params, "chunk"));
    let fraction = params["summary_fraction"].as_f64().unwrap_or(0.125);
    // The fixtures take a budget below a chunk for no summary; here that is said.
    let budget = size(params, "summary_tokens");
    let none = budget.or(block.map(|block| (fraction * block as f64) as usize)) < chunk;
    PulsarConfig {
        block_tokens: block,
        sink_tokens: size(params, "sink").unwrap(),
        chunk_tokens: chunk,
        summary_tokens: if none { Some(0) } else { budget },
        summary_fraction: Some(fraction),
        heuristic: list(&params["heuristic"]),
        positions: list(&params["positions"]),
        keep_summary_kv: list(&params["keep_summary_kv"]),
        ..PulsarConfig::default()
    }
}

fn apb(params: &Value, heads: &str) -> ApbConfig {
    ApbConfig {
        anchor_tokens: size(params, "anchor_len"),
        passing_tokens: size(params, "passing_len"),
        embed_query: list(&params["embed_query"]),
        query_insert_at: size(params, "query_insert_pos").unwrap(),
        anchor_includes_query: list(&params["anchor_len_includes_query"]),
        score_pool: size(params, "score_pool").unwrap(),
        first_skip: match list(&params["host0_skip_anchor"]) {
            true => FirstSkip::Anchor,
            false => FirstSkip::Nothing,
        },
        retaining_heads: Some(heads.to_owned()),
        ..ApbConfig::default()
    }
}
