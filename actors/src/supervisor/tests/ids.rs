//! Which token ids go to which hosts.

use serde_json::json;

use super::{CLUSTER, CONTEXT, Cluster, config, connection, encoded};
use crate::{
    api::{JobState, Scheduling},
    messages::{EncodeShards, Encoded, Hello, HostCommand, HostMessage, HostRole},
    supervisor::SupervisorConfig,
};

impl Cluster {
    /// A host knows what it was sent: what an order reads is there when it comes, and is the context's.
    pub(super) fn hears(&mut self, connection: u64, command: &HostCommand) {
        match command {
            HostCommand::Ids(ids) => {
                let known = self.ids.entry((connection, ids.context)).or_default();
                ids.parts().expect("they add up").into_iter().for_each(|(start, ids)| known.learn(start, ids));
            }
            HostCommand::Encode(order) => {
                let known = &self.ids[&(connection, order.context)];
                // One that was given up in the same event is gone.
                let Some(context) = self.state.contexts.get(order.context) else { return };
                for shard in &order.shards {
                    let input = shard.input(known).expect("what it reads was sent before");
                    assert_eq!(input, shard.input(&*context.prepared.ids).expect("it has all"));
                }
            }
            HostCommand::Release { context, .. } => drop(self.ids.remove(&(connection, *context))),
            _ => {}
        }
    }

    /// Takes the ids that were sent: connection and the numbers of the tokens.
    fn ids_sent(&mut self) -> Vec<(u64, Vec<u32>)> {
        let of = |(to, command): (u64, HostCommand)| match command {
            HostCommand::Ids(ids) => {
                Some((to, ids.runs.iter().flat_map(|run| run.start..run.start + run.tokens).collect()))
            }
            _ => None,
        };
        self.take_sent().into_iter().filter_map(of).collect()
    }
}

/// Blocks of 30 tokens behind an anchor of 5.
fn star() -> SupervisorConfig {
    let star = json!({"star": {"block_tokens": 30, "anchor_tokens": 5}});
    SupervisorConfig { method: serde_json::from_value(star).expect("a method"), ..config(2, 0) }
}

fn tokens(ranges: &[(u32, u32)]) -> Vec<u32> {
    ranges.iter().flat_map(|&(start, end)| start..end).collect()
}

#[test]
fn a_host_is_sent_the_ids_that_it_lacks_and_once() {
    let mut cluster = Cluster::ready(star());
    cluster.submit(None);
    let sent = cluster.ids_sent();
    // The anchor once to each, before the first order that reads it.
    assert_eq!(
        sent,
        [
            (1, tokens(&[(0, 30)])),
            (1, tokens(&[(30, 60)])),
            (2, tokens(&[(0, 5), (60, 90)])),
            (2, tokens(&[(90, 100)]))
        ]
    );
}

#[test]
fn a_shard_that_moves_brings_the_ids_that_its_new_host_lacks() {
    let mut cluster = Cluster::ready(star());
    cluster.submit(None);
    cluster.encode();
    cluster.take_sent();
    let now = super::seconds(0.0);
    let decided = cluster.state.schedule_host(now, "c0", Scheduling::Draining, None).expect("there is another");
    cluster.adopt(decided);
    assert_eq!(cluster.ids_sent(), [(2, tokens(&[(5, 30)])), (2, tokens(&[(30, 60)]))]);
}

#[test]
fn a_new_process_has_no_ids_and_the_journal_has_all() {
    let mut cluster = Cluster::ready(star());
    let job = cluster.submit(None);
    cluster.restart();
    cluster.hello(0, 1, CLUSTER, (&[job], &[]));
    cluster.hello(1, 2, 0, (&[], &[]));
    cluster.hello(2, 1, CLUSTER, (&[], &[]));
    cluster.take_sent();
    for connection in [102, 1, 3] {
        cluster.deliver(connection, super::ready());
    }
    let sent = cluster.ids_sent();
    let all: std::collections::BTreeSet<u32> = sent.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
    assert_eq!(all.len(), CONTEXT as usize, "{sent:?}");
    assert!(sent.iter().any(|(to, _)| *to == 102), "{sent:?}");
}

