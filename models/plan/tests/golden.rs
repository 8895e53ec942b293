//! Plans and pair counts against the golden fixtures, exactly. Tokens and logits are compared elsewhere.

use asterism_plan::methods::{
    AnchorContent, AnchorPosition, ApbConfig, FirstSkip, Permutation, PulsarConfig, RandomTokens, StarConfig,
};
use asterism_plan::{Cost, Exchange, Method, MethodConfig, ModelShape, Plan, PlanRequest, split_blocks};
use serde_json::{Value, json};

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn size(params: &Value, name: &str) -> Option<usize> {
    params[name].as_u64().map(|tokens| tokens as usize)
}

/// A case's parameters as this project writes them.
fn method(case: &Value) -> Option<MethodConfig> {
    let params = &case["params"];
    let size = |name| size(params, name).unwrap();
    let plain = |value: Value| Some(list(&value));
    match case["method"].as_str()? {
        "star" => Some(MethodConfig::Star(star(params))),
        "pulsar" => Some(MethodConfig::Pulsar(pulsar(params))),
        "apb" => Some(MethodConfig::Apb(apb(params))),
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
    PulsarConfig {
        block_tokens: size(params, "block_size"),
        sink_tokens: size(params, "sink").unwrap(),
        chunk_tokens: size(params, "chunk"),
        summary_tokens: size(params, "summary_tokens"),
        summary_fraction: params["summary_fraction"].as_f64().unwrap_or(0.125),
        heuristic: list(&params["heuristic"]),
        positions: list(&params["positions"]),
        keep_summary_kv: list(&params["keep_summary_kv"]),
        ..PulsarConfig::default()
    }
}

fn apb(params: &Value) -> ApbConfig {
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
        retaining_heads: Some("retaining_heads.safetensors".into()),
        ..ApbConfig::default()
    }
}

fn shape(model: &str) -> ModelShape {
    let path = format!("{}/../../tests/golden/models/{model}/config.json", env!("CARGO_MANIFEST_DIR"));
    let config: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let size = |name: &str| config[name].as_u64().unwrap() as usize;
    ModelShape {
        layers: size("num_hidden_layers"),
        query_heads: size("num_attention_heads"),
        kv_heads: size("num_key_value_heads"),
        head_dim: size("hidden_size") / size("num_attention_heads"),
        hidden: size("hidden_size"),
        intermediate: size("intermediate_size"),
        vocab: size("vocab_size"),
        kv_bytes_per_element: 4,
    }
}

/// A plan as the fixtures write it.
fn golden_view(plan: &Plan, method: &MethodConfig, request: &PlanRequest) -> Value {
    let segment = |shard: &asterism_plan::Shard| {
        json!({"host": shard.host, "block": shard.block, "input_ids": shard.input_ids,
               "position_ids": shard.position_ids, "keep_from": shard.keep_from})
    };
    let mut view = json!({
        "num_hosts": plan.hosts,
        "query_host": plan.hosts - 1,
        "segments": plan.shards.iter().map(segment).collect::<Vec<_>>(),
        "kv_len_per_host": plan.kept_per_host(),
        "query_position_ids": (plan.query_start..).take(request.query.len()).collect::<Vec<_>>(),
    });
    match method {
        MethodConfig::Pulsar(pulsar) => {
            let blocks = split_blocks(request.context.len(), pulsar.block_tokens.unwrap());
            let summaries = pulsar.summaries(request.context, request.query, &blocks);
            view["summary_indices"] = summaries.iter().map(|summary| summary.indices.clone()).collect();
            if summaries.iter().any(|summary| summary.indices.is_empty() || !summary.chunks.is_empty()) {
                view["selected_chunks"] = summaries.iter().map(|summary| summary.chunks.clone()).collect();
            }
        }
        MethodConfig::Apb(apb) => view["anchor_total_len"] = apb.anchor_len(request).unwrap().into(),
        MethodConfig::Ulysses(_) => {
            let shares = request.shape.head_shares(plan.hosts);
            view["heads_per_host"] = shares.iter().map(|share| json!({"q": share.query.clone().collect::<Vec<_>>(), "kv": share.kv.clone().collect::<Vec<_>>()})).collect();
        }
        _ => {}
    }
    view
}

#[test]
fn every_case_agrees_exactly() {
    let path = format!("{}/../../tests/golden/public/goldens.json", env!("CARGO_MANIFEST_DIR"));
    let goldens: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut agreed = 0;
    for case in goldens["cases"].as_array().unwrap() {
        let Some(method) = method(case) else { continue };
        let (context, query): (Vec<u32>, Vec<u32>) = (list(&case["context_ids"]), list(&case["query_ids"]));
        let expected = &case["expected"];
        let hosts = expected["plan"]["num_hosts"].as_u64().unwrap() as usize;
        let shape = shape(case["model"].as_str().unwrap());
        let request = PlanRequest { context: &context, query: &query, hosts, one_machine: false, shape: &shape };
        let plan = method.plan(&request).unwrap();
        plan.check(&context).unwrap();
        assert_eq!(golden_view(&plan, &method, &request), expected["plan"], "{}", case["id"]);
        assert_eq!(
            matches!(plan.exchange, Exchange::PassCompressed(_)),
            plan.shards.len() > 1 && size(&case["params"], "passing_len").is_some_and(|tokens| tokens > 0)
        );
        let cost = Cost::of(&plan, &shape);
        assert_eq!(cost.dense_pairs, expected["counts"]["dense_pairs"].as_u64().unwrap());
        let pairs = expected["counts"]["prefill_pairs"].as_u64().unwrap();
        match cost.at_most {
            true => assert!(cost.prefill_pairs >= pairs, "{}", case["id"]),
            false => assert_eq!(cost.prefill_pairs, pairs, "{}", case["id"]),
        }
        agreed += 1;
    }
    assert_eq!(agreed, 50);
}
