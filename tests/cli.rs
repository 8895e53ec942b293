//! What the command line says to wrong input: exit code, standard output and standard error, as snapshots.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{TcpListener, UdpSocket},
    path::Path,
    process::{Command, Output, Stdio},
};

use tests::golden;

#[path = "cli/about.rs"]
mod about;
#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/plan.rs"]
mod plan;

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

/// A folder with a cluster file, to say wrong things in.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(cluster_file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("cluster.toml"), cluster_file).expect("a cluster file");
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path().join(name), bytes).expect("a file");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command.args(arguments).current_dir(self.path()).stdin(Stdio::null());
        command.env_remove("ASTERISM_SERVER").env("NO_COLOR", "1").output().expect("the binary under test")
    }

    /// Exit code, standard output and standard error, with this folder's name taken out, and what is said of a start while it lasts.
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let text = text.replace(&format!("{}/", self.path().display()), "");
            let lines = text.lines().filter(|line| !(line.starts_with("after ") && line.contains(" s: waiting for ")));
            lines.collect::<Vec<_>>().join("\n").trim_end().to_string()
        };
        let code = output.status.code().map_or("signal".to_string(), |code| code.to_string());
        format!("exit {code}\n--- stdout\n{}\n--- stderr\n{}", text(&output.stdout), text(&output.stderr))
    }
}

const SMALL: &str = r#"version = 1
[cluster]
name = "small"
listen = "127.0.0.1:0"
data_dir = "data"
[attention.star]
[api]
admin_listen = "127.0.0.1:0"
[[node]]
name = "local"
address = "127.0.0.1"
[[host]]
name = "context-0"
role = "context"
[[host]]
name = "query-0"
role = "query"
"#;

fn validate(cluster_file: &str) -> String {
    Place::new(cluster_file).says(&["validate"])
}

#[test]
fn unknown_key() {
    insta::assert_snapshot!(validate(
        &SMALL.replace("listen = \"127.0.0.1:0\"\ndata_dir", "lisen = \"127.0.0.1:0\"\ndata_dir")
    ));
}

#[test]
fn wrong_type() {
    insta::assert_snapshot!(validate(&SMALL.replace("[attention.star]", "[attention.star]\nblock_tokens = true")));
}

#[test]
fn block_of_four_tokens() {
    insta::assert_snapshot!(validate(&SMALL.replace("[attention.star]", "[attention.star]\nblock_tokens = 4")));
}

#[test]
fn two_hosts_on_one_port() {
    let text = SMALL.replace("role = \"context\"", "role = \"context\"\nport = 7999");
    insta::assert_snapshot!(validate(&text.replace("role = \"query\"", "role = \"query\"\nport = 7999")));
}

#[test]
fn no_cluster_is_running() {
    let place = Place::new(SMALL);
    place.write("book.txt", b"A book.");
    insta::assert_snapshot!(place.says(&["job", "submit", "--context", "book.txt", "--query", "Who?"]));
}

#[test]
fn missing_context_file() {
    insta::assert_snapshot!(Place::new(SMALL).says(&["job", "submit", "--context", "nowhere.txt", "--query", "Who?"]));
}

#[test]
fn context_that_is_not_utf8() {
    let place = Place::new(SMALL);
    place.write("book.txt", b"A book \xff\xfe of bytes.");
    insta::assert_snapshot!(place.says(&["job", "submit", "--context", "book.txt", "--query", "Who?"]));
}

#[test]
fn empty_context() {
    let place = Place::new(SMALL);
    place.write("book.txt", b"  \n");
    insta::assert_snapshot!(place.says(&["job", "submit", "--context", "book.txt", "--query", "Who?"]));
}

#[test]
fn empty_query() {
    let place = Place::new(SMALL);
    place.write("book.txt", b"A book.");
    insta::assert_snapshot!(place.says(&["job", "submit", "--context", "book.txt", "--query", ""]));
}

#[test]
fn job_with_a_block_of_four_tokens() {
    let place = Place::new(SMALL);
    place.write("book.txt", b"A book.");
    let arguments = ["job", "submit", "--context", "book.txt", "--query", "Who?", "--block-size", "4"];
    insta::assert_snapshot!(place.says(&arguments));
}

/// Replaces the port of `taken` by a word.
fn without_port(text: String, port: u16) -> String {
    text.replace(&port.to_string(), "PORT")
}

#[test]
fn admin_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let place =
        Place::new(&SMALL.replace("admin_listen = \"127.0.0.1:0\"", &format!("admin_listen = \"127.0.0.1:{port}\"")));
    insta::assert_snapshot!(without_port(place.says(&["up", "--detach"]), port));
}

#[test]
fn api_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let listens = format!("[api]\nlisten = \"127.0.0.1:{port}\"");
    let place = Place::new(&SMALL.replace("[api]", &listens));
    insta::assert_snapshot!(without_port(place.says(&["up", "--detach"]), port));
}

