//! What transformers makes of conversations and texts, for tokenizers and chat templates of many kinds: the same ids in this process,
//! and the same tokens with their logprobs from clusters, however they are asked. `tests/conformance/make.py` made what is expected.

use std::{
    fs,
    path::{Path, PathBuf},
};

use asterism_actors::{JobError, api::JobRequest, supervisor::ModelFront};
use asterism_models::{ChatTurn, Checkpoint, Ending, QuerySeparator, RenderOptions, Speaker, TemplateSource, Written};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{Cluster, ClusterSpec, golden};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

/// How far the logprob of a token may be from that of transformers.
const CLOSE: f64 = 1e-4;

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

fn expected() -> Value {
    serde_json::from_slice(&fs::read(here().join("prompts.json")).expect("the fixture")).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// The folder of the tiny model with the tokenizer and template of a case.
fn folder(case: &Value) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let to = |name: &str| folder.path().join(name);
    let model = golden().join("models/tiny-llama");
    for file in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(model.join(file), to(file)).expect("a link to a file of the model");
    }
    let tokenizer = format!("tokenizers/{}.json", text(&case["tokenizer"]));
    fs::copy(here().join(tokenizer), to("tokenizer.json")).expect("a tokenizer");
    fs::write(to("tokenizer_config.json"), case["config"].to_string()).expect("a file");
    if let Some(template) = case["template"].as_str() {
        fs::copy(here().join(format!("templates/{template}.jinja")), to("chat_template.jinja")).expect("a template");
    }
    folder
}

/// The supervisor's part of the model of a case.
fn front(case: &Value) -> ModelFront {
    let folder = folder(case);
    let checkpoint = Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{}: {error}", case["config"]));
    ModelFront::load(&checkpoint, None, TemplateSource::in_process).expect("a tokenizer and a template")
}

/// The ids of a prompt that is cut, whole again.
fn joined(front: &ModelFront, (context, query): (Written, Written), chat_template: bool) -> Result<Vec<u32>, JobError> {
    let request = JobRequest {
        chat_template,
        query_separator: Some(QuerySeparator::NONE),
        ..JobRequest::new(Some(context.into()), query.into())
    };
    front.ids(request).map(|(context, query)| [&context[..], &query].concat())
}

fn turns(messages: &Value) -> Vec<ChatTurn> {
    let speaker = |role: &str| match role {
        "system" => Speaker::System,
        "user" => Speaker::User,
        _ => Speaker::Assistant,
    };
    let turn = |message: &Value| ChatTurn::new(speaker(text(&message["role"])), text(&message["content"]));
    list(messages).iter().map(turn).collect()
}

