//! A supervisor whose journal is on a disk that is slow or full, as a test says.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use asterism_actors::{
    JobError,
    api::{JobRequest, JobState, PlacementPolicy, Scheduling, SessionRequest},
    store::{Change, Entry, MemoryStore, StateStore, StoreError},
    supervisor::JobFilter,
};
use serde_json::json;

use super::{finish, golden_cases, method, request, start_on};

/// A journal whose disk takes its time: as long as somebody holds `gate`.
pub struct SlowDisk {
    pub store: MemoryStore,
    pub gate: Arc<Mutex<()>>,
}

impl StateStore for SlowDisk {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.store.load()
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        let _open = self.gate.lock().expect("no holder panics");
        self.store.apply(changes)
    }
}

/// A journal whose disk is full while `full` says so.
pub struct FullDisk {
    pub store: MemoryStore,
    pub full: Arc<AtomicBool>,
}

impl StateStore for FullDisk {
    fn load(&mut self) -> Result<Vec<Entry>, StoreError> {
        self.store.load()
    }

    fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(StoreError::DiskFull { path: "journal.redb".into(), cause: "no space left".into() }),
            false => self.store.apply(changes),
        }
    }
}

/// A disk, what makes it full, and what it holds.
fn full_disk() -> (Box<FullDisk>, Arc<AtomicBool>, MemoryStore) {
    let (full, store) = (Arc::new(AtomicBool::new(false)), MemoryStore::default());
    (Box::new(FullDisk { store: store.clone(), full: full.clone() }), full, store)
}

/// A session over what a job asks.
fn session_of(job: &JobRequest, name: &str) -> SessionRequest {
    SessionRequest {
        name: name.into(),
        context: job.context.clone().expect("a context"),
        model: None,
        method: job.method.clone(),
        allow_idle_hosts: true,
        chat_template: false,
        query_separator: None,
        template_date: None,
        ttl_s: None,
        placement: PlacementPolicy::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_waits_for_its_disk_says_so_and_goes_on() {
    let gate = Arc::new(Mutex::new(()));
    let store = SlowDisk { store: MemoryStore::default(), gate: gate.clone() };
    let (supervisor, _transports) = start_on(Box::new(store), "tiny-llama", 1).await;
    let case = &golden_cases("tiny-llama", "star")[0];
    let (asked, job) = (supervisor.clone(), request(case, method(case).0));
    let (closed, closing) = mpsc::channel();
    let (open, opened) = mpsc::channel::<()>();
    let disk = std::thread::spawn(move || {
        let _shut = gate.lock().expect("no holder panics");
        closed.send(()).expect("the test waits");
        let _ = opened.recv();
    });
    closing.recv().expect("the disk is slow now");
    let answer = tokio::spawn(async move { finish(&asked, job).await });
    while !supervisor.waits_for_disk() {
        tokio::task::yield_now().await;
    }
    drop(open);
    disk.join().expect("it only waits");
    assert_eq!(json!(answer.await.expect("an answer").tokens), case["expected"]["greedy_tokens"]);
    supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_new_jobs_and_loses_none() {
    let (disk, full, journal) = full_disk();
    let (supervisor, _transports) = start_on(disk, "tiny-llama", 2).await;
    let case = &golden_cases("tiny-llama", "star")[0];
    let job = request(case, method(case).0);
    let running = supervisor.submit(job.clone()).await.expect("taken");
    full.store(true, Ordering::SeqCst);
    let named = JobRequest { id: Some("mine".into()), ..job.clone() };
    let refused = supervisor.submit(named.clone()).await.expect_err("it could not be kept");
    assert_eq!(refused.code(), "disk_full");
    assert_eq!(supervisor.status("mine").await.expect_err("it was refused").code(), "job_not_found");
    let mut events = supervisor.watch(&running).await.expect("known");
    while events.next().await.is_some() {}
    let status = supervisor.status(&running).await.expect("known");
    assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "the job under way goes on");
    full.store(false, Ordering::SeqCst);
    let again = finish(&supervisor, named).await;
    assert_eq!(json!(again.tokens), case["expected"]["greedy_tokens"]);
    let kept = journal.clone().load().expect("a journal");
    let ended = kept.iter().filter(|entry| String::from_utf8_lossy(&entry.value).contains("SUCCEEDED")).count();
    assert_eq!(ended, 2, "what could not be written then was written later");
    supervisor.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_takes_no_change_and_leaves_nothing_of_one() {
    let (disk, full, journal) = full_disk();
    let (supervisor, _transports) = start_on(disk, "tiny-llama", 2).await;
    let case = &golden_cases("tiny-llama", "star")[0];
    let job = request(case, method(case).0);
    let session = |name: &str| session_of(&job, name);
    supervisor.create_session(session("book")).await.expect("a new name");
    let long = JobRequest { id: Some("long".into()), max_tokens: 400, ..job.clone() };
    supervisor.submit(long).await.expect("taken");
    let before = supervisor.session("book").await.expect("there");
    full.store(true, Ordering::SeqCst);
    let question = JobRequest { context: None, session: Some("book".into()), method: None, ..job.clone() };
    // All at once, as each that comes alone waits for the next write.
    let refused: [Result<(), JobError>; 6] = tokio::join!(
        async { supervisor.cancel("long").await },
        async { supervisor.create_session(session("other")).await.map(drop) },
        async { supervisor.extend_session("book", 1e6).await.map(drop) },
        async { supervisor.drop_session("book").await },
        async { supervisor.submit(question.clone()).await.map(drop) },
        async { supervisor.schedule_host("c0", Scheduling::Cordoned, None).await.map(drop) },
    )
    .into();
    assert_eq!(refused.map(|refused| refused.expect_err("it cannot be kept").code().to_string()), ["disk_full"; 6]);
    let after = supervisor.session("book").await.expect("it was not dropped");
    assert_eq!((after.hits, after.expires_s <= before.expires_s), (0, true), "{after:?}");
    assert_eq!(supervisor.sessions().await.expect("a list").len(), 1);
    assert_eq!(supervisor.jobs(JobFilter { limit: 9, ..JobFilter::default() }).await.expect("a list").len(), 1);
    assert_ne!(supervisor.status("long").await.expect("known").state, JobState::Cancelled);
    assert_eq!(supervisor.host("c0").await.expect("known").scheduling, Scheduling::Open);
    full.store(false, Ordering::SeqCst);
    supervisor.create_session(session("other")).await.expect("its name is free");
    let kept: Vec<_> = journal.clone().load().expect("a journal").into_iter().map(|entry| entry.key).collect();
    assert_eq!(kept.iter().filter(|key| *key == "book" || *key == "other").count(), 2, "{kept:?}");
    let status = finish(&supervisor, question).await;
    assert_eq!(json!(status.tokens), case["expected"]["greedy_tokens"], "{:?}", status.error);
    supervisor.shutdown().await;
}
