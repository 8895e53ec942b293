//! Changes that the journal takes and changes that it does not, among everything else that happens.

use proptest::prelude::*;

use super::super::{CLUSTER, Cluster, NODE, config, connection, every_job, job, prepared, prepared_of, seconds};
use crate::{
    api::Scheduling,
    error::JobError,
    messages::{Hello, HostMessage, HostRole},
    store::{Change, Entry, Table},
    supervisor::{Decided, PreparedContext, Source, SupervisorConfig, SupervisorState, tables::sessions::Session},
};

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Submit,
    Ask(u8),
    Cancel(u8),
    Create(u8),
    Append(u8),
    Extend(u8),
    Drop(u8),
    Schedule(u8, Scheduling),
    Replace(u8, u8),
    /// Hosts answer what they were told.
    Encode,
    Answer,
    Die(u8),
    Tick(u8),
    Restart,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let scheduling = prop_oneof![Just(Scheduling::Open), Just(Scheduling::Cordoned), Just(Scheduling::Draining)];
    prop_oneof![
        Just(Step::Submit),
        (0..3u8).prop_map(Step::Ask),
        (0..12u8).prop_map(Step::Cancel),
        (0..3u8).prop_map(Step::Create),
        (0..3u8).prop_map(Step::Append),
        (0..3u8).prop_map(Step::Extend),
        (0..3u8).prop_map(Step::Drop),
        (0..4u8, scheduling).prop_map(|(host, scheduling)| Step::Schedule(host, scheduling)),
        (0..2u8, 3..4u8).prop_map(|(dead, spare)| Step::Replace(dead, spare)),
        Just(Step::Encode),
        Just(Step::Answer),
        (0..4u8).prop_map(Step::Die),
        (1..40u8).prop_map(Step::Tick),
        Just(Step::Restart),
    ]
}

/// A session's context, and what it is to be with some tokens more.
pub(super) fn grown(state: &SupervisorState, name: &str) -> Result<(u64, PreparedContext), JobError> {
    let session = state.asked_session(name)?;
    let tokens = session.plan.context_tokens as u32 + 20;
    Ok((session.context, prepared_of(&session.method, 2, tokens, &[1])))
}

/// A cluster, and the latest start of each of its hosts.
pub(super) struct World {
    pub cluster: Cluster,
    starts: [u64; 4],
}

impl World {
    pub fn new() -> Self {
        let config = SupervisorConfig { max_queue: 8, max_running: 2, ..config(2, 1) };
        Self { cluster: Cluster::ready(config), starts: [1; 4] }
    }

    fn decide(&mut self, step: Step) -> Result<Decided, JobError> {
        let Cluster { state, now, .. } = &mut self.cluster;
        let (now, number, host) = (seconds(*now), state.number(), |at: u8| ["c0", "c1", "q0", "s0"][at as usize]);
        let name = |session: u8| format!("session-{session}");
        let context = prepared(&state.config().method.clone(), 2);
        match step {
            Step::Submit => state.submit(now, number, job(Source::Context(context), None)).map(|(_, decided)| decided),
            Step::Ask(session) => {
                state.submit(now, number, job(Source::Session(name(session)), None)).map(|(_, decided)| decided)
            }
            Step::Cancel(job) => {
                let ids: Vec<String> = state
                    .job_statuses(now, &every_job())
                    .expect("no id is asked for")
                    .into_iter()
                    .map(|status| status.id)
                    .collect();
                state.cancel(now, ids.get(job as usize).map_or("none", |id| id))
            }
            Step::Create(session) => state.create_session((now, number), &name(session), context, None),
            Step::Append(session) => {
                let (base, context) = grown(state, &name(session))?;
                state.append_session((now, number), (&name(session), base), context)
            }
            Step::Extend(session) => state.extend_session(now, &name(session), seconds(50.0)),
            Step::Drop(session) => state.drop_session(now, &name(session)),
            Step::Schedule(at, scheduling) => state.schedule_host(now, host(at), scheduling, None),
            Step::Replace(dead, spare) => state.replace_host(now, host(dead), host(spare)),
            _ => unreachable!("no change of a client"),
        }
    }

    pub fn happen(&mut self, step: Step) {
        let cluster = &mut self.cluster;
        match step {
            Step::Encode => drop(cluster.encode()),
            Step::Answer => {
                while let Some((query, generate)) = cluster.generation() {
                    cluster.token(query, generate.job, 0, 7);
                    let (job, text) = (generate.job, String::new());
                    let times = Box::default();
                    cluster.deliver(query, HostMessage::Generated { job, tokens: 1, stopped: true, text, times });
                }
            }
            Step::Die(at) => {
                let (host, start) = (["c0", "c1", "q0", "s0"][at as usize], self.starts[at as usize]);
                let (host, cause) = (host.to_string(), "signal 9".to_string());
                cluster.deliver(NODE, HostMessage::Exited { host, start, cause, restarting: true });
                self.starts[at as usize] += 1;
                cluster.join(at as usize, start + 1);
            }
            Step::Tick(tenths) => {
                let beating: Vec<u64> = (0..4).map(|at| connection(at, self.starts[at])).collect();
                cluster.tick(cluster.now + f64::from(tenths) / 20.0, &beating);
            }
            Step::Restart => {
                cluster.restart();
                let hello = Hello { name: "here".into(), role: HostRole::Node, start: 1, ..Hello::default() };
                cluster.deliver(NODE, HostMessage::Hello(hello));
                for at in 0..4 {
                    cluster.hello(at, self.starts[at], CLUSTER, (&[], &[]));
                    cluster.deliver(connection(at, self.starts[at]), super::super::ready());
                }
            }
            _ => unreachable!("a change of a client"),
        }
    }

