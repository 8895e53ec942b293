//! The journal in a real etcd of one member, and what befalls two that write it. Skipped where there is no `etcd`.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use asterism::processes::wiring::standby::{
    EtcdStore, JournalTurn, LeaderRecord, SharedJournal,
    gateway::{Gateway, Write},
};
use asterism_actors::store::{Change, Entry, StateStore, Table, conformance};

/// An etcd of one member, which ends with this.
struct Etcd {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Etcd {
    /// None where this machine has none.
    fn start() -> Option<Self> {
        Self::started(&[])
    }

    fn started(options: &[&str]) -> Option<Self> {
        let program = std::env::var("ASTERISM_ETCD").unwrap_or_else(|_| "etcd".into());
        let folder = tempfile::tempdir().unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let [address, peer] = [free(), free()].map(|address| format!("http://{address}"));
        let started = Command::new(&program)
            .args(["--name=one", &format!("--data-dir={}", folder.path().join("etcd").display())])
            .args([&format!("--listen-client-urls={address}"), &format!("--advertise-client-urls={address}")])
            .args([&format!("--listen-peer-urls={peer}"), &format!("--initial-advertise-peer-urls={peer}")])
            .arg(format!("--initial-cluster=one={peer}"))
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = started else {
            assert!(std::env::var("ASTERISM_REQUIRE").as_deref() != Ok("all"), "there is no {program} here");
            eprintln!("SKIPPED, nothing was tested: there is no {program} here (Debian: etcd-server)");
            return None;
        };
        let etcd = Self { child, address, folder };
        let since = Instant::now();
        while etcd.gateway().read(&["any"]).is_err() {
            assert!(since.elapsed() < Duration::from_secs(30), "etcd does not answer");
            std::thread::yield_now();
        }
        Some(etcd)
    }

    fn gateway(&self) -> Gateway {
        Gateway::new(std::slice::from_ref(&self.address), Duration::from_secs(3))
    }

