//! An attention method that no other file knows: planned, encoded and answered as those of the table are.

use asterism_kernels::prelude::*;
use asterism_models::{Decoder, EncodedShard, Generator, LocalContext, encode_plan};
use asterism_plan::{Method, Plan, PlanError, PlanRequest, Span, bare_shards};

use super::{Cpu, STEPS, TOLERANCE, by, decoders, dense, difference, some_context, steps};

/// Blocks behind the first tokens of the context, dealt to hosts in turns.
struct Turns {
    block_tokens: usize,
    sink_tokens: usize,
}

impl Method for Turns {
    fn name(&self) -> &'static str {
        "turns"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let blocks = request.context.len().div_ceil(self.block_tokens);
        let owners = (0..blocks).map(|block| block % request.hosts).collect();
        let mut plan = bare_shards(self.name(), request, self.block_tokens, owners);
        for shard in plan.shards.iter_mut().skip(1) {
            shard.prefix = vec![Span::in_place(0..self.sink_tokens)];
        }
        Ok(plan)
    }
}

fn encoded(decoder: &Decoder<Cpu>, method: &Turns, context: &[u32]) -> (Plan, Vec<EncodedShard<Cpu>>) {
    let shape = decoder.config().shape(decoder.backend().dtype());
    let request = PlanRequest { context, query: STEPS[0], hosts: 2, one_device: false, shape: &shape, speeds: None };
    let plan = method.plan(&request).unwrap();
    plan.check(context.len()).unwrap();
    let shards = encode_plan(decoder, &plan, context, None, &mut |_, _| true).unwrap();
    (plan, shards)
}

#[test]
fn a_method_is_a_file() {
    let context = some_context();
    for decoder in decoders() {
        let exact = by(decoder, &dense(), &context, 1);
        // One block, and two of which the second stands behind all of the first: nothing is left out.
        for (method, tolerance) in [
            (Turns { block_tokens: 100, sink_tokens: 0 }, 0.0),
            (Turns { block_tokens: 50, sink_tokens: 50 }, TOLERANCE),
        ] {
            let (plan, shards) = encoded(decoder, &method, &context);
            let got = steps(decoder, Generator::of(&plan), &mut LocalContext::new(decoder.backend(), &shards));
            assert!(difference(&got, &exact) <= tolerance, "{}", difference(&got, &exact));
        }
        let (plan, shards) = encoded(decoder, &Turns { block_tokens: 30, sink_tokens: 8 }, &context);
        let owners: Vec<usize> = plan.shards.iter().map(|shard| shard.host).collect();
        assert_eq!((plan.kept_tokens(), owners), (context.len(), vec![0, 1, 0, 1]));
        let got = steps(decoder, Generator::of(&plan), &mut LocalContext::new(decoder.backend(), &shards));
        assert!(difference(&got, &exact) > TOLERANCE, "blocks lack what stands before them");
    }
}
