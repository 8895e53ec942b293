//! Disks that are full, folders that are open to others, processes that stop together.

use std::{
    fs::{self, File, Permissions},
    io::Write,
    net::TcpListener,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Instant,
};

use asterism_transport::certificates::{CertificateAuthority, Credentials};
use serde_json::Value;
use tests::{Cluster, ClusterSpec, DEADLINE, golden};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

fn embedded(contexts: usize) -> ClusterSpec {
    ClusterSpec { contexts, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() }
}

fn tiny() -> ClusterSpec {
    ClusterSpec { model: Some(golden().join("models/tiny-llama")), ..embedded(1) }
}

/// A cluster file whose admin API has a port that is known beforehand, and that port's address.
fn known(spec: &ClusterSpec) -> (Cluster, String) {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let admin = format!("admin_listen = \"{free}\"");
    let cluster = Cluster::written(BINARY, spec, |text| text.replace("admin_listen = \"127.0.0.1:0\"", &admin));
    (cluster, format!("http://{free}"))
}

/// A process that ends with its scenario; what it says is in a file beside the cluster file.
struct Running {
    child: Child,
    printed: PathBuf,
}

impl Running {
    /// `up`, after a line of shell.
    fn up(cluster: &Cluster, before: &str) -> Self {
        let printed = cluster.folder().join("up.txt");
        let child = Command::new("sh")
            .args(["-c", &format!("{before} exec \"$@\""), "sh", BINARY, "up", "--timeout", "120", "-f"])
            .arg(cluster.file())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&printed).expect("a file"))
            .spawn()
            .expect("a shell");
        Self { child, printed }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.printed).unwrap_or_default()
    }

    /// Processes that it started and that run a verb.
    fn children(&self, verb: &str) -> Vec<u32> {
        let of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let pids = fs::read_dir("/proc").expect("/proc").flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|&pid: &u32| {
                let parent = of(pid).rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
                let verbs = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                parent == Some(self.child.id()) && verbs.split(|byte| *byte == 0).nth(1) == Some(verb.as_bytes())
            })
            .collect()
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("up said:\n{}", self.printed());
        }
        // It may have ended already.
        signal("-TERM", self.child.id());
        let _ = self.child.wait();
    }
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([name, &pid.to_string()]).status();
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < 2 * DEADLINE, "waited {:?} for {what}", 2 * DEADLINE);
        thread::yield_now();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

fn get(url: &str) -> Option<(u16, String)> {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let answer = agent.get(url).call().ok()?;
    let status = answer.status().as_u16();
    Some((status, answer.into_body().read_to_string().unwrap_or_default()))
}

fn ready(status: &Value) -> bool {
    status["ready"] == true
}

/// Files of at most 8 KiB: certificates and records fit, a journal does not.
#[test]
fn a_supervisor_without_room_waits_says_so_and_comes_back() {
    let (cluster, server) = known(&tiny());
    let mut up = Running::up(&cluster, "trap '' XFSZ; ulimit -S -f 16;");
    eventually("`up` to say why", || up.printed().contains("the supervisor waits: "));
    assert!(up.printed().contains("journal.redb"), "{}", up.printed());
    let live = get(&format!("{server}/livez")).expect("it listens");
    assert!(live.0 == 200 && live.1.contains("waits"), "{live:?}");
    let refused = get(&format!("{server}/api/v1/jobs")).expect("it listens");
    assert!(refused.0 == 503 && refused.1.contains("disk_full"), "{refused:?}");
    let status = cluster.run(&["status", "--server", &server]);
    assert_eq!(status.status.code(), Some(4), "{}", text(&status));
    assert!(up.lives());
    let [supervisor] = up.children("supervisor")[..] else { panic!("one supervisor, not started again") };
    for pid in [up.child.id(), supervisor] {
        let raised = Command::new("prlimit").args(["--pid", &pid.to_string(), "--fsize=unlimited"]).status();
        assert!(raised.is_ok_and(|status| status.success()), "prlimit, of util-linux");
    }
    cluster.wait_for("all hosts", ready);
    assert_eq!(up.children("supervisor"), [supervisor], "the same process goes on");
}

/// A small file system of its own, gone with the scenario.
struct Disk(PathBuf);

