//! Plans in the words of the golden fixtures. Runs nothing.

use asterism_plan::{MethodConfig, Plan, PlanRequest, Shard, split_blocks};
use serde_json::{Value, json};

/// A plan as the fixtures write it.
pub fn golden_view(plan: &Plan, method: &MethodConfig, request: &PlanRequest) -> Value {
    let ids = plan.numbered_ids(request.context);
    let segment = |shard: &Shard| {
        let input = shard.input(ids.as_slice()).expect("a plan that was checked");
        json!({"host": shard.host, "block": shard.block, "input_ids": input.ids,
               "position_ids": input.positions, "keep_from": shard.keep_from()})
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
