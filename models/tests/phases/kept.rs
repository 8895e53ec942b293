//! Keys and values in 8 bits: rows of phase 1 attend to them as they were computed, those of phase 2 as they are kept.

use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, KvFormat};
use asterism_models::{Decoder, DecoderParts, EncodedShard};

use super::{bits, dense, encode, keeping, local, some_context, star};

fn both() -> [Decoder<Cpu>; 2] {
    [KvFormat::Computed, KvFormat::Q8].map(|kept| keeping(kept, "tiny-qwen2", DecoderParts::All))
}

/// What a pass keeps is what it would have kept, in fewer bits: no rounding of one layer reaches the next while a context is encoded.
#[test]
fn a_pass_attends_to_keys_as_they_were_computed() {
    let [full, eight] = both();
    let context = some_context();
    for method in [dense(), star(32, 16)] {
        let [of_full, of_eight] = [&full, &eight].map(|decoder| encode(decoder, &method, &context));
        for (one, other) in of_full.iter().zip(&of_eight) {
            assert_eq!((one.digest, one.tokens), (other.digest, other.tokens));
            for (kv, kept) in one.layers.iter().zip(&other.layers) {
                let [k, v] = full.backend().kv_tensors(kv).unwrap();
                let again = eight.backend().kv_kept(&k, &v).unwrap();
                let [again, kept] = [&again, kept].map(|kv| eight.backend().kept_raw(kv).unwrap().whole().unwrap());
                assert_eq!(again, kept);
            }
        }
    }
}

#[test]
fn logits_are_close_and_bytes_fewer() {
    let [full, eight] = both();
    let context = some_context();
    let [one, other] = [&full, &eight].map(|decoder| encode(decoder, &dense(), &context));
    let (exact, kept) = (local(&full, &one), local(&eight, &other));
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
    let error = norm(&mut exact.iter().zip(&kept).map(|(x, y)| x - y)) / norm(&mut exact.iter().copied());
    // Heads of 16 elements, whose largest is some twice their mean: a rounding is off by half a percent of a row in each layer.
    assert!(error > 0.0 && error < 0.02, "{error}");
    let bytes = |decoder: &Decoder<Cpu>, shards: &[EncodedShard<Cpu>]| shards[0].bytes(decoder);
    let each = |decoder: &Decoder<Cpu>| decoder.config().shape(decoder.backend().kv_type()).kv_bytes_per_token();
    assert_eq!(bytes(&full, &one), context.len() as u64 * each(&full));
    assert_eq!(bytes(&eight, &other), context.len() as u64 * each(&eight));
    assert!(each(&eight) * 3 < each(&full), "{} of {}", each(&eight), each(&full));
}

/// A layer that moves has the bits of the one that stays.
#[test]
fn what_moves_is_what_was_kept() {
    let [_, eight] = both();
    let context = some_context();
    let shards = encode(&eight, &star(32, 16), &context);
    let moved = shards.iter().map(|shard| {
        let mut moved = EncodedShard { layers: Vec::new(), ..shard.clone() };
        for layer in 0..shard.layers.len() {
            let raw = shard.raw(&eight, layer).unwrap().whole().unwrap();
            let (keys, values) = raw.split_at(raw.len() / 2);
            let (first, rest) = keys.split_at(keys.len() / 3);
            moved.take(&eight, [&[first, rest], &[values]]).unwrap();
        }
        moved
    });
    let moved: Vec<EncodedShard<Cpu>> = moved.collect();
    assert_eq!(bits(&local(&eight, &moved)), bits(&local(&eight, &shards)));
}
