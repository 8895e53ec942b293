//! What shards pass each other: in pieces, again in a later attempt, and lost on the way.

use std::sync::atomic::Ordering;

use asterism_actors::{
    DeviceHandover,
    messages::{Generate, HostCommand, HostMessage, HostRole, ParcelsTaken, ShardHolder, WireMessage},
};
use asterism_kernels::KvFormat;
use asterism_plan::Exchange;
use asterism_transport::{Endpoint, MAX_PAYLOAD_BYTES};

use crate::bench::{Bench, CONTEXT, Case, bind};

#[tokio::test(flavor = "multi_thread")]
async fn what_shards_pass_each_other_may_be_more_than_a_frame_holds() {
    let case = Case::of("ring", 4);
    let mut answers = Vec::new();
    for piece_bytes in [MAX_PAYLOAD_BYTES, case.passed_bytes(0) / 5] {
        let hosts = [("c0", HostRole::Context), ("c1", HostRole::Spare)];
        let mut bench = Bench::with((piece_bytes, Some(DeviceHandover::Nothing)), &hosts).await;
        let holders = vec![bench.holder("c0", &[0, 2]), bench.holder("c1", &[1, 3])];
        bench.line("c0").encode(&case, 1, &[0, 2], &holders).await;
        bench.line("c1").encode(&case, 1, &[1, 3], &holders).await;
        bench.line("c0").encoded(&[0, 2]).await;
        bench.line("c1").encoded(&[1, 3]).await;
        // Drawn tokens depend on more bits than the most likely ones.
        bench.generate("c1", case.generate(&holders, 24, 0.9)).await;
        answers.push(bench.line("c1").tokens(0).await);
        bench.shutdown().await;
    }
    assert_eq!(answers[0], answers[1]);
}

/// Hosts of one process hand each other tensors as they lie: the same tokens, and fewer bytes in frames.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_handed_over_is_what_would_travel() {
    for method in ["ring", "ulysses", "apb", "pulsar"] {
        let case = Case::of(method, 4);
        let mut answers = Vec::new();
        for hands_over in [DeviceHandover::Nothing, DeviceHandover::Parcels, DeviceHandover::Everything] {
            let hosts = [("c0", HostRole::Context), ("c1", HostRole::Spare)];
            let mut bench = Bench::with((MAX_PAYLOAD_BYTES, Some(hands_over)), &hosts).await;
            let holders = vec![bench.holder("c0", &[0, 2]), bench.holder("c1", &[1, 3])];
            bench.line("c0").encode(&case, 1, &[0, 2], &holders).await;
            bench.line("c1").encode(&case, 1, &[1, 3], &holders).await;
            bench.line("c0").encoded(&[0, 2]).await;
            bench.line("c1").encoded(&[1, 3]).await;
            let encoded = bench.sent.swap(0, Ordering::Relaxed);
            bench.generate("c1", case.generate(&holders, 24, 0.9)).await;
            answers.push((bench.line("c1").tokens(0).await, encoded, bench.sent.load(Ordering::Relaxed)));
            bench.shutdown().await;
        }
        let [nothing, parcels, everything] = &answers[..] else { panic!("three") };
        assert!(nothing.0 == parcels.0 && nothing.0 == everything.0, "{method}: {answers:?}");
        let passes = case.plan.exchange != Exchange::None;
        assert_eq!(parcels.1 < nothing.1 / 2, passes, "{method}: {answers:?}");
        // Whoever has the shards asks nobody for partials.
        assert!(everything.2 < parcels.2 / 10, "{method}: {answers:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_attempt_of_shards_that_pass_each_other_something() {
    let mut bench = Bench::of(&[("c0", HostRole::Context), ("c1", HostRole::Spare)]).await;
    let case = Case::of("ring", 4);
    assert_ne!(case.plan.exchange, Exchange::None);
    let holders = vec![bench.holder("c0", &[0, 2]), bench.holder("c1", &[1, 3])];
    // The first attempt lacks its other half, and waits for what will never come.
    bench.line("c1").encode(&case, 1, &[1, 3], &holders).await;
    bench.line("c1").encode(&case, 2, &[1, 3], &holders).await;
    bench.line("c0").encode(&case, 2, &[0, 2], &holders).await;
    bench.line("c0").encoded(&[0, 2]).await;
    bench.line("c1").encoded(&[1, 3]).await;
    let golden = case.golden_tokens();
    bench.generate("c1", case.generate(&holders, golden.len() as u32, 0.0)).await;
    assert_eq!(bench.line("c1").tokens(0).await, golden);
    // A peer that is not there ends an attempt; the shards can be encoded again with another one.
    let nobody = ShardHolder { endpoints: vec![Endpoint::new("local", "0/127.0.0.1:1")], ..holders[1].clone() };
    bench.line("c0").encode(&case, 3, &[0, 2], &[holders[0].clone(), nobody]).await;
    let lost = bench.line("c0").receive(|message| match message {
        HostMessage::NotEncoded { context: CONTEXT, attempt, peer_lost, code, .. } => Some((attempt, peer_lost, code)),
        _ => None,
    });
    assert_eq!(lost.await, (3, true, "host_lost".to_string()));
    bench.line("c1").order(HostCommand::Release { context: CONTEXT, keep: true }).await;
    let kv_bytes = bench.line("c1").receive(|message| match message {
        HostMessage::Heartbeat { kv_bytes: 0, .. } => Some(()),
        _ => None,
    });
    kv_bytes.await;
    bench.shutdown().await;
}

/// Shards that move to another host come as they lie, in pieces or not; where they do not come they are encoded, to the same bits.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_moves_as_it_lies_and_is_encoded_where_it_does_not_come() {
    for kept in [KvFormat::Computed, KvFormat::Q8] {
        moves_as_it_lies(kept).await;
    }
}

