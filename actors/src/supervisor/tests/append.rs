//! Sessions that grow: what is encoded, what questions see meanwhile, and what becomes of it when it fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use asterism_models::{ShardIdentity, shard_identities};
use serde_json::json;

use super::{Cluster, config, encoded, prepared_of, seconds};
use crate::{
    api::{JobState, PlacementPolicy, SessionState, SessionStatus, Waiting},
    cluster_event::ClusterEventKind,
    error::JobError,
    messages::{EncodeShards, HostCommand, HostMessage},
    supervisor::{
        HostSpec, PreparedContext, Recovery, Source, SupervisorConfig, config::MODEL_LABEL,
        tables::prepared::salt_digest::SaltDigest,
    },
};

/// Blocks of 30 tokens, each behind the sink alone.
fn grid(tokens: u32) -> PreparedContext {
    let method = serde_json::from_value(json!({"pulsar": {"block_tokens": 30, "sink_tokens": 4}})).expect("a method");
    prepared_of(&method, 2, tokens, &[])
}

fn session(config: SupervisorConfig, tokens: u32) -> Cluster {
    let mut cluster = Cluster::ready(config);
    let at = (Duration::ZERO, cluster.state.number());
    let decided = cluster.state.create_session(at, "moby", grid(tokens), None).expect("taken");
    cluster.adopt(decided);
    cluster
}

fn append(cluster: &mut Cluster, tokens: u32) -> Result<u64, JobError> {
    let base = cluster.state.asked_session("moby")?.context;
    let at = (seconds(cluster.now), cluster.state.number());
    let decided = cluster.state.append_session(at, ("moby", base), grid(tokens))?;
    cluster.adopt(decided);
    Ok(at.1)
}

fn status(cluster: &Cluster) -> SessionStatus {
    cluster.state.session_status(seconds(cluster.now), "moby").expect("it is there")
}

fn answered(cluster: &mut Cluster, job: u64) {
    answered_by(3, cluster, job);
}

fn answered_by(query: u64, cluster: &mut Cluster, job: u64) {
    cluster.token(query, job, 0, 7);
    let (tokens, stopped, text, times) = (1, true, String::new(), Box::default());
    cluster.deliver(query, HostMessage::Generated { job, tokens, stopped, text, times });
    assert_eq!(cluster.status(job).state, JobState::Succeeded);
}

/// Who was ordered which shards.
fn dealt(orders: &[(u64, EncodeShards)]) -> Vec<(u64, usize)> {
    let of =
        |(to, order): &(u64, EncodeShards)| order.shards.iter().map(|shard| (*to, shard.block)).collect::<Vec<_>>();
    let mut dealt: Vec<(u64, usize)> = orders.iter().flat_map(of).collect();
    dealt.sort_unstable_by_key(|(_, block)| *block);
    dealt
}

#[test]
fn questions_see_what_is_appended_once_all_of_it_is_encoded() {
    let mut cluster = session(config(2, 0), 75);
    assert_eq!(dealt(&cluster.encode()), [(1, 0), (2, 1), (1, 2)]);
    let before = cluster.ask(Source::Session("moby".into()), None);
    let old = cluster.state.asked_session("moby").unwrap().context;
    let grown = append(&mut cluster, 120).expect("taken");
    let between = cluster.ask(Source::Session("moby".into()), None);
    assert_eq!(status(&cluster).context_tokens, 75);
    assert_eq!(status(&cluster).appending.expect("under way").context_tokens, 120);
    assert_eq!(cluster.state.contexts.pinned_bytes(), 8 * (75 + 60), "full blocks are counted once");
    assert_eq!(dealt(&cluster.encode()), [(1, 0), (2, 1), (1, 2), (2, 3)], "where they lie already");
    let after = cluster.ask(Source::Session("moby".into()), None);
    let contexts = [before, between, after].map(|job| cluster.status(job).context_tokens);
    assert_eq!(contexts, [75, 75, 120]);
    assert_eq!((status(&cluster).context_tokens, status(&cluster).appending), (120, None));
    answered(&mut cluster, before);
    assert!(cluster.state.contexts.get(old).is_some(), "one is still answered");
    answered(&mut cluster, between);
    assert!(cluster.state.contexts.get(old).is_none() && cluster.state.contexts.get(grown).is_some());
    assert!(cluster.sent.contains(&(1, HostCommand::Release { context: old, keep: true })));
    assert_eq!(cluster.state.contexts.pinned_bytes(), 8 * 120);
}

