//! Writes that come in any number, late, or to nothing: what is in force then is what the journal says.

mod change;

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::{
    capacity::Holder,
    error::JobError,
    store::StoreError,
    supervisor::shell::write_queue::{BatchLimits, ChangeScope, Decide, Journal, Request, Subject},
};
use change::{Step, World, grown, step};

/// What comes of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Kept,
    Refused,
    /// The disk failed while it confirmed: all is there.
    Unconfirmed,
}

#[derive(Clone, Copy, Debug)]
enum Deed {
    Step(Step),
    Begin,
    /// The write under way takes long.
    Overtake,
    End(End),
    /// The process is killed, before or after its write is on the disk.
    Crash(bool),
}

fn deed() -> impl Strategy<Value = Deed> {
    let end = prop_oneof![4 => Just(End::Kept), 1 => Just(End::Refused), 1 => Just(End::Unconfirmed)];
    prop_oneof![
        8 => step().prop_map(Deed::Step),
        3 => Just(Deed::Begin),
        1 => Just(Deed::Overtake),
        3 => end.prop_map(Deed::End),
        1 => any::<bool>().prop_map(Deed::Crash),
    ]
}

type Answers = Arc<Mutex<Vec<(String, Result<(), JobError>)>>>;

struct Disk {
    world: World,
    limits: BatchLimits,
    writing: Option<Vec<Change>>,
    answers: Answers,
    acknowledged: Vec<String>,
}

impl Disk {
    fn new(limits: BatchLimits) -> Self {
        let mut world = World::new();
        world.cluster.queue = Some(Journal::new(limits));
        Self { world, limits, writing: None, answers: Answers::default(), acknowledged: Vec::new() }
    }

    fn queue(&mut self) -> &mut Journal {
        self.world.cluster.queue.as_mut().expect("there is one")
    }

    fn ask(&mut self, step: Step) {
        self.ask_as(None, step);
    }

    fn ask_as(&mut self, key: Holder, step: Step) {
        let name = |session: u8| format!("session-{session}");
        let state = &self.world.cluster.state;
        let context = prepared(&state.config().method.clone(), 2);
        let host = |at: u8| ["c0", "c1", "q0", "s0"][at as usize];
        let mut id = String::new();
        let mut submit = |source: Source| -> Decide {
            let prepared = job(source, None);
            id = prepared.id.clone();
            Box::new(move |state, now| {
                let number = state.number();
                state.submit(now, number, prepared).map(|(_, decided)| decided)
            })
        };
        let (changes, asks, decide): (Vec<Subject>, Option<Subject>, Decide) = match step {
            Step::Submit => (vec![], None, submit(Source::Context(context))),
            Step::Ask(session) => {
                (vec![], Some(Subject::Session(name(session))), submit(Source::Session(name(session))))
            }
            Step::Cancel(at) => {
                let jobs = state.job_statuses(seconds(0.0), &every_job()).expect("no id is asked for");
                let id = jobs.get(at as usize).map_or("none".to_string(), |status| status.id.clone());
                (vec![Subject::Job(id.clone())], None, Box::new(move |state, now| state.cancel(now, &id)))
            }
            Step::Create(session) => {
                let decide: Decide = Box::new(move |state, now| {
                    let number = state.number();
                    state.create_session((now, number), &name(session), context, None)
                });
                (vec![Subject::Session(name(session)), Subject::Room], None, decide)
            }
            Step::Append(session) => {
                let decide: Decide = Box::new(move |state, now| {
                    let (base, context) = grown(state, &name(session))?;
                    let number = state.number();
                    state.append_session((now, number), (&name(session), base), context)
                });
                (vec![Subject::Session(name(session)), Subject::Room], None, decide)
            }
            Step::Extend(session) => {
                let decide: Decide =
                    Box::new(move |state, now| state.extend_session(now, &name(session), seconds(50.0)));
                (vec![Subject::Session(name(session))], None, decide)
            }
            Step::Drop(session) => {
                let decide: Decide = Box::new(move |state, now| state.drop_session(now, &name(session)));
                (vec![Subject::Session(name(session))], None, decide)
            }
            Step::Schedule(at, scheduling) => {
                let decide: Decide = Box::new(move |state, now| state.schedule_host(now, host(at), scheduling, None));
                (vec![Subject::Hosts], None, decide)
            }
            Step::Replace(dead, spare) => {
                let decide: Decide = Box::new(move |state, now| state.replace_host(now, host(dead), host(spare)));
                (vec![Subject::Hosts], None, decide)
            }
            happens => return self.world.happen(happens),
        };
        let (answers, id) = (self.answers.clone(), id);
        let heard = move |result: Result<(&SupervisorState, Duration), JobError>| {
            answers.lock().expect("no holder panics").push((id, result.map(drop)));
        };
        let scope = ChangeScope { changes, asks, bytes: 1, key };
        self.queue().ask(Request { scope, decide, answer: Box::new(heard) });
    }

