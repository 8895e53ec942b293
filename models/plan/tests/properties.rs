//! What every plan must be, over random sizes.

use asterism_plan::attention::{Streaming, Stripes};
use asterism_plan::methods::{AnchorContent, AnchorPosition, Permutation, RandomPositions, RandomTokens, StarConfig};
use asterism_plan::{
    Calibration, Cost, Exchange, LocalAttention, Method, MethodConfig, ModelShape, Plan, PlanRequest, Shard, Span,
    StepSeconds,
};
use proptest::prelude::*;
use serde_json::json;

const SHAPE: ModelShape = ModelShape::TINY;

const NO_STEP: StepSeconds = StepSeconds { one_row: 0.0, further_row: 0.0 };

/// Hosts of one thread on two cores.
const SPEEDS: Calibration = Calibration {
    linear_s_per_flop: 2e-11,
    attention_s_per_pair: 1e-9,
    layer_s: 1e-5,
    full_speed_hosts: 2.0,
    full_speed_answers: 2.0,
    start_s: 1e-3,
    step: NO_STEP,
    key: NO_STEP,
    wire_bytes_per_s: 1e9,
    round_trip_s: 1e-4,
};

fn request<'a>(context: &'a [u32], hosts: usize) -> PlanRequest<'a> {
    PlanRequest { context, query: &[7, 8, 9], hosts, one_device: false, shape: &SHAPE, speeds: None }
}

fn anchor_position() -> impl Strategy<Value = AnchorPosition> {
    prop_oneof![
        Just(AnchorPosition::First),
        Just(AnchorPosition::Previous),
        (any::<u64>(), any::<bool>())
            .prop_map(|(seed, sorted)| AnchorPosition::Random(RandomPositions { seed, sorted })),
    ]
}

fn anchor_content() -> impl Strategy<Value = AnchorContent> {
    prop_oneof![
        Just(AnchorContent::First),
        Just(AnchorContent::Previous),
        any::<u32>().prop_map(|token| AnchorContent::Constant { token }),
        any::<u64>().prop_map(|seed| AnchorContent::Random(RandomTokens::Seed(seed))),
        any::<u64>().prop_map(|seed| AnchorContent::Shuffled(Permutation::Seed(seed))),
        prop::collection::vec(any::<u32>(), 256).prop_map(|list| AnchorContent::Random(RandomTokens::Tokens(list))),
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
        StarConfig { block_tokens: block, anchor_tokens, anchor_position, anchor_content, ..StarConfig::default() }
    }
}

fn local_attention() -> impl Strategy<Value = LocalAttention> {
    prop_oneof![
        3 => Just(LocalAttention::Causal),
        1 => Just(LocalAttention::Stripes(Stripes::default())),
        1 => (0_usize..64, 1_usize..64).prop_map(|(sink_tokens, window_tokens)| {
            LocalAttention::Streaming(Streaming { sink_tokens, window_tokens })
        }),
    ]
}

prop_compose! {
    fn pulsar()(
        sizes in (prop::option::of(16_usize..300), 0_usize..80, 1_usize..40, 0.0..0.5_f64),
        heuristic in prop::sample::select(vec!["max-idf", "tf-idf", "bm25", "entropy", "even-spaced", "query-aware"]),
        contiguous in any::<bool>(),
        local_attention in local_attention(),
        options in (any::<bool>(), prop::option::of(Just(false))),
    ) -> MethodConfig {
        let (block, sink, chunk, fraction) = sizes;
        let positions = if contiguous { "contiguous" } else { "sparse" };
        serde_json::from_value(json!({"pulsar": {
            "block_tokens": block, "sink_tokens": sink, "chunk_tokens": chunk, "summary_fraction": fraction,
            "heuristic": heuristic, "positions": positions, "local_attention": local_attention,
            "balanced": options.0 && block.is_none(), "shared_prefix": options.1,
        }})).unwrap()
    }
}

/// Both ways of encoding a prefix that exist once.
fn shareable() -> impl Strategy<Value = (MethodConfig, MethodConfig)> {
    let both = |method: &'static str, sizes: serde_json::Value| {
        let with = |shared: bool| {
            let mut sizes = sizes.clone();
            sizes["shared_prefix"] = shared.into();
            serde_json::from_value(json!({ method: sizes })).unwrap()
        };
        (with(true), with(false))
    };
    prop_oneof![
        (16_usize..200, 1_usize..=16)
            .prop_map(move |(block, anchor)| { both("star", json!({"block_tokens": block, "anchor_tokens": anchor})) }),
        (16_usize..200, 0_usize..40).prop_map(move |(block, sink)| {
            both("pulsar", json!({"block_tokens": block, "sink_tokens": sink, "summary_fraction": 0.25}))
        }),
    ]
}

