//! Merges along a tree of hosts: no bit depends on who merges, and a host lost inside of it is lost as any other.

use asterism_actors::messages::{Generate, HostCommand, HostMessage, HostRole, ShardHolder};
use asterism_plan::KeptShard;

use crate::bench::{Bench, Case, JOB};

const HOSTS: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];
const GROUPS: [u32; 6] = [0, 1, 2, 3, 4, 4];
const TOKENS: u32 = 200;

/// Each group on a host of its own, and two query hosts.
async fn five() -> (Bench, Case, Vec<ShardHolder>) {
    let context = HOSTS.map(|name| (name, HostRole::Context));
    let query = ["q0", "q1"].map(|name| (name, HostRole::Query));
    let mut bench = Bench::of(&[&context[..], &query].concat()).await;
    let (case, mut holders) = (Case::of("star", GROUPS.len()), Vec::new());
    for (host, name) in HOSTS.into_iter().enumerate() {
        let blocks: Vec<usize> = (0..GROUPS.len()).filter(|block| GROUPS[*block] as usize == host).collect();
        holders.push(bench.encode(&case, name, &blocks).await);
    }
    (bench, case, holders)
}

/// By a plan that merges two at a time: `0` and `((1 2) (3 (4 5)))`. Drawn tokens depend on more bits than the most likely ones.
fn in_twos(case: &Case, holders: &[ShardHolder]) -> Generate {
    let order = case.generate(holders, TOKENS, 0.9);
    let kept = |(shard, group): (&KeptShard, u32)| KeptShard { group, ..*shard };
    Generate { shards: order.shards.iter().zip(GROUPS).map(kept).collect(), fan_in: 2, ..order }
}

/// The tokens where one host has all shards.
async fn on_one_host(bench: &mut Bench, case: &Case) -> Vec<u32> {
    let all: Vec<usize> = (0..GROUPS.len()).collect();
    let holder = bench.encode(case, "c2", &all).await;
    bench.generate("q1", in_twos(case, &[holder])).await;
    bench.line("q1").tokens(0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_of_hosts_gives_the_bits_of_one_host() {
    let (mut bench, case, holders) = five().await;
    bench.generate("q0", in_twos(&case, &holders)).await;
    let tokens = bench.line("q0").tokens(0).await;
    // Only those that the query host asks itself have a link to it.
    let report = |message| match message {
        HostMessage::Links(report) if report.links.len() > 2 => {
            Some(report.links.into_iter().map(|link| link.peer).collect::<Vec<_>>())
        }
        _ => None,
    };
    assert_eq!(bench.line("q0").receive(report).await, ["supervisor", "c0", "c1"]);
    assert_eq!(bench.line("c1").receive(report).await, ["supervisor", "c2", "c3"]);
    assert_eq!(tokens, on_one_host(&mut bench, &case).await);
    assert_eq!(tokens.len(), TOKENS as usize);
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inner_host_of_the_tree_lost_in_the_middle_of_decoding_changes_no_token() {
    // The one that the query host asks, one that it asks, and a leaf.
    for (lost, migration_target) in [("c1", "c2"), ("c3", "c0"), ("c4", "c1")] {
        let (mut bench, case, mut holders) = five().await;
        let undisturbed = on_one_host(&mut bench, &case).await;
        bench.generate("q0", in_twos(&case, &holders)).await;
        let mut heard = vec![bench.line("q0").token(0).await];
        bench.transports[lost].close();
        let host = loop {
            let next = bench.line("q0").receive(|message| match message {
                HostMessage::Token { id, .. } => Some(Err(id)),
                HostMessage::Stalled { job: JOB, host, .. } => Some(Ok(host)),
                HostMessage::Failed { message, .. } => panic!("{message}"),
                _ => None,
            });
            match next.await {
                Ok(host) => break host,
                Err(id) => heard.push(id),
            }
        };
        assert_eq!(host, lost, "whom the others miss");
        let at = HOSTS.iter().position(|name| *name == lost).expect("it is one of them");
        let blocks: Vec<usize> = holders[at].blocks.iter().map(|block| *block as usize).collect();
        bench.encode(&case, migration_target, &blocks).await;
        let blocks = holders.remove(at).blocks;
        let migration_target = holders.iter_mut().find(|holder| holder.host == migration_target).expect("it lives");
        migration_target.blocks.extend(blocks);
        bench.line("q0").order(HostCommand::Holders { job: JOB, holders }).await;
        let rest = bench.line("q0").tokens(heard.len() as u32).await;
        heard.extend(rest);
        assert_eq!(heard, undisturbed, "{lost} was lost");
        bench.hosts.remove(lost);
        bench.shutdown().await;
    }
}
