//! Limits in which the two phases must equal dense attention, and the refusals of phase 2.

#[path = "phases/batch.rs"]
mod batch;
#[path = "phases/carried.rs"]
mod carried;
#[path = "phases/chain.rs"]
mod chain;
#[path = "phases/group.rs"]
mod group;
#[path = "phases/kept.rs"]
mod kept;
#[path = "phases/new_method.rs"]
mod new_method;
#[path = "phases/refresh.rs"]
mod refresh;
#[path = "phases/team.rs"]
mod team;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use asterism_kernels::prelude::*;
use asterism_kernels::{Ask, Cpu, CpuOptions, KvFormat};
use asterism_models::{
    Answers, Checkpoint, ContextAttention, ContextKeys, Decoder, DecoderParts, EncodedShard, Generator, LayerQueries,
    LocalContext, ModelError, PackedRows, PartAnswer, PartAsk, PartialRows, RetainingHeads, ShardPartial, encode_plan,
};
use asterism_plan::methods::{DenseConfig, StarConfig};
use asterism_plan::{ContextView, FAN_IN, KeptShard, Method, MethodConfig, Plan, PlanRequest};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::json;

const TOLERANCE: f32 = 1e-4;
/// Query, then tokens one at a time, as generated.
const STEPS: [&[u32]; 3] = [&[17, 5, 301, 44], &[9], &[77]];

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models")
}

fn decoder(name: &str, parts: DecoderParts) -> Decoder<Cpu> {
    keeping(KvFormat::Computed, name, parts)
}

fn keeping(kept: KvFormat, name: &str, parts: DecoderParts) -> Decoder<Cpu> {
    let folder = models().join(name);
    let backend = Cpu::new(CpuOptions { kept, threads: Some(2), ..CpuOptions::default() }).unwrap();
    Decoder::load(Arc::new(backend), &Checkpoint::open(&folder).unwrap(), parts).unwrap()
}

fn decoders() -> &'static [Decoder<Cpu>; 2] {
    static DECODERS: OnceLock<[Decoder<Cpu>; 2]> = OnceLock::new();
    DECODERS.get_or_init(|| ["tiny-llama", "tiny-qwen2"].map(|name| decoder(name, DecoderParts::All)))
}

/// The same, and those that keep keys and values in 8 bits.
fn all_decoders() -> impl Iterator<Item = &'static Decoder<Cpu>> {
    static DECODERS: OnceLock<[Decoder<Cpu>; 2]> = OnceLock::new();
    let eight = ["tiny-llama", "tiny-qwen2"].map(|name| move || keeping(KvFormat::Q8, name, DecoderParts::All));
    decoders().iter().chain(DECODERS.get_or_init(|| eight.map(|load| load())))
}

fn dense() -> MethodConfig {
    MethodConfig::Dense(DenseConfig::default())
}

fn star(block: usize, anchor: usize) -> MethodConfig {
    MethodConfig::Star(StarConfig { block_tokens: Some(block), anchor_tokens: Some(anchor), ..StarConfig::default() })
}

fn plan(decoder: &Decoder<Cpu>, method: &MethodConfig, context: &[u32], hosts: usize) -> Plan {
    let shape = decoder.config().shape(decoder.backend().kv_type());
    let plan = method
        .plan(&PlanRequest { context, query: STEPS[0], hosts, one_device: false, shape: &shape, speeds: None })
        .unwrap();
    plan.check(context.len()).unwrap();
    plan
}

fn encode(decoder: &Decoder<Cpu>, method: &MethodConfig, context: &[u32]) -> Vec<EncodedShard<Cpu>> {
    encode_plan(decoder, &plan(decoder, method, context, 1), context, None, &mut |_, _| true).unwrap()
}

fn method(value: serde_json::Value) -> MethodConfig {
    serde_json::from_value(value).unwrap()
}

/// Logits of every row of every step by `method` on `hosts` hosts.
fn by(decoder: &Decoder<Cpu>, method: &MethodConfig, context: &[u32], hosts: usize) -> Vec<f32> {
    let plan = plan(decoder, method, context, hosts);
    let name = if decoder.config().layer.biases.qkv { "tiny-qwen2" } else { "tiny-llama" };
    let path = models().join(name).join("retaining_heads.safetensors");
    let heads = RetainingHeads::load(decoder.backend(), &path, decoder.config()).unwrap();
    let shards = encode_plan(decoder, &plan, context, Some(&heads), &mut |_, _| true).unwrap();
    steps(decoder, Generator::of(&plan), &mut LocalContext::new(decoder.backend(), &shards))
}