/// Rules of sessions whose blocks stand on a grid.
fn growing() -> impl Strategy<Value = MethodConfig> {
    (16_usize..90, 0_usize..40).prop_map(|(block, sink)| {
        serde_json::from_value(json!({"pulsar": {"block_tokens": block, "sink_tokens": sink}})).unwrap()
    })
}

fn method() -> impl Strategy<Value = MethodConfig> {
    let plain =
        prop::sample::select(vec!["dense", "apb", "anchor", "ring", "streaming", "minference", "flexprefill", "auto"]);
    prop_oneof![
        3 => plain.prop_map(|name| name.parse().unwrap()),
        4 => star().prop_map(MethodConfig::Star),
        4 => pulsar(),
    ]
}

fn context() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 1..1500)
}

#[test]
fn a_context_of_few_tokens_is_planned_or_refused_with_what_to_do() {
    let methods = [
        "dense",
        "star",
        "pulsar",
        "apb",
        "anchor",
        "ring",
        "ulysses",
        "chain",
        "streaming",
        "minference",
        "flexprefill",
        "auto",
    ];
    let all: Vec<u32> = (0..20).collect();
    for (method, tokens) in methods.into_iter().flat_map(|method| [1, 2, 3, 5, 17].map(|tokens| (method, tokens))) {
        for (hosts, query) in [1, 3, 4, 8].into_iter().flat_map(|hosts| [1, 3, 16].map(|query| (hosts, query))) {
            let asked = PlanRequest { query: &all[..query], ..request(&all[..tokens], hosts) };
            let case = format!("{method}: {tokens} tokens, {hosts} hosts, a question of {query}");
            match method.parse::<MethodConfig>().unwrap().plan(&asked) {
                Ok(plan) => assert_eq!(plan.check(tokens), Ok(()), "{case}"),
                Err(refused) => {
                    assert_eq!((method, refused.code()), ("ulysses", "placement_impossible"), "{case}: {refused}")
                }
            }
        }
    }
}

fn kept_ids(plan: &Plan, context: &[u32]) -> Vec<u32> {
    let ids = plan.numbered_ids(context);
    let own = |shard: &Shard| shard.input(ids.as_slice()).expect("it is known").ids[shard.prefix_rows()..].to_vec();
    plan.shards.iter().flat_map(own).collect()
}