#[test]
fn an_append_goes_on_after_the_supervisor_was_started_again() {
    let mut cluster = session(config(2, 0), 75);
    cluster.encode();
    let grown = append(&mut cluster, 120).expect("taken");
    let pinned = cluster.state.contexts.pinned_bytes();
    cluster.restart();
    assert_eq!(cluster.state.contexts.pinned_bytes(), pinned);
    for at in 0..3 {
        cluster.join(at, 2);
    }
    cluster.encode();
    assert_eq!((status(&cluster).context_tokens, status(&cluster).appending), (120, None));
    assert_eq!(cluster.state.contexts.numbers(), [grown]);
    cluster.restart();
    assert_eq!((status(&cluster).context_tokens, cluster.state.contexts.numbers()), (120, vec![grown]));
}

#[test]
fn a_session_that_was_ready_is_not_ready_anew_after_a_restart() {
    let mut cluster = session(config(2, 0), 75);
    cluster.now = 0.5;
    cluster.encode();
    assert_eq!((status(&cluster).state, status(&cluster).encode_s), (SessionState::Ready, 0.5));
    cluster.now = 16.0;
    cluster.restart();
    for at in 0..3 {
        cluster.join(at, 2);
    }
    cluster.update.clear();
    cluster.now = 17.0;
    cluster.encode();
    assert_eq!((status(&cluster).state, status(&cluster).encode_s), (SessionState::Ready, 0.5));
    let again = |update: &&ClusterEventKind| matches!(update, ClusterEventKind::SessionReady { .. });
    assert_eq!(cluster.update.iter().filter(again).count(), 0, "{:?}", cluster.update);
}

#[test]
fn an_append_that_cannot_be_is_refused_and_the_session_stays() {
    let pinned = |bytes| {
        let mut config = config(2, 0);
        config.sessions.max_pinned_bytes = Some(bytes);
        config
    };
    let mut cluster = session(pinned(8 * 200), 75);
    let code = |result: Result<u64, JobError>| result.expect_err("refused").code();
    assert_eq!(code(append(&mut cluster, 120)), "session_busy", "it is not ready");
    cluster.encode();
    assert_eq!(code(append(&mut cluster, 300)), "capacity_exhausted");
    let at = (Duration::ZERO, cluster.state.number());
    let other = cluster.state.append_session(at, ("moby", 77), grid(90)).expect_err("another context");
    assert_eq!(other.code(), "session_replaced");
    let grown = append(&mut cluster, 120).expect("there is room");
    assert_eq!(code(append(&mut cluster, 130)), "session_busy", "one at a time");
    // A shard of another size than planned.
    cluster.deliver(2, HostMessage::Encoded(encoded(grown, 3, 29)));
    assert_eq!(status(&cluster).append_error.expect("it failed").code, "shard_mismatch");
    assert_eq!((status(&cluster).state, status(&cluster).context_tokens), (SessionState::Ready, 75));
    assert!(cluster.state.contexts.get(grown).is_none());
    let asked = cluster.ask(Source::Session("moby".into()), None);
    answered(&mut cluster, asked);
    append(&mut cluster, 120).expect("again");
    assert_eq!(status(&cluster).append_error, None);
    cluster.encode();
    assert_eq!(status(&cluster).context_tokens, 120);
}

