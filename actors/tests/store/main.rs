//! The journal against what befalls files: kills at any moment, damage, a full disk, somebody else's file.
//! What a supervisor stores in it is tested elsewhere.

mod snapshot;

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use asterism_actors::store::{Change, Entry, MemoryStore, RedbStore, StateStore, Table, conformance};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use snapshot::SnapshotStore;

/// Path of the journal that a child of this test writes.
const CHILD: &str = "ASTERISM_STORE_CHILD";

fn put(table: Table, key: &str, value: &[u8]) -> Change {
    Change::Put { table, key: key.into(), value: value.to_vec() }
}

fn remove(table: Table, key: &str) -> Change {
    Change::Remove { table, key: key.into() }
}

/// This test binary again, to run one of its ignored tests on a journal; `prefix` is a shell line run before.
fn child(prefix: &str, test: &str, path: &Path) -> Child {
    Command::new("sh")
        .args(["-c", &format!("{prefix} exec \"$@\""), "sh"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

fn journal_of_the_child() -> String {
    env::var(CHILD).expect("run by another test of this file, which names a journal")
}

#[test]
fn every_store_gives_back_what_was_applied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    conformance::check(|| RedbStore::open(&path, "north").unwrap());
    let shared = MemoryStore::default();
    conformance::check(|| shared.clone());
    let snapshot = folder.path().join("journal.json");
    conformance::check(|| SnapshotStore::new(&snapshot));
}

/// The numbered transaction `n`: it touches several tables, replaces, removes, and now and then stores much.
fn transaction(n: u64) -> Vec<Change> {
    let value = vec![n as u8; if n.is_multiple_of(5) { 200_000 } else { 40 }];
    let mut changes = vec![
        put(Table::Cluster, "last", &n.to_le_bytes()),
        put(Table::Jobs, &format!("job-{}", n % 7), &value),
        put(Table::Sessions, &format!("session-{}", n % 3), &n.to_le_bytes()),
    ];
    if n >= 3 {
        changes.push(remove(Table::Jobs, &format!("job-{}", (n - 3) % 7)));
    }
    changes
}

/// What is stored after transactions 1 to `last`.
fn content_after(last: u64) -> Vec<Entry> {
    let mut store = MemoryStore::default();
    // Older ones are written over or removed by these.
    for n in last.saturating_sub(40) + 1..=last {
        store.apply(&transaction(n)).unwrap();
    }
    store.load().unwrap()
}

fn last_of(entries: &[Entry]) -> u64 {
    let last = entries.iter().find(|entry| entry.table == Table::Cluster && entry.key == "last");
    last.map_or(0, |entry| u64::from_le_bytes(entry.value.as_slice().try_into().unwrap()))
}

#[test]
#[ignore = "the child of a_kill_at_any_moment_loses_nothing_acknowledged"]
fn child_that_writes() {
    let mut store = RedbStore::open(journal_of_the_child(), "north").unwrap();
    let first = last_of(&store.load().unwrap()) + 1;
    for n in first.. {
        store.apply(&transaction(n)).unwrap();
        println!("\nacknowledged {n}");
    }
}

#[test]
fn a_kill_at_any_moment_loses_nothing_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    let mut before = 0;
    for round in 0..12u64 {
        let mut writer = child("", "child_that_writes", &path);
        let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut acknowledged = before;
        let mut heard = |line: String| {
            if let Some(n) = line.strip_prefix("acknowledged ") {
                acknowledged = n.parse().unwrap();
            }
            acknowledged
        };
        // The first round is killed wherever its start has got to.
        let enough = before + (round * 5) % 13;
        let deadline = Instant::now() + Duration::from_secs(60);
        while round > 0 && heard(lines.next().unwrap().unwrap()) < enough.max(before + 1) {
            assert!(Instant::now() < deadline, "the child is stuck");
        }
        let moment = Instant::now() + Duration::from_micros(round * 7919 % 9000);
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        writer.kill().unwrap();
        writer.wait().unwrap();
        lines.for_each(|line| {
            heard(line.unwrap());
        });
        let stored = RedbStore::open(&path, "north").unwrap().load().unwrap();
        let last = last_of(&stored);
        assert!(
            (acknowledged..=acknowledged + 1).contains(&last),
            "round {round}: {acknowledged} transactions were acknowledged, {last} are there"
        );
        assert!(stored == content_after(last), "round {round}: not a prefix of the transactions");
        before = last;
    }
    assert!(before > 20, "only {before} transactions were written");
}

/// Soft limit of a file's size in the child below, in the 512-byte blocks of `ulimit -f`.
const ROOM_BLOCKS: u64 = 8192;

#[test]
#[ignore = "the child of a_full_disk_is_said_and_costs_nothing"]
fn child_without_room() {
    let mut store = RedbStore::open(journal_of_the_child(), "north").unwrap();
    let big = vec![1u8; 30_000];
    let mut stored = 0u64;
    let error = loop {
        match store.apply(&[put(Table::Contexts, &format!("{stored:04}"), &big)]) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored * 30_000 < 2 * ROOM_BLOCKS * 512, "the limit of the file is not in force");
    };
    assert_eq!(error.code(), "disk_full", "{error}");
    assert!(error.to_string().contains("journal.redb"), "{error}");
    // The same store goes on: it says so again, and works once there is room.
    assert_eq!(store.apply(&[put(Table::Contexts, "more", &vec![2; 6 << 20])]).unwrap_err().code(), "disk_full");
    let limit = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let early = 1;
    assert_eq!(store.load().unwrap().len() as u64, early + stored);
    store.apply(&[put(Table::Jobs, "after", b"1")]).unwrap();
    println!("\nstored {stored}");
    std::io::stdout().flush().unwrap();
}