proptest! {
    #[test]
    fn kept_kv_is_the_context_and_the_query_follows(method in method(), context in context(), hosts in 1_usize..12) {
        let plan = method.plan(&request(&context, hosts)).unwrap();
        prop_assert_eq!(plan.check(context.len()), Ok(()));
        prop_assert_eq!(kept_ids(&plan, &context), context.clone());
        prop_assert_eq!(plan.kept_per_host().iter().sum::<usize>(), plan.kept_tokens());
        prop_assert_eq!(plan.kept_tokens(), context.len());
        prop_assert!(
            plan.method.name == "ring" || plan.shards.is_sorted_by_key(|shard| shard.host),
            "blocks are dealt in contiguous runs"
        );
    }

    #[test]
    fn shards_do_not_depend_on_hosts(block in 16_usize..256, context in context(), hosts in 1_usize..12) {
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let inputs = |hosts| {
            let plan = star.plan(&request(&context, hosts)).unwrap();
            plan.shards.into_iter().map(|shard| (shard.prefix, shard.own, shard.keeps_prefix)).collect::<Vec<_>>()
        };
        prop_assert_eq!(inputs(hosts), inputs(1));
    }

    #[test]
    fn blocks_are_dealt_evenly(block in 16_usize..256, context in context(), hosts in 1_usize..12) {
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let plan = star.plan(&request(&context, hosts)).unwrap();
        let dealt: Vec<_> = (0..hosts).map(|host| plan.shards.iter().filter(|shard| shard.host == host).count()).collect();
        prop_assert!(dealt.iter().max().unwrap() - dealt.iter().min().unwrap() <= 1);
        prop_assert!(dealt.is_sorted_by(|a, b| a >= b));
    }

    /// One block is dense; so are two behind a full anchor.
    #[test]
    fn few_blocks_equal_dense(context in context(), blocks in 1_usize..=2) {
        let block = context.len().div_ceil(blocks).max(16);
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let plan = star.plan(&request(&context, 2)).unwrap();
        let last = plan.shards.last().unwrap();
        let input = last.input(context.as_slice()).unwrap();
        prop_assert_eq!(&input.ids, &context);
        prop_assert!(input.positions.iter().enumerate().all(|(index, &position)| index == position as usize));
    }

    #[test]
    fn cost_adds_up(method in method(), context in context(), hosts in 1_usize..12) {
        let plan = method.plan(&request(&context, hosts)).unwrap();
        let cost = Cost::of(&plan, &SHAPE);
        let tokens = context.len() as u64;
        prop_assert_eq!(cost.hosts.iter().map(|host| host.kept_tokens).sum::<u64>(), tokens);
        prop_assert_eq!(cost.hosts.iter().map(|host| host.kv_bytes).sum::<u64>(), tokens * SHAPE.kv_bytes_per_token());
        prop_assert_eq!(cost.dense_pairs, 4 * 8 * tokens * (tokens + 1) / 2);
        if plan.exchange == Exchange::None {
            let rows: u64 = plan.shards.iter().map(|shard| shard.attention.pairs(shard.rows())).sum();
            prop_assert_eq!(cost.prefill_pairs, 4 * 8 * rows);
            prop_assert!(cost.hosts.iter().all(|host| host.exchange_bytes == 0));
        }
        if plan.method.name == "ring" {
            prop_assert_eq!(cost.prefill_pairs, cost.dense_pairs);
        }
        prop_assert_eq!(cost.critical_host().unwrap().flops, cost.hosts.iter().map(|host| host.flops).max().unwrap());
    }

    /// Whatever `auto` takes: no more pairs than dense attention, and no more operations where hosts share a machine's cores.
    #[test]
    fn auto_is_never_dearer_than_dense(
        tokens in 1_usize..9000, kinds in 2_u32..3000, hosts in 1_usize..9, one_device in any::<bool>(), asked in any::<bool>(),
        speeds in prop::option::of(Just(SPEEDS)),
    ) {
        let context: Vec<u32> = (0..tokens as u32).map(|token| token.wrapping_mul(2_654_435_761) % kinds).collect();
        let query: &[u32] = if asked { &[7, 8, 9] } else { &[] };
        let request = PlanRequest { query, one_device, speeds: speeds.as_ref(), ..request(&context, hosts) };
        let cost = |name: &str| Cost::of(&name.parse::<MethodConfig>().unwrap().plan(&request).unwrap(), &SHAPE);
        let flops = |cost: &Cost| cost.hosts.iter().map(|host| host.flops).sum::<u64>();
        let (auto, dense) = (cost("auto"), cost("dense"));
        prop_assert!(auto.prefill_pairs <= auto.dense_pairs, "{} of {} pairs", auto.prefill_pairs, auto.dense_pairs);
        prop_assert!(speeds.is_some() || auto.critical_host().unwrap().flops <= dense.critical_host().unwrap().flops);
        prop_assert!(!one_device || speeds.is_some() || flops(&auto) <= flops(&dense));
    }

    /// The same keys for every block row, fewer rows.
    #[test]
    fn a_shared_prefix_costs_no_more(both in shareable(), context in context(), hosts in 1_usize..8) {
        let plan = |method: &MethodConfig| method.plan(&request(&context, hosts)).unwrap();
        let (shared, apart) = (plan(&both.0), plan(&both.1));
        let tokens = |plan: &Plan| Cost::of(plan, &SHAPE).hosts.iter().map(|host| host.linear_tokens).sum::<u64>();
        prop_assert!(tokens(&shared) <= tokens(&apart));
        prop_assert_eq!(kept_ids(&shared, &context), kept_ids(&apart, &context));
        prop_assert_eq!(shared.kept_per_host(), apart.kept_per_host());
    }

    #[test]
    fn balanced_blocks_have_a_lighter_slowest_host(context in prop::collection::vec(0_u32..50, 800..3000), hosts in 2_usize..9) {
        for method in ["star", "pulsar"] {
            let slowest = |balanced: bool| {
                let sizes = json!({method: {"balanced": balanced, "anchor_tokens": 60}});
                let sizes = if method == "star" { sizes } else { json!({method: {"balanced": balanced, "heuristic": "max-idf", "chunk_tokens": 4}}) };
                let method: MethodConfig = serde_json::from_value(sizes).unwrap();
                Cost::of(&method.plan(&request(&context, hosts)).unwrap(), &SHAPE).critical_host().unwrap().flops
            };
            // Whole chunks and whole tokens: a few percent either way.
            prop_assert!(slowest(true) as f64 <= 1.03 * slowest(false) as f64, "{method} {} {}", slowest(true), slowest(false));
        }
    }

    #[test]
    fn a_broken_plan_is_refused(context in context(), block in 16_usize..256, breach in 0_usize..9, pick in any::<prop::sample::Index>()) {
        let star = StarConfig { block_tokens: Some(block), ..StarConfig::default() };
        let mut plan = star.plan(&request(&context, 3)).unwrap();
        let at = pick.index(plan.shards.len());
        let shard = &mut plan.shards[at];
        match breach {
            0 => shard.block += 1,
            1 => shard.host = 3,
            2 => shard.own.tokens += 1,
            3 => shard.prefix.push(Span { start: context.len() as u32, tokens: 1, position: 0 }),
            4 => shard.own.start += 1,
            5 => plan.context_tokens += 1,
            6 => plan.query_start -= 1,
            7 => shard.prefix.push(Span { start: 0, tokens: 1, position: u32::MAX }),
            _ => { plan.shards.remove(at); }
        }
        prop_assert!(plan.check(context.len()).is_err());
    }
}