#[test]
fn a_session_that_ends_while_it_grows_leaves_nothing() {
    for expires in [false, true] {
        let mut cluster = session(config(2, 0), 75);
        cluster.encode();
        let grown = append(&mut cluster, 120).expect("taken");
        match expires {
            true => cluster.tick(1000.0, &[1, 2, 3]),
            false => {
                let decided = cluster.state.drop_session(seconds(0.0), "moby").expect("it is there");
                cluster.adopt(decided);
            }
        }
        assert!(cluster.state.contexts.numbers().is_empty(), "{expires}");
        let of_contexts = |key: &str| key.contains(&format!("{grown:020}"));
        assert!(!cluster.journal.iter().any(|entry| of_contexts(&entry.key)), "{expires}");
        cluster.deliver(1, HostMessage::Encoded(encoded(grown, 0, 30)));
        let gone = if expires { "session_expired" } else { "session_not_found" };
        assert_eq!(append(&mut cluster, 120).expect_err("it is over").code(), gone);
    }
}

#[test]
fn a_lost_host_of_a_session_and_of_what_is_appended_to_it_fails_both_where_nobody_takes_over() {
    let mut cluster = session(SupervisorConfig { recovery: Recovery::Fail, ..config(2, 0) }, 75);
    cluster.encode();
    let grown = append(&mut cluster, 120).expect("taken");
    cluster.deliver(1, HostMessage::Encoded(encoded(grown, 0, 30)));
    cluster.tick(2.5, &[2, 3]);
    assert_eq!(status(&cluster).state, SessionState::Failed);
    assert_eq!(status(&cluster).error.expect("it failed").code, "host_lost");
    assert!(cluster.state.contexts.numbers().is_empty());
}

#[test]
fn an_append_that_comes_into_force_when_its_session_is_over_leaves_nothing() {
    let mut cluster = session(config(2, 0), 75);
    cluster.encode();
    let base = cluster.state.asked_session("moby").unwrap().context;
    let at = (seconds(0.0), cluster.state.number());
    let decided = cluster.state.append_session(at, ("moby", base), grid(120)).expect("it is there");
    cluster.tick(1000.0, &[1, 2, 3]);
    cluster.adopt(decided);
    assert!(cluster.state.contexts.numbers().is_empty());
    let left = cluster.journal.iter().any(|entry| entry.key.starts_with(&format!("{:020}", at.1)));
    assert!(!left, "{:?}", cluster.journal.iter().map(|entry| &entry.key).collect::<Vec<_>>());
}

#[test]
fn the_same_context_again_goes_where_it_lies() {
    let mut cluster = session(config(2, 0), 75);
    let first = dealt(&cluster.encode());
    let decided = cluster.state.drop_session(seconds(0.0), "moby").expect("it is there");
    cluster.adopt(decided);
    // One other shard makes the first host the busier one.
    let other = Source::Context(prepared_of(&serde_json::from_value(json!({"dense": {}})).unwrap(), 1, 40, &[1]));
    cluster.ask(other, None);
    let job = cluster.ask(Source::Context(grid(75)), None);
    cluster.encode();
    let again: Vec<_> = cluster.encode();
    let again = if again.is_empty() { dealt_of(&cluster, job) } else { dealt(&again) };
    assert_eq!(again, first);
}

/// Who holds which shards of a context, by connection.
fn dealt_of(cluster: &Cluster, context: u64) -> Vec<(u64, usize)> {
    let places = cluster.state.contexts[context].places();
    places.iter().enumerate().map(|(block, place)| (place.host.expect("placed") as u64 + 1, block)).collect()
}

/// A chain of blocks of 30 tokens, of a job of its own.
fn chain(tokens: u32, key: Option<&str>) -> Source {
    let method = serde_json::from_value(json!({"chain": {"block_tokens": 30}})).expect("a method");
    let prepared = prepared_of(&method, 2, tokens, &[1]);
    Source::Context(PreparedContext { key: key.map(str::to_owned), ..prepared }.identified())
}