/// Logits of every row of every step.
fn logits(decoder: &Decoder<Cpu>, shards: &[EncodedShard<Cpu>], context: &mut dyn ContextAttention<Cpu>) -> Vec<f32> {
    let tokens: usize = shards.iter().map(|shard| shard.tokens).sum();
    steps(decoder, Generator::new(keys_of(shards), tokens as u32), context)
}

/// Each shard a group of its own.
fn keys_of(shards: &[EncodedShard<Cpu>]) -> ContextKeys {
    let kept =
        |(group, shard): (usize, &EncodedShard<Cpu>)| KeptShard { keys: shard.tokens as u64, group: group as u32 };
    ContextKeys { shards: shards.iter().enumerate().map(kept).collect(), fan_in: FAN_IN, view: ContextView::All }
}

fn steps(decoder: &Decoder<Cpu>, mut generator: Generator<Cpu>, context: &mut dyn ContextAttention<Cpu>) -> Vec<f32> {
    let rows = STEPS.iter().map(|ids| generator.step(decoder, ids, context).unwrap());
    rows.flat_map(|x| decoder.all_logits(&x).unwrap()).collect()
}

fn local(decoder: &Decoder<Cpu>, shards: &[EncodedShard<Cpu>]) -> Vec<f32> {
    logits(decoder, shards, &mut LocalContext::new(decoder.backend(), shards))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Cuts a shard into several, some possibly empty.
fn cut(decoder: &Decoder<Cpu>, shard: &EncodedShard<Cpu>, mut cuts: Vec<usize>) -> Vec<EncodedShard<Cpu>> {
    cuts.extend([0, shard.tokens]);
    cuts.sort_unstable();
    let backend = decoder.backend();
    let rows = |from, to| shard.layers.iter().map(|kv| backend.kv_rows(kv, from, to).unwrap()).collect();
    let pieces = cuts.windows(2).enumerate();
    pieces
        .map(|(block, ends)| EncodedShard {
            block,
            tokens: ends[1] - ends[0],
            position: shard.position + ends[0] as u32,
            layers: rows(ends[0], ends[1]),
            digest: 0,
        })
        .collect()
}

fn context() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..512, 33..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_split_of_the_keys_equals_none(context in context(), cuts in prop::collection::vec(any::<Index>(), 0..5)) {
        for decoder in decoders() {
            let shards = encode(decoder, &dense(), &context);
            let cuts = cuts.iter().map(|index| index.index(context.len() + 1)).collect();
            let pieces = cut(decoder, &shards[0], cuts);
            let worst = difference(&local(decoder, &shards), &local(decoder, &pieces));
            prop_assert!(worst < TOLERANCE, "{worst}");
        }
    }

    #[test]
    fn star_of_one_block_is_dense(context in context(), anchor in 0usize..64) {
        for decoder in decoders() {
            let one = encode(decoder, &star(context.len(), anchor.min(context.len())), &context);
            prop_assert_eq!(local(decoder, &one), local(decoder, &encode(decoder, &dense(), &context)));
        }
    }

    #[test]
    fn star_of_two_blocks_with_a_whole_anchor_is_dense(context in context()) {
        let block = context.len().div_ceil(2);
        for decoder in decoders() {
            let two = encode(decoder, &star(block, block), &context);
            prop_assert_eq!(two.len(), 2);
            let worst = difference(&local(decoder, &two), &local(decoder, &encode(decoder, &dense(), &context)));
            prop_assert!(worst < TOLERANCE, "{worst}");
        }
    }

    #[test]
    fn tokens_one_by_one_equal_one_pass(context in context()) {
        let ids: Vec<u32> = STEPS.concat();
        for decoder in decoders() {
            let shards = encode(decoder, &star(32, 16), &context);
            let mut host = LocalContext::new(decoder.backend(), &shards);
            let mut generator = Generator::new(keys_of(&shards), context.len() as u32);
            let whole = decoder.all_logits(&generator.step(decoder, &ids, &mut host).unwrap()).unwrap();
            let worst = difference(&whole, &local(decoder, &shards));
            prop_assert!(worst < TOLERANCE, "{worst}");
        }
    }
}