/// The work of a token is the same however long the context, where hosts share prefixes and where they do not.
#[test]
fn the_default_is_linear_in_the_context() {
    for one_device in [true, false] {
        let per_token = |tokens: u32| {
            let context: Vec<u32> = (0..tokens).map(|token| token.wrapping_mul(2_654_435_761) % 3001).collect();
            let request = PlanRequest { query: &[7, 8, 9], one_device, ..request(&context, 64) };
            let plan = MethodConfig::default().plan(&request).unwrap();
            assert_eq!((plan.method.name.as_str(), plan.idle_hosts()), ("pulsar", 0));
            let cost = Cost::of(&plan, &SHAPE);
            cost.hosts.iter().map(|host| host.flops).sum::<u64>() as f64 / f64::from(tokens)
        };
        let [short, long] = [1 << 20, 1 << 22].map(per_token);
        assert!(long < 1.05 * short, "{long} operations a token, {short} in a quarter of the context");
    }
}

/// However many the hosts, blocks are large enough to hold what belongs together.
/// Blocks save work without another host to share it with.
#[test]
fn auto_splits_a_long_context_over_one_host_too() {
    let context: Vec<u32> = (0..32_768_u32).map(|token| token.wrapping_mul(2_654_435_761) % 3000).collect();
    let plan = |name: &str, query: &[u32]| {
        name.parse::<MethodConfig>()
            .unwrap()
            .plan(&PlanRequest { query, one_device: true, ..request(&context, 1) })
            .unwrap()
    };
    let (auto, dense) = (plan("auto", &[7, 8, 9]), plan("dense", &[7, 8, 9]));
    assert_eq!((auto.method.name.as_str(), auto.shards.len()), ("pulsar", 8));
    let flops = |plan: &asterism_plan::Plan| Cost::of(plan, &SHAPE).hosts[0].flops;
    assert!(flops(&auto) < flops(&dense), "{} and {}", flops(&auto), flops(&dense));
    assert_eq!(plan("auto", &[]).method.name, "chain");
}

fn saving(least: f64) -> MethodConfig {
    serde_json::from_value(json!({"auto": {"least_saving": least}})).unwrap()
}

/// An approximation that saves little is none.
#[test]
fn auto_is_exact_until_blocks_save_a_third() {
    let shape = |layers, query_heads, kv_heads, hidden, intermediate| ModelShape {
        layers,
        query_heads,
        kv_heads,
        head_dim: 128,
        hidden,
        intermediate,
        ..ModelShape::TINY
    };
    let (qwen_1b, llama_8b) = (shape(28, 12, 2, 1536, 8960), shape(32, 32, 8, 4096, 14_336));
    let context: Vec<u32> = (0..131_072_u32).map(|token| token.wrapping_mul(2_654_435_761) >> 20).collect();
    let named = |method: MethodConfig, shape: &ModelShape, one_device: bool, tokens: usize| {
        let asked = PlanRequest { query: &[7, 8, 9], shape, one_device, ..request(&context[..tokens], 4) };
        method.plan(&asked).map(|plan| plan.method.name)
    };
    let on_one = |shape, tokens| named(MethodConfig::default(), shape, true, tokens).unwrap();
    assert_eq!(
        [4096, 16_384, 32_000, 65_536].map(|tokens| on_one(&qwen_1b, tokens)),
        ["dense", "dense", "dense", "pulsar"]
    );
    assert_eq!(
        [32_768, 45_000, 65_536, 131_072].map(|tokens| on_one(&llama_8b, tokens)),
        ["dense", "dense", "pulsar", "pulsar"]
    );
    assert_eq!(
        named(MethodConfig::default(), &llama_8b, false, 32_768).unwrap(),
        "pulsar",
        "each of four devices has a fourth of it"
    );
    assert_eq!(named(saving(0.0), &llama_8b, true, 32_768).unwrap(), "pulsar");
    assert_eq!(named(saving(1.0), &llama_8b, false, 131_072).unwrap(), "dense");
    let refused = named(saving(35.0), &llama_8b, true, 32_768).unwrap_err().to_string();
    assert!(refused.contains("least_saving") && refused.contains("35") && refused.contains("from 0 to 1"), "{refused}");
}

