//! Clusters of real processes for scenarios: a cluster file in a folder of its own, `up`, requests, faults, `down`.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Longest wait for anything a scenario expects.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The folder of the golden fixtures.
pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// Says that a test is not run here, on standard error, whatever the harness keeps of what tests print.
///
/// # Panics
/// Where `ASTERISM_REQUIRE=all` takes nothing for tested that was skipped.
pub fn skipped(why: &str) {
    // Not by a macro: the harness keeps what those print.
    writeln!(std::io::stderr(), "\nSKIPPED, NOTHING WAS TESTED: {why}\n").expect("standard error");
    let required = std::env::var("ASTERISM_REQUIRE").is_ok_and(|required| required == "all");
    assert!(!required, "skipped, where ASTERISM_REQUIRE=all: {why}");
}

/// Whole-model golden cases of a model and method.
pub fn golden_cases(model: &str, method: &str) -> Vec<Value> {
    let text = fs::read_to_string(golden().join("public/goldens.json")).expect("the fixtures");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let wanted = |case: &&Value| case["kind"] == "model" && case["model"] == model && case["method"] == method;
    all["cases"].as_array().expect("cases").iter().filter(wanted).cloned().collect()
}

/// What a scenario's cluster is made of.
pub struct ClusterSpec {
    /// Context hosts.
    pub contexts: usize,
    /// Model folder, whose retaining heads are called `trained`; absent: the embedded model.
    pub model: Option<PathBuf>,
    /// Method table, such as `[attention.star]` with its keys.
    pub method: &'static str,
    /// Where the supervisor listens.
    pub listen: String,
}

/// A cluster of real processes on loopback; dropped, it is stopped.
pub struct Cluster {
    binary: PathBuf,
    folder: TempDir,
}

impl Cluster {
    /// Writes a cluster file and runs `up --detach`. Every port is the system's choice.
    pub fn start(binary: impl Into<PathBuf>, spec: &ClusterSpec) -> Self {
        let cluster = Self::written(binary, spec, |text| text);
        let up = cluster.run(&["up", "--detach"]);
        assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
        cluster
    }

    /// Writes a cluster file, as `edit` leaves it, and starts nothing.
    pub fn written(binary: impl Into<PathBuf>, spec: &ClusterSpec, edit: impl FnOnce(String) -> String) -> Self {
        let cluster = Self { binary: binary.into(), folder: tempfile::tempdir().expect("a folder") };
        fs::write(cluster.file(), edit(cluster_file(cluster.folder.path(), spec))).expect("a cluster file");
        cluster
    }

    /// The folder that holds its file and data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its cluster file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("cluster.toml")
    }

    /// A command on this cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("-f").arg(self.file()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).env_remove("ASTERISM_SERVER").env("NO_COLOR", "1");
        command
    }

    /// Runs a command on this cluster to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary under test")
    }

    /// `status`, as JSON.
    pub fn status(&self) -> Value {
        let output = self.run(&["status", "-o", "json"]);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("status is not JSON: {error}\n{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// `status`, as JSON, when the cluster answers.
    pub fn try_status(&self) -> Option<Value> {
        serde_json::from_slice(&self.run(&["status", "-o", "json"]).stdout).ok()
    }

    /// Process id of a host.
    pub fn pid(&self, host: &str) -> u64 {
        let status = self.status();
        let hosts = status["hosts"].as_array().expect("hosts");
        let found = hosts.iter().find(|entry| entry["name"] == host).expect("a host of that name");
        found["pid"].as_u64().expect("a running process")
    }

    /// Ends a host's process with no warning.
    pub fn kill(&self, host: &str) {
        kill(self.pid(host));
    }

    /// Waits until `status` satisfies a condition.
    pub fn wait_for(&self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let status = self.try_status();
            match status.filter(&condition) {
                Some(status) => return status,
                None => assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}: {:#}", self.status()),
            }
        }
    }

    /// Base address of the admin API.
    pub fn server(&self) -> String {
        format!("http://{}", self.record()["admin"].as_str().expect("an address"))
    }

    /// The record of its supervisor.
    pub fn record(&self) -> Value {
        let record = fs::read(self.folder.path().join("data/supervisor.json"));
        serde_json::from_slice(&record.expect("a running cluster leaves a record")).expect("JSON")
    }

    /// What its processes logged: the cause of a failed test, where it has one.
    fn logs(&self) -> String {
        let folder = fs::read_dir(self.folder.path().join("data/logs"));
        let files = folder.into_iter().flatten().flatten().map(|entry| entry.path());
        let log = |path: PathBuf| format!("{}:\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default());
        files.map(log).collect::<Vec<_>>().join("\n")
    }

    /// Process id of its supervisor.
    pub fn supervisor(&self) -> u64 {
        self.record()["pid"].as_u64().expect("a process")
    }

    /// Process id of its `up`.
    pub fn parent(&self) -> u64 {
        let record = fs::read(self.folder.path().join("data/up.json")).expect("`up` leaves a record");
        serde_json::from_slice::<Value>(&record).expect("JSON")["pid"].as_u64().expect("a process")
    }

    /// Submits token ids and waits for the job's end.
    pub fn answer_tokens(&self, case: &Value, method: Value) -> Value {
        let request = json!({
            "context": case["context_ids"],
            "query": case["query_ids"],
            "max_tokens": case["max_new_tokens"],
            "method": method,
            "allow_idle_hosts": true,
            "ignore_eos": true,
            "chat_template": false,
        });
        let server = self.server();
        let sent = ureq::post(format!("{server}/api/v1/jobs")).send_json(&request).expect("the job is taken");
        let job: Value = sent.into_body().read_json().expect("JSON");
        let id = job["id"].as_str().expect("an id");
        let events = ureq::get(format!("{server}/api/v1/jobs/{id}/events")).call().expect("events");
        let text = events.into_body().read_to_string().expect("UTF-8");
        let last = text.lines().last().expect("a last event");
        serde_json::from_str::<Value>(last).expect("JSON")["status"].clone()
    }

    /// The metrics page.
    pub fn metrics(&self) -> String {
        let page = ureq::get(format!("{}/metrics", self.server())).call().expect("metrics");
        page.into_body().read_to_string().expect("UTF-8")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.run(&["down"]);
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

/// Ends a process with no warning.
pub fn kill(pid: u64) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill");
    assert!(killed.success());
}

fn cluster_file(folder: &Path, spec: &ClusterSpec) -> String {
    let mut text = format!(
        "version = 1\n\n[cluster]\nname = \"scenario\"\nlisten = \"{}\"\ndata_dir = \"{}\"\n\n",
        spec.listen,
        folder.join("data").display()
    );
    if let Some(model) = &spec.model {
        write!(text, "[model]\npath = \"{}\"\n\n", model.display()).expect("text");
        let heads = model.join("retaining_heads.safetensors");
        if heads.exists() {
            write!(text, "[models.heads.trained]\npath = \"{}\"\n\n", heads.display()).expect("text");
        }
    }
    write!(text, "{}\n\n[api]\nadmin_listen = \"127.0.0.1:0\"\n\n", spec.method).expect("text");
    text.push_str("[[node]]\nname = \"local\"\naddress = \"127.0.0.1\"\n\n");
    for at in 0..spec.contexts {
        write!(text, "[[host]]\nname = \"context-{at}\"\nrole = \"context\"\n\n").expect("text");
    }
    text.push_str("[[host]]\nname = \"query-0\"\nrole = \"query\"\n");
    text
}
