//! A chain of blocks is dense attention, whatever was encoded when.

use std::sync::Arc;

use asterism_kernels::Cpu;
use asterism_models::{
    Decoder, Earlier, EncodedShard, Generator, LocalContext, LocalPeers, ModelError, Phase1, encode_plan, inputs_of,
};
use asterism_plan::{Exchange, Shard};
use proptest::prelude::*;
use serde_json::json;

use super::{TOLERANCE, all_decoders, by, context, decoders, dense, difference, method, plan, steps};

fn chain(block: usize) -> asterism_plan::MethodConfig {
    method(json!({"chain": {"block_tokens": block}}))
}

fn encode(
    decoder: &Decoder<Cpu>,
    (shards, ids): (&[Shard], &[u32]),
    behind: &[Arc<EncodedShard<Cpu>>],
) -> Result<Vec<EncodedShard<Cpu>>, ModelError> {
    let (inputs, exchange) = (inputs_of(shards, ids)?, &Exchange::None);
    let behind = &[Earlier { before: 0, shards: behind }];
    let phase = Phase1 { decoder, shards, inputs: &inputs, blocks: shards.len(), exchange, behind, heads: None };
    phase.encode(&mut LocalPeers::default(), &mut |_, _| true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_chain_is_dense_attention(context in context(), block in 8_usize..70) {
        for decoder in decoders() {
            let worst = difference(&by(decoder, &chain(block), &context, 3), &by(decoder, &dense(), &context, 1));
            prop_assert!(worst < TOLERANCE, "{worst}");
        }
    }

    /// What is appended goes on from what is kept: to the bits of the whole, and to its checksums.
    #[test]
    fn what_grows_is_what_was_whole(context in context(), block in 8_usize..40, first in 1_usize..4, stacked in any::<bool>()) {
        for decoder in all_decoders() {
            let whole = plan(decoder, &chain(block), &context, 2);
            let shards = encode_plan(decoder, &whole, &context, None, &mut |_, _| true).unwrap();
            let (old, new) = whole.shards.split_at(first.min(whole.shards.len()));
            let mut grown: Vec<_> = encode(decoder, (old, &context), &[]).unwrap().into_iter().map(Arc::new).collect();
            for more in new.chunks(if stacked { new.len().max(1) } else { 1 }) {
                let behind = grown.clone();
                grown.extend(encode(decoder, (more, &context), &behind).unwrap().into_iter().map(Arc::new));
            }
            let grown: Vec<EncodedShard<Cpu>> = grown.iter().map(|shard| EncodedShard::clone(shard)).collect();
            let digest = |shards: &[EncodedShard<Cpu>]| shards.iter().map(|shard| shard.digest).collect::<Vec<_>>();
            prop_assert_eq!(digest(&grown), digest(&shards));
            let expected: Vec<u64> =
                whole.shards.iter().map(|shard| shard.digest(&shard.input(&context[..]).unwrap())).collect();
            prop_assert_eq!(digest(&grown), expected);
            let logits = |shards: &[EncodedShard<Cpu>]| {
                steps(decoder, Generator::of(&whole), &mut LocalContext::new(decoder.backend(), shards))
            };
            prop_assert_eq!(logits(&grown), logits(&shards));
        }
    }
}

/// Shards of several contexts that go through the linear layers together: the end of one of which some is kept, all of another, and one
/// that is a single shard.
#[test]
fn chains_beside_each_other_have_the_bits_of_each_alone() {
    for decoder in all_decoders() {
        let context: Vec<u32> = (0..150).map(|token| token * 7 % 50).collect();
        let parts = [(&context[..], 1), (&context[20..130], 0), (&context[60..75], 0), (&context[30..110], 2)];
        let plans = parts.map(|(ids, _)| plan(decoder, &chain(32), ids, 1));
        let whole: Vec<Vec<EncodedShard<Cpu>>> = parts
            .iter()
            .zip(&plans)
            .map(|((ids, _), plan)| encode_plan(decoder, plan, ids, None, &mut |_, _| true).unwrap())
            .collect();
        let kept: Vec<Vec<Arc<EncodedShard<Cpu>>>> = whole
            .iter()
            .zip(parts)
            .map(|(whole, (_, kept))| whole[..kept].iter().cloned().map(Arc::new).collect())
            .collect();
        let (mut shards, mut inputs, mut behind, mut expected) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (((ids, of), plan), (kept, whole)) in parts.into_iter().zip(&plans).zip(kept.iter().zip(&whole)) {
            behind.push(Earlier { before: shards.len(), shards: kept });
            shards.extend_from_slice(&plan.shards[of..]);
            inputs.extend(inputs_of(&plan.shards[of..], ids).unwrap());
            expected.extend_from_slice(&whole[of..]);
        }
        let (blocks, exchange) = (shards.len(), &Exchange::None);
        let phase =
            Phase1 { decoder, shards: &shards, inputs: &inputs, blocks, exchange, behind: &behind, heads: None };
        let together = phase.encode(&mut LocalPeers::default(), &mut |_, _| true).unwrap();
        let bits = |shards: &[EncodedShard<Cpu>]| -> Vec<(u64, Vec<u8>)> {
            let raw = |shard: &EncodedShard<Cpu>| {
                let layers = 0..decoder.config().layers;
                (shard.digest, layers.flat_map(|layer| shard.raw(decoder, layer).unwrap().whole().unwrap()).collect())
            };
            shards.iter().map(raw).collect()
        };
        assert!(bits(&together) == bits(&expected), "{}", decoder.config().heads.query);
    }
}

#[test]
fn a_chain_needs_all_that_stands_behind_it() {
    let [decoder, _] = decoders();
    let context: Vec<u32> = (0..40).collect();
    let whole = plan(decoder, &chain(16), &context, 1);
    let error = encode(decoder, (&whole.shards[1..], &context), &[]).err().expect("nothing stands behind it");
    assert_eq!(error.code(), "tokens_missing", "{error}");
    assert_eq!(
        error.to_string(),
        "shard 1 of a chain needs the keys of the 16 tokens before it, and those of 0 are here; report a bug with the log"
    );
    let earlier: Vec<Shard> = whole.shards[2].earlier().collect();
    assert_eq!(earlier, whole.shards[..2]);
}
