//! Plans and pair counts against the golden fixtures, exactly. Tokens and logits are compared elsewhere.

use asterism_plan::methods::{AnchorContent, AnchorPosition, DenseConfig, StarConfig};
use asterism_plan::{Cost, Method, MethodConfig, ModelShape, Plan, PlanRequest};
use serde_json::{Value, json};

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn star(params: &Value) -> StarConfig {
    let size = |name: &str| params[name].as_u64().map(|tokens| tokens as usize);
    StarConfig {
        block_tokens: size("block_size"),
        anchor_tokens: size("anchor_size"),
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
            "shuffled" => AnchorContent::Shuffled { permutation: list(&params["permutation"]) },
            "random" => AnchorContent::Random { tokens: list(&params["random_tokens"]) },
            other => panic!("content {other}"),
        },
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
fn golden_view(plan: &Plan, query: usize) -> Value {
    let segment = |shard: &asterism_plan::Shard| {
        json!({"host": shard.host, "block": shard.block, "input_ids": shard.input_ids,
               "position_ids": shard.position_ids, "keep_from": shard.keep_from})
    };
    json!({
        "num_hosts": plan.hosts,
        "query_host": plan.hosts - 1,
        "segments": plan.shards.iter().map(segment).collect::<Vec<_>>(),
        "kv_len_per_host": plan.kept_per_host(),
        "query_position_ids": (plan.query_start..).take(query).collect::<Vec<_>>(),
    })
}

#[test]
fn dense_and_star_cases_agree_exactly() {
    let path = format!("{}/../../tests/golden/public/goldens.json", env!("CARGO_MANIFEST_DIR"));
    let goldens: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut agreed = 0;
    for case in goldens["cases"].as_array().unwrap() {
        let method = match case["method"].as_str() {
            Some("dense") => MethodConfig::Dense(DenseConfig {}),
            Some("star") => MethodConfig::Star(star(&case["params"])),
            _ => continue,
        };
        let (context, query): (Vec<u32>, Vec<u32>) = (list(&case["context_ids"]), list(&case["query_ids"]));
        let expected = &case["expected"];
        let hosts = expected["plan"]["num_hosts"].as_u64().unwrap() as usize;
        let plan = method.plan(&PlanRequest { context: &context, query: &query, hosts }).unwrap();
        plan.check().unwrap();
        assert_eq!(golden_view(&plan, query.len()), expected["plan"], "{}", case["id"]);
        let cost = Cost::of(&plan, &shape(case["model"].as_str().unwrap()));
        let counts = json!({"prefill_pairs": cost.prefill_pairs, "dense_pairs": cost.dense_pairs});
        assert_eq!(counts, expected["counts"], "{}", case["id"]);
        agreed += 1;
    }
    assert_eq!(agreed, 19, "3 dense and 16 star cases");
}