#[test]
fn a_host_that_reads_something_else_is_found_out_before_anybody_asks_it() {
    let mut cluster = Cluster::ready(star());
    let job = cluster.submit(None);
    let misread = Encoded { digest: 1, ..encoded(job, 0, 30) };
    cluster.deliver(1, HostMessage::Encoded(misread.clone()));
    assert!(cluster.closed.contains(&1), "it is fenced");
    assert!(cluster.sent.iter().any(|(_, command)| matches!(command, HostCommand::Kill { host, .. } if host == "c0")));
    cluster.sent.retain(|(to, _)| *to != 1);
    let orders = cluster.encode();
    assert!(orders.iter().all(|(to, _)| *to == 2), "{orders:?}");
    let (_, generate) = cluster.generation().expect("all shards are encoded by the other");
    assert_eq!(generate.holders.len(), 1);
    assert_eq!(cluster.status(job).recoveries[0].reason, "misread");
}

/// Hosts of one prefix, which each passes to later ones, and where the shards are.
fn sharing() -> (Cluster, u64, Vec<usize>) {
    let method = json!({"star": {"block_tokens": 30, "anchor_tokens": 5, "shared_prefix": true}});
    let method = serde_json::from_value(method).expect("a method");
    let mut cluster = Cluster::ready(SupervisorConfig { method, ..config(3, 0) });
    let job = cluster.submit(None);
    let context = cluster.state.contexts.get(job).expect("it runs");
    assert!(context.is_together());
    let hosts = context.places().iter().map(|place| place.host.expect("it has a place")).collect();
    (cluster, job, hosts)
}

fn exits(cluster: &mut Cluster, host: usize) {
    let (host, cause) = (format!("c{host}"), "signal 9".into());
    cluster.deliver(super::NODE, HostMessage::Exited { host, start: 1, cause, restarting: true });
}

fn shards(orders: &[(u64, EncodeShards)]) -> usize {
    orders.iter().map(|(_, order)| order.shards.len()).sum()
}

#[test]
fn what_a_host_passed_before_it_was_compared_goes_with_it() {
    let (mut cluster, job, hosts) = sharing();
    let last = hosts.len() - 1;
    assert_ne!(hosts[0], hosts[last]);
    cluster.take_sent();
    let kept = cluster.state.contexts[job].plan().shards[last].kept_tokens() as u64;
    cluster.deliver(connection(hosts[last], 1), HostMessage::Encoded(encoded(job, last as u32, kept)));
    exits(&mut cluster, hosts[0]);
    // Nor is it found again: it may be wrong.
    assert!(cluster.sent.contains(&(connection(hosts[last], 1), HostCommand::Release { context: job, keep: false })));
    assert_eq!(shards(&cluster.encode()), hosts.len());
    assert!(cluster.generation().is_some());
}

#[test]
fn what_a_host_passed_stays_once_all_was_compared() {
    for restarts in [false, true] {
        let (mut cluster, job, hosts) = sharing();
        cluster.encode();
        cluster.take_sent();
        if restarts {
            cluster.restart();
            for host in (0..4).filter(|host| *host != hosts[0]) {
                cluster.hello(host, 1, CLUSTER, (&[job], &[]));
                cluster.deliver(connection(host, 1), super::ready());
            }
            let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
            cluster.deliver(super::NODE, HostMessage::Hello(hello));
            let left = hosts.iter().filter(|host| **host != hosts[0]).count();
            assert_eq!(shards(&cluster.encode()), left, "they hold them, and say so again");
        }
        exits(&mut cluster, hosts[0]);
        let lost = hosts.iter().filter(|host| **host == hosts[0]).count();
        assert_eq!(shards(&cluster.encode()), lost, "restarts: {restarts}");
        assert!(cluster.state.contexts[job].is_ready());
    }
}

#[test]
fn where_every_host_reads_something_else_the_context_fails() {
    let mut cluster = Cluster::ready(SupervisorConfig { hosts: config(1, 0).hosts, ..star() });
    let job = cluster.submit(None);
    let misread = Encoded { digest: 1, ..encoded(job, 0, 30) };
    for _ in 0..9 {
        assert_eq!(cluster.status(job).state, JobState::Running);
        // The query host does it where no other can.
        let host =
            cluster.state.contexts.get(job).and_then(|context| context.places()[0].host).expect("it is tried again");
        cluster.deliver(connection(host, 1), HostMessage::Encoded(misread.clone()));
    }
    assert_eq!(cluster.status(job).error.expect("it failed").code, "input_mismatch");
}
