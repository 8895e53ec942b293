//! The supervisor's rules with a fake clock: no host, no wire.

use std::{collections::BTreeMap, time::Duration};

use asterism_plan::{Method, MethodConfig, ModelShape, PlanRequest};

use super::{Command, Event, HostSpec, PreparedJob, Recovery, SessionLimits, SupervisorConfig, SupervisorState};
use crate::{
    api::{HostHealth, JobEvent, JobPhase, JobState, Role},
    messages::{Encoded, Hello, HostCommand, HostMessage, HostRole, TokenChoice},
};

const CONTEXT: u32 = 100;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn config(contexts: usize) -> SupervisorConfig {
    let context = (0..contexts).map(|i| (format!("c{i}"), Role::Context));
    let hosts = context.chain([("q".to_string(), Role::Query)]);
    SupervisorConfig {
        cluster: "test".into(),
        model: "model".into(),
        dtype: asterism_kernels::DType::F32,
        hosts: hosts
            .map(|(name, role)| HostSpec {
                name,
                role,
                device: "cpu".into(),
                node: "here".into(),
                memory_limit: None,
                labels: Default::default(),
            })
            .collect(),
        method: serde_json::from_str(r#"{"star": {"block_tokens": 30}}"#).expect("a method"),
        heartbeat: seconds(0.5),
        suspect_after: 2,
        dead_after: seconds(2.0),
        max_running: 1,
        max_queue: 2,
        recovery: Recovery::Fail,
        max_restarts: 0,
        sessions: SessionLimits { default_ttl: Duration::from_secs(60), max_pinned_bytes: None },
    }
}

/// Connection of host `at` of the configuration.
fn connection(at: usize) -> u64 {
    at as u64 + 1
}

fn hello(name: &str, role: HostRole, incarnation: u64) -> HostMessage {
    let address = "127.0.0.1:1".to_string();
    HostMessage::Hello(Hello { name: name.into(), role, incarnation, pid: 1, address })
}

fn say(state: &mut SupervisorState, now: f64, connection: u64, message: HostMessage) -> Vec<Command> {
    state.handle(seconds(now), Event::Message { connection, message })
}

/// A state whose hosts are all ready at time 0.
fn ready(contexts: usize) -> SupervisorState {
    let mut state = SupervisorState::new(config(contexts));
    for at in 0..=contexts {
        let (name, role) =
            if at < contexts { (format!("c{at}"), HostRole::Context) } else { ("q".into(), HostRole::Query) };
        say(&mut state, 0.0, connection(at), hello(&name, role, 1));
        say(&mut state, 0.0, connection(at), HostMessage::Ready);
    }
    state
}

fn request(context: &[u32], hosts: usize) -> PlanRequest<'_> {
    PlanRequest { context, query: &[1], hosts, one_machine: false, shape: &ModelShape::TINY }
}

fn prepared(method: &MethodConfig, hosts: usize, timeout: Option<f64>) -> PreparedJob {
    let context: Vec<u32> = (0..CONTEXT).collect();
    PreparedJob {
        id: None,
        plan: method.plan(&request(&context, hosts)).expect("a plan"),
        dense_pairs: 1,
        query_ids: vec![1],
        choice: TokenChoice {
            max_tokens: 4,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            stop: Vec::new(),
            ignore_eos: false,
        },
        timeout: timeout.map(seconds),
        labels: BTreeMap::new(),
    }
}

fn submit(state: &mut SupervisorState, timeout: Option<f64>) -> (u64, Vec<Command>) {
    let job = prepared(&state.config().method.clone(), state.context_hosts().max(1), timeout);
    state.submit(Duration::ZERO, job).expect("taken")
}

fn sent(commands: &[Command]) -> Vec<(u64, &HostCommand)> {
    let sent = |command| match command {
        &Command::Send { connection, ref command } => Some((connection, command)),
        _ => None,
    };
    commands.iter().filter_map(sent).collect()
}