impl Disk {
    /// None where mounting is not permitted.
    fn mount(at: &Path, size: &str) -> Option<Self> {
        fs::create_dir_all(at).expect("a folder");
        let options = format!("size={size},mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("NOT RUN: mounting a tmpfs is not permitted here, so that no disk can be full");
        None
    }

    fn fill(&self) {
        let mut ballast = File::create(self.0.join("ballast")).expect("a file");
        while ballast.write_all(&[0; 4096]).is_ok() {}
        while ballast.write_all(&[0; 1]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("ballast")).expect("it was there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_crash_on_a_full_disk_ends_no_cluster_and_what_is_refused_is_not_taken() {
    let (cluster, server) = known(&tiny());
    let Some(disk) = Disk::mount(&cluster.folder().join("data"), "4m") else { return };
    let mut up = Running::up(&cluster, "");
    cluster.wait_for("all hosts", ready);
    fs::write(cluster.folder().join("book.txt"), "Call me Ishmael. ".repeat(20)).expect("written");
    let create = |name: &str| cluster.run(&["session", "create", "--context", "book.txt", "--name", name]);
    let sessions = || text(&cluster.run(&["session", "list", "-o", "json"]));
    for name in ["before", "doomed"] {
        let made = create(name);
        assert!(made.status.success(), "{}", text(&made));
    }
    disk.fill();
    // What is small may find room in pages of the journal that are free: then it is done, or else it is not.
    let refused = (0..200).map(|n| format!("late-{n:03}")).find(|name| {
        let made = create(name);
        assert!(matches!(made.status.code(), Some(0 | 4)), "{}", text(&made));
        made.status.code() == Some(4)
    });
    let refused = refused.expect("the disk is full");
    let dropped = cluster.run(&["session", "drop", "doomed"]);
    assert!(matches!(dropped.status.code(), Some(0 | 4)), "{}", text(&dropped));
    let doomed = dropped.status.code() == Some(4);
    let are_right =
        |known: &str| known.contains("before") && !known.contains(&refused) && known.contains("doomed") == doomed;
    let known = sessions();
    assert!(are_right(&known), "drop {:?}: {known}", dropped.status);

    // More crashes than restarts are granted for other causes would be too slow; each kind once.
    let [first] = up.children("supervisor")[..] else { panic!("one supervisor") };
    signal("-KILL", first);
    let host = up.children("run-host")[0];
    signal("-KILL", host);
    eventually("another supervisor", || matches!(up.children("supervisor")[..], [pid] if pid != first));
    eventually("it to answer", || get(&format!("{server}/livez")).is_some_and(|(status, _)| status == 200));
    assert!(up.lives());
    disk.free();
    eventually("all hosts", || {
        let status = cluster.run(&["status", "--server", &server, "-o", "json"]);
        serde_json::from_slice(&status.stdout).is_ok_and(|status: Value| ready(&status))
    });
    cluster.wait_for("the record, once there is room", ready);
    let known = sessions();
    assert!(are_right(&known), "drop {:?}: {known}", dropped.status);
    let made = create(&refused);
    assert!(made.status.success(), "its name is free: {}", text(&made));
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").mode() & 0o777
}

/// Everything in a folder, and the folder.
fn all(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path().is_dir() {
            true => found.extend(all(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

#[test]
fn a_data_dir_is_its_owners_alone() {
    let cluster = Cluster::written(BINARY, &tiny(), |text| text);
    let data = cluster.folder().join("data");
    fs::create_dir_all(data.join("logs")).expect("a folder");
    fs::write(data.join("logs/supervisor.log"), "old").expect("a file");
    for folder in [&data, &data.join("logs")] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("ours");
    }
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", text(&up));
    let open: Vec<_> = all(&data).into_iter().filter(|path| mode(path) & 0o077 != 0).collect();
    assert!(open.is_empty(), "others may use {open:?}");
    assert!(all(&data).len() > 10, "{:?}", all(&data));
}

#[test]
fn files_of_somebody_else_are_refused() {
    let cluster = Cluster::written(BINARY, &tiny(), |text| text);
    let lock = cluster.folder().join("data/supervisor.lock");
    fs::create_dir_all(lock.parent().expect("a folder")).expect("a folder");
    fs::write(&lock, "").expect("a file");
    if std::os::unix::fs::chown(&lock, Some(65534), None).is_err() {
        eprintln!("NOT RUN: giving files away is not permitted here");
        return;
    }
    let up = cluster.run(&["up", "--detach"]);
    assert_eq!(up.status.code(), Some(2), "{}", text(&up));
    let printed = text(&up);
    assert!(printed.contains("supervisor.lock belongs to user 65534") && printed.contains("chown"), "{printed}");
}

#[test]
fn a_cluster_of_somebody_else_is_not_said_to_be_down() {
    let cluster = Cluster::written(BINARY, &tiny(), |text| text);
    let data = cluster.folder().join("data");
    fs::create_dir_all(&data).expect("a folder");
    for (folder, mode) in [(cluster.folder().to_path_buf(), 0o755), (data, 0o700)] {
        fs::set_permissions(folder, Permissions::from_mode(mode)).expect("a folder of ours");
    }
    for command in ["down", "chaos"] {
        let Ok(asked) = cluster.command(&[command]).uid(65534).gid(65534).output() else {
            eprintln!("NOT RUN: being somebody else is not permitted here");
            return;
        };
        assert_eq!(asked.status.code(), Some(2), "{}", text(&asked));
        assert!(text(&asked).contains("cannot look into data_dir"), "{}", text(&asked));
    }
}

#[test]
fn certificates_made_at_once_belong_together() {
    for round in 0..6 {
        let cluster = Cluster::written(BINARY, &tiny(), |text| text);
        let start = |arguments: &[&str]| {
            let mut command = cluster.command(arguments);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary under test")
        };
        let verbs: &[&str] = if round % 2 == 0 { &["up", "--detach"] } else { &["cert", "init"] };
        let ends = [start(verbs), start(verbs)].map(|child| child.wait_with_output().expect("its end"));
        let printed: Vec<String> = ends.iter().map(text).collect();
        assert!(ends.iter().any(|end| end.status.success()), "round {round}: {printed:?}");
        assert!(ends.iter().all(|end| [Some(0), Some(5)].contains(&end.status.code())), "round {round}: {printed:?}");
        let folder = cluster.folder().join("data/certificates");
        CertificateAuthority::load(&folder).unwrap_or_else(|error| panic!("round {round}: {error}"));
        for host in fs::read_dir(folder.join("hosts")).expect("hosts").flatten() {
            Credentials::load(&host.path()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        if round % 2 == 1 {
            let up = cluster.run(&["up", "--detach"]);
            assert!(up.status.success(), "round {round}: {}", text(&up));
        }
    }
}

#[test]
fn a_host_that_stops_with_its_supervisor_costs_no_token_and_few_seconds() {
    for blow in ["-STOP", "-KILL"] {
        let spec = ClusterSpec { method: "[supervisor]\nmax_restarts = 1000\n\n[attention.star]", ..embedded(3) };
        let cluster = Cluster::start(BINARY, &spec);
        let sentence = "The grass is green. The sky is blue. The sun is yellow.\n";
        fs::write(cluster.folder().join("document.txt"), sentence.repeat(200)).expect("written");
        let ask = |id: &str| {
            let asked = ["job", "submit", "--context", "document.txt", "--query", "What is the sun?"];
            let mut command = cluster.command(&[&asked[..], &["--max-tokens", "48", "--id", id]].concat());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary under test")
        };
        let status = |id: &str| -> Value {
            let output = cluster.run(&["job", "status", id, "-o", "json"]);
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output)))
        };
        let whole = ask("whole").wait_with_output().expect("its end");
        assert!(whole.status.success(), "{}", text(&whole));
        let client = ask("struck");
        cluster.wait_for("the job to run", |status| status["jobs_running"] == 1);
        let (host, supervisor) = (cluster.pid("context-1") as u32, cluster.supervisor() as u32);
        signal(blow, supervisor);
        signal(blow, host);
        let struck_at = Instant::now();
        let struck = client.wait_with_output().expect("its end");
        let seconds = struck_at.elapsed().as_secs_f64();
        assert!(struck.status.success(), "{blow}: {}", text(&struck));
        let (whole, struck) = (status("whole"), status("struck"));
        assert_eq!(whole["tokens"], struck["tokens"], "{blow}");
        println!("{blow}: ended {seconds:.1} s after both; alone it takes {} s", whole["timings"]["total_s"]);
        for recovery in struck["recoveries"].as_array().expect("a list") {
            let silent = recovery["silent_s"].as_f64().expect("a number");
            println!("{blow}: {recovery}");
            assert!(silent < 30.0, "{blow}: {recovery}");
        }
    }
}

/// The unit files are such that systemd takes them, where there is a systemd to ask.
#[test]
fn the_unit_files_are_right() {
    let units = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd")).expect("a folder");
    let units = units.map(|entry| entry.expect("an entry").path());
    let units: Vec<_> = units.filter(|path| path.extension().is_some_and(|kind| kind == "service")).collect();
    assert_eq!(units.len(), 3, "{units:?}");
    for path in units {
        let (unit, name) = (fs::read_to_string(&path).expect("a unit"), path.file_name().expect("a name").to_owned());
        let file = tempfile::tempdir().expect("a folder");
        let file = file.path().join(&name);
        let unit = unit.replace("/usr/local/bin/asterism", BINARY).replace("User=asterism\n", "");
        fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a folder");
        fs::write(&file, unit).expect("written");
        if let Ok(verified) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output() {
            let printed = text(&verified);
            let about: Vec<&str> = printed.lines().filter(|line| line.contains("asterism")).collect();
            assert!(about.is_empty(), "{name:?}: {about:?}");
        }
    }
}
