//! Hosts on GPUs of a driver that computes nothing: what they allocate, free, launch and are refused. Built with the feature `cuda` and
//! `ASTERISM_CUDA_STUB=1` only.

mod model;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Instant;
use std::{env, fs, thread, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{Cluster, ClusterSpec, DEADLINE};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
const GIB: u64 = 1 << 30;
/// Between two looks at what is waited for.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// GPUs of a machine, and the layers of the model there.
#[derive(Clone, Copy)]
struct Gpus {
    count: usize,
    bytes: u64,
    layers: u64,
}

/// A cluster whose hosts share a process, on such GPUs.
struct OnGpus {
    cluster: Cluster,
    /// Where drivers are found, and where they listen.
    drivers: TempDir,
    gpus: Gpus,
}

impl OnGpus {
    /// Starts one whose hosts have these devices, as a cluster file names them.
    fn start(gpus: Gpus, devices: &str) -> Self {
        let started = Self::written(gpus, devices);
        let up = started.up();
        assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
        started
    }

    fn written(gpus: Gpus, devices: &str) -> Self {
        let drivers = tempfile::tempdir().expect("a folder");
        let beside = env::current_exe().expect("a test").with_file_name("libnull_driver.so");
        for library in ["libcuda.so", "libcublasLt.so"] {
            std::os::unix::fs::symlink(&beside, drivers.path().join(library)).expect("a link");
        }
        let folder = drivers.path().join("model");
        model::write(&folder, gpus.layers);
        let spec = ClusterSpec {
            contexts: 1,
            model: Some(folder),
            method: "[serving]\nspeculation = \"off\"\n\n[attention.dense]",
            listen: "127.0.0.1:0".into(),
        };
        let cluster = Cluster::written(BINARY, &spec, |text| {
            text.replace("[model]\n", "[model]\ndtype = \"bf16\"\n")
                .replace("\nrole = ", &format!("\nprocess = \"all\"\n{devices}\nrole = "))
        });
        Self { cluster, drivers, gpus }
    }

    fn up(&self) -> Output {
        self.command(&["up", "--detach"]).output().expect("the binary under test")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.cluster.command(arguments);
        command.env("LD_LIBRARY_PATH", self.drivers.path()).env("NULL_DRIVER_FOLDER", self.drivers.path());
        command.env("NULL_DRIVER_GPUS", self.gpus.count.to_string());
        command.env("NULL_DRIVER_BYTES", self.gpus.bytes.to_string());
        command
    }

    /// Where the driver of the hosts' process listens, or leaves its last words.
    fn place(&self, pid: u64, extension: &str) -> PathBuf {
        self.drivers.path().join(format!("{pid}.{extension}"))
    }

    /// What the driver of the hosts' process says to a line.
    fn tell(&self, line: &str) -> String {
        let place = self.place(self.cluster.pid("query-0"), "sock");
        let mut driver = UnixStream::connect(&place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
        writeln!(driver, "{line}").expect("sent");
        let mut said = String::new();
        BufReader::new(driver).read_line(&mut said).expect("an answer");
        said
    }

    /// What the driver was asked so far, which has no fault.
    fn report(&self) -> Value {
        checked(&self.tell("report"))
    }

    /// Asks a question about a context; the job as it ended.
    fn ask(&self, context: &[usize], tokens: usize) -> Value {
        let case = json!({"context_ids": context, "query_ids": [5, 6, 7], "max_new_tokens": tokens});
        self.cluster.answer_tokens(&case, json!({"dense": {}}))
    }

    /// The same, about one of so many tokens, which is answered.
    fn answers(&self, context: usize, tokens: usize) {
        self.answers_about(&ids(0, context), tokens);
    }

    fn answers_about(&self, context: &[usize], tokens: usize) {
        let job = self.ask(context, tokens);
        assert_eq!(job["state"], "SUCCEEDED", "{job:#}");
        assert_eq!(job["tokens"].as_array().map(Vec::len), Some(tokens), "{job:#}");
    }

    /// A session of 16,000 tokens, once it is ready or refused.
    fn session(&self, number: usize) -> Value {
        let (url, name) = (format!("{}/api/v1/sessions", self.cluster.server()), format!("s{number}"));
        let asked = json!({"name": name, "context": ids(number, 16_000)});
        ureq::post(&url).send_json(&asked).expect("the session is taken");
        eventually("a session", || {
            let shown = ureq::get(format!("{url}/{name}")).call().ok()?;
            let shown: Value = shown.into_body().read_json().ok()?;
            (shown["state"] == "ready" || shown["state"] == "failed").then_some(shown)
        })
    }
}

/// Ids of a context, others for each number.
fn ids(context: usize, tokens: usize) -> Vec<usize> {
    (0..tokens).map(|at| 2 + (at * 7 + context * (3 + at / 11)) % 500).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A report, in which nothing is wrong.
fn checked(text: &str) -> Value {
    let report = json(text);
    assert_eq!(report["faults"], json!([]), "{report:#}");
    report
}

/// Waits for `what` to come true.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        match look() {
            Some(found) => return found,
            None => assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} for {what}"),
        }
        // Those who are waited for have the cores meanwhile.
        thread::park_timeout(BETWEEN_LOOKS);
    }
}