    fn begin(&mut self) {
        let Cluster { state, now, queue, .. } = &mut self.world.cluster;
        let begun = queue.as_mut().expect("there is one").begin(state, seconds(*now));
        self.writing = begun.or(self.writing.take());
    }

    fn overtake(&mut self) {
        let cluster = &mut self.world.cluster;
        let late = seconds(cluster.now) + Duration::from_secs(2);
        let acts = cluster.queue.as_mut().expect("there is one").overtake(late);
        cluster.perform(acts);
    }

    fn end(&mut self, end: End) {
        let Some(changes) = self.writing.take() else { return };
        let cluster = &mut self.world.cluster;
        if end != End::Refused {
            changes.into_iter().for_each(|change| cluster.keep(change));
        }
        let full = || StoreError::DiskFull { path: "journal".into(), cause: "no space left".into() };
        let result = if end == End::Kept { Ok(()) } else { Err(full()) };
        let acts =
            cluster.queue.as_mut().expect("there is one").written(&mut cluster.state, seconds(cluster.now), result);
        cluster.perform(acts);
        assert!(cluster.state.indexes_agree());
    }

    fn crash(&mut self, kept: bool) {
        let cluster = &mut self.world.cluster;
        for change in self.writing.take().filter(|_| kept).into_iter().flatten() {
            cluster.keep(change);
        }
        cluster.queue = Some(Journal::new(self.limits));
        self.world.happen(Step::Restart);
    }

    /// Who was told that a job is taken finds it; who was told that it is not finds nothing.
    fn hear(&mut self) -> Result<(), TestCaseError> {
        let state = &self.world.cluster.state;
        for (id, answer) in std::mem::take(&mut *self.answers.lock().expect("no holder panics")) {
            match answer {
                Ok(()) if !id.is_empty() => self.acknowledged.push(id),
                Err(JobError::Journal(_)) => prop_assert_eq!(state.job_number(&id), None),
                _ => {}
            }
        }
        for id in &self.acknowledged {
            prop_assert!(state.job_number(id).is_some(), "{} was acknowledged and is lost", id);
        }
        Ok(())
    }

    /// Every context has somebody who asks it.
    fn nothing_is_left_over(&self) -> Result<(), TestCaseError> {
        let state = &self.world.cluster.state;
        for number in state.contexts.numbers() {
            let uses = state.uses();
            let asked = uses.is_of_session(number) || uses.is_asked_beside(number, None);
            prop_assert!(asked || state.sessions.outgrown.contains(&number), "{} is nobody's", number);
        }
        Ok(())
    }

    /// Everything that waits is written.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.queue().hurry();
            self.begin();
            if self.writing.is_none() {
                return;
            }
            self.end(End::Kept);
        }
        panic!("there is always more to write");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_in_force_is_what_the_journal_says_whatever_writes_come_to(
        deeds in prop::collection::vec(deed(), 1..80),
        (entries, bytes) in (1..6usize, prop_oneof![Just(1usize), Just(4000), Just(1 << 20)]),
    ) {
        let mut disk = Disk::new(BatchLimits { entries, bytes });
        disk.settle();
        for deed in deeds {
            match deed {
                Deed::Step(Step::Restart) => disk.crash(false),
                Deed::Step(step) => disk.ask(step),
                Deed::Begin => disk.begin(),
                Deed::Overtake => disk.overtake(),
                Deed::End(end) => disk.end(end),
                Deed::Crash(kept) => disk.crash(kept),
            }
            disk.hear()?;
        }
        disk.settle();
        disk.nothing_is_left_over()?;
        disk.hear()?;
        disk.world.agree()?;
        prop_assert_eq!(&disk.world.cluster.state.reserved, &Default::default());
    }
}

/// What clients were answered since this was asked last.
fn codes(disk: &Disk) -> Vec<&str> {
    let heard = std::mem::take(&mut *disk.answers.lock().unwrap());
    heard.into_iter().map(|(_, answer)| answer.err().map_or("taken", |error| error.code())).collect()
}

/// Ten submits, then their write.
fn ten_waiting() -> Disk {
    let mut disk = Disk::new(BatchLimits::default());
    disk.world.cluster.state.config.max_queue = 100;
    disk.settle();
    (0..10).for_each(|_| disk.ask(Step::Submit));
    disk.begin();
    disk
}

#[test]
fn what_waits_together_is_one_write() {
    let mut disk = ten_waiting();
    let jobs = |disk: &Disk| disk.world.cluster.state.job_statuses(Duration::ZERO, &every_job()).expect("all").len();
    let of_jobs = |change: &&Change| change.table() == crate::store::Table::Jobs;
    assert_eq!(disk.writing.iter().flatten().filter(of_jobs).count(), 10);
    assert_eq!((jobs(&disk), disk.answers.lock().unwrap().len()), (0, 0), "nothing is in force and nobody was told");
    disk.end(End::Kept);
    assert_eq!((jobs(&disk), disk.answers.lock().unwrap().len()), (10, 10));
}