/// Answers every `Encode` among `commands`, at time `now`.
fn encode_all(state: &mut SupervisorState, now: f64, commands: &[Command]) -> Vec<Command> {
    let mut replies = Vec::new();
    for (connection, command) in sent(commands) {
        let HostCommand::Encode(order) = command else { continue };
        for shard in &order.shards {
            let encoded = Encoded {
                job: order.job,
                block: shard.block as u32,
                kept_tokens: shard.kept_tokens() as u64,
                kv_bytes: 1,
                seconds: 0.1,
                pairs: 1,
                exchange_bytes: 0,
            };
            replies.push((connection, HostMessage::Encoded(encoded)));
        }
    }
    replies.into_iter().flat_map(|(connection, message)| say(state, now, connection, message)).collect()
}

#[test]
fn a_job_goes_through_its_phases() {
    let mut state = ready(2);
    let (job, commands) = submit(&mut state, None);
    assert_eq!(sent(&commands).len(), 4, "four shards of 30, 30, 30 and 10 tokens");
    let commands = encode_all(&mut state, 1.0, &commands);
    let generate = sent(&commands).into_iter().find_map(|(to, command)| match command {
        HostCommand::Generate(generate) if to == connection(2) => Some(generate.clone()),
        _ => None,
    });
    let generate = generate.expect("the query host is asked once every shard is encoded");
    assert_eq!((generate.context_keys, generate.query_start), (u64::from(CONTEXT), CONTEXT));
    let blocks: Vec<&[u32]> = generate.holders.iter().map(|holder| &holder.blocks[..]).collect();
    assert_eq!(blocks, [&[0, 1][..], &[2, 3]]);
    let commands = say(&mut state, 2.0, connection(2), HostMessage::Token { job, id: 5, text: "yes".into() });
    assert!(matches!(commands[0], Command::Publish { event: JobEvent::Phase { phase: JobPhase::Decoding }, .. }));
    let answered = HostMessage::Generated { job, stopped: true, text: ".".into() };
    let commands = say(&mut state, 3.0, connection(2), answered);
    let released = sent(&commands).iter().filter(|(_, command)| matches!(command, HostCommand::Release { .. })).count();
    assert_eq!(released, 3, "both context hosts and the query host forget the job");
    let status = state.job_status(seconds(9.0), job).expect("known");
    assert_eq!((status.state, status.text.as_str()), (JobState::Succeeded, "yes."));
    assert_eq!((status.timings.encode_s, status.timings.query_s, status.timings.decode_s), (1.0, 1.0, 1.0));
    assert_eq!(status.timings.hosts.iter().map(|host| host.kept_tokens).sum::<usize>(), CONTEXT as usize);
}

#[test]
fn a_silent_host_is_suspect_then_dead_and_fails_only_its_jobs() {
    let mut state = ready(2);
    let (job, _) = submit(&mut state, None);
    let (waiting, _) = submit(&mut state, None);
    for at in [0, 2] {
        say(&mut state, 1.5, connection(at), HostMessage::Heartbeat { kv_bytes: 0 });
    }
    state.handle(seconds(1.6), Event::Tick);
    let health = |state: &SupervisorState| state.cluster_status(seconds(2.5), "").hosts[1].health;
    assert_eq!(health(&state), HostHealth::Suspect);
    let commands = state.handle(seconds(2.5), Event::Tick);
    assert_eq!(health(&state), HostHealth::Dead);
    assert!(commands.iter().any(|command| matches!(command, Command::Disconnect { connection: 2, .. })));
    let failed = state.job_status(seconds(2.5), job).expect("known");
    let error = failed.error.expect("failed");
    assert_eq!((failed.state, error.code.as_str()), (JobState::Failed, "host_lost"));
    assert!(error.message.contains("c1") && error.message.contains("no heartbeat"), "{}", error.message);
    // The next job runs on the host that is left.
    let status = state.job_status(seconds(2.5), waiting).expect("known");
    assert_eq!(status.state, JobState::Running);
    assert!(sent(&commands).iter().all(|&(to, _)| to != connection(1)));
}