    /// What clients see.
    fn seen(&self) -> String {
        let (state, now) = (&self.cluster.state, seconds(self.cluster.now));
        format!(
            "{:?} {:?} {:?}",
            state.job_statuses(now, &every_job()),
            state.session_statuses(now),
            state.cluster_status(now, "")
        )
    }

    /// The journal says of everything what the state says of it; of what goes on it says less.
    pub fn agree(&self) -> Result<(), TestCaseError> {
        let state = &self.cluster.state;
        for Entry { table, key, value } in &self.cluster.journal {
            let stands = Change::Put { table: *table, key: key.clone(), value: value.clone() };
            let is = state.restated(std::slice::from_ref(&stands)).remove(0);
            let stated = |change: &Change, of: &[&str]| match change {
                Change::Put { table: Table::Ids, value, .. } => vec![format!("{value:?}")],
                Change::Put { value, .. } => {
                    let value: serde_json::Value = serde_json::from_slice(value).expect("JSON");
                    of.iter().map(|path| value.pointer(path).expect("a field").to_string()).collect()
                }
                Change::Remove { .. } => vec!["nothing".to_string()],
            };
            let of: &[&str] = match table {
                Table::Jobs => &["/facts/id", "/clock/ended"],
                Table::Contexts if key.contains('/') => &["/attempt", "/hosts"],
                Table::Cluster => &["/cluster"],
                _ => &[""],
            };
            let is = stated(&is, of);
            // What no host can take is written once one does.
            if !is.iter().any(|text: &String| text.contains("null") && *table == Table::Contexts) {
                prop_assert_eq!(is, stated(&stands, of), "{:?} {}", table, key);
            }
        }
        let of = |table| self.cluster.journal.iter().filter(move |entry| entry.table == table).count();
        let now = seconds(self.cluster.now);
        prop_assert_eq!(of(Table::Jobs), state.job_statuses(now, &every_job()).expect("no id is asked for").len());
        prop_assert_eq!(of(Table::Sessions), state.session_statuses(now).len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_change_is_in_the_journal_and_in_force_or_in_neither(
        steps in prop::collection::vec((step(), any::<bool>()), 1..60)
    ) {
        let mut world = World::new();
        for (step, full) in steps {
            if matches!(step, Step::Encode | Step::Answer | Step::Die(_) | Step::Tick(_) | Step::Restart) {
                world.happen(step);
            } else {
                let before = world.seen();
                if let Ok(decided) = world.decide(step)
                    && !full
                {
                    world.cluster.adopt(decided);
                } else {
                    prop_assert_eq!(before, world.seen(), "{:?} was not taken", step);
                }
            }
            world.agree()?;
        }
    }
}

#[test]
fn a_change_that_comes_into_force_late_finds_things_as_they_are_then() {
    let mut cluster = Cluster::ready(config(2, 0));
    let context = prepared(&cluster.state.config().method.clone(), 2);
    let decided = cluster.state.create_session((seconds(0.0), 1), "moby", context, Some(seconds(1.0)));
    cluster.adopt(decided.expect("a new name"));
    let question = || job(Source::Session("moby".into()), None);
    let (number, asked) = cluster.state.submit(seconds(0.5), 2, question()).expect("it is there");
    let extended = cluster.state.extend_session(seconds(0.5), "moby", seconds(9.0)).expect("it is there");
    cluster.tick(1.5, &[1, 2, 3]);
    cluster.adopt(extended);
    let error = cluster.state.session_status(seconds(1.5), "moby").expect_err("its time passed first");
    assert_eq!(error.code(), "session_expired");
    cluster.adopt(asked);
    assert_eq!(cluster.status(number).error.expect("nobody can answer").code, "session_expired");
}

#[test]
fn two_questions_decided_together_both_count() {
    let mut cluster = Cluster::ready(config(2, 0));
    let context = prepared(&cluster.state.config().method.clone(), 2);
    let decided = cluster.state.create_session((seconds(0.0), 1), "moby", context, None);
    cluster.adopt(decided.expect("a new name"));
    let question = || job(Source::Session("moby".into()), None);
    let asked = [2, 3].map(|number| cluster.state.submit(seconds(0.5), number, question()).expect("there").1);
    asked.into_iter().for_each(|decided| cluster.adopt(decided));
    let entry = cluster.journal.iter().find(|entry| entry.table == Table::Sessions).expect("kept");
    let session: Session = serde_json::from_slice(&entry.value).expect("a session");
    assert_eq!(session.hits, 2);
}