/// One that has room for more than these tests take.
const ONE: Gpus = Gpus { count: 1, bytes: 4 * GIB, layers: model::LAYERS };
/// One that is full soon.
const SMALL: Gpus = Gpus { bytes: 512 << 20, ..ONE };
const FIRST: &str = "device = \"cuda:0\"";

#[test]
fn a_host_answers_and_gives_everything_back_when_it_ends() {
    let on = OnGpus::start(ONE, FIRST);
    on.answers(600, 4);
    let report = on.report();
    let used = report["gpus"][0]["used_bytes"].as_u64().expect("a number");
    assert!(used > model::weight_bytes(model::LAYERS), "{report:#}");
    let pid = on.cluster.pid("query-0");
    assert!(on.cluster.run(&["down"]).status.success());
    let words = fs::read_to_string(on.place(pid, "json")).expect("it ended by itself");
    let report = checked(&words);
    // What stays until the process ends: code, and the driver's pools, which are empty.
    let lasting = ["function", "module", "pool"];
    let handles: Vec<&str> = report["handles"].as_object().expect("by kind").keys().map(String::as_str).collect();
    assert_eq!(handles, lasting, "{report:#}");
    let gpu = &report["gpus"][0];
    assert_eq!(
        (&gpu["allocations"], &gpu["used_bytes"], &report["locked_bytes"]),
        (&json!(0), &json!(0), &json!(0)),
        "{report:#}"
    );
}

#[test]
fn a_program_without_kernels_opens_no_gpu_of_another_driver() {
    let on = OnGpus::written(ONE, FIRST);
    // Whatever driver the machine has, or none.
    let up = on.cluster.run(&["up", "--detach"]);
    let printed = String::from_utf8_lossy(&up.stderr);
    assert_eq!(up.status.code(), Some(3), "{printed}");
    assert!(printed.contains("built without kernels"), "{printed}");
}

#[test]
fn jobs_one_after_the_other_leave_nothing_but_keys_and_values() {
    let on = OnGpus::start(ONE, FIRST);
    let used = |report: &Value| report["gpus"][0]["used_bytes"].as_u64().expect("a number");
    let ask = |context: usize| {
        on.answers_about(&ids(context, 600), 4);
        on.report()
    };
    (0..3).for_each(|context| drop(ask(context)));
    // Of a context that is known.
    let settled = ask(2);
    let last = (0..25).fold(settled.clone(), |_, _| ask(2));
    assert_eq!((&last["gpus"], &last["handles"]), (&settled["gpus"], &settled["handles"]));
    assert_eq!(last["locked_bytes"], settled["locked_bytes"]);
    // Of contexts that are new, whose keys and values stay as long as there is room.
    const NEW: u64 = 25;
    let grown = (0..NEW as usize).fold(last.clone(), |_, context| ask(10 + context));
    let kept = 600 * model::TOKEN_BYTES;
    let more = used(&grown) - used(&last);
    assert!((NEW * kept..NEW * kept + kept / 2).contains(&more), "{more} bytes, {NEW} contexts of {kept}: {grown:#}");
    assert_eq!(grown["handles"], last["handles"]);
}

#[test]
fn a_full_gpu_drops_what_lay_idle() {
    let on = OnGpus::start(SMALL, FIRST);
    const { assert!(50 * 4000 * model::TOKEN_BYTES > 2 * SMALL.bytes, "more than it has room for") };
    for context in 0..50 {
        on.answers_about(&ids(context, 4000), 2);
    }
    on.report();
}

#[test]
fn sessions_fill_a_gpu_and_the_refusal_names_them() {
    let on = OnGpus::start(SMALL, FIRST);
    let sessions: Vec<Value> = (0..5).map(|session| on.session(session)).collect();
    let ready = sessions.iter().take_while(|session| session["state"] == "ready").count();
    assert!((2..5).contains(&ready), "{sessions:#?}");
    let refused = &sessions[ready];
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(refused["state"] == "failed" && message.contains("do not fit on the device"), "{refused:#}");
    assert!(message.contains("bytes are missing") && message.contains("end sessions"), "{refused:#}");
    assert_eq!(refused["error"]["code"], "kernel", "{refused:#}");
    let dropped = ureq::delete(format!("{}/api/v1/sessions/s0", on.cluster.server())).call();
    assert!(dropped.is_ok(), "{dropped:?}");
    let next = on.session(9);
    assert_eq!(next["state"], "ready", "{next:#}");
    on.report();
}