#[test]
fn conversations_have_the_ids_of_transformers() {
    let all = expected();
    let (date, mut compared, mut wrong) = (text(&all["date"]).parse().expect("a date"), 0, Vec::new());
    for case in list(&all["chats"]) {
        let front = front(case);
        for (messages, wanted) in list(&all["conversations"]).iter().zip(list(&case["chats"])) {
            let turns = turns(messages);
            let options = RenderOptions::on(date).ending(Ending::of(turns.last(), None, None).expect("an ending"));
            let got = front.conversation(turns, options).and_then(|cut| joined(&front, cut, true));
            let is_right = match (&got, wanted["refused"].as_str()) {
                (Ok(ids), None) => json!(ids) == *wanted,
                (Err(error), Some(words)) => error.to_string().contains(words),
                _ => false,
            };
            compared += 1;
            if !is_right {
                let name = format!("{} behind {}", case["tokenizer"], case["template"]);
                wrong.push(format!("{name}, {messages}:\n got {got:?}\n not {wanted}"));
            }
        }
    }
    assert!(compared > 12 * 14 * 8 && wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn raw_texts_have_the_ids_of_transformers() {
    let (all, mut wrong) = (expected(), Vec::new());
    for case in list(&all["raw"]) {
        let front = front(case);
        for (prompt, wanted) in list(&all["texts"]).iter().zip(list(&case["ids"])) {
            // Neither context nor question may be empty.
            if list(wanted).len() < 2 || text(prompt).trim().is_empty() {
                continue;
            }
            let got = front.completion(text(prompt).to_owned()).and_then(|cut| joined(&front, cut, false));
            if got.as_ref().map_or(true, |ids| json!(ids) != *wanted) {
                wrong.push(format!("{} {}, {prompt}:\n got {got:?}\n not {wanted}", case["tokenizer"], case["config"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// A cluster of such a model.
struct Asked {
    cluster: Cluster,
    max_tokens: u64,
    _model: TempDir,
}

impl Asked {
    fn about(case: &Value, all: &Value) -> Self {
        let model = folder(case);
        let path = Some(model.path().to_owned());
        let spec = ClusterSpec { contexts: 1, model: path, method: "[attention.dense]", listen: "127.0.0.1:0".into() };
        let cluster = Cluster::written(BINARY, &spec, |file| {
            let date = text(&all["date"]);
            file.replace("[model]\n", &format!("[model]\ndtype = \"f32\"\ntemplate_date = \"{date}\"\n"))
                .replace("[api]\n", "[api]\nlisten = \"127.0.0.1:0\"\n")
        });
        let up = cluster.run(&["up", "--detach"]);
        assert!(up.status.success(), "{}\n{}", case["tokenizer"], String::from_utf8_lossy(&up.stderr));
        Self { cluster, max_tokens: all["max_tokens"].as_u64().expect("a number"), _model: model }
    }

    /// The end of a job of the admin API.
    fn job(&self, mut request: Value) -> Value {
        request["max_tokens"] = self.max_tokens.into();
        request["logprobs"] = 0.into();
        let server = self.cluster.server();
        let sent = ureq::post(format!("{server}/api/v1/jobs")).send_json(&request).expect("the job is taken");
        let job: Value = sent.into_body().read_json().expect("JSON");
        let events = ureq::get(format!("{server}/api/v1/jobs/{}/events", text(&job["id"]))).call().expect("events");
        let printed = events.into_body().read_to_string().expect("UTF-8");
        serde_json::from_str::<Value>(printed.lines().last().expect("a last event")).expect("JSON")["status"].clone()
    }

    /// The job behind a request of OpenAI's API, which is answered.
    fn openai(&self, path: &str, mut request: Value) -> Value {
        request["model"] = self.cluster.status()["model"].clone();
        request["max_tokens"] = self.max_tokens.into();
        request["temperature"] = 0.into();
        request["logprobs"] = if path.contains("chat") { true.into() } else { 0.into() };
        let record = self.cluster.record();
        let url = format!("http://{}{path}", text(&record["api"]));
        ureq::post(url).send_json(&request).unwrap_or_else(|error| panic!("{request:#}: {error}"));
        let jobs = ureq::get(format!("{}/api/v1/jobs?limit=1", self.cluster.server())).call().expect("jobs");
        jobs.into_body().read_json::<Value>().expect("JSON")[0].clone()
    }

    /// What a command prints.
    fn command(&self, arguments: &[&str]) {
        let output = self.cluster.run(arguments);
        assert!(output.status.success(), "{arguments:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Whether an answer has the tokens and logprobs that are expected.
#[track_caller]
fn check(what: &str, status: &Value, expected: &Value) {
    let count = |key: &str| status[key].as_u64().expect("a count");
    let prompt = count("context_tokens") + count("query_tokens");
    assert_eq!(prompt, expected["prompt_tokens"], "{what}: tokens of the prompt\n{status:#}");
    assert_eq!(status["tokens"], expected["tokens"], "{what}: tokens\n{status:#}");
    for (got, wanted) in list(&status["logprobs"]).iter().zip(list(&expected["logprobs"])) {
        let (got, wanted) = (got["logprob"].as_f64().expect("a number"), wanted.as_f64().expect("a number"));
        assert!((got - wanted).abs() < CLOSE, "{what}: logprob {got}, expected {wanted}");
    }
}

#[test]
fn clusters_answer_as_transformers_however_they_are_asked() {
    let all = expected();
    let (document, first, second) =
        (text(&all["asked"]["document"]), text(&all["asked"]["first"]), text(&all["asked"]["second"]));
    for case in list(&all["chats"]).iter().filter(|case| case["answers"].is_array()) {
        let asked = Asked::about(case, &all);
        let name = format!("{} behind {}", text(&case["tokenizer"]), text(&case["template"]));
        for (messages, answer) in list(&all["conversations"]).iter().zip(list(&case["answers"])) {
            if answer.is_object() {
                let chat = asked.openai("/v1/chat/completions", json!({"messages": messages}));
                check(&format!("{name}, chat {messages}"), &chat, answer);
            }
        }
        let kept = &case["kept"];
        check(&format!("{name}, job"), &asked.job(json!({"context": document, "query": first})), &kept["first"]);
        let file = asked.cluster.folder().join("document.txt");
        fs::write(&file, document).expect("a file");
        asked.command(&["session", "create", "--name", "kept", "--context", file.to_str().expect("UTF-8")]);
        let status = asked.job(json!({"session": "kept", "query": first}));
        check(&format!("{name}, session"), &status, &kept["first"]);
        let most = asked.max_tokens.to_string();
        asked.command(&["session", "ask", "kept", first, "--keep", "--max-tokens", &most]);
        let status = asked.job(json!({"session": "kept", "query": second, "query_separator": ""}));
        check(&format!("{name}, behind a kept answer"), &status, &kept["second"]);
    }
    for case in list(&all["raw"]).iter().filter(|case| case["answers"].is_array()) {
        let asked = Asked::about(case, &all);
        for (prompt, answer) in list(&all["texts"]).iter().zip(list(&case["answers"])) {
            if answer.is_object() && !text(prompt).trim().is_empty() {
                let status = asked.openai("/v1/completions", json!({"prompt": prompt}));
                check(&format!("{}, completion of {prompt}", case["tokenizer"]), &status, answer);
            }
        }
    }
}