/// Methods in the limits in which they must equal dense attention, for a context of so many tokens on so many hosts.
fn dense_limits(tokens: usize, hosts: usize) -> Vec<serde_json::Value> {
    let block = tokens.div_ceil(hosts);
    let infinite = f32::MAX;
    vec![
        json!({"ring": {"layout": "contiguous"}}),
        json!({"ring": {"layout": "zigzag"}}),
        json!({"anchor": {"theta": infinite, "step": 2, "block_q": 8, "block_kv": 8}}),
        json!({"streaming": {"sink_tokens": 3, "window_tokens": tokens}}),
        json!({"streaming": {"sink_tokens": tokens + 16, "window_tokens": 1, "phase2": "streaming"}}),
        json!({"minference": {"vertical": tokens, "slash": tokens}}),
        json!({"flexprefill": {"gamma": 1.0, "min_budget": tokens}}),
        // Every chunk, nothing twice: the prefix is all that comes before.
        json!({"pulsar": {"block_tokens": block, "sink_tokens": 0, "summary_fraction": 1.0, "chunk_tokens": 1}}),
        json!({"pulsar": {"block_tokens": block, "sink_tokens": 0, "summary_fraction": 1.0, "chunk_tokens": 1,
                          "positions": "contiguous", "heuristic": "tf-idf"}}),
        json!({"pulsar": {"block_tokens": block, "sink_tokens": 0, "summary_fraction": 1.0, "chunk_tokens": 1,
                          "shared_prefix": true}}),
        json!({"apb": {"anchor_tokens": 0, "passing_tokens": block, "first_skip": "nothing", "retaining_heads": "-"}}),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn limits_equal_dense(context in context(), hosts in 1_usize..6) {
        for decoder in decoders() {
            let exact = by(decoder, &dense(), &context, 1);
            for limit in dense_limits(context.len(), hosts) {
                let worst = difference(&by(decoder, &method(limit.clone()), &context, hosts), &exact);
                prop_assert!(worst < TOLERANCE, "{limit} on {hosts} hosts: {worst}");
            }
        }
    }

    #[test]
    fn ulysses_equals_dense(context in context(), share in 0_usize..4) {
        for decoder in decoders() {
            let heads = decoder.config().heads.query;
            let divisors: Vec<usize> = (1..=heads).filter(|hosts| heads % hosts == 0).collect();
            let hosts = divisors[share % divisors.len()];
            // Blocks of equal size must not leave the last host without one; such a plan is refused.
            prop_assume!((hosts - 1) * context.len().div_ceil(hosts) < context.len());
            let exact = by(decoder, &dense(), &context, 1);
            let worst = difference(&by(decoder, &method(json!({"ulysses": {}})), &context, hosts), &exact);
            prop_assert!(worst < TOLERANCE, "{hosts} hosts: {worst}");
        }
    }

    /// Encoding a prefix once changes no bit: every row sees the same keys in the same order.
    #[test]
    fn a_shared_prefix_changes_no_bit(context in context(), hosts in 2_usize..6, size in 0_usize..24) {
        for decoder in decoders() {
            for method_of in [
                |size: usize, shared: bool| json!({"star": {"anchor_tokens": size, "shared_prefix": shared}}),
                |size: usize, shared: bool| {
                    json!({"pulsar": {"sink_tokens": size, "summary_fraction": 0.5, "chunk_tokens": 4,
                                      "shared_prefix": shared}})
                },
            ] {
                let run = |shared: bool| by(decoder, &method(method_of(size, shared)), &context, hosts);
                prop_assert_eq!(run(true), run(false));
            }
        }
    }
}

/// Answers as hosts behind a wire do: packed rows of each shard, on the host.
fn packed(
    backend: &Cpu,
    context: &mut LocalContext<'_, Cpu>,
    queries: LayerQueries<'_, Cpu>,
    asks: &[PartAsk],
) -> Vec<PartAnswer<'static, Cpu>> {
    let LayerQueries { layer, window, heads, q } = queries;
    let Answers::Here(answers) = context.ask(LayerQueries { layer, window, heads, q }, asks).unwrap() else {
        panic!("a local context has its keys here")
    };
    let rows = |ask: &PartAsk, partial: ShardPartial<'_, Cpu>| {
        let PartialRows::Keys { kv, mask, holes } = partial.rows else { panic!("a local context gives its keys") };
        let (mut packed, rows) = (Vec::new(), ask.rows.clone());
        backend.attend_many(heads, q, &[Ask { kv, rows, mask, holes }], &mut packed).unwrap();
        let range = 0..packed.len();
        ShardPartial { shards: partial.shards, rows: PartialRows::Host(PackedRows::new(Arc::new(packed), range)) }
    };
    let of_part = |(ask, answer): (&PartAsk, PartAnswer<'_, Cpu>)| {
        Ok(answer?.into_iter().map(|partial| rows(ask, partial)).collect())
    };
    asks.iter().zip(answers).map(of_part).collect()
}