/// What a chat begins with goes to the host that had it, in one order, whoever is idler; nothing of one key is looked for by
/// another.
#[test]
fn a_chat_goes_on_where_its_blocks_were_encoded() {
    let mut cluster = Cluster::ready(config(2, 0));
    let turn = |cluster: &mut Cluster, tokens, key| {
        let job = cluster.ask(chain(tokens, key), None);
        let orders = cluster.encode();
        let [(to, order)] = &orders[..] else { panic!("one order: {orders:?}") };
        assert!(order.shards.iter().all(|shard| shard.behind == 30 * shard.block), "{order:?}");
        let identities: Vec<_> = order.identities.iter().map(|(_, identity)| *identity).collect();
        let found = (*to, order.shards.len(), identities);
        answered(cluster, job);
        (cluster.status(job), found)
    };
    let (first, (home, blocks, begun)) = turn(&mut cluster, 75, Some("moon"));
    assert_eq!((first.reused_tokens, blocks), (0, 3));
    // Another key's goes to the other, idle longest, or the same: it finds nothing in any case.
    let (_, (_, _, others)) = turn(&mut cluster, 75, Some("sun"));
    assert!(others.iter().all(|identity| !begun.contains(identity)));
    let (_, (second, _, longer)) = turn(&mut cluster, 120, Some("moon"));
    assert_eq!((second, &longer[..2], longer.len()), (home, &begun[..2], 4), "all full blocks are the same");
    // Its host is lost while the next turn is encoded: another has all of it.
    let job = cluster.ask(chain(150, Some("moon")), None);
    cluster.take_sent();
    let (host, other) = if home == 1 { ("c0", 2) } else { ("c1", 1) };
    let exited = HostMessage::Exited { host: host.into(), start: 1, cause: "signal 9".into(), restarting: true };
    cluster.deliver(super::NODE, exited);
    let orders = cluster.encode();
    let [(to, order)] = &orders[..] else { panic!("one order: {orders:?}") };
    assert_eq!((*to, order.shards.len()), (other, 5));
    answered(&mut cluster, job);
}

/// The same chain, asked with a salt.
fn salted(tokens: u32, key: Option<&str>, salt: Option<&str>) -> PreparedContext {
    let Source::Context(prepared) = chain(tokens, key) else { panic!("a context of its own") };
    PreparedContext { cache_salt: salt.map(|salt| Box::new(SaltDigest::of(salt))), ..prepared }.identified()
}

#[test]
fn a_shard_is_one_only_within_its_model_its_key_and_its_salt() {
    let model = || BTreeMap::from([(MODEL_LABEL.to_owned(), "m".to_owned())]);
    let mut scopes = Vec::new();
    for labels in [BTreeMap::new(), model()] {
        for key in [None, Some("k"), Some("s")] {
            for salt in [None, Some("k"), Some("s"), Some("\0k"), Some("k\0s")] {
                let placement = PlacementPolicy { labels: labels.clone(), ..PlacementPolicy::default() };
                scopes.push(PreparedContext { placement, ..salted(75, key, salt) }.identified());
            }
        }
    }
    let all: BTreeSet<_> = scopes.iter().flat_map(|context| context.identities.iter().copied()).collect();
    assert_eq!(all.len(), scopes.iter().map(|context| context.identities.len()).sum::<usize>(), "no two are one");
    for context in &scopes {
        let again = serde_json::to_value(context).expect("JSON");
        let again: PreparedContext = serde_json::from_value(again).expect("as the journal has it");
        let again = PreparedContext { ids: context.ids.clone(), ..again }.identified();
        assert_eq!(again.identities, context.identities);
    }
    // Without a salt everything is as it was before there were salts, in the journal, too.
    for (context, scope) in [(salted(75, None, None), None), (salted(75, Some("k"), None), Some("k"))] {
        assert_eq!(*context.identities, shard_identities(&context.plan, &context.ids, scope)[..]);
        assert!(serde_json::to_value(&context).expect("JSON").get("cache_salt").is_none());
    }
    let named = scopes.iter().find(|context| context.model() == "m" && context.key.as_deref() == Some("k"));
    let named = named.expect("the first is without a salt");
    assert_eq!(*named.identities, shard_identities(&named.plan, &named.ids, Some("m\0k"))[..]);
}

