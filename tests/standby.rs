//! The journal in a real etcd of one member, and what befalls two that write it. Skipped where there is no `etcd`.

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use asterism::{
    cluster::{EtcdProof, TlsFiles},
    processes::wiring::standby::{
        EtcdStore, JournalTurn, LeaderRecord, SharedJournal,
        access::Access,
        gateway::{Gateway, GatewayError, Write},
    },
};
use asterism_actors::store::{Change, Entry, StateStore, Table, conformance};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};
use serde_json::json;

/// An etcd of one member, which ends with this.
struct Etcd {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
    /// By what the tests ask it.
    access: Access,
}

impl Etcd {
    /// None where this machine has none.
    fn start() -> Option<Self> {
        Self::started(&[])
    }

    fn started(options: &[&str]) -> Option<Self> {
        Self::at("http", options, Access::default())
    }

    fn at(scheme: &str, options: &[&str], access: Access) -> Option<Self> {
        let program = std::env::var("ASTERISM_ETCD").unwrap_or_else(|_| "etcd".into());
        let folder = tempfile::tempdir().unwrap();
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (address, peer) = (format!("{scheme}://{}", free()), format!("http://{}", free()));
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
        let etcd = Self { child, address, folder, access };
        let since = Instant::now();
        while matches!(etcd.gateway().read(&["any"]), Err(GatewayError::Unreachable { .. })) {
            assert!(since.elapsed() < Duration::from_secs(30), "etcd does not answer");
            std::thread::yield_now();
        }
        Some(etcd)
    }

    fn gateway(&self) -> Gateway {
        Gateway::new(std::slice::from_ref(&self.address), &self.access, Duration::from_secs(3))
    }

    /// Supervisors of a cluster, and what they were told of the end of their lead.
    fn journal(&self, cluster: &str) -> (SharedJournal, Arc<Mutex<Vec<String>>>) {
        let told = Arc::<Mutex<Vec<String>>>::default();
        let deposed = told.clone();
        let journal = SharedJournal {
            cluster: cluster.into(),
            members: vec![self.address.clone()],
            access: self.access.clone(),
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
    assert_eq!(error.code(), "journal_unreachable");
    // Beyond its quota etcd stores a transaction that it took before it knew, and refuses it all the same.
    let found: Vec<String> = store.load().unwrap().into_iter().map(|entry| entry.key).collect();
    let [acknowledged, with_refused] =
        [stored, stored + 1].map(|count| (0..count).map(|at| format!("{at:04}")).collect::<Vec<_>>());
    assert!(found == acknowledged || found == with_refused, "{found:?} of {stored}");
    // What takes no room is taken.
    store.apply(&[Change::Remove { table: Table::Jobs, key: "0000".into() }]).unwrap_or_else(|error| {
        assert_eq!(error.code(), "journal_unreachable");
    });
    assert_eq!(lock(&told).as_slice(), [""; 0], "it leads still");
}

/// Files of certificates for a test, in a folder of their own.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    /// Of two authorities: `ca` made `server`, `ended` and `client`, `other` made `stranger`; all are for 127.0.0.1.
    fn make() -> Self {
        let made = Self { folder: tempfile::tempdir().unwrap() };
        let (ca, other) = (made.authority("ca"), made.authority("other"));
        made.issue(&ca, "server", 2100);
        made.issue(&ca, "ended", 2021);
        made.issue(&ca, "client", 2100);
        made.issue(&other, "stranger", 2100);
        made
    }

    fn authority(&self, name: &str) -> Issuer<'static, KeyPair> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        std::fs::write(self.at(name), parameters.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(parameters, key)
    }

    fn issue(&self, issuer: &Issuer<'_, KeyPair>, name: &str, until: i32) {
        let mut parameters = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (parameters.not_before, parameters.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(until, 1, 1));
        let key = KeyPair::generate().unwrap();
        std::fs::write(self.at(name), parameters.signed_by(&key, issuer).unwrap().pem()).unwrap();
        self.secret(&format!("{name}-key"), &key.serialize_pem());
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.pem"))
    }

    fn secret(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.at(name), text).unwrap();
        std::fs::set_permissions(self.at(name), PermissionsExt::from_mode(0o600)).unwrap();
        self.at(name)
    }

    fn own(&self, name: &str) -> TlsFiles {
        TlsFiles { cert: self.at(name), key: self.at(&format!("{name}-key")) }
    }

    /// An etcd that shows one of them and wants to see one.
    fn etcd(&self, shown: &str) -> Option<Etcd> {
        let TlsFiles { cert, key } = self.own(shown);
        let (cert, key) = (format!("--cert-file={}", cert.display()), format!("--key-file={}", key.display()));
        let trusted = format!("--trusted-ca-file={}", self.at("ca").display());
        let proof = EtcdProof { ca: Some(self.at("ca")), own: Some(self.own("client")), login: None };
        Etcd::at("https", &["--client-cert-auth", &trusted, &cert, &key], Access::read(&proof).unwrap())
    }

    /// Lines of `[standby]`.
    fn section(&self, address: &str, ca: &str, own: Option<&str>) -> String {
        let own = own.map(|own| self.own(own));
        let own = own.map(|TlsFiles { cert, key }| format!("cert = {cert:?}\nkey = {key:?}")).unwrap_or_default();
        format!("etcd = [{address:?}]\nca = {:?}\n{own}", self.at(ca))
    }
}

