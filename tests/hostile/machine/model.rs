//! Machines that have another model than the cluster, and a data_dir that had another one: nobody is answered with it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

/// A change to a model's folder.
type Damage = fn(&Path);

/// A process that ends with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn copied(to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(golden().join("models/tiny-qwen2").join(file), to.join(file)).expect("a copy");
    }
}

fn edited(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).expect("a file")).expect("JSON");
    edit(&mut value);
    fs::write(path, value.to_string()).expect("a file");
}

/// Two projections change places: every shape is as it was.
fn shuffle_weights(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("a file");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
    let range = |name: &str| {
        let offsets = &header[name]["data_offsets"];
        let at = |end: usize| 8 + length + offsets[end].as_u64().expect("an offset") as usize;
        at(0)..at(1)
    };
    let [q, o] = ["q", "o"].map(|name| range(&format!("model.layers.0.self_attn.{name}_proj.weight")));
    let (first, second) = (bytes[q.clone()].to_vec(), bytes[o.clone()].to_vec());
    bytes[q].copy_from_slice(&second);
    bytes[o].copy_from_slice(&first);
    fs::write(path, bytes).expect("a file");
}

fn turn_faster(folder: &Path) {
    edited(&folder.join("config.json"), |config| {
        let key = if config["rope_parameters"].is_object() { &mut config["rope_parameters"] } else { config };
        key["rope_theta"] = json!(123_456.0);
    });
}

fn merge_otherwise(folder: &Path) {
    edited(&folder.join("tokenizer.json"), |tokenizer| {
        let merges = tokenizer["model"]["merges"].as_array_mut().expect("merges");
        let last = merges.len() - 1;
        merges.swap(last, last - 1);
    });
}

/// `context-1` is on a machine `far`, whose cluster file names another folder.
struct Machines {
    cluster: Cluster,
    far: PathBuf,
    _agents: [Agent; 2],
}

impl Machines {
    fn new() -> Self {
        let method = "[attention.star]\nblock_tokens = 64";
        let spec = ClusterSpec { contexts: 2, model: None, method, listen: "127.0.0.1:0".into() };
        let cluster = Cluster::written(BINARY, &spec, |text| {
            let far = "[model]\npath = \"model\"\n\n[[node]]\nname = \"far\"\naddress = \"127.0.0.2\"\n\n[[host]]";
            let text = text.replacen("[[host]]", far, 1).replace("role = \"", "node = \"local\"\nrole = \"");
            text.replace("name = \"context-1\"\nnode = \"local\"", "name = \"context-1\"\nnode = \"far\"")
        });
        let far = cluster.folder().join("far");
        copied(&cluster.folder().join("model"));
        copied(&far.join("model"));
        fs::copy(cluster.file(), far.join("cluster.toml")).expect("a copy");
        let start = |arguments: &[&str], log: &str| {
            let log = fs::File::create(cluster.folder().join(log)).expect("a file");
            Agent(cluster.command(arguments).stderr(log).spawn().expect("it runs"))
        };
        let supervisor = start(&["supervisor"], "supervisor.log");
        cluster.wait_for("the supervisor", |_| true);
        let join = cluster.record()["listen"].as_str().expect("an address").to_owned();
        let node = start(&["node", "--join", &join, "--name", "local"], "node.log");
        Self { far, _agents: [supervisor, node], cluster }
    }

    fn joining(&self) -> Command {
        let join = self.cluster.record()["listen"].as_str().expect("an address").to_owned();
        let mut command = Command::new(BINARY);
        command.args(["node", "--join", &join, "--name", "far", "-f"]).arg(self.far.join("cluster.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).env_remove("ASTERISM_SERVER");
        command
    }
}

#[test]
fn a_machine_with_another_model_is_refused_in_words() {
    let machines = Machines::new();
    let cases: [(Damage, &str); 3] = [
        (shuffle_weights, "host context-1: weights differ in 2 tensors, first model.layers.0.self_attn.o_proj.weight"),
        (turn_faster, "host context-1: configuration differs: rope_theta 123456.0 vs "),
        (merge_otherwise, "host context-1: tokenizer differs: tokenizer.json"),
    ];
    for (damage, words) in cases {
        copied(&machines.far.join("model"));
        damage(&machines.far.join("model"));
        let ended = machines.joining().stderr(Stdio::piped()).output().expect("it runs");
        let printed = String::from_utf8_lossy(&ended.stderr);
        assert!(printed.contains("is not started again"), "it is not tried for ever: {printed}");
        let status = machines.cluster.status();
        let host = &status["hosts"][1];
        assert_eq!((&host["name"], &host["health"]), (&"context-1".into(), &"dead".into()));
        let cause = host["cause"].as_str().expect("a cause");
        assert!(cause.starts_with(words), "expected {words}, got {cause}");
        let log = fs::read_to_string(machines.cluster.folder().join("data/logs/context-1.log")).expect("a log");
        assert!(log.contains(words), "{log}");
    }
    copied(&machines.far.join("model"));
    let log = fs::File::create(machines.far.join("node.log")).expect("a file");
    let _agent = Agent(machines.joining().stderr(log).spawn().expect("it runs"));
    let status = machines.cluster.wait_for("the far machine", |status| status["ready"] == true);
    let digest = status["model_digest"].as_str().expect("a digest");
    assert!(digest.len() == 16 && digest.bytes().all(|digit| digit.is_ascii_hexdigit()), "{digest}");
}

/// Words of a context.
fn book() -> String {
    "The pass key is 71432. ".to_owned() + &"The grass is green. ".repeat(20)
}

fn posted(cluster: &Cluster, path: &str, body: Value) -> (u16, Value) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let answer = agent.post(format!("{}/api/v1/{path}", cluster.server())).send_json(&body).expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_json().expect("JSON"))
}