/// What was asked for with one salt is found with that alone: neither all of it, nor what it begins with, nor while it is encoded.
#[test]
fn nothing_of_one_salt_is_found_with_another() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 9, ..config(2, 0) });
    let context = |tokens, salt| Source::Context(salted(tokens, Some("moon"), salt));
    let asked = |cluster: &mut Cluster, tokens, salt| cluster.ask(context(tokens, salt), None);
    let salts = [None, Some("a"), Some("b")];
    let jobs = salts.map(|salt| asked(&mut cluster, 75, salt));
    let again = asked(&mut cluster, 75, Some("a"));
    let waits = |cluster: &Cluster, job| cluster.status(job).waiting.is_some_and(|what| what == Waiting::SameContext);
    assert_eq!((jobs.map(|job| waits(&cluster, job)), waits(&cluster, again)), ([false; 3], true));
    let orders = cluster.encode();
    let identities = jobs.map(|job| -> BTreeSet<ShardIdentity> {
        let of_job = orders.iter().filter(|(_, order)| order.context == job);
        of_job.flat_map(|(_, order)| &order.identities).map(|(_, identity)| *identity).collect()
    });
    let all: BTreeSet<_> = identities.iter().flatten().collect();
    assert_eq!(all.len(), 9, "three shards of each of three contexts: {orders:?}");
    // What goes on is asked for where it began with the same salt, and under the names that it has there.
    for (salt, begun) in salts.into_iter().zip(&identities) {
        let longer = salted(120, Some("moon"), salt).identities;
        let common = longer.iter().filter(|identity| all.contains(identity)).copied().collect::<BTreeSet<_>>();
        assert!(common.len() == 2 && common.is_subset(begun), "{salt:?}");
    }
}

/// One context asked several times at once is encoded once; one whose beginning is that of a much longer one does not wait for all of
/// that.
#[test]
fn who_asks_about_the_same_context_meanwhile_waits_for_it() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 9, ..config(2, 0) });
    let jobs: Vec<u64> = (0..3).map(|_| cluster.ask(chain(75, Some("moon")), None)).collect();
    let waits = |cluster: &Cluster, job| cluster.status(job).waiting.is_some_and(|what| what == Waiting::SameContext);
    assert_eq!([0, 1, 2].map(|at| waits(&cluster, jobs[at])), [false, true, true]);
    let others = cluster.ask(chain(75, Some("sun")), None);
    assert!(!waits(&cluster, others), "what another key has is not looked for");
    let of = |orders: &[(u64, EncodeShards)], job| orders.iter().filter(|(_, order)| order.context == job).count();
    let orders = cluster.encode();
    assert_eq!([0, 1, 2].map(|at| of(&orders, jobs[at])), [1, 0, 0]);
    let orders = cluster.encode();
    let places = |cluster: &Cluster, job| dealt_of(cluster, job);
    assert_eq!([0, 1, 2].map(|at| of(&orders, jobs[at])), [0, 1, 1], "they begin when it is ready");
    assert_eq!([1, 2].map(|at| places(&cluster, jobs[at]) == places(&cluster, jobs[0])), [true, true], "where it lies");

    let long = cluster.ask(chain(600, Some("rain")), None);
    let short = cluster.ask(chain(60, Some("rain")), None);
    assert_eq!([waits(&cluster, long), waits(&cluster, short)], [false, false]);
}