#[test]
fn a_dead_host_is_fenced_until_a_later_incarnation() {
    let mut state = ready(1);
    state.handle(Duration::ZERO, Event::Exited { host: "c0".into(), cause: "signal 9".into() });
    let late = say(&mut state, 0.1, connection(0), HostMessage::Heartbeat { kv_bytes: 0 });
    assert!(matches!(late[0], Command::Disconnect { connection: 1, .. }), "{late:?}");
    for (incarnation, welcome) in [(1, false), (2, true)] {
        let commands = say(&mut state, 0.2, 10 + incarnation, hello("c0", HostRole::Context, incarnation));
        let welcomed = matches!(sent(&commands)[0].1, HostCommand::Welcome { .. });
        assert_eq!(welcomed, welcome, "incarnation {incarnation}: {commands:?}");
    }
}

#[test]
fn strangers_and_doubles_are_refused() {
    let mut state = ready(1);
    for (name, role, why) in [
        ("c7", HostRole::Context, "no host named"),
        ("c0", HostRole::Query, "is a Context host"),
        ("c0", HostRole::Context, "connected already"),
    ] {
        let commands = say(&mut state, 0.0, 50, hello(name, role, 9));
        let HostCommand::Refuse { reason } = sent(&commands)[0].1 else { panic!("{commands:?}") };
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn a_cancelled_job_frees_its_hosts_and_late_messages_change_nothing() {
    let mut state = ready(1);
    let (job, commands) = submit(&mut state, None);
    let cancelled = state.handle(seconds(0.5), Event::Cancel { job });
    assert!(sent(&cancelled).iter().any(|(_, command)| **command == HostCommand::Release { job }));
    assert!(encode_all(&mut state, 1.0, &commands).is_empty());
    assert_eq!(state.job_status(seconds(1.0), job).expect("known").state, JobState::Cancelled);
}

#[test]
fn a_job_past_its_time_limit_fails_waiting_or_running() {
    let mut state = ready(1);
    let (running, _) = submit(&mut state, Some(1.0));
    let (waiting, _) = submit(&mut state, Some(1.0));
    say(&mut state, 1.4, connection(0), HostMessage::Heartbeat { kv_bytes: 0 });
    state.handle(seconds(1.5), Event::Tick);
    for job in [running, waiting] {
        let error = state.job_status(seconds(1.5), job).expect("known").error.expect("failed");
        assert_eq!(error.code, "timeout");
    }
}

#[test]
fn a_full_queue_refuses_and_an_id_names_one_job() {
    let mut state = ready(1);
    let method = state.config().method.clone();
    let mut named = prepared(&method, 1, None);
    named.id = Some("mine".into());
    let (first, _) = state.submit(Duration::ZERO, named.clone()).expect("taken");
    let (again, commands) = state.submit(Duration::ZERO, named).expect("taken");
    assert_eq!((first, commands.len()), (again, 0));
    for _ in 0..2 {
        submit(&mut state, None);
    }
    let refused = state.submit(Duration::ZERO, prepared(&method, 1, None)).expect_err("two wait already");
    assert_eq!(refused.code(), "overloaded");
}

#[test]
fn a_shard_of_another_size_than_planned_fails_the_job() {
    let mut state = ready(1);
    let (job, _) = submit(&mut state, None);
    let encoded = Encoded { job, block: 0, kept_tokens: 29, kv_bytes: 1, seconds: 0.1, pairs: 1, exchange_bytes: 0 };
    say(&mut state, 0.1, connection(0), HostMessage::Encoded(encoded));
    let error = state.job_status(seconds(0.1), job).expect("known").error.expect("failed");
    assert_eq!(error.code, "shard_mismatch");
    assert!(error.message.contains("29") && error.message.contains("30"), "{}", error.message);
}

#[test]
fn with_no_host_left_a_job_is_refused_with_the_reason() {
    let mut state = ready(1);
    state.handle(Duration::ZERO, Event::Exited { host: "q".into(), cause: "signal 9".into() });
    let (job, _) = submit(&mut state, None);
    let error = state.job_status(Duration::ZERO, job).expect("known").error.expect("failed");
    assert_eq!(error.code, "placement_impossible");
}
