//! How many layers phase 1 computes as the model has them. Measures no error of the others.

use super::ModelShape;
use crate::{Exchange, LocalAttention, Plan};

/// Layers that phase 1 computes as the model has them: of those without a window, and of those with one. A layer with a window is exact
/// whatever a method chooses within a shard; at the borders of shards that pass each other no keys its rows miss some.
pub fn exact_layers(plan: &Plan, shape: &ModelShape) -> [usize; 2] {
    let chained = plan.shards.iter().skip(1).all(|shard| shard.behind > 0);
    let whole = chained || matches!(plan.exchange, Exchange::Broadcast | Exchange::AllToAll);
    let causal = plan.shards.iter().all(|shard| shard.attention == LocalAttention::Causal);
    let full = if whole && causal { shape.layers - shape.windowed_layers } else { 0 };
    [full, if whole { shape.windowed_layers } else { 0 }]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Method, MethodConfig, PlanRequest};

    #[test]
    fn layers_with_windows_are_exact_within_a_shard() {
        let shape = ModelShape { windowed_layers: 3, window: 16, ..ModelShape::TINY };
        let context: Vec<u32> = (0..4096).collect();
        let request =
            PlanRequest { context: &context, query: &[3], hosts: 4, one_device: true, shape: &shape, speeds: None };
        let of = |method: serde_json::Value| {
            let method: MethodConfig = serde_json::from_value(method).expect("a method");
            let plan = method.plan(&request).expect("a plan");
            assert!(!matches!(plan.exchange, Exchange::SharedPrefix { .. }), "{}", plan.method.name);
            assert_eq!(plan.refresh, None);
            exact_layers(&plan, &shape)
        };
        for exact in [json!({"dense": {}}), json!({"ring": {}}), json!({"ulysses": {}})] {
            assert_eq!(of(exact), [1, 3]);
        }
        assert_eq!(of(json!({"streaming": {}})), [0, 3]);
        for cut in [json!({"star": {}}), json!({"pulsar": {}}), json!({"apb": {}})] {
            assert_eq!(of(cut), [0, 0]);
        }
        let refused = json!({"pulsar": {"keep_summary_kv": true}});
        let refused: MethodConfig = serde_json::from_value(refused).expect("a method");
        assert!(refused.plan(&request).is_err());
    }
}