async fn moves_as_it_lies(kept: KvFormat) {
    let case = Case::of("star", 4);
    let hosts = [("c0", HostRole::Context), ("c1", HostRole::Spare), ("c2", HostRole::Spare)];
    let mut bench = Bench::keeping(kept, &hosts).await;
    let held = bench.encode(&case, "c0", &[0, 1]).await;
    let own = bench.encode(&case, "c1", &[2, 3]).await;
    bench.generate("c1", case.generate(&[held.clone(), own], 24, 0.9)).await;
    let expected = bench.line("c1").tokens(0).await;
    // The second holder does not have what it is said to have, and there is no third.
    let wrong = ShardHolder { blocks: vec![2], ..held.clone() };
    let nobody =
        ShardHolder { host: "c9".into(), endpoints: vec![Endpoint::new("local", "0/127.0.0.1:1")], blocks: vec![3] };
    let mut how = Vec::new();
    for (block, holder) in [held.clone(), held, wrong, nobody].into_iter().enumerate() {
        bench.line("c2").encode(&case, 2, &[block], &[holder]).await;
        let encoded = bench.line("c2").receive(|message| match message {
            HostMessage::Encoded(encoded) if encoded.block as usize == block => Some(encoded),
            HostMessage::NotEncoded { message, .. } => panic!("{message}"),
            _ => None,
        });
        how.push(encoded.await);
    }
    assert_eq!(how.iter().map(|one| one.cached).collect::<Vec<_>>(), [true, true, false, false]);
    assert!(how[0].exchange_bytes >= how[0].kv_bytes && how[0].pairs == 0 && how[2].pairs > 0, "{how:?}");
    assert!(how[0].exchange_bytes < how[0].kv_bytes * 5 / 4, "what moves is what is kept: {how:?}");
    let all = bench.holder("c2", &[0, 1, 2, 3]);
    bench.generate("c2", Generate { job: 4, ..case.generate(&[all], 24, 0.9) }).await;
    assert_eq!(bench.line("c2").tokens(0).await, expected);
    bench.shutdown().await;
}

/// A link that breaks behind the last parcel leaves the host that it was for without a word of it.
#[tokio::test(flavor = "multi_thread")]
async fn who_passes_parcels_is_done_when_they_are_taken() {
    let mut bench = Bench::of(&[("c0", HostRole::Context)]).await;
    let (case, peer) = (Case::of("ring", 4), bind(&bench.network));
    let endpoints = vec![Endpoint::of(peer.as_ref())];
    let holders = [bench.holder("c0", &[0]), ShardHolder { host: "c1".into(), endpoints, blocks: vec![1, 2, 3] }];
    for attempt in [1, 2] {
        bench.line("c0").encode(&case, attempt, &[0], &holders).await;
        let mut link = None;
        let mut channel = loop {
            let open = match &mut link {
                Some(open) => open,
                None => link.insert(peer.accept().await.expect("it calls")),
            };
            match open.accept().await {
                Ok(channel) => break channel,
                Err(_) => link = None,
            }
        };
        while channel.receiver.receive().await.expect("a link").is_some() {}
        if attempt == 2 {
            channel.sender.send(ParcelsTaken { context: CONTEXT, attempt }.frame()).await.expect("it listens");
            bench.line("c0").encoded(&[0]).await;
            break;
        }
        link.expect("it called").close("cut");
        let lost = bench.line("c0").receive(|message| match message {
            HostMessage::NotEncoded { context: CONTEXT, attempt, peer_lost, .. } => Some((attempt, peer_lost)),
            HostMessage::Encoded(_) => panic!("nobody has said that the parcels came"),
            _ => None,
        });
        assert_eq!(lost.await, (1, true));
    }
    bench.shutdown().await;
}

/// Two hosts that wait for each other have each lost what the other waits for.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_parcels_hears_that_its_own_were_lost() {
    let mut bench = Bench::of(&[("c0", HostRole::Context)]).await;
    let (case, peer) = (Case::of("ring", 4), bind(&bench.network));
    let endpoints = vec![Endpoint::of(peer.as_ref())];
    let holders = [bench.holder("c0", &[0, 2]), ShardHolder { host: "c1".into(), endpoints, blocks: vec![1, 3] }];
    bench.line("c0").encode(&case, 1, &[0, 2], &holders).await;
    let link = peer.accept().await.expect("it calls");
    let mut channel = link.accept().await.expect("it passes parcels");
    let opening = channel.receiver.receive().await.expect("a link");
    assert!(opening.is_some(), "it says for what");
    link.close("cut");
    let lost = bench.line("c0").receive(|message| match message {
        HostMessage::NotEncoded { context: CONTEXT, attempt, peer_lost, code, .. } => Some((attempt, peer_lost, code)),
        _ => None,
    });
    assert_eq!(lost.await, (1, true, "host_lost".to_string()));
    bench.shutdown().await;
}