fn job(cluster: &Cluster, id: &str) -> Value {
    let status = cluster.run(&["job", "status", id, "-o", "json"]);
    serde_json::from_slice(&status.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&status.stderr)))
}

fn submit(cluster: &Cluster, id: &str, about: (&str, &str)) -> (u16, Value) {
    let (key, value) = about;
    posted(cluster, "jobs", json!({"id": id, key: value, "query": "What is the pass key?", "max_tokens": 4}))
}

fn up(cluster: &Cluster) {
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
}

fn ended(cluster: &Cluster, id: &str) -> Value {
    cluster.wait_for("the job's end", |_| !matches!(job(cluster, id)["state"].as_str(), Some("PENDING" | "RUNNING")));
    job(cluster, id)
}

/// A job that ended, one that waits and a session of one model, and then another model in the same folder.
fn one_data_dir(damage: Damage) {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    let cluster =
        Cluster::written(BINARY, &spec, |text| text.replacen("[[node]]", "[model]\npath = \"model\"\n\n[[node]]", 1));
    copied(&cluster.folder().join("model"));
    up(&cluster);
    assert_eq!(posted(&cluster, "sessions", json!({"name": "kept", "context": book()})).0, 202);
    submit(&cluster, "first", ("context", &book()));
    let (first, digest) = (ended(&cluster, "first"), cluster.status()["model_digest"].clone());
    assert_eq!(first["state"], "SUCCEEDED", "{first:#}");
    assert!(cluster.run(&["down"]).status.success());

    let log = fs::File::create(cluster.folder().join("supervisor.log")).expect("a file");
    let supervisor = Agent(cluster.command(&["supervisor"]).stderr(log).spawn().expect("it runs"));
    cluster.wait_for("the supervisor", |_| true);
    submit(&cluster, "waits", ("context", &book()));
    submit(&cluster, "asks", ("session", "kept"));
    assert_eq!(
        [job(&cluster, "waits")["state"].clone(), job(&cluster, "asks")["state"].clone()],
        ["PENDING", "PENDING"]
    );
    drop(supervisor);

    damage(&cluster.folder().join("model"));
    up(&cluster);
    assert_ne!(cluster.status()["model_digest"], digest);
    for id in ["waits", "asks"] {
        let status = ended(&cluster, id);
        assert_eq!((&status["state"], &status["error"]["code"]), (&"FAILED".into(), &"model_changed".into()), "{id}");
        assert_eq!(status["generated_tokens"], 0);
    }
    let (status, refused) = submit(&cluster, "late", ("session", "kept"));
    assert_eq!((status, &refused["error"]["code"]), (422, &"model_changed".into()), "{refused}");
    assert_eq!(job(&cluster, "first")["text"], first["text"], "what was answered stays");
    submit(&cluster, "new", ("context", &book()));
    assert_eq!(ended(&cluster, "new")["state"], "SUCCEEDED");
}

#[test]
fn what_waits_under_other_weights_fails_and_what_was_answered_stays() {
    one_data_dir(shuffle_weights);
}

#[test]
fn what_waits_under_another_tokenizer_fails_and_what_was_answered_stays() {
    one_data_dir(merge_otherwise);
}

fn slide(folder: &Path) {
    edited(&folder.join("config.json"), |config| {
        config["use_sliding_window"] = json!(true);
        config["sliding_window"] = json!(24);
        config["max_window_layers"] = json!(1);
    });
}

#[test]
fn layers_with_windows_give_the_same_however_a_context_lies_on_hosts() {
    let spec = ClusterSpec { contexts: 3, model: None, method: "[attention.dense]", listen: "127.0.0.1:0".into() };
    let answers = [true, false].map(|slides| {
        let cluster =
            Cluster::written(BINARY, &spec, |text| text.replacen("[[host]]", "[model]\npath = \"model\"\n\n[[host]]", 1));
        let folder = cluster.folder().join("model");
        copied(&folder);
        if slides {
            slide(&folder);
        }
        up(&cluster);
        let answer = |(id, method): (&str, Value)| {
            let job = json!({"id": id, "context": book(), "query": "What is the pass key?", "max_tokens": 8, "method": method});
            assert_eq!(posted(&cluster, "jobs", job).0, 202, "{id}");
            let ended = ended(&cluster, id);
            assert_eq!(ended["state"], "SUCCEEDED", "{ended:#}");
            ended["text"].as_str().expect("a text").to_owned()
        };
        let [dense, zigzag, contiguous, star, auto] = [
            ("dense", json!({"dense": {}})),
            ("zigzag", json!({"ring": {}})),
            ("contiguous", json!({"ring": {"layout": "contiguous"}})),
            ("star", json!({"star": {}})),
            ("auto", json!({"auto": {"dense_below_tokens": 0}})),
        ]
        .map(answer);
        assert_eq!([&zigzag, &contiguous], [&dense; 2]);
        assert!(!star.is_empty() && !auto.is_empty());
        dense
    });
    assert_ne!(answers[0], answers[1], "the window hides something");
}
