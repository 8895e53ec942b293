//! Where shards of a lost or leaving host go: to several, by what these hold and have room for.

use std::collections::BTreeMap;

use super::{Cluster, NODE, config};
use crate::{
    messages::{EncodeShards, HostMessage},
    supervisor::{
        HostSpec, SupervisorConfig,
        tests::{Source, prepared_of},
    },
};

/// Four context hosts, whose job has twelve shards of 30 tokens, three on each.
fn twelve_shards(limit: impl Fn(usize) -> Option<u64>) -> (Cluster, u64) {
    let mut config: SupervisorConfig = config(4, 0);
    let limited = |(at, host): (usize, &mut HostSpec)| host.memory_limit = limit(at);
    config.hosts.iter_mut().enumerate().for_each(limited);
    let mut cluster = Cluster::ready(config);
    let context = prepared_of(&cluster.state.config().method.clone(), 4, 360, &[1]);
    let job = cluster.ask(Source::Context(context), None);
    assert_eq!(dealt(&cluster.encode()), BTreeMap::from([(1, 3), (2, 3), (3, 3), (4, 3)]));
    (cluster, job)
}

/// How many shards each connection is to encode.
fn dealt(orders: &[(u64, EncodeShards)]) -> BTreeMap<u64, usize> {
    let mut dealt = BTreeMap::new();
    orders.iter().for_each(|(to, order)| *dealt.entry(*to).or_default() += order.shards.len());
    dealt
}

fn lose(cluster: &mut Cluster, name: &str) -> BTreeMap<u64, usize> {
    cluster.take_sent();
    let exited = HostMessage::Exited { host: name.into(), start: 1, cause: "signal 9".into(), restarting: false };
    cluster.deliver(NODE, exited);
    dealt(&cluster.encode())
}

#[test]
fn a_lost_host_is_replaced_by_all_that_are_left() {
    let (mut cluster, _) = twelve_shards(|_| None);
    assert_eq!(lose(&mut cluster, "c0"), BTreeMap::from([(2, 1), (3, 1), (4, 1)]));
    // Each has four now.
    assert_eq!(lose(&mut cluster, "c2"), BTreeMap::from([(2, 2), (4, 2)]));
}

#[test]
fn a_host_with_little_room_gets_few_of_a_lost_hosts_shards() {
    // A shard takes 30 tokens of 8 bytes; c1 has room for no other, and c2 for one.
    let (mut cluster, _) = twelve_shards(|at| [None, Some(3 * 240 + 100), Some(4 * 240), None].get(at).copied()?);
    assert_eq!(lose(&mut cluster, "c0"), BTreeMap::from([(3, 1), (4, 2)]));
}

#[test]
fn a_host_that_holds_much_gets_few_of_a_lost_hosts_shards() {
    let (mut cluster, _) = twelve_shards(|_| None);
    cluster.now = 1.0;
    assert_eq!(lose(&mut cluster, "c3"), BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
    cluster.join(3, 2);
    assert_eq!(lose(&mut cluster, "c2"), BTreeMap::from([(104, 4)]), "what came back has nothing yet");
}

#[test]
fn what_a_host_gives_away_goes_to_several() {
    let (mut cluster, _) = twelve_shards(|_| None);
    cluster.drain("c3", None).expect("there are others");
    assert_eq!(dealt(&cluster.encode()), BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
}
