//! Limits in which the two phases must equal dense attention, and the refusals of phase 2.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use asterism_kernels::{Backend, Cpu, CpuOptions};
use asterism_models::{
    Checkpoint, ContextAttention, Decoder, EncodedShard, Generator, LocalContext, ModelError, Parts, ShardPartial,
    encode_shard,
};
use asterism_plan::methods::{DenseConfig, StarConfig};
use asterism_plan::{Method, MethodConfig, PlanRequest};
use proptest::prelude::*;
use proptest::sample::Index;

const TOLERANCE: f32 = 1e-4;
/// Query, then tokens one at a time, as generated.
const STEPS: [&[u32]; 3] = [&[17, 5, 301, 44], &[9], &[77]];

fn decoder(name: &str, parts: Parts) -> Decoder<Cpu> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models").join(name);
    let backend = Cpu::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).unwrap();
    Decoder::load(Arc::new(backend), &Checkpoint::open(&folder).unwrap(), parts).unwrap()
}

fn decoders() -> &'static [Decoder<Cpu>; 2] {
    static DECODERS: OnceLock<[Decoder<Cpu>; 2]> = OnceLock::new();
    DECODERS.get_or_init(|| ["tiny-llama", "tiny-qwen2"].map(|name| decoder(name, Parts::All)))
}

fn dense() -> MethodConfig {
    MethodConfig::Dense(DenseConfig::default())
}

fn star(block: usize, anchor: usize) -> MethodConfig {
    MethodConfig::Star(StarConfig { block_tokens: Some(block), anchor_tokens: Some(anchor), ..StarConfig::default() })
}

fn encode(decoder: &Decoder<Cpu>, method: &MethodConfig, context: &[u32]) -> Vec<EncodedShard<Cpu>> {
    let plan = method.plan(&PlanRequest { context, query: STEPS[0], hosts: 1 }).unwrap();
    plan.shards.iter().map(|shard| encode_shard(decoder, shard, |_| true).unwrap()).collect()
}

/// Logits of every row of every step.
fn logits(decoder: &Decoder<Cpu>, tokens: usize, context: &mut dyn ContextAttention<Cpu>) -> Vec<f32> {
    let mut generator = Generator::new(tokens, tokens as u32);
    let rows = STEPS.iter().map(|ids| generator.step(decoder, ids, context).unwrap());
    rows.flat_map(|x| decoder.all_logits(&x).unwrap()).collect()
}

fn local(decoder: &Decoder<Cpu>, shards: &[EncodedShard<Cpu>]) -> Vec<f32> {
    let tokens = shards.iter().map(|shard| shard.tokens).sum();
    logits(decoder, tokens, &mut LocalContext::new(decoder.backend(), shards))
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
        .map(|(block, ends)| EncodedShard { block, tokens: ends[1] - ends[0], layers: rows(ends[0], ends[1]) })
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
            let mut generator = Generator::new(context.len(), context.len() as u32);
            let whole = decoder.all_logits(&generator.step(decoder, &ids, &mut host).unwrap()).unwrap();
            let worst = difference(&whole, &local(decoder, &shards));
            prop_assert!(worst < TOLERANCE, "{worst}");
        }
    }
}

/// Changes the answers of a context on their way.
struct Changed<'a, F> {
    context: LocalContext<'a, Cpu>,
    change: F,
}

impl<F: FnMut(&mut Vec<ShardPartial<Cpu>>)> ContextAttention<Cpu> for Changed<'_, F> {
    fn ask(&mut self, layer: usize, q: &<Cpu as Backend>::Tensor) -> Result<(), ModelError> {
        self.context.ask(layer, q)
    }

    fn collect(&mut self) -> Result<Vec<ShardPartial<Cpu>>, ModelError> {
        let mut answers = self.context.collect()?;
        (self.change)(&mut answers);
        Ok(answers)
    }
}

fn some_context() -> Vec<u32> {
    (0..100).map(|i| i * 37 % 512).collect()
}

#[test]
fn the_order_of_arrival_changes_no_bit() {
    for decoder in decoders() {
        let shards = encode(decoder, &star(32, 16), &some_context());
        let context = LocalContext::new(decoder.backend(), &shards);
        let mut late = Changed { context, change: |answers: &mut Vec<_>| answers.reverse() };
        assert_eq!(logits(decoder, 100, &mut late), local(decoder, &shards));
    }
}

#[test]
fn a_shard_that_does_not_answer_is_never_renormalised_away() {
    let [decoder, _] = decoders();
    let shards = encode(decoder, &star(32, 16), &some_context());
    let context = LocalContext::new(decoder.backend(), &shards);
    let mut lossy = Changed { context, change: |answers: &mut Vec<_>| drop(answers.pop()) };
    let error = Generator::new(100, 100).step(decoder, STEPS[0], &mut lossy).err().unwrap();
    assert!(matches!(error, ModelError::KeyCount { layer: 0, expected: 100, got: 96 }), "{error}");
}

#[test]
fn a_pass_stops_when_told_to() {
    let [decoder, _] = decoders();
    let context = some_context();
    let plan = dense().plan(&PlanRequest { context: &context, query: &[], hosts: 1 }).unwrap();
    let mut seen = Vec::new();
    let error = encode_shard(decoder, &plan.shards[0], |done| {
        seen.push(done);
        done < 2
    });
    assert!(matches!(error, Err(ModelError::Cancelled)));
    assert_eq!(seen, [1, 2]);
}

#[test]
fn a_context_host_encodes_the_same_and_has_no_head() {
    let [whole, _] = decoders();
    let part = decoder("tiny-llama", Parts::Context);
    let method = star(32, 16);
    assert_eq!(
        local(whole, &encode(&part, &method, &some_context())),
        local(whole, &encode(whole, &method, &some_context()))
    );
    assert!(matches!(part.logits(&part.embed(&[1]).unwrap()), Err(ModelError::NoHead)));
    assert!(matches!(part.embed(&[1, 512]), Err(ModelError::TokenId { id: 512, vocab: 512 })));
}
