//! Plans and pair counts against the golden fixtures, exactly. Tokens and logits are compared elsewhere.

#[path = "../../../tests/golden/cases.rs"]
mod cases;
#[path = "../../../tests/golden/view.rs"]
mod view;

use asterism_plan::{Cost, Method, ModelShape, PlanRequest, RopeLength};
use cases::list;
use serde_json::Value;
use view::golden_view;

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
        kept_row_bytes: 0,
        rope: RopeLength::Any,
        windowed_layers: 0,
        window: 0,
    }
}

#[test]
fn every_case_agrees_exactly() {
    let path = format!("{}/../../tests/golden/public/goldens.json", env!("CARGO_MANIFEST_DIR"));
    let goldens: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut agreed = 0;
    for case in goldens["cases"].as_array().unwrap() {
        let Some(name) = case["method"].as_str() else { continue };
        let (context, query): (Vec<u32>, Vec<u32>) = (list(&case["context_ids"]), list(&case["query_ids"]));
        let expected = &case["expected"];
        let (method, hosts) = cases::method(name, &case["params"], context.len(), "trained");
        let shape = shape(case["model"].as_str().unwrap());
        let request =
            PlanRequest { context: &context, query: &query, hosts, one_device: false, shape: &shape, speeds: None };
        let plan = method.plan(&request).unwrap();
        plan.check(context.len()).unwrap();
        assert_eq!(golden_view(&plan, &method, &request), expected["plan"], "{}", case["id"]);
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