/// Who waits for a context that comes to nothing begins.
#[test]
fn who_waits_for_a_context_begins_where_that_is_dropped() {
    let mut cluster = Cluster::ready(SupervisorConfig { max_running: 9, ..config(2, 0) });
    let [first, second] = [(); 2].map(|()| cluster.ask(chain(75, None), None));
    let ordered = |cluster: &mut Cluster| -> Vec<u64> {
        let sent = cluster.take_sent();
        let orders = sent.into_iter().filter_map(|(_, command)| match command {
            HostCommand::Encode(order) => Some(order.context),
            _ => None,
        });
        orders.collect()
    };
    assert_eq!(ordered(&mut cluster), [first]);
    let id = cluster.status(first).id;
    let decided = cluster.state.cancel(seconds(cluster.now), &id).expect("it runs");
    cluster.adopt(decided);
    assert_eq!(ordered(&mut cluster), [second]);
    assert!(cluster.state.contexts.agree());
}

/// What hosts say that they held is what a job reused, less what its question got anew.
#[test]
fn a_job_says_what_was_reused() {
    let mut cluster = Cluster::ready(config(2, 0));
    let job = cluster.ask(chain(75, None), None);
    let (to, order) = cluster
        .take_sent()
        .into_iter()
        .find_map(|(to, command)| match command {
            HostCommand::Encode(order) => Some((to, order)),
            _ => None,
        })
        .expect("an order");
    for shard in &order.shards {
        let cached = shard.block < 2;
        let stated = encoded(order.context, shard.block as u32, shard.kept_tokens() as u64);
        cluster.deliver(to, HostMessage::Encoded(crate::messages::Encoded { cached, ..stated }));
    }
    let status = cluster.status(job);
    assert_eq!((status.reused_tokens, status.cached_tokens, status.context_tokens), (60, 60, 75));
    answered(&mut cluster, job);
    cluster.restart();
    assert_eq!(cluster.status(job).reused_tokens, 60, "also after a restart");
}

#[test]
fn a_sessions_questions_go_to_the_query_host_that_had_the_last_one_while_it_has_hardly_more_to_do() {
    let mut three: SupervisorConfig = config(2, 0);
    let query = three.hosts[2].clone();
    three.hosts.extend(["q1", "q2"].map(|name| HostSpec { name: name.into(), ..query.clone() }));
    let mut cluster = session(three, 75);
    cluster.encode();
    let other = cluster.submit(None);
    cluster.encode();
    assert_eq!(cluster.generation().expect("the first has nothing to do").0, 3);
    let ask = |cluster: &mut Cluster| {
        let job = cluster.ask(Source::Session("moby".into()), None);
        (cluster.generation().expect("it is ready").0, job)
    };
    let (first, job) = ask(&mut cluster);
    assert_eq!(first, 4, "the first has something to do");
    answered_by(3, &mut cluster, other);
    answered_by(4, &mut cluster, job);
    let asked: Vec<(u64, u64)> = (0..5).map(|_| ask(&mut cluster)).collect();
    assert_eq!(
        asked.iter().map(|(query, _)| *query).collect::<Vec<_>>(),
        [4, 4, 4, 3, 3],
        "two more than the idle ones"
    );
    asked.into_iter().for_each(|(query, job)| answered_by(query, &mut cluster, job));

    append(&mut cluster, 110).expect("it can be");
    cluster.encode();
    let (query, job) = ask(&mut cluster);
    assert_eq!(query, 3, "what it has grown to was asked there");
    let exited = HostMessage::Exited { host: "q0".into(), start: 1, cause: "signal 9".into(), restarting: false };
    cluster.deliver(super::NODE, exited);
    let (query, _) = cluster.generation().expect("another one goes on");
    assert_eq!(query, 4);
    answered_by(4, &mut cluster, job);
    assert_eq!(ask(&mut cluster).0, 4);
}