/// What a command says of a cluster file with these lines in `[standby]`, and its exit code.
fn ended(command: &str, folder: &Path, standby: &str) -> (Option<i32>, String) {
    let file = folder.join("cluster.toml");
    let listen = "version = 1\n[cluster]\nlisten = \"127.0.0.1:0\"\n[api]\nadmin_listen = \"127.0.0.1:0\"\n";
    let host = |name, role| format!("[[host]]\nname = \"{name}\"\nrole = \"{role}\"\n");
    let node = "[[node]]\nname = \"local\"\naddress = \"127.0.0.1\"\n";
    let hosts = node.to_owned() + &host("c", "context") + &host("q", "query");
    std::fs::write(&file, format!("{listen}[standby]\nshared_dir = \".\"\n{standby}\n{hosts}")).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_asterism-under-test"));
    let ended = run.args([command, "-f"]).arg(&file).stdin(Stdio::null()).output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

/// Both what starts and what looks beforehand refuse it in the same words, once.
fn refuse(folder: &Path, standby: &str, (code, words): (i32, &str)) {
    for command in ["validate", "supervisor"] {
        let (exit, stated) = ended(command, folder, standby);
        assert!(exit == Some(code) && stated.contains(words), "{command} with {standby}: {exit:?} {stated}");
        assert_eq!(stated.matches("error: ").count(), 1, "{command}: {stated}");
    }
}

#[test]
fn an_etcd_that_asks_for_certificates_is_written_to_and_a_wrong_one_is_one_error() {
    let made = Certificates::make();
    let Some(etcd) = made.etcd("server") else { return };
    let Some(expired) = made.etcd("ended") else { return };
    let (journal, _) = etcd.journal("secured");
    let mut store = leads(&journal);
    store.apply(&[put("a", &[1; 1 << 20])]).unwrap();
    assert_eq!(values(&store.load().unwrap()), [("a", 1 << 20)]);
    drop(store);

    let (folder, address) = (etcd.folder.path(), etcd.address.as_str());
    let elsewhere = address.replace("127.0.0.1", "localhost");
    let unproven = "does not prove who it is: invalid peer certificate: ";
    for (address, ca, own, code, words) in [
        (address, "other", Some("client"), 6, format!("{unproven}UnknownIssuer")),
        (&elsewhere, "ca", Some("client"), 6, format!("{unproven}certificate not valid for name \"localhost\"")),
        (&expired.address, "ca", Some("client"), 6, format!("{unproven}certificate expired")),
        (address, "ca", None, 6, "wants to see a certificate: ".into()),
        (address, "ca", Some("stranger"), 6, "refuses the certificate that it is shown: ".into()),
        (address, "ca", Some("ended"), 2, "[standby] cert: the certificate file ".into()),
        (address, "none", Some("client"), 2, "[standby] ca: the certificate file ".into()),
        (address, "ca", Some("none"), 2, "none.pem: No such file".into()),
    ] {
        refuse(folder, &made.section(address, ca, own), (code, &words));
    }
    let right = made.section(address, "ca", Some("client"));
    refuse(folder, &right.replace("client-key", "server-key"), (2, "cannot be used together"));
    let (exit, stated) = ended("validate", folder, &right);
    assert_eq!(exit, Some(0), "{stated}");
}

#[test]
fn an_etcd_with_users_takes_the_one_with_the_right_password() {
    let made = Certificates::make();
    let Some(mut etcd) = Etcd::start() else { return };
    let address = etcd.address.clone();
    let ask = |path: &str, token: &str, body: serde_json::Value| {
        let request = ureq::post(format!("{address}/v3/auth/{path}"));
        let request = if token.is_empty() { request } else { request.header("authorization", token) };
        let answer = request.send_json(body).and_then(|mut answer| answer.body_mut().read_json::<serde_json::Value>());
        answer.unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    for (user, role) in [("root", "root"), ("asterism", "journals")] {
        ask("role/add", "", json!({"name": role}));
        ask("user/add", "", json!({"name": user, "password": "of it"}));
        ask("user/grant", "", json!({"user": user, "role": role}));
    }
    // Keys from /asterism/ to /asterism0.
    let keys = json!({"permType": "READWRITE", "key": "L2FzdGVyaXNtLw==", "range_end": "L2FzdGVyaXNtMA=="});
    ask("role/grant", "", json!({"name": "journals", "perm": keys}));
    ask("enable", "", json!({}));

    let folder = etcd.folder.path();
    let anonymous = format!("etcd = [{address:?}]");
    let file = made.at("password");
    let named = format!("{anonymous}\nuser = \"asterism\"\npassword_file = {file:?}");
    refuse(folder, &anonymous, (6, "user name is empty"));
    refuse(folder, &named, (2, "[standby] password_file: cannot read"));
    made.secret("password", "another");
    refuse(folder, &named, (6, "user 'asterism': etcdserver: authentication failed"));
    made.secret("password", "of it\n");
    let (exit, stated) = ended("validate", folder, &named);
    assert_eq!(exit, Some(0), "{stated}");

    let login = Some(("asterism".to_owned(), file));
    etcd.access = Access::read(&EtcdProof { login, ..EtcdProof::default() }).unwrap();
    let (journal, told) = etcd.journal("users");
    let mut store = leads(&journal);
    store.apply(&[put("a", b"1")]).unwrap();
    // The token that it has is of users as they were before.
    let token = ask("authenticate", "", json!({"name": "root", "password": "of it"}));
    ask("user/changepw", token["token"].as_str().unwrap(), json!({"name": "asterism", "password": "of it"}));
    store.apply(&[put("b", b"22")]).unwrap();
    assert_eq!(values(&store.load().unwrap()), [("a", 1), ("b", 2)]);
    assert_eq!(lock(&told).as_slice(), [""; 0]);
}
