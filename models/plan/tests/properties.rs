//! What every plan must be, over random sizes.

use asterism_plan::methods::{AnchorContent, AnchorPosition, StarConfig};
use asterism_plan::{Cost, Method, MethodConfig, ModelShape, Plan, PlanRequest};
use proptest::prelude::*;

const SHAPE: ModelShape = ModelShape {
    layers: 4,
    query_heads: 8,
    kv_heads: 2,
    head_dim: 16,
    hidden: 128,
    intermediate: 256,
    vocab: 512,
    kv_bytes_per_element: 4,
};

fn anchor_position() -> impl Strategy<Value = AnchorPosition> {
    prop_oneof![Just(AnchorPosition::First), Just(AnchorPosition::Previous)]
}

fn anchor_content() -> impl Strategy<Value = AnchorContent> {
    prop_oneof![
        Just(AnchorContent::First),
        Just(AnchorContent::Previous),
        any::<u32>().prop_map(|token| AnchorContent::Constant { token }),
        prop::collection::vec(any::<u32>(), 256).prop_map(|tokens| AnchorContent::Random { tokens }),
    ]
}

prop_compose! {
    fn star()(
        block in prop::option::of(16_usize..=256),
        anchor in prop::option::of(0.0..=1.0_f64),
        anchor_position in anchor_position(),
        anchor_content in anchor_content(),
    ) -> StarConfig {
        let anchor_tokens = anchor.map(|share| (share * block.unwrap_or(256) as f64) as usize);
        // A derived block may be longer than the list of random tokens.
        let anchor_tokens = if block.is_none() { anchor_tokens.or(Some(256)) } else { anchor_tokens };
        StarConfig { block_tokens: block, anchor_tokens, anchor_position, anchor_content }
    }
}

fn method() -> impl Strategy<Value = MethodConfig> {
    prop_oneof![1 => Just("dense".parse().unwrap()), 8 => star().prop_map(MethodConfig::Star)]
}

fn context() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 1..1500)
}

fn kept_ids(plan: &Plan) -> Vec<u32> {
    plan.shards.iter().flat_map(|shard| &shard.input_ids[shard.keep_from..]).copied().collect()
}

proptest! {
    #[test]
    fn kept_kv_is_the_context_and_the_query_follows(method in method(), context in context(), hosts in 1_usize..12) {
        let plan = method.plan(&PlanRequest { context: &context, query: &[], hosts }).unwrap();
        prop_assert_eq!(plan.check(), Ok(()));
        prop_assert_eq!(kept_ids(&plan), context.clone());
        prop_assert_eq!(plan.query_start as usize, context.len());
        prop_assert_eq!(plan.kept_per_host().iter().sum::<usize>(), context.len());
        prop_assert!(plan.shards.is_sorted_by_key(|shard| shard.host), "blocks are dealt in contiguous runs");
    }

    #[test]
    fn shards_do_not_depend_on_hosts(block in 16_usize..256, context in context(), hosts in 1_usize..12) {
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let inputs = |hosts| {
            let plan = star.plan(&PlanRequest { context: &context, query: &[], hosts }).unwrap();
            plan.shards.into_iter().map(|shard| (shard.input_ids, shard.position_ids, shard.keep_from)).collect::<Vec<_>>()
        };
        prop_assert_eq!(inputs(hosts), inputs(1));
    }

    #[test]
    fn blocks_are_dealt_evenly(block in 16_usize..256, context in context(), hosts in 1_usize..12) {
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let plan = star.plan(&PlanRequest { context: &context, query: &[], hosts }).unwrap();
        let dealt: Vec<_> = (0..hosts).map(|host| plan.shards.iter().filter(|shard| shard.host == host).count()).collect();
        prop_assert!(dealt.iter().max().unwrap() - dealt.iter().min().unwrap() <= 1);
        prop_assert!(dealt.is_sorted_by(|a, b| a >= b));
    }

    /// One block is dense; so are two behind a full anchor.
    #[test]
    fn few_blocks_equal_dense(context in context(), blocks in 1_usize..=2) {
        let block = context.len().div_ceil(blocks).max(16);
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let plan = star.plan(&PlanRequest { context: &context, query: &[], hosts: 2 }).unwrap();
        let last = plan.shards.last().unwrap();
        prop_assert_eq!(&last.input_ids, &context);
        prop_assert!(last.position_ids.iter().enumerate().all(|(index, &position)| index == position as usize));
    }

    #[test]
    fn cost_adds_up(method in method(), context in context(), hosts in 1_usize..12) {
        let plan = method.plan(&PlanRequest { context: &context, query: &[], hosts }).unwrap();
        let cost = Cost::of(&plan, &SHAPE);
        let tokens = context.len() as u64;
        prop_assert_eq!(cost.hosts.iter().map(|host| host.kept_tokens).sum::<u64>(), tokens);
        prop_assert_eq!(cost.hosts.iter().map(|host| host.kv_bytes).sum::<u64>(), tokens * SHAPE.kv_bytes_per_token());
        prop_assert_eq!(cost.dense_pairs, 4 * 8 * tokens * (tokens + 1) / 2);
        // Row by row, as a mask would count.
        let rows: u64 = plan.shards.iter().map(|shard| (1..=shard.input_ids.len() as u64).sum::<u64>()).sum();
        prop_assert_eq!(cost.prefill_pairs, 4 * 8 * rows);
        prop_assert_eq!(cost.critical_host().unwrap().flops, cost.hosts.iter().map(|host| host.flops).max().unwrap());
    }

    #[test]
    fn a_broken_plan_is_refused(context in context(), block in 16_usize..256, breach in 0_usize..8, pick in any::<prop::sample::Index>()) {
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let mut plan = star.plan(&PlanRequest { context: &context, query: &[], hosts: 3 }).unwrap();
        let at = pick.index(plan.shards.len());
        let shard = &mut plan.shards[at];
        match breach {
            0 => shard.block += 1,
            1 => shard.host = 3,
            2 => { shard.position_ids.pop(); }
            3 => shard.keep_from = shard.input_ids.len(),
            4 => *shard.position_ids.last_mut().unwrap() += 1,
            5 => plan.context_tokens += 1,
            6 => plan.query_start += 1,
            _ => { plan.shards.remove(at); }
        }
        prop_assert!(plan.check().is_err());
    }
}
