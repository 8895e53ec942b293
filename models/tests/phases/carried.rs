//! Shards of several processes: what they pass each other arrives as bytes of compute type, and changes no bit.

use std::sync::Arc;

use asterism_kernels::prelude::*;
use asterism_kernels::{Cpu, CpuOptions, DType};
use asterism_models::{
    Checkpoint, Decoder, DecoderParts, EncodedShard, Generator, LocalContext, LocalPeers, ModelError, Parcel, Peers,
    Phase1, inputs_of,
};
use serde_json::json;

use super::{STEPS, method, models, some_context, steps};

/// Takes every parcel apart and puts it together again.
struct Carried<'a> {
    cpu: &'a Cpu,
    peers: LocalPeers<Cpu>,
}

impl Peers<Cpu> for Carried<'_> {
    fn send(&mut self, parcel: Parcel, tensors: Vec<<Cpu as TensorOps>::Tensor>) -> Result<(), ModelError> {
        let again = |tensor: &<Cpu as TensorOps>::Tensor| {
            let bytes = self.cpu.raw(std::slice::from_ref(tensor))?.whole()?;
            let (one, other) = bytes.split_at(bytes.len() / 3 / 4 * 4);
            self.cpu.upload_raw(&self.cpu.shape(tensor), &[one, other])
        };
        self.peers.send(parcel, tensors.iter().map(again).collect::<Result<_, _>>()?)
    }

    fn receive(&mut self, parcel: Parcel) -> Result<Vec<<Cpu as TensorOps>::Tensor>, ModelError> {
        self.peers.receive(parcel)
    }

    fn layer_done(&mut self, layer: usize) {
        self.peers.layer_done(layer);
    }
}

#[test]
fn parcels_that_travel_as_bytes_change_no_bit() {
    let context = some_context();
    for dtype in [DType::F32, DType::Bf16] {
        let cpu = Cpu::new(CpuOptions { dtype, threads: Some(2), ..CpuOptions::default() }).unwrap();
        let checkpoint = Checkpoint::open(&models().join("tiny-llama")).unwrap();
        let decoder = Decoder::load(Arc::new(cpu), &checkpoint, DecoderParts::All).unwrap();
        let methods = [
            json!({"ulysses": {}}),
            json!({"ring": {"layout": "zigzag"}}),
            json!({"pulsar": {"block_tokens": 16, "sink_tokens": 4, "summary_fraction": 0.25, "chunk_tokens": 4}}),
        ];
        for value in methods {
            let shape = decoder.config().shape(dtype);
            let request = asterism_plan::PlanRequest {
                context: &context,
                query: STEPS[0],
                hosts: 2,
                one_device: false,
                shape: &shape,
                speeds: None,
            };
            let plan = asterism_plan::Method::plan(&method(value.clone()), &request).unwrap();
            let inputs = inputs_of(&plan.shards, &context[..]).unwrap();
            let phase = Phase1 {
                decoder: &decoder,
                shards: &plan.shards,
                inputs: &inputs,
                blocks: plan.shards.len(),
                exchange: &plan.exchange,
                behind: &[],
                heads: None,
            };
            let logits = |peers: &mut dyn Peers<Cpu>| {
                let shards: Vec<EncodedShard<Cpu>> = phase.encode(peers, &mut |_, _| true).unwrap();
                steps(&decoder, Generator::of(&plan), &mut LocalContext::new(decoder.backend(), &shards))
            };
            let expected = logits(&mut LocalPeers::default());
            let mut carried = Carried { cpu: decoder.backend(), peers: LocalPeers::default() };
            assert_eq!(logits(&mut carried), expected, "{dtype:?}, {value}");
        }
    }
}
