//! Hosts and node links before a supervisor that is driven by hand: what they do when others are lost, and that no token
//! changes by it.

mod bench;
#[path = "../../../tests/golden/cases.rs"]
mod cases;
mod guessing;
mod lying;
mod passing;
mod refresh;
mod tree;

use std::{collections::BTreeMap, time::Duration};

use asterism_actors::{
    HostConfig, Transports, host,
    messages::{Condition, Generate, Hello, HostCommand, HostMessage, HostRole, ShardHolder, WireMessage},
    node::{self, NodeOrder},
    readings::Phase2Times,
};
use asterism_kernels::KvFormat;
use asterism_models::DecoderParts;
use bench::{Bench, CONTEXT, Case, DEADLINE, JOB, bind, load};

/// Two context hosts and two query hosts over a case of four shards; 1 on c1, the others on c0.
async fn two_and_two() -> (Bench, Case, Vec<ShardHolder>) {
    two_and_two_keeping(KvFormat::Computed).await
}

async fn two_and_two_keeping(kept: KvFormat) -> (Bench, Case, Vec<ShardHolder>) {
    let (context, query) = (HostRole::Context, HostRole::Query);
    let mut bench = Bench::keeping(kept, &[("c0", context), ("c1", context), ("q0", query), ("q1", query)]).await;
    let case = Case::of("star", 4);
    let holders = vec![bench.encode(&case, "c0", &[0, 2, 3]).await, bench.encode(&case, "c1", &[1]).await];
    (bench, case, holders)
}