/// Changes the answers of a context on their way.
struct Changed<'a, F> {
    backend: &'a Cpu,
    context: LocalContext<'a, Cpu>,
    change: F,
}

impl<F: FnMut(&mut Vec<PartAnswer<'static, Cpu>>)> ContextAttention<Cpu> for Changed<'_, F> {
    fn ask(&mut self, queries: LayerQueries<'_, Cpu>, asks: &[PartAsk]) -> Result<Answers<'_, Cpu>, ModelError> {
        let mut answers = packed(self.backend, &mut self.context, queries, asks);
        let change = &mut self.change;
        let collect = move || {
            change(&mut answers);
            Ok(answers)
        };
        Ok(Answers::Coming { on_devices: false, collect: Box::new(collect) })
    }
}

/// The shards of the only part.
fn only<'a>(answers: &'a mut [PartAnswer<'static, Cpu>]) -> &'a mut Vec<ShardPartial<'static, Cpu>> {
    answers[0].as_mut().expect("shards answered")
}

fn some_context() -> Vec<u32> {
    (0..100).map(|i| i * 37 % 512).collect()
}

#[test]
fn the_order_of_arrival_changes_no_bit() {
    for decoder in decoders() {
        let shards = encode(decoder, &star(32, 16), &some_context());
        let context = LocalContext::new(decoder.backend(), &shards);
        let mut late =
            Changed { backend: decoder.backend(), context, change: |answers: &mut Vec<_>| only(answers).reverse() };
        assert_eq!(logits(decoder, &shards, &mut late), local(decoder, &shards));
    }
}

#[test]
fn a_shard_that_does_not_answer_is_never_renormalised_away() {
    let [decoder, _] = decoders();
    let shards = encode(decoder, &star(32, 16), &some_context());
    let context = LocalContext::new(decoder.backend(), &shards);
    let mut lossy =
        Changed { backend: decoder.backend(), context, change: |answers: &mut Vec<_>| drop(only(answers).pop()) };
    let error = Generator::new(keys_of(&shards), 100).step(decoder, STEPS[0], &mut lossy).err().unwrap();
    assert!(matches!(error, ModelError::KeyCount { layer: 0, block: 3, expected: 4, got: 0 }), "{error}");
}

#[test]
fn a_pass_stops_when_told_to() {
    let [decoder, _] = decoders();
    let context = some_context();
    let mut seen = Vec::new();
    let error = encode_plan(decoder, &plan(decoder, &dense(), &context, 1), &context, None, &mut |_, done| {
        seen.push(done);
        done < 2
    });
    assert!(matches!(error, Err(ModelError::Cancelled)));
    assert_eq!(seen, [1, 2]);
}

#[test]
fn a_context_host_encodes_the_same_and_has_no_head() {
    let [whole, _] = decoders();
    let part = decoder("tiny-llama", DecoderParts::Context);
    let method = star(32, 16);
    assert_eq!(
        local(whole, &encode(&part, &method, &some_context())),
        local(whole, &encode(whole, &method, &some_context()))
    );
    assert!(matches!(part.logits(&part.embed(&[1]).unwrap()), Err(ModelError::NoHead)));
    assert!(matches!(part.embed(&[1, 512]), Err(ModelError::TokenId { id: 512, vocab: 512 })));
}
