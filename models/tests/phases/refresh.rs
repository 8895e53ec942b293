//! Questions that get some tokens of a session's context anew.

use asterism_models::{Generator, LocalContext, ModelError, encode_alone, encode_plan};
use asterism_plan::{Method, Plan, PlanRequest, Refresh};
use proptest::prelude::*;
use serde_json::json;

use super::{STEPS, TOLERANCE, by, context, decoders, dense, difference, method, steps};
use asterism_kernels::Cpu;
use asterism_models::{ContextKeys, Decoder, EncodedShard};

fn session(decoder: &Decoder<Cpu>, context: &[u32], hosts: usize, tokens: usize) -> Plan {
    let shape = decoder.config().shape(asterism_kernels::DType::F32);
    let pulsar = json!({"pulsar": {"block_tokens": 20, "sink_tokens": 4, "refresh_tokens": tokens, "chunk_tokens": 4}});
    let request = PlanRequest { context, query: &[], hosts, one_device: true, shape: &shape, speeds: None };
    method(pulsar).plan(&request).unwrap()
}

fn fresh(decoder: &Decoder<Cpu>, refresh: &Refresh, context: &[u32]) -> EncodedShard<Cpu> {
    let input = refresh.shard.input(context).unwrap();
    encode_alone(decoder, (&refresh.shard, &input), &mut |_, _| true).unwrap()
}

fn generator(plan: &Plan, refresh: &Refresh) -> Generator<Cpu> {
    let shards = refresh.left_of(plan.kept_shards());
    Generator::new(ContextKeys { shards, fan_in: plan.fan_in, view: plan.view }, plan.query_start)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// When everything is encoded again nothing is left of the shards, and the answer is dense attention's.
    #[test]
    fn a_refresh_of_everything_equals_dense(context in context(), hosts in 2_usize..6) {
        for decoder in decoders() {
            let plan = session(decoder, &context, hosts, context.len() + 3);
            let Some(refresh) = plan.refresh(&context, STEPS[0]) else {
                prop_assert_eq!(plan.shards.len(), 1, "a single block has all keys");
                continue;
            };
            prop_assert_eq!(refresh.tokens(), context.len());
            let shards = encode_plan(decoder, &plan, &context, None, &mut |_, _| true).unwrap();
            let mut generator = generator(&plan, &refresh);
            generator.refresh(fresh(decoder, &refresh, &context));
            let mut host = LocalContext::new(decoder.backend(), &shards).without(0, &refresh.hidden);
            let got = steps(decoder, generator, &mut host);
            let worst = difference(&got, &by(decoder, &dense(), &context, 1));
            prop_assert!(worst < TOLERANCE, "{worst}");
        }
    }
}

/// Fresh keys stand in place of the old ones, never beside them.
#[test]
fn a_context_that_hides_nothing_is_refused() {
    let [decoder, _] = decoders();
    let context: Vec<u32> = (0..100).map(|i| i * 37 % 512).collect();
    let plan = session(decoder, &context, 3, 12);
    let refresh = plan.refresh(&context, STEPS[0]).unwrap();
    assert_eq!(refresh.tokens(), 16);
    let shards = encode_plan(decoder, &plan, &context, None, &mut |_, _| true).unwrap();
    let mut generator = generator(&plan, &refresh);
    generator.refresh(fresh(decoder, &refresh, &context));
    let mut host = LocalContext::new(decoder.backend(), &shards);
    let error = generator.step(decoder, STEPS[0], &mut host).err().unwrap();
    assert!(matches!(error, ModelError::KeyCount { layer: 0, .. }), "{error}");
    let mut host = LocalContext::new(decoder.backend(), &shards).without(0, &refresh.hidden);
    assert!(generator.step(decoder, STEPS[0], &mut host).is_ok(), "taken again, it hides them");
}

/// Kept blocks of what it was, and new ones: the same bits as all encoded at once.
#[test]
fn a_session_that_grew_answers_as_one_that_was_created_so() {
    let whole: Vec<u32> = (0..150).map(|i| i * 37 % 512).collect();
    for decoder in decoders() {
        let (before, after) = (session(decoder, &whole[..70], 3, 12), session(decoder, &whole, 3, 12));
        let encode =
            |plan: &Plan| encode_plan(decoder, plan, &whole[..plan.context_tokens], None, &mut |_, _| true).unwrap();
        let (created, mut grown) = (encode(&after), encode(&before));
        let kept = before.shards.iter().zip(&after.shards).take_while(|(one, other)| one == other).count();
        assert_eq!((before.shards.len(), kept, after.shards.len()), (4, 3, 8), "the last block was not full");
        grown.truncate(kept);
        grown.extend(encode(&after).drain(kept..));
        let refresh = after.refresh(&whole, STEPS[0]).unwrap();
        let answer = |shards: &[EncodedShard<Cpu>]| {
            let mut generator = generator(&after, &refresh);
            generator.refresh(fresh(decoder, &refresh, &whole));
            steps(decoder, generator, &mut LocalContext::new(decoder.backend(), shards).without(0, &refresh.hidden))
        };
        assert_eq!(answer(&grown), answer(&created));
    }
}
