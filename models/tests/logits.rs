//! The embedded model's logits against transformers' (asterism-7m/make_logits.py writes the fixture).

use std::path::Path;
use std::sync::Arc;

use asterism_kernels::{Cpu, CpuOptions, DType};
use asterism_models::{Checkpoint, ContextKeys, Decoder, DecoderParts, Generator, LocalContext, encode_plan};
use asterism_plan::methods::DenseConfig;
use asterism_plan::{Method, MethodConfig, PlanRequest};
use safetensors::SafeTensors;

const TOLERANCE: f32 = 1e-3;
/// How far transformers' own bf16 logits of these prompts lie from its f32 logits, at most.
const BF16_WORST: f32 = 0.281;
const BF16_MEAN: f32 = 0.064;

struct Prompt {
    ids: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<f32>,
}

fn prompts() -> Vec<Prompt> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("asterism-7m/logits.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: String| file.tensor(&name).unwrap().data().as_chunks::<4>().0.to_vec();
    let ints = |name: String| words(name).into_iter().map(|word| i32::from_le_bytes(word) as u32).collect::<Vec<_>>();
    (0..file.len() / 3)
        .map(|i| Prompt {
            ids: ints(format!("{i}.ids")),
            positions: ints(format!("{i}.positions")).into_iter().map(|p| p as usize).collect(),
            logits: words(format!("{i}.logits")).into_iter().map(f32::from_le_bytes).collect(),
        })
        .collect()
}

fn decoder(dtype: DType) -> Decoder<Cpu> {
    let backend = Arc::new(Cpu::new(CpuOptions { dtype, ..CpuOptions::default() }).unwrap());
    Decoder::load(backend, &Checkpoint::embedded().unwrap(), DecoderParts::All).unwrap()
}

/// Logits of every row in one pass, without a context.
fn one_pass(decoder: &Decoder<Cpu>, ids: &[u32]) -> Vec<f32> {
    let mut nowhere = LocalContext::new(decoder.backend(), &[]);
    let x = Generator::new(ContextKeys::default(), 0).step(decoder, ids, &mut nowhere).unwrap();
    decoder.all_logits(&x).unwrap()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn mean_difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f32>() / a.len() as f32
}

#[test]
fn logits_are_those_of_transformers() {
    let decoder = decoder(DType::F32);
    let vocab = decoder.config().vocab;
    for (number, Prompt { ids, positions, logits }) in prompts().into_iter().enumerate() {
        let all = one_pass(&decoder, &ids);
        for (position, expected) in positions.iter().zip(logits.chunks_exact(vocab)) {
            let worst = difference(&all[position * vocab..][..vocab], expected);
            assert!(worst < TOLERANCE, "prompt {number}, position {position}: {worst} in one pass");
        }

        let (context, query) = ids.split_at(ids.len() - 8);
        let method = MethodConfig::Dense(DenseConfig::default());
        let shape = decoder.config().shape(DType::F32);
        let plan = method
            .plan(&PlanRequest { context, query, hosts: 1, one_device: false, shape: &shape, speeds: None })
            .unwrap();
        let shards = encode_plan(&decoder, &plan, context, None, &mut |_, _| true).unwrap();
        let mut context = LocalContext::new(decoder.backend(), &shards);
        let x = Generator::of(&plan).step(&decoder, query, &mut context).unwrap();
        let worst = difference(&decoder.logits(&x).unwrap(), &logits[logits.len() - vocab..]);
        assert!(worst < TOLERANCE, "prompt {number}: {worst} in two phases");
    }
}

#[test]
fn bf16_logits_are_as_near_as_those_of_transformers() {
    let decoder = decoder(DType::Bf16);
    let vocab = decoder.config().vocab;
    for (number, Prompt { ids, positions, logits }) in prompts().into_iter().enumerate() {
        let all = one_pass(&decoder, &ids);
        let rounded = all.iter().filter(|logit| logit.to_bits() & 0xffff == 0).count();
        assert!(rounded < all.len() / 100, "prompt {number}: {rounded} of {} logits are rounded to bf16", all.len());
        for (position, expected) in positions.iter().zip(logits.chunks_exact(vocab)) {
            let got = &all[position * vocab..][..vocab];
            let (worst, mean) = (difference(got, expected), mean_difference(got, expected));
            assert!(
                worst < BF16_WORST && mean < BF16_MEAN,
                "prompt {number}, position {position}: {worst}, mean {mean}"
            );
        }
    }
}