#[test]
fn gpus_that_are_one_host_hold_a_part_of_the_weights_each() {
    let used = |report: &Value| -> Vec<u64> {
        let gpus = report["gpus"].as_array().expect("GPUs");
        gpus.iter().map(|gpu| gpu["used_bytes"].as_u64().expect("a number")).collect()
    };
    for count in [1, 2, 4] {
        let names: Vec<String> = (0..count).map(|gpu| format!("\"cuda:{gpu}\"")).collect();
        let start = |layers| OnGpus::start(Gpus { count, layers, ..ONE }, &format!("devices = [{}]", names.join(", ")));
        let twice = used(&start(2 * model::LAYERS).report());
        let on = start(model::LAYERS);
        // What a GPU has beside weights is the same.
        let more = model::weight_bytes(2 * model::LAYERS) - model::weight_bytes(model::LAYERS);
        for (once, twice) in used(&on.report()).into_iter().zip(twice) {
            let part = twice - once;
            assert!(part.abs_diff(more / count as u64) < more / 50, "{count}: {part} bytes of {more} on one");
        }
        on.answers(600, 4);
        on.answers(600, 40);
        on.answers(3000, 4);
        (0..3).for_each(|_| on.answers(600, 4));
        let settled = on.report();
        (0..5).for_each(|_| on.answers(600, 4));
        let last = on.report();
        assert_eq!((&last["gpus"], &last["handles"]), (&settled["gpus"], &settled["handles"]), "{count}");
    }
}

/// Launches of a step of one row: of a layer, and around all layers.
const OF_LAYER: u64 = 10;
const AROUND: u64 = 8;
/// Launches of a longer job that are not of its steps.
const BESIDE: u64 = 8;

#[test]
fn a_step_of_one_row_launches_no_more_than_it_did() {
    let on = OnGpus::start(ONE, FIRST);
    let launches = |tokens: usize| {
        let count =
            || on.report()["launches"].as_object().expect("by name").values().filter_map(Value::as_u64).sum::<u64>();
        let before = count();
        on.answers(600, tokens);
        count() - before
    };
    // What is chosen and mapped once.
    launches(4);
    launches(4);
    let (few, many) = (launches(4), launches(68));
    let (steps, of_step) = (64, model::LAYERS * OF_LAYER + AROUND);
    let (got, least) = (many - few, steps * of_step);
    // Where it is less, the bound is to be lowered.
    assert!((least..=least + BESIDE).contains(&got), "{got} launches of {steps} steps, {of_step} each");
}

/// What is refused at once is tried again when idle keys and values went, and later, so that jobs are answered all the same.
#[test]
fn whichever_allocation_is_refused_the_host_lives_and_answers() {
    let on = OnGpus::start(ONE, FIRST);
    on.answers(600, 4);
    let (pid, refused) = (on.cluster.pid("query-0"), || on.report()["gpus"][0]["refused"].as_u64().expect("a number"));
    let mut context = 100;
    // One of an allocation, which is tried again at once; both; and those of all that follow for a moment.
    for (count, most) in [(1, usize::MAX), (2, usize::MAX), (5, 4)] {
        let mut spent = 0;
        for after in 0..most {
            context += 1;
            on.tell(&format!("refuse {after} {count}"));
            let (before, job) = (refused(), on.ask(&ids(context, 600), 4));
            let message = job["error"]["message"].as_str().unwrap_or_default();
            assert!(job["state"] == "SUCCEEDED" || message.contains("bytes"), "{count} after {after}: {job:#}");
            let reached = refused() > before;
            on.tell("refuse 0 0");
            on.answers(600, 4);
            if !reached {
                break;
            }
            spent += 1;
        }
        assert!(spent >= 4, "{spent} allocations of a job");
    }
    assert_eq!(on.cluster.pid("query-0"), pid, "the same process");
}

/// A GPU that refuses for good while its driver counts memory as free.
#[test]
fn a_job_that_is_always_refused_memory_ends() {
    let on = OnGpus::start(ONE, FIRST);
    on.answers(600, 4);
    on.tell("refuse 0 1000000000");
    let job = on.ask(&ids(7, 600), 4);
    let message = job["error"]["message"].as_str().unwrap_or_default();
    assert!(job["state"] == "FAILED" && message.contains("it refused memory that it counts as free"), "{job:#}");
    on.tell("refuse 0 0");
    on.answers(600, 4);
}

#[test]
fn a_gpu_that_is_too_small_is_told_at_the_start() {
    // Without room for what products need, and for one of the two hosts without room for the weights or for those.
    for bytes in [1 << 20, 60 << 20] {
        let on = OnGpus::written(Gpus { bytes, ..ONE }, FIRST);
        let up = on.up();
        let printed = String::from_utf8_lossy(&up.stderr);
        assert_eq!(up.status.code(), Some(3), "{printed}");
        assert!(
            printed.contains("loading the model")
                && printed.contains("is too small: the ")
                && printed.contains("are missing"),
            "{printed}"
        );
    }
}