#[test]
fn a_full_disk_is_said_and_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    RedbStore::open(&path, "north").unwrap().apply(&[put(Table::Sessions, "early", b"kept")]).unwrap();
    // Ignored signals stay ignored over exec: writing past the limit is then an error and not the end.
    let prefix = format!("trap '' XFSZ; ulimit -S -f {ROOM_BLOCKS};");
    let ended = child(&prefix, "child_without_room", &path).wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{printed}");
    let stored: usize = printed.lines().find_map(|line| line.strip_prefix("stored ")).unwrap().parse().unwrap();
    let entries = RedbStore::open(&path, "north").unwrap().load().unwrap();
    let of = |table: Table| entries.iter().filter(move |entry| entry.table == table);
    assert_eq!(of(Table::Contexts).count(), stored);
    assert!(of(Table::Contexts).all(|entry| entry.value == vec![1u8; 30_000]));
    assert_eq!(of(Table::Sessions).map(|entry| entry.value.as_slice()).collect::<Vec<_>>(), [b"kept"]);
    assert_eq!(of(Table::Jobs).count(), 1);
}

#[test]
fn damage_is_found_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    let mut store = RedbStore::open(&path, "north").unwrap();
    for n in 1..=30 {
        store.apply(&transaction(n)).unwrap();
    }
    drop(store);
    let sound = fs::read(&path).unwrap();
    let mut outcomes = BTreeMap::new();
    for at in (0..sound.len()).step_by(sound.len() / 40) {
        let mut damaged = sound.clone();
        damaged[at..].iter_mut().take(4096).for_each(|byte| *byte ^= 0x5a);
        fs::write(&path, damaged).unwrap();
        // A page that holds nothing may well be damaged; then all is there.
        let code = match RedbStore::open(&path, "north").and_then(|mut store| store.load()) {
            Ok(entries) => {
                assert!(entries == content_after(30), "damage at {at} changed what is stored");
                "unharmed"
            }
            Err(error) => {
                assert!(error.to_string().contains("Put back a copy"), "{error}");
                error.code()
            }
        };
        *outcomes.entry(code).or_insert(0) += 1;
    }
    for length in [0, 5, 4096, sound.len() / 2, sound.len() - 4096] {
        fs::write(&path, &sound[..length]).unwrap();
        let error = RedbStore::open(&path, "north").unwrap_err();
        assert_eq!(error.code(), "journal_damaged", "cut to {length} bytes: {error}");
    }
    fs::write(&path, b"name = \"north\"\n".repeat(1000)).unwrap();
    assert_eq!(RedbStore::open(&path, "north").unwrap_err().code(), "journal_damaged");
    assert!(outcomes.keys().all(|code| ["unharmed", "journal_damaged"].contains(code)), "{outcomes:?}");
    assert!(outcomes.get("journal_damaged").is_some_and(|&found| found > 5), "{outcomes:?}");
}

#[test]
fn a_file_of_somebody_else_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    let held = RedbStore::open(&path, "north").unwrap();
    let error = RedbStore::open(&path, "north").unwrap_err();
    assert_eq!(error.code(), "journal_in_use", "{error}");
    drop(held);
    let error = RedbStore::open(&path, "south").unwrap_err();
    assert_eq!(error.code(), "journal_other_cluster");
    assert!(error.to_string().contains("'north'") && error.to_string().contains("'south'"), "{error}");
    let error = RedbStore::open(folder.path().join("missing/journal.redb"), "north").unwrap_err();
    assert_eq!(error.code(), "journal_io", "{error}");
}