#[test]
fn cluster_port_in_use() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its address").port();
    let place = Place::new(&SMALL.replacen("listen = \"127.0.0.1:0\"", &format!("listen = \"127.0.0.1:{port}\""), 1));
    insta::assert_snapshot!(without_port(place.says(&["up", "--detach"]), port));
}

/// A copy of a golden model, to damage.
fn model_in(place: &Place) -> std::path::PathBuf {
    let folder = place.path().join("model");
    fs::create_dir(&folder).expect("a folder");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(golden().join("models/tiny-llama").join(file), folder.join(file)).expect("a copy");
    }
    folder
}

fn up_with_damaged_model(damage: impl Fn(&Path)) -> String {
    let place = Place::new(&SMALL.replace("[attention.star]", "[model]\npath = \"model\"\n[attention.star]"));
    damage(&model_in(&place));
    let printed = place.says(&["up", "--detach"]);
    place.run(&["down"]);
    // Every host finds the damage; which one says so first, and when, is chance.
    without_seconds(&printed.replace("query-0", "context-0"))
}

/// Replaces the number in `after 1.2 s` by a word.
fn without_seconds(text: &str) -> String {
    let Some((before, rest)) = text.split_once(" after ") else { return text.to_string() };
    let (_, after) = rest.split_once(" s,").expect("seconds follow");
    format!("{before} after SOME s,{after}")
}

#[test]
fn truncated_weights() {
    insta::assert_snapshot!(up_with_damaged_model(|model| {
        let weights = fs::File::options().write(true).open(model.join("model.safetensors")).expect("weights");
        weights.set_len(1_000_000).expect("cut");
    }));
}

#[test]
fn weights_of_another_shape() {
    insta::assert_snapshot!(up_with_damaged_model(|model| {
        let config = fs::read_to_string(model.join("config.json")).expect("a config");
        let config = config.replace("\"intermediate_size\": 256", "\"intermediate_size\": 320");
        fs::write(model.join("config.json"), config).expect("written");
    }));
}

#[test]
fn weights_with_a_layer_missing() {
    insta::assert_snapshot!(up_with_damaged_model(|model| {
        let config = fs::read_to_string(model.join("config.json")).expect("a config");
        let config = config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
        fs::write(model.join("config.json"), config).expect("written");
    }));
}

#[test]
fn no_tokenizer() {
    insta::assert_snapshot!(up_with_damaged_model(|model| {
        fs::remove_file(model.join("tokenizer.json")).expect("removed");
    }));
}

#[test]
fn context_longer_than_the_model_takes() {
    let model = golden().join("models/tiny-llama");
    let table = format!("[model]\npath = \"{}\"\n[attention.star]", model.display());
    let place = Place::new(&SMALL.replace("[attention.star]", &table));
    place.write("book.txt", "The grass is green. ".repeat(1000).as_bytes());
    assert!(place.run(&["up", "--detach"]).status.success());
    let printed = place.says(&["job", "submit", "--context", "book.txt", "--query", "Who?"]);
    place.run(&["down"]);
    insta::assert_snapshot!(printed);
}

#[test]
fn a_host_that_never_becomes_ready() {
    let elsewhere = "[[node]]\nname = \"far\"\naddress = \"192.0.2.1\"\n[[host]]\nname = \"context-far\"\nrole = \"context\"\nnode = \"far\"\n";
    let place = Place::new(&format!(
        "{}{elsewhere}",
        SMALL
            .replace("role = \"context\"", "role = \"context\"\nnode = \"local\"")
            .replace("role = \"query\"", "role = \"query\"\nnode = \"local\"")
    ));
    let arguments = ["up", "--detach", "--timeout", "3"];
    let printed = place.says(&arguments);
    let told = place.run(&arguments);
    let told = String::from_utf8_lossy(&told.stderr);
    assert!(
        told.contains(" s: waiting for host 'context-far' (starting: it has not reached the supervisor)"),
        "{told}"
    );
    place.run(&["down"]);
    let (before, after) = printed.split_once("--join 127.0.0.1:").expect("an address");
    let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
    insta::assert_snapshot!(without_seconds(&format!("{before}--join 127.0.0.1:PORT{after}")));
}

/// `eval` with nothing running, on the embedded model.
fn eval(arguments: &[&str]) -> String {
    Place::new(SMALL).says(&[&["eval"], arguments].concat())
}

#[test]
fn eval_of_an_unknown_task() {
    insta::assert_snapshot!(eval(&["ruler", "--tasks", "niah_singel_1"]));
}

#[test]
fn eval_of_a_task_without_its_data() {
    insta::assert_snapshot!(eval(&["ruler", "--tasks", "qa_1"]));
}

#[test]
fn eval_of_a_method_with_an_unknown_option() {
    insta::assert_snapshot!(eval(&["ruler", "--methods", "dense,star:blocks=4"]));
}

#[test]
fn eval_of_a_data_set_in_another_format() {
    let place = Place::new(SMALL);
    place.write("squad.json", b"[]");
    insta::assert_snapshot!(place.says(&["eval", "ruler", "--squad", "squad.json"]));
}

