//! Questions that get some tokens of a session's context anew, over hosts.

use asterism_actors::messages::{Generate, HostMessage, HostRole};
use asterism_kernels::KvFormat;
use asterism_models::{ContextKeys, DecoderParts, Generator, LocalContext, encode_alone, encode_plan};

use crate::bench::{Bench, Case, load};

/// The tokens that fresh keys and what is left of the shards give, in this very process.
fn tokens_here(case: &Case, order: &Generate, kept: KvFormat) -> Vec<u32> {
    let decoder = load(DecoderParts::All, kept).expect("the model").decoder;
    let shards = encode_plan(&decoder, &case.plan, &case.ids, None, &mut |_, _| true).expect("shards");
    let refresh_order = order.refresh_order.as_ref().expect("some tokens anew");
    let input = refresh_order.shard.input(&case.ids[..]).expect("ids of the context");
    let fresh = encode_alone(&decoder, (&refresh_order.shard, &input), &mut |_, _| true).expect("fresh keys");
    let keys = ContextKeys { shards: order.shards.clone(), fan_in: order.fan_in, view: order.view };
    let mut generator = Generator::new(keys, order.query_start);
    generator.refresh(fresh);
    let (mut ids, mut tokens) = (order.query_ids.clone(), Vec::new());
    while tokens.len() < order.choice.max_tokens as usize {
        let mut context = LocalContext::new(decoder.backend(), &shards).without(0, &refresh_order.hidden);
        let x = generator.step(&decoder, &ids, &mut context).expect("a step");
        let logits = decoder.last_logits(&[&x]).expect("logits").remove(0).expect("numbers");
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)));
        ids = vec![best.expect("a vocabulary") as u32];
        tokens.extend(&ids);
    }
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_gets_tokens_anew_has_the_same_answer_whoever_generates() {
    for kept in [KvFormat::Computed, KvFormat::Q8] {
        tokens_anew(kept).await;
    }
}

async fn tokens_anew(kept: KvFormat) {
    let (context, query) = (HostRole::Context, HostRole::Query);
    let hosts = [("c0", context), ("c1", context), ("q0", query), ("q1", query)];
    let mut bench = Bench::keeping(kept, &hosts).await;
    let case = Case::of("star", 4).session(32);
    let holders = vec![bench.encode(&case, "c0", &[0, 2]).await, bench.encode(&case, "c1", &[1, 3]).await];
    let order = case.generate(&holders, 40, 0.0);
    let refresh_order = order.refresh_order.as_ref().expect("some tokens anew");
    assert!(refresh_order.hidden.len() > 1 && refresh_order.shard.rows() < case.ids.len() / 2, "{refresh_order:?}");
    let expected = tokens_here(&case, &order, kept);
    bench.generate("q0", order.clone()).await;
    assert_eq!(bench.line("q0").tokens(0).await, expected);
    // Another query host encodes them again, and goes on.
    bench.generate("q1", Generate { generated: expected[..17].to_vec(), ..order.clone() }).await;
    assert_eq!(bench.line("q1").tokens(17).await, expected[17..]);
    // Ids that are not those of the pass, and keys that a shard does not have.
    let mut wrong = Generate { job: 90, ..order.clone() };
    wrong.refresh_order.as_mut().expect("some tokens anew").ids.pop();
    bench.generate("q0", wrong).await;
    let failed = |message| if let HostMessage::Failed { job, code, .. } = message { Some((job, code)) } else { None };
    assert_eq!(bench.line("q0").receive(failed).await, (90, "tokens_missing".to_owned()));
    let stalled =
        |message| if let HostMessage::Stalled { job, cause, .. } = message { Some((job, cause)) } else { None };
    // The first ones hidden twice: as runs beyond the shard, and as a shard that is named again.
    for (job, again) in [(91, false), (92, true)] {
        let mut wrong = Generate { job, ..order.clone() };
        let hidden = &mut wrong.refresh_order.as_mut().expect("some tokens anew").hidden;
        match again {
            false => hidden[0].runs.push((5000, 5001)),
            true => hidden.insert(1, hidden[0].clone()),
        }
        bench.generate("q0", wrong).await;
        let (stalled, cause) = bench.line("q0").receive(stalled).await;
        assert!(stalled == job && cause.contains("none of its keys"), "{job} {cause}");
    }
    bench.shutdown().await;
}