#[tokio::test(flavor = "multi_thread")]
async fn golden_tokens_whoever_does_what() {
    let spare = HostRole::Spare;
    let mut bench = Bench::of(&[("a", spare), ("b", spare)]).await;
    let case = Case::of("star", 4);
    let holders = [bench.encode(&case, "a", &[1]).await, bench.encode(&case, "b", &[0, 2, 3]).await];
    let golden = case.golden_tokens();
    let order = case.generate(&holders, golden.len() as u32, 0.0);
    bench.generate("b", order.clone()).await;
    assert_eq!(bench.line("b").tokens(0).await, golden);
    // An order that comes again is answered again, and so is one to encode.
    bench.generate("b", order).await;
    assert_eq!(bench.line("b").tokens(0).await, golden);
    bench.encode(&case, "a", &[1]).await;
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_host_lost_in_the_middle_of_decoding_changes_no_token() {
    for kept in [KvFormat::Computed, KvFormat::Q8] {
        lost_while_decoding(kept).await;
    }
}

async fn lost_while_decoding(kept: KvFormat) {
    let (mut bench, case, holders) = two_and_two_keeping(kept).await;
    let order = case.generate(&holders, 300, 0.0);
    bench.generate("q1", order.clone()).await;
    let undisturbed = bench.line("q1").tokens(0).await;
    bench.generate("q0", Generate { lookup: Some(guessing::context(&case)), ..order }).await;
    let first = bench.line("q0").token(0).await;
    bench.transports["c1"].close();
    let mut heard = vec![first];
    let stalled = |message: HostMessage| match message {
        HostMessage::Token { id, .. } => Some(Err(id)),
        HostMessage::Stalled { job, host, .. } => Some(Ok((job, host))),
        HostMessage::Failed { message, .. } => panic!("{message}"),
        _ => None,
    };
    let (job, host) = loop {
        match bench.line("q0").receive(stalled).await {
            Ok(stalled) => break stalled,
            Err(id) => heard.push(id),
        }
    };
    assert_eq!((job, host.as_str()), (JOB, "c1"));
    // Nothing was done about it: it says so again, in a second.
    while bench.line("q0").receive(stalled).await.is_err() {}
    // The same holders again: it tries, and finds nobody.
    bench.line("q0").order(HostCommand::Holders { job: JOB, holders }).await;
    while bench.line("q0").receive(stalled).await.is_err() {}
    let holders = vec![bench.encode(&case, "c0", &[0, 1, 2, 3]).await];
    bench.line("q0").order(HostCommand::Holders { job: JOB, holders }).await;
    let rest = bench.line("q0").tokens(heard.len() as u32).await;
    heard.extend(rest);
    assert_eq!(heard, undisturbed);
    bench.hosts.remove("c1");
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_comes_with_the_times_of_all_its_steps() {
    const LAYERS: u64 = 4;
    let (mut bench, case, holders) = two_and_two().await;
    let heard = |message| match message {
        HostMessage::Generated { tokens, times, .. } => Some((tokens, times)),
        HostMessage::Failed { message, .. } => panic!("{message}"),
        _ => None,
    };
    let assert_all = |times: &Phase2Times| {
        assert!(times.are_of(40), "{times:?}");
        assert_eq!(times.token.count(), 39, "each token but the first");
        assert_eq!([times.step.count(), times.layer_wait.count(), times.merge.count()], [40, 40 * LAYERS, 40 * LAYERS]);
        let [step, wait, merge] = [&times.step, &times.layer_wait, &times.merge].map(|spread| spread.sum());
        assert!(wait > 0.0 && merge > 0.0 && wait + merge < step, "{wait} {merge} {step}");
    };
    let order = case.generate(&holders, 40, 0.0);
    bench.generate("q0", order.clone()).await;
    let (tokens, times) = bench.line("q0").receive(heard).await;
    assert_eq!(tokens, 40);
    assert_all(&times);
    // The order again brings the same report, not another one.
    bench.generate("q0", order.clone()).await;
    assert_eq!(bench.line("q0").receive(heard).await, (40, times));
    // Who goes through the tokens of another host takes time for these as well.
    let golden = case.golden_tokens();
    bench.generate("q1", Generate { generated: golden[..2].to_vec(), ..order }).await;
    assert_all(&bench.line("q1").receive(heard).await.1);
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_heartbeat_comes_with_the_links_there_are() {
    let (mut bench, case, holders) = two_and_two().await;
    let report = |message| match message {
        HostMessage::Links(report) => Some(report),
        _ => None,
    };
    bench.generate("q0", case.generate(&holders, 3, 0.0)).await;
    bench.line("q0").tokens(0).await;
    let links = bench.line("q0").receive(report).await;
    let peers: Vec<&str> = links.links.iter().map(|link| link.peer.as_str()).collect();
    assert_eq!((peers, links.reconnects, links.fallbacks), (vec!["supervisor", "c0", "c1"], 0, 0));
    assert!(
        links.links.iter().all(|link| (&*link.transport, &*link.why, link.open) == ("local", "", true)),
        "{links:?}"
    );
    bench.line("q0").link.close("the supervisor was killed");
    let mut line = bench.accept().await;
    assert_eq!(line.receive(report).await.reconnects, 1);
    bench.lines.insert("q0".into(), line);
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_supervisor_finds_the_generation_again() {
    let (mut bench, case, holders) = two_and_two().await;
    let order = case.generate(&holders, 300, 0.0);
    bench.generate("q0", order.clone()).await;
    bench.line("q0").token(3).await;
    bench.line("q0").link.close("the supervisor was killed");
    let line = bench.accept().await;
    let Hello { name, incarnation, cluster, jobs, contexts, .. } = &line.hello;
    assert_eq!((name.as_str(), incarnation, cluster), ("q0", &1, &42));
    assert!(
        matches!(jobs[..], [(JOB, shown)] if shown == bench::ticket()) && contexts.is_empty(),
        "{jobs:?} {contexts:?}"
    );
    bench.lines.insert("q0".into(), line);
    bench.line("q0").ready().await;
    bench.generate("q0", order.clone()).await;
    // What is said while the link is new may come before what is said again; in the end all of it is there.
    let mut printed = BTreeMap::new();
    let end = loop {
        let next = bench.line("q0").receive(|message| match message {
            HostMessage::Token { index, id, .. } => Some(Ok((index, id))),
            HostMessage::Generated { tokens, .. } => Some(Err(tokens)),
            _ => None,
        });
        match next.await {
            Ok((index, id)) => assert!(printed.insert(index, id).is_none_or(|before| before == id)),
            Err(tokens) if printed.len() == tokens as usize => break tokens,
            Err(_) => {}
        }
    };
    bench.generate("q1", order).await;
    let undisturbed = bench.line("q1").tokens(0).await;
    assert_eq!((end, printed.into_values().collect::<Vec<_>>()), (300, undisturbed));
    // Once stopped it is forgotten; the next job has ended when its order was heard, and so the one before it.
    bench.line("q0").order(HostCommand::Stop { job: JOB }).await;
    bench.generate("q0", Generate { job: 99, ..case.generate(&holders, 0, 0.0) }).await;
    bench.line("q0").receive(|message| matches!(message, HostMessage::Generated { job: 99, .. }).then_some(())).await;
    bench.line("q0").link.close("killed again");
    let mut line = bench.accept().await;
    assert_eq!(line.hello.jobs.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [99]);
    line.ready().await;
    bench.lines.insert("q0".into(), line);
    // Context hosts say what they hold.
    bench.line("c1").link.close("killed");
    let line = bench.accept().await;
    assert_eq!(line.hello.contexts, [CONTEXT]);
    bench.lines.insert("c1".into(), line);
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_query_host_goes_on_with_the_same_tokens() {
    let (mut bench, case, holders) = two_and_two().await;
    for temperature in [0.0, 0.9] {
        let order =
            Generate { job: JOB + u64::from(f32::to_bits(temperature)), ..case.generate(&holders, 40, temperature) };
        bench.generate("q0", order.clone()).await;
        let tokens = bench.line("q0").tokens(0).await;
        assert_eq!(tokens.len(), 40);
        bench.generate("q1", Generate { generated: tokens[..25].to_vec(), ..order }).await;
        assert_eq!(bench.line("q1").tokens(25).await, tokens[25..], "temperature {temperature}");
    }
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn generations_run_side_by_side() {
    let (mut bench, case, holders) = two_and_two().await;
    let golden = case.golden_tokens();
    for job in 0..6 {
        bench.generate("q0", Generate { job, ..case.generate(&holders, golden.len() as u32, 0.0) }).await;
    }
    let mut printed: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    let mut ended = 0;
    while ended < 6 {
        match bench.line("q0").next().await {
            HostMessage::Token { job, index, id, .. } => {
                let tokens = printed.entry(job).or_default();
                assert_eq!(index as usize, tokens.len());
                tokens.push(id);
            }
            HostMessage::Generated { .. } => ended += 1,
            HostMessage::Failed { message, .. } => panic!("{message}"),
            _ => {}
        }
    }
    assert_eq!(printed, (0..6).map(|job| (job, golden.clone())).collect());
    bench.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_for_another_role_is_refused_and_so_is_a_host() {
    let mut bench = Bench::of(&[("c0", HostRole::Context)]).await;
    let case = Case::of("star", 4);
    bench.generate("c0", case.generate(&[], 1, 0.0)).await;
    let code = bench.line("c0").receive(|message| match message {
        HostMessage::Failed { job: JOB, code, .. } => Some(code),
        _ => None,
    });
    assert_eq!(code.await, "wrong_role");
    bench.line("c0").link.close("restarted");
    let link = bench.transport.accept().await.expect("open");
    let mut channel = link.accept().await.expect("a channel");
    channel.receiver.receive().await.expect("a link").expect("a hello");
    let reason = "incarnation 1 was declared dead".to_string();
    channel.sender.send(HostCommand::Refuse { reason }.frame()).await.expect("a host");
    let ended = bench.hosts.remove("c0").expect("started");
    let error = tokio::time::timeout(DEADLINE, ended).await.expect("it ends").expect("no panic").expect_err("refused");
    assert_eq!(error.code(), "refused", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_ends() {
    let bench = Bench::of(&[]).await;
    let mut config = HostConfig::new("c0", HostRole::Context, bench.transport.local_address(), 1);
    config.patience = Duration::from_millis(150);
    let ended = tokio::spawn(host::run(
        config,
        Transports::one(bind(&bench.network)),
        Box::new(|| load(DecoderParts::Context, KvFormat::Computed)),
    ));
    bench.accept().await.ready().await;
    bench.transport.close();
    let error = tokio::time::timeout(DEADLINE, ended).await.expect("it ends").expect("no panic").expect_err("lost");
    assert_eq!(error.code(), "supervisor_lost", "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_says_what_ended_also_after_its_supervisor_was_lost() {
    let bench = Bench::of(&[]).await;
    let config = HostConfig::new("left", HostRole::Node, bench.transport.local_address(), 5);
    let transport = bind(&bench.network);
    let seen = || HostMessage::Seen { host: "c0".into(), start: 9, condition: Condition::Starved };
    let mut link = node::start(config, transport, Box::new(move || vec![seen()]));
    let exit =
        |host: &str| HostMessage::Exited { host: host.into(), start: 9, cause: "signal 9".into(), restarting: true };
    let exited = |message: HostMessage| match message {
        HostMessage::Exited { host, .. } => Some(host),
        _ => None,
    };
    let mut line = bench.accept().await;
    assert_eq!((line.hello.name.as_str(), line.hello.role, line.hello.start), ("left", HostRole::Node, 5));
    line.receive(|message| matches!(message, HostMessage::Heartbeat { .. }).then_some(())).await;
    line.receive(|message| (message == seen()).then_some(())).await;
    line.order(HostCommand::Kill { host: "c0".into(), start: 9 }).await;
    let kill = tokio::time::timeout(DEADLINE, link.orders.recv()).await.expect("in time");
    assert_eq!(kill, Some(NodeOrder::Kill { host: "c0".into(), start: 9 }));
    link.exits.send(exit("c0")).expect("the link is there");
    assert_eq!(line.receive(exited).await, "c0");
    line.link.close("killed");
    link.exits.send(exit("c1")).expect("the link is there");
    let mut line = bench.accept().await;
    assert_eq!(line.hello.cluster, 42);
    let mut heard = line.receive(exited).await;
    if heard == "c0" {
        // Said again: it may not have been heard.
        heard = line.receive(exited).await;
    }
    assert_eq!(heard, "c1");
    line.order(HostCommand::Shutdown).await;
    assert_eq!(link.orders.recv().await, Some(NodeOrder::Shutdown));
    assert_eq!(link.orders.recv().await, None);
}