/// One answer as `--save` writes it.
fn saved(task: &str, method: &str, sample: u64, score: f64) -> String {
    format!(
        r#"{{"suite":"ruler","task":"{task}","length":4096,"method":"{method}","sample":{sample},"model":"m","right":{},"score":{score},"answer":"a","gold":["a"],"seconds":{{"encode":2.0,"query":0.1,"decode":0.5,"total":2.6}}}}"#,
        score == 1.0
    ) + "\n"
}

#[test]
fn saved_runs_are_merged() {
    let place = Place::new(SMALL);
    let one = ["dense", "star"].map(|method| saved("vt", method, 1, 1.0) + &saved("niah_single_1", method, 1, 1.0));
    let two = [saved("vt", "star", 2, 0.4), saved("vt", "dense", 2, 1.0), saved("vt", "dense", 1, 1.0)];
    place.write("one.jsonl", one.concat().as_bytes());
    place.write("two.jsonl", two.concat().as_bytes());
    insta::assert_snapshot!(place.says(&["eval", "report", "one.jsonl", "two.jsonl", "--chart", "chart.svg"]));
    let chart = fs::read_to_string(place.path().join("chart.svg")).expect("a chart");
    assert!(chart.starts_with("<svg"), "{chart}");
    insta::assert_snapshot!(place.says(&["eval", "report", "one.jsonl", "two.jsonl", "--fail-below", "95", "-q"]));
}

#[test]
fn answers_of_two_models_are_not_mixed() {
    let place = Place::new(SMALL);
    let other = saved("vt", "star", 1, 1.0).replace("\"m\"", "\"n\"");
    place.write("run.jsonl", (saved("vt", "star", 1, 1.0) + &other).as_bytes());
    insta::assert_snapshot!(place.says(&["eval", "report", "run.jsonl"]));
}

#[test]
fn a_file_that_no_run_saved() {
    let place = Place::new(SMALL);
    place.write("notes.jsonl", b"{}\n");
    insta::assert_snapshot!(place.says(&["eval", "report", "notes.jsonl"]));
}

#[test]
fn methods_answer_the_same_questions() {
    let place = Place::new(SMALL);
    let output = place.run(&[
        "eval",
        "ruler",
        "--methods",
        "dense,star:block_tokens=512",
        "--lengths",
        "1k",
        "--samples",
        "1",
        "--tasks",
        "niah_single_1,niah_single_2",
        "--save",
        "run.jsonl",
        "-o",
        "json",
    ]);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{printed}");
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone on standard output");
    assert_eq!(run["methods"], serde_json::json!(["dense", "star:block_tokens=512"]), "{run:#}");
    assert_eq!(run["blocks"][0]["methods"][0]["average"]["mean"], 100.0, "{run:#}");
    let saved = || fs::read_to_string(place.path().join("run.jsonl")).expect("a saved run");
    let lines = saved();
    let gold: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["gold"].clone())
        .collect();
    assert!(
        gold.len() == 4 && gold.iter().all(|one| gold.iter().filter(|other| *other == one).count() == 2),
        "{lines}"
    );
}

#[test]
fn a_damaged_journal_ends_up_at_once() {
    let place = Place::new(SMALL);
    fs::create_dir(place.path().join("data")).expect("a folder");
    place.write("data/journal.redb", &[0x5a; 4096]);
    let output = place.run(&["up"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("data/journal.redb is damaged") && printed.contains("move it away"), "{printed}");
    let left = place.run(&["down"]);
    assert!(String::from_utf8_lossy(&left.stderr).contains("is not running"));
    let log = fs::read_to_string(place.path().join("data/logs/supervisor.log")).expect("a log");
    assert_eq!(log.matches("error: ").count(), 1, "one start:\n{log}");
    let kept = fs::read(place.path().join("data/journal.redb")).expect("as it was");
    assert_eq!(kept, [0x5a; 4096]);
}

#[test]
fn ctrl_c_prints_what_there_is() {
    let place = Place::new(SMALL);
    let mut command = Command::new(BINARY);
    command.args(["eval", "niah", "--methods", "star", "--lengths", "1k", "--samples", "1000", "-o", "jsonl"]);
    command.current_dir(place.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.env_remove("ASTERISM_SERVER").spawn().expect("the binary under test");
    let mut answers = BufReader::new(run.stdout.take().expect("a pipe")).lines();
    let first = answers.next().expect("an answer").expect("UTF-8");
    assert!(first.starts_with("{\"suite\":\"niah\""), "{first}");
    let killed = Command::new("kill").args(["-INT", &run.id().to_string()]).status().expect("kill");
    assert!(killed.success());
    let answers = 1 + answers.collect::<Result<Vec<_>, _>>().expect("UTF-8").len();
    let output = run.wait_with_output().expect("its end");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{printed}");
    assert!(printed.contains("niah with asterism-7m, 1,024 tokens") && answers < 1000, "{printed}");
}

#[test]
fn a_length_that_the_model_does_not_take() {
    let printed = eval(&["niah", "--lengths", "32k", "--samples", "1", "--depths", "1", "--methods", "star", "-q"]);
    insta::assert_snapshot!(printed);
}