#[test]
fn who_asks_for_much_does_not_fill_the_next_write_before_who_asks_for_little() {
    let mut disk = Disk::new(BatchLimits { entries: 2, bytes: 1 << 20 });
    disk.world.cluster.state.config.max_queue = 100;
    disk.settle();
    let (moon, sun): (Holder, Holder) = (Some("moon".into()), Some("sun".into()));
    let ids = |disk: &mut Disk| -> Vec<String> {
        disk.begin();
        disk.end(End::Kept);
        std::mem::take(&mut *disk.answers.lock().unwrap()).into_iter().map(|(id, _)| id).collect()
    };
    (0..4).for_each(|_| disk.ask_as(moon.clone(), Step::Submit));
    disk.ask_as(sun, Step::Submit);
    let writes = [ids(&mut disk), ids(&mut disk), ids(&mut disk)];
    assert_eq!(writes.each_ref().map(Vec::len), [2, 2, 1]);
    let numbers: Vec<&String> = writes.iter().flatten().collect();
    assert!(*numbers[1] > *numbers[4], "the fifth is in the first write: {writes:?}");
}

#[test]
fn a_refused_write_refuses_what_it_had_and_what_is_decided_counts_before_it_is_in_force() {
    let mut disk = ten_waiting();
    disk.world.cluster.state.config.max_queue = 10;
    disk.ask(Step::Submit);
    disk.end(End::Refused);
    assert_eq!(codes(&disk), ["disk_full"; 10]);
    disk.begin();
    assert!(disk.writing.is_none(), "it does not try again at once");
    (0..10).for_each(|_| disk.ask(Step::Submit));
    disk.settle();
    let reported = codes(&disk);
    assert_eq!(reported.iter().filter(|code| **code == "taken").count(), 10, "{reported:?}");
    assert_eq!(reported.iter().filter(|code| **code == "overloaded").count(), 1, "{reported:?}");
}

#[test]
fn a_long_outage_costs_no_more_than_a_short_one() {
    let mut disk = ten_waiting();
    disk.end(End::Refused);
    let mut tried = Vec::new();
    for _ in 0..50 {
        (0..10).for_each(|_| disk.ask(Step::Submit));
        disk.queue().hurry();
        disk.begin();
        tried.push(disk.writing.as_ref().map_or(0, Vec::len));
        disk.end(End::Refused);
    }
    assert!(tried.iter().all(|changes| *changes == tried[0]), "{tried:?}");
    assert_eq!(codes(&disk), ["disk_full"; 510]);
    disk.ask(Step::Submit);
    disk.settle();
    assert_eq!(codes(&disk), ["taken"]);
}

#[test]
fn a_write_that_takes_long_holds_up_nothing_that_happened() {
    let mut disk = ten_waiting();
    disk.ask(Step::Die(0));
    assert!(disk.queue().notify(|| ()).is_empty(), "it waits for what the host's end is to leave in the journal");
    let now = seconds(disk.world.cluster.now);
    assert!(disk.queue().overtake(now).is_empty(), "the write has only begun");
    disk.overtake();
    assert_eq!(disk.queue().notify(|| ()).len(), 1, "nobody waits any more");
    assert!(codes(&disk).is_empty(), "clients' changes are under way");
    disk.end(End::Kept);
    assert_eq!(codes(&disk), ["taken"; 10]);
    disk.begin();
    assert!(disk.writing.as_ref().is_some_and(|changes| !changes.is_empty()), "what was missing is written");
    disk.end(End::Kept);
    disk.settle();
    disk.world.agree().unwrap();
}

#[test]
fn a_change_that_leaves_nothing_else_to_be_kept_is_one_write() {
    let mut disk = ten_waiting();
    disk.end(End::Kept);
    disk.settle();
    disk.ask(Step::Cancel(0));
    disk.begin();
    disk.end(End::Kept);
    assert_eq!(codes(&disk).last(), Some(&"taken"));
    disk.begin();
    assert!(disk.writing.is_none(), "{:?}", disk.writing);
}

#[test]
fn answers_that_wait_for_a_slow_disk_are_few() {
    let mut disk = ten_waiting();
    disk.ask(Step::Die(0));
    let asked = (0..10_000).find(|_| {
        assert!(disk.queue().notify(|| ()).is_empty(), "it waits for what the host's end is to leave in the journal");
        disk.queue().is_crowded()
    });
    assert!(asked.is_some_and(|asked| asked < 1000), "{asked:?}");
    disk.settle();
    assert!(!disk.queue().is_crowded());
}
