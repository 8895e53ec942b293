//! Several devices as one, with the weights dealt out to them: every method, both phases, with the bits of one device.

use std::path::Path;
use std::sync::Arc;

use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, CpuOptions, DType, DeviceGroup, KernelChoice};
use asterism_models::{
    Checkpoint, Decoder, DecoderParts, Generator, LocalContext, RetainingHeads, StepPart, encode_plan, step,
};
use asterism_plan::{Method, MethodConfig, PlanRequest};
use serde_json::json;

use super::{STEPS, method, models, some_context, star};

fn cpu(dtype: DType, kernels: KernelChoice) -> Cpu {
    Cpu::new(CpuOptions { dtype, threads: Some(1), kernels, ..CpuOptions::default() }).unwrap()
}

fn alone(folder: &Path, dtype: DType, kernels: KernelChoice) -> Decoder<Cpu> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    Decoder::load(Arc::new(cpu(dtype, kernels)), &checkpoint, DecoderParts::All).unwrap()
}

fn group(folder: &Path, dtype: DType, (devices, kernels): (usize, KernelChoice)) -> Decoder<DeviceGroup<Cpu>> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let members = (0..devices).map(|_| Arc::new(cpu(dtype, kernels))).collect();
    let group = DeviceGroup::new(members, checkpoint.config().heads).unwrap();
    Decoder::load(Arc::new(group), &checkpoint, DecoderParts::All).unwrap()
}

/// The checksum of the logits of every row of every step by a method, then of two questions in one step.
fn answers<B: Backend>(decoder: &Decoder<B>, folder: &Path, how: &MethodConfig, hosts: usize) -> Vec<u32> {
    let (context, shape) = (some_context(), decoder.config().shape(decoder.backend().dtype()));
    let request =
        PlanRequest { context: &context, query: STEPS[0], hosts, one_device: false, shape: &shape, speeds: None };
    let plan = how.plan(&request).unwrap();
    let heads = folder.join("retaining_heads.safetensors");
    let heads = heads.exists().then(|| RetainingHeads::load(decoder.backend(), &heads, decoder.config()).unwrap());
    let shards = encode_plan(decoder, &plan, &context, heads.as_ref(), &mut |_, _| true).unwrap();
    let (mut local, mut generator) = (LocalContext::new(decoder.backend(), &shards), Generator::of(&plan));
    let mut logits = Vec::new();
    for ids in STEPS {
        let x = generator.step(decoder, ids, &mut local).unwrap();
        logits.extend(decoder.all_logits(&x).unwrap());
    }
    let mut two = [Generator::of(&plan), Generator::of(&plan)];
    let mut contexts = LocalContext::of(decoder.backend(), vec![shards.iter().collect(); 2]);
    let mut parts: Vec<_> =
        (two.iter_mut().zip([STEPS[0], STEPS[1]])).map(|(generator, ids)| StepPart { generator, ids }).collect();
    for answered in step(decoder, &mut parts, &mut contexts).unwrap() {
        logits.extend(decoder.logits(&answered.unwrap()).unwrap());
    }
    logits.into_iter().map(f32::to_bits).collect()
}

fn methods() -> Vec<(MethodConfig, usize)> {
    vec![
        (method(json!({"dense": {}})), 1),
        (star(16, 8), 3),
        (
            method(
                json!({"pulsar": {"block_tokens": 16, "sink_tokens": 4, "summary_fraction": 0.25, "chunk_tokens": 4}}),
            ),
            3,
        ),
        (
            method(
                json!({"pulsar": {"sink_tokens": 4, "summary_fraction": 0.25, "chunk_tokens": 4, "shared_prefix": false}}),
            ),
            3,
        ),
        (method(json!({"apb": {"anchor_tokens": 8, "passing_tokens": 6, "retaining_heads": "-"}})), 3),
        (method(json!({"apb": {"anchor_tokens": 8, "passing_tokens": 6}})), 3),
        (method(json!({"ring": {"layout": "zigzag"}})), 3),
        (method(json!({"ulysses": {}})), 2),
        (method(json!({"anchor": {"theta": 1.0, "step": 2, "block_q": 8, "block_kv": 8}})), 1),
        (method(json!({"streaming": {"sink_tokens": 3, "window_tokens": 20}})), 1),
        (method(json!({"minference": {"vertical": 8, "slash": 16}})), 1),
        (method(json!({"flexprefill": {"gamma": 0.5, "min_budget": 16}})), 1),
    ]
}

#[test]
fn a_group_of_devices_answers_with_the_bits_of_one() {
    for (name, degrees) in [("tiny-llama", &[2, 4, 8][..]), ("tiny-qwen2", &[2])] {
        let folder = models().join(name);
        for dtype in [DType::F32, DType::Bf16] {
            let one = alone(&folder, dtype, KernelChoice::Auto);
            let groups: Vec<_> =
                degrees.iter().map(|devices| group(&folder, dtype, (*devices, KernelChoice::Auto))).collect();
            for (how, hosts) in methods() {
                let expected = answers(&one, &folder, &how, hosts);
                for (decoder, devices) in groups.iter().zip(degrees) {
                    let got = answers(decoder, &folder, &how, hosts);
                    assert!(got == expected, "{name} {dtype:?} {how:?} on {devices} devices");
                }
            }
        }
    }
}
