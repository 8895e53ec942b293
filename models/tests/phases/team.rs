//! Several devices of one process: what they encode and answer together has the bits of one that does all.

use std::sync::Arc;

use asterism_kernels::prelude::*;
use asterism_models::{
    DecoderParts, Generator, LocalContext, ModelError, TeamContext, TensorParallel, encode_plan, encode_together,
};
use serde_json::json;

use super::{decoder, decoders, method, plan, some_context, star, steps};

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn devices_that_pass_each_other_tensors_make_the_same_as_one() {
    let (other, again) =
        (Arc::new(decoder("tiny-llama", DecoderParts::Context)), Arc::new(decoder("tiny-llama", DecoderParts::All)));
    let (first, context, parallel) =
        (&decoders()[0], some_context(), TensorParallel::new(vec![again, other.clone()]).unwrap());
    let methods = [
        star(16, 8),
        method(json!({"ring": {"layout": "zigzag"}})),
        method(json!({"ulysses": {}})),
        method(json!({"pulsar": {"block_tokens": 16, "sink_tokens": 4, "summary_fraction": 0.25, "chunk_tokens": 4}})),
    ];
    for method in methods {
        let plan = plan(first, &method, &context, 2);
        let alone = encode_plan(first, &plan, &context, None, &mut |_, _| true).unwrap();
        let expected = steps(first, Generator::of(&plan), &mut LocalContext::new(first.backend(), &alone));
        let shards = encode_together(&[first, &other], &plan, &context).unwrap();
        assert!(shards.iter().all(|shards| !shards.is_empty()), "{method:?}");
        let held = || {
            let [one, two] = [(first, &shards[0]), (&*other, &shards[1])];
            TeamContext::new([one, two].map(|(decoder, shards)| LocalContext::new(decoder.backend(), shards)).into())
        };
        let got = steps(first, Generator::of(&plan), &mut held());
        assert_eq!(bits(&got), bits(&expected), "{method:?}");
        let got = steps(first, Generator::of(&plan), &mut held().sharing(&parallel));
        assert_eq!(bits(&got), bits(&expected), "{method:?}, shared");
    }
}

#[test]
fn a_device_that_fails_stops_the_others_and_is_the_cause() {
    let (first, context) = (&decoders()[0], some_context());
    let other = decoder("tiny-llama", DecoderParts::Context);
    let plan = plan(first, &method(json!({"ring": {"layout": "contiguous"}})), &context, 2);
    let mut wrong = plan.clone();
    wrong.shards[1].own.start = 1 << 20;
    let error = encode_together(&[first, &other], &wrong, &context).err().unwrap();
    assert!(matches!(error, ModelError::NoTokens { block: 1, .. }), "{error}");
    assert!(encode_together(&[first, &other], &plan, &context).is_ok());
}

#[test]
fn a_shared_step_that_fails_may_be_taken_again() {
    let decoder = |name| Arc::new(decoder(name, DecoderParts::Context));
    let (first, other, context) = (decoder("tiny-llama"), decoder("tiny-llama"), some_context());
    let plan = plan(&first, &star(16, 8), &context, 2);
    let shards = encode_together(&[&*first, &*other], &plan, &context).unwrap();
    let held = || {
        let [one, two] = [(&*first, &shards[0]), (&*other, &shards[1])];
        TeamContext::new([one, two].map(|(decoder, shards)| LocalContext::new(decoder.backend(), shards)).into())
    };
    let step = |generator: &mut Generator<_>, linear: &TensorParallel<_>| {
        generator.step(&first, &[17, 5, 301], &mut held().sharing(linear))
    };
    // Another model's decoder: it gets no further than the first exchange, and neither does who waits for it there.
    let wrong = TensorParallel::new(vec![first.clone(), decoder("tiny-qwen2")]).unwrap();
    let mut generator = Generator::of(&plan);
    for _ in 0..2 {
        let error = step(&mut generator, &wrong).err().unwrap();
        assert!(matches!(error, ModelError::Kernel(_)), "{error}");
    }
    let right = || TensorParallel::new(vec![first.clone(), other.clone()]).unwrap();
    let again = step(&mut generator, &right()).unwrap();
    let anew = step(&mut Generator::of(&plan), &right()).unwrap();
    let host = |x| bits(&first.backend().download(x).unwrap());
    assert_eq!(host(&again), host(&anew));
}
