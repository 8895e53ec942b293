//! Where shards go by racks and islands, at first and after a loss.

use serde_json::json;

use super::super::{Cluster, config, prepared};
use crate::{
    api::Role,
    messages::{EncodeShards, HostCommand},
    supervisor::{Source, SupervisorConfig},
};

/// Eight context hosts, each with these labels.
fn labelled(label: impl Fn(usize) -> (&'static str, &'static str)) -> SupervisorConfig {
    let mut config = config(8, 0);
    for (at, host) in config.hosts.iter_mut().enumerate().filter(|(_, host)| host.role == Role::Context) {
        let (key, value) = label(at);
        host.labels.insert(key.into(), value.into());
    }
    config
}

fn homes(orders: &[(u64, EncodeShards)]) -> Vec<u64> {
    let mut homes: Vec<(usize, u64)> =
        orders.iter().flat_map(|(to, order)| order.shards.iter().map(move |shard| (shard.block, to - 1))).collect();
    homes.sort_unstable();
    homes.into_iter().map(|(_, host)| host).collect()
}

fn take_orders(cluster: &mut Cluster) -> Vec<(u64, EncodeShards)> {
    let order = |(to, command)| match command {
        HostCommand::Encode(order) => Some((to, order)),
        _ => None,
    };
    cluster.take_sent().into_iter().filter_map(order).collect()
}

/// A host of those that joined first goes silent; all others beat.
fn silence(cluster: &mut Cluster, host: u64) {
    let others: Vec<u64> = (1..=9).filter(|connection| *connection != host + 1).collect();
    for _ in 0..6 {
        cluster.tick(cluster.now + 0.5, &others);
    }
}

#[test]
fn what_a_rack_lost_goes_to_another_rack() {
    let mut cluster = Cluster::ready(labelled(|at| ("rack", if at < 4 { "a" } else { "b" })));
    cluster.submit(None);
    assert_eq!(homes(&cluster.encode()), [0, 4, 1, 5], "racks in turn");
    silence(&mut cluster, 0);
    assert_eq!(homes(&cluster.encode()), [6], "not to an idle host beside the one that was lost");
}

#[test]
fn a_ring_stays_in_its_island() {
    let mut config = labelled(|at| ("island", if at < 3 { "i" } else { "j" }));
    config.max_running = 4;
    let mut cluster = Cluster::ready(config);
    let ring = || serde_json::from_value(json!({"ring": {"layout": "contiguous"}})).expect("a method");
    cluster.ask(Source::Context(prepared(&ring(), 3)), None);
    assert_eq!(homes(&take_orders(&mut cluster)), [0, 1, 2], "the smaller island has room");
    cluster.ask(Source::Context(prepared(&ring(), 3)), None);
    assert_eq!(homes(&take_orders(&mut cluster)), [3, 4, 5], "the other has nothing to do");
    silence(&mut cluster, 1);
    let again = homes(&take_orders(&mut cluster));
    assert!(again.iter().all(|host| *host < 3), "{again:?}: two hosts of an island are better than one of each");
}