#[test]
fn auto_leaves_hosts_idle_rather_than_cut_too_small() {
    let context: Vec<u32> = (0..4096_u32).map(|token| token.wrapping_mul(2_654_435_761) % 3001).collect();
    let plan = |hosts| {
        let request = PlanRequest { query: &[7, 8, 9], one_device: true, ..request(&context, hosts) };
        saving(0.0).plan(&request).unwrap()
    };
    let blocks = |hosts| plan(hosts).shards.iter().map(|shard| shard.block_tokens()).collect::<Vec<_>>();
    assert_eq!([blocks(4), blocks(16)], [vec![1024; 4], vec![512; 8]]);
    assert_eq!(plan(16).idle_hosts(), 8);
}

proptest! {
    /// What is appended touches no block that is full, nor its host, whatever stands behind it.
    #[test]
    fn a_session_that_grew_has_the_full_blocks_that_it_had(
        context in prop::collection::vec(0_u32..50, 2..600),
        cut in 1_usize..600,
        method in growing(),
        hosts in 1_usize..6,
    ) {
        let plan = |tokens: usize| {
            let request = PlanRequest { query: &[], ..request(&context[..tokens], hosts) };
            method.plan(&request).unwrap()
        };
        let (before, after) = (plan(cut.min(context.len())), plan(context.len()));
        let block = method.block_tokens().unwrap();
        let full = before.context_tokens / block;
        prop_assert!(before.shards.len() - full <= 1);
        prop_assert_eq!(&before.shards[..full], &after.shards[..full]);
        prop_assert_eq!(&after.exchange, &Exchange::None);
        let rows: usize = after.shards.iter().map(Shard::rows).sum();
        prop_assert!(rows <= context.len() + after.shards.len() * 40, "no more than the sink before each");
    }
}

#[test]
fn sessions_grow_by_blocks() {
    let context: Vec<u32> = (0..9000).collect();
    let plan = |method: &str, tokens: usize| {
        let method: MethodConfig = method.parse().unwrap();
        method.plan(&PlanRequest { query: &[], ..request(&context[..tokens], 4) }).unwrap()
    };
    for method in ["pulsar", "chain"] {
        assert_eq!(plan(method, 5000).shards[..4], plan(method, 9000).shards[..4], "{method}");
    }
    let after = plan("pulsar", 9000);
    assert_eq!(after.shards.iter().map(|shard| shard.host).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3, 0]);
    assert!(after.refresh.is_some());
}

/// Exact while that costs no more than blocks and what sixteen questions get anew.
#[test]
fn a_session_is_exact_until_its_questions_cost_less() {
    let llama_8b = ModelShape {
        layers: 32,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        hidden: 4096,
        intermediate: 14_336,
        vocab: 128_256,
        kv_bytes_per_element: 2,
        kept_row_bytes: 0,
        ..ModelShape::TINY
    };
    let context: Vec<u32> = (0..262_144).collect();
    let planned = |tokens: usize, hosts: usize| {
        let asked = PlanRequest { query: &[], shape: &llama_8b, ..request(&context[..tokens], hosts) };
        MethodConfig::default().plan(&asked).unwrap()
    };
    let named = |tokens: usize, hosts: usize| planned(tokens, hosts).method.name;
    assert_eq!(
        [4096, 32_768, 65_536, 131_072, 262_144].map(|tokens| named(tokens, 4)),
        ["chain", "chain", "chain", "pulsar", "pulsar"]
    );
    assert_eq!(named(262_144, 1), "chain", "nothing to split over");
    let long = planned(131_072, 4);
    assert!(long.shards.iter().all(|shard| shard.block_tokens() == 4096));
    assert_eq!(long.refresh.map(|rule| rule.tokens), Some(8192));
    assert_eq!(long.shards[..16], planned(200_000, 4).shards[..16], "it grows");
}