    /// Supervisors of a cluster, and what they were told of the end of their lead.
    fn journal(&self, cluster: &str) -> (SharedJournal, Arc<Mutex<Vec<String>>>) {
        let told = Arc::<Mutex<Vec<String>>>::default();
        let deposed = told.clone();
        let journal = SharedJournal {
            cluster: cluster.into(),
            members: vec![self.address.clone()],
            folder: self.folder.path().to_owned(),
            lease_s: 2,
            own: LeaderRecord { pid: 7, machine: "here".into(), ..LeaderRecord::default() },
            deposed: Arc::new(move |cause| lock(&deposed).push(cause.to_owned())),
        };
        (journal, told)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock<T>(held: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn leads(journal: &SharedJournal) -> EtcdStore {
    match journal.open().unwrap() {
        JournalTurn::Ours(store) => store,
        JournalTurn::Theirs(leader) => panic!("{leader} leads"),
    }
}

fn put(key: &str, value: &[u8]) -> Change {
    Change::Put { table: Table::Jobs, key: key.into(), value: value.to_vec() }
}

fn values(entries: &[Entry]) -> Vec<(&str, usize)> {
    entries.iter().map(|entry| (entry.key.as_str(), entry.value.len())).collect()
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("values")).unwrap().count()
}

#[test]
fn it_does_what_a_journal_owes() {
    let Some(etcd) = Etcd::start() else { return };
    let (journal, told) = etcd.journal("conformance");
    conformance::check(|| leads(&journal));
    assert_eq!(lock(&told).as_slice(), [""; 0]);
}

#[test]
fn a_transaction_that_is_larger_than_etcds_takes_place_as_a_whole() {
    let Some(etcd) = Etcd::start() else { return };
    let (journal, _) = etcd.journal("large");
    let mut store = leads(&journal);
    let many = |value: &[u8]| (0..700).map(|at| put(&format!("{at:03}"), value)).collect::<Vec<_>>();
    store.apply(&many(&[1; 3000])).unwrap();
    let large = [put("large", &[2; 1 << 20])];
    store.apply(&large).unwrap();
    store.apply(&[put("large", &[3; 2 << 20])]).unwrap();
    assert_eq!(files(etcd.folder.path()), 1, "what was replaced is gone");
    drop(store);

    // One that was killed behind its begin: whoever leads next carries it out.
    let term = etcd.gateway().grant(60).unwrap();
    let written: Vec<_> =
        (0..300).map(|at| serde_json::json!({"table": "jobs", "key": format!("{at:03}"), "value": [0, 9]})).collect();
    let redo = [&[0], serde_json::to_vec(&written).unwrap().as_slice()].concat();
    let begun = Write::Put { key: "/asterism/large/redo".into(), value: redo, lease: None };
    assert!(etcd.gateway().transact(&[], &[begun], &[]).unwrap().succeeded);
    // And a file of a transaction that never took place.
    std::fs::write(etcd.folder.path().join("values/1-1-x"), b"left").unwrap();
    let mut next = leads(&journal);
    let entries = next.load().unwrap();
    assert_eq!(entries.len(), 701);
    let lengths = |entries: &[Entry], length| entries.iter().filter(|entry| entry.value.len() == length).count();
    assert_eq!([1, 3000, 2 << 20].map(|length| lengths(&entries, length)), [300, 400, 1]);
    assert_eq!(files(etcd.folder.path()), 1, "what counts no more is tidied away");
    etcd.gateway().revoke(term).unwrap();
}

#[test]
fn who_led_before_writes_nothing_and_is_told() {
    let Some(etcd) = Etcd::start() else { return };
    let (journal, told) = etcd.journal("fenced");
    let mut old = leads(&journal);
    old.apply(&[put("a", b"1")]).unwrap();
    assert!(matches!(journal.open().unwrap(), JournalTurn::Theirs(leader) if leader.pid == 7), "it leads");
    // Its lease ends without its knowing, as of a process that was stopped.
    let forgotten = Write::Delete { key: "/asterism/fenced/leader".into() };
    assert!(etcd.gateway().transact(&[], &[forgotten], &[]).unwrap().succeeded);
    let mut new = leads(&journal);
    assert_eq!(values(&new.load().unwrap()), [("a", 1)]);
    let refused = old.apply(&[put("a", b"of the old"), put("b", &[1; 1 << 20])]).unwrap_err();
    assert_eq!(refused.code(), "journal_deposed");
    assert!(refused.to_string().contains("process 7 on here"), "{refused}");
    assert_eq!(old.load().map_err(|error| error.code()).map(|_| ()), Ok(()), "it may still read");
    assert!(lock(&told)[0].contains("leads now"), "{:?}", lock(&told));
    new.apply(&[put("a", b"22")]).unwrap();
    assert_eq!(values(&new.load().unwrap()), [("a", 2)]);
}

#[test]
fn a_transaction_whose_answer_was_lost_counts_once_and_in_its_place() {
    let Some(etcd) = Etcd::start() else { return };
    let (journal, _) = etcd.journal("late");
    let mut store = leads(&journal);
    store.apply(&[put("a", b"1")]).unwrap();
    // It takes place behind this store's back, as one does that was given up.
    let late =
        |value: &[u8]| Write::Put { key: "/asterism/late/data/jobs/a".into(), value: value.to_vec(), lease: None };
    let moved = |store: &EtcdStore| Write::Put {
        key: "/asterism/late/head".into(),
        value: format!("{} 1000", store.term()).into_bytes(),
        lease: None,
    };
    assert!(etcd.gateway().transact(&[], &[late(b"\0late"), moved(&store)], &[]).unwrap().succeeded);
    store.apply(&[put("b", b"22")]).unwrap();
    assert_eq!(values(&store.load().unwrap()), [("a", 4), ("b", 2)]);
    // Ended in good order, it leaves the lead at once.
    let since = Instant::now();
    drop(store);
    drop(leads(&journal));
    assert!(since.elapsed() < Duration::from_secs(2), "the lease was waited for");
}

#[test]
fn an_etcd_that_is_gone_is_named_and_nothing_is_written() {
    let Some(mut etcd) = Etcd::start() else { return };
    let (journal, told) = etcd.journal("gone");
    let mut store = leads(&journal);
    let _ = etcd.child.kill();
    let _ = etcd.child.wait();
    for _ in 0..2 {
        let error = store.apply(&[put("a", &[1; 1 << 20])]).unwrap_err();
        assert_eq!(error.code(), "journal_unreachable");
        assert!(
            error.to_string().contains("What runs goes on") && error.to_string().contains("http://127.0.0.1:"),
            "{error}"
        );
    }
    assert!(files(etcd.folder.path()) <= 1, "each try leaves a file");
    assert_eq!(lock(&told).as_slice(), [""; 0], "nobody else can lead");
    assert!(journal.open().is_err());
}

#[test]
fn a_quota_that_is_used_up_is_named_and_what_is_stored_stays() {
    let Some(etcd) = Etcd::started(&["--quota-backend-bytes=200000"]) else { return };
    let (journal, told) = etcd.journal("full");
    let mut store = leads(&journal);
    let mut stored = 0;
    let error = loop {
        match store.apply(&[put(&format!("{stored:04}"), &[1; 15_000])]) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 2_000, "the quota is not used up");
    };
    assert!(error.to_string().contains("its quota is used up") && error.to_string().contains("defragment"), "{error}");
    assert_eq!((error.code(), store.load().unwrap().len()), ("journal_unreachable", stored));
    // What takes no room is taken.
    store.apply(&[Change::Remove { table: Table::Jobs, key: "0000".into() }]).unwrap_or_else(|error| {
        assert_eq!(error.code(), "journal_unreachable");
    });
    assert_eq!(lock(&told).as_slice(), [""; 0], "it leads still");
}
