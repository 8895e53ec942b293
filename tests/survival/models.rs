//! A cluster of two models: the second comes beside the first while it answers, requests name one, and the first goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden};

use super::{
    BINARY, embedded, eventually, ready, signal,
    stopping::{host, tokens},
};

const SURVIVING: &str = "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.star]";
/// The name that the first model has of its folder, and that the second is given.
const FIRST: &str = "tiny-llama";
const SECOND: &str = "next";

/// `tiny-llama` on a context and a query host, with OpenAI's API.
fn first() -> Cluster {
    let model = Some(golden().join("models/tiny-llama"));
    let spec = ClusterSpec { method: SURVIVING, model, ..embedded(1) };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        // Heads are the first model's, whichever that is.
        let (before, heads) = text.split_once("[models.heads").expect("its retaining heads");
        let (_, behind) = heads.split_once("[supervisor]").expect("what stands behind them");
        format!("{before}[supervisor]{behind}").replace("[api]\n", "[api]\nlisten = \"127.0.0.1:0\"\n")
    });
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

/// `[[model]]` of the second, and a host of it in each role.
fn second() -> String {
    let path = golden().join("models/tiny-qwen2");
    let host =
        |name: &str, role: &str| format!("[[host]]\nname = \"{name}\"\nrole = \"{role}\"\nmodel = \"{SECOND}\"\n\n");
    let model = format!("\n[[model]]\nname = \"{SECOND}\"\npath = \"{}\"\n\n", path.display());
    [model, host("next-context", "context"), host("next-query", "query")].concat()
}

/// Applies a cluster file: what came of it, and the words.
fn applied(cluster: &Cluster, text: &str) -> (Option<i32>, String) {
    fs::write(cluster.folder().join("next.toml"), text).expect("a file");
    let output = cluster.run(&["config", "apply", "next.toml"]);
    let words = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    (output.status.code(), words)
}

/// The tokens of a job of a model, and what it says of that.
fn asked(cluster: &Cluster, id: &str, model: Option<&str>) -> (Value, Value) {
    let mut job = json!({"id": id, "context": "The road to town is long. ".repeat(40), "query": "How is the road?",
        "max_tokens": 12, "ignore_eos": true, "chat_template": false});
    if let Some(model) = model {
        job["model"] = model.into();
    }
    eventually("the job to be taken", || {
        ureq::post(format!("{}/api/v1/jobs", cluster.server())).send_json(&job).is_ok()
    });
    let tokens = tokens(cluster, id);
    let status = super::stopping::shown(cluster, &format!("/api/v1/jobs/{id}")).expect("it is kept");
    (tokens, status["model"].clone())
}

fn api(cluster: &Cluster, path: &str) -> String {
    format!("http://{}/v1/{path}", cluster.record()["api"].as_str().expect("an address"))
}

/// Ids that `/v1/models` has.
fn listed(cluster: &Cluster) -> Vec<String> {
    let answer = ureq::get(api(cluster, "models")).call().expect("a list");
    let answer: Value = answer.into_body().read_json().expect("JSON");
    answer["data"]
        .as_array()
        .expect("models")
        .iter()
        .map(|model| model["id"].as_str().unwrap_or_default().into())
        .collect()
}

/// What a completion by a model comes to: a status of HTTP, and the body.
fn completed(cluster: &Cluster, model: &str) -> (u16, Value) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let request = json!({"model": model, "prompt": "The road to town is long. ".repeat(8), "max_tokens": 4});
    let answer = agent.post(api(cluster, "completions")).send_json(&request).expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_json().expect("JSON"))
}

fn session(cluster: &Cluster, name: &str) -> Value {
    let output = cluster.run(&["session", "ask", name, "How is the road?", "--max-tokens", "8", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["tokens"].clone()
}

/// The embedded model, and beside it the second, which has a chat template here: a context and a query host each.
fn both() -> Cluster {
    let spec = ClusterSpec { method: SURVIVING, ..embedded(1) };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        let text = text.replace("[api]\n", "[api]\nlisten = \"127.0.0.1:0\"\n") + &second();
        let path = golden().join("models/tiny-qwen2");
        let text = text.replace(path.to_str().expect("UTF-8"), "tiny-chat");
        text.replacen("[[model]]", "[[model]]\n\n[[model]]", 1)
    });
    let (from, to) = (golden().join("models/tiny-qwen2"), cluster.folder().join("tiny-chat"));
    fs::create_dir(&to).expect("a folder");
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(from.join(file), to.join(file)).expect("a copy");
    }
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}";
    fs::write(to.join("tokenizer_config.json"), json!({"chat_template": template}).to_string()).expect("a file");
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

/// A request to OpenAI's API, with what its answer is.
fn sent(cluster: &Cluster, path: &str, body: &Value) -> (u16, Value) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let answer = agent.post(api(cluster, path)).send_json(body).expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_json().expect("JSON"))
}

fn text_of(cluster: &Cluster, path: &str) -> (u16, String) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let answer = agent.get(path.replace("SERVER", &cluster.server())).call().expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_to_string().expect("text"))
}

/// The lines of a file of OpenAI's API, by their custom ids.
fn lines_of(cluster: &Cluster, file: &Value) -> BTreeMap<String, Value> {
    let file = file.as_str().expect("a file");
    let (status, text) = text_of(cluster, &api(cluster, &format!("files/{file}/content")));
    assert_eq!(status, 200, "{text}");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|line| (line["custom_id"].as_str().expect("an id").to_owned(), line)).collect()
}

fn chat(model: &str) -> Value {
    let question = "The grass is green. The sky is blue. What is the sky?";
    json!({"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 4, "temperature": 0})
}

#[test]
fn chats_batches_evaluations_and_self_tests_are_of_the_model_that_is_named() {
    const EMBEDDED: &str = "asterism-7m";
    let cluster = both();
    assert_eq!(listed(&cluster), [EMBEDDED, SECOND]);
    let answered = |model: &str| {
        let (status, body) = sent(&cluster, "chat/completions", &chat(model));
        assert_eq!((status, body["model"].as_str()), (200, Some(model)), "{body:#}");
        body["choices"][0]["message"]["content"].clone()
    };
    let answers = [EMBEDDED, SECOND].map(answered);
    assert_ne!(answers[0], answers[1]);
    let mut streamed = chat(SECOND);
    streamed["stream"] = true.into();
    let pieces = ureq::post(api(&cluster, "chat/completions")).send_json(&streamed).expect("an answer");
    let pieces = pieces.into_body().read_to_string().expect("text");
    let pieces = pieces.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let names: BTreeSet<String> = pieces.map(|piece| piece["model"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(names, BTreeSet::from([SECOND.to_owned()]));
    let (status, refused) = sent(&cluster, "chat/completions", &chat("nxt"));
    assert_eq!((status, refused["error"]["code"].as_str()), (404, Some("model_not_found")));

    // A line of a batch names a model as a request does; one that names none of them fails alone.
    let line = |id: &str, model: &str| {
        json!({"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": chat(model)}).to_string()
    };
    let input = [line("first", EMBEDDED), line("second", SECOND), line("none", "nxt")].join("\n");
    let upload = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; \
         name=\"file\"; filename=\"lines.jsonl\"\r\n\r\n{input}\r\n--b--\r\n"
    );
    let file = ureq::post(api(&cluster, "files")).content_type("multipart/form-data; boundary=b").send(upload);
    let file: Value = file.expect("it is taken").into_body().read_json().expect("JSON");
    let batch = json!({"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let (status, batch) = sent(&cluster, "batches", &batch);
    assert_eq!(status, 200, "{batch:#}");
    let path = api(&cluster, &format!("batches/{}", batch["id"].as_str().expect("an id")));
    let mut batch = Value::Null;
    eventually("the batch to end", || {
        batch = serde_json::from_str(&text_of(&cluster, &path).1).expect("JSON");
        batch["status"] == "completed"
    });
    let (output, errors) = (lines_of(&cluster, &batch["output_file_id"]), lines_of(&cluster, &batch["error_file_id"]));
    for (id, model, answer) in [("first", EMBEDDED, &answers[0]), ("second", SECOND, &answers[1])] {
        let body = &output[id]["response"]["body"];
        assert_eq!((&body["model"], &body["choices"][0]["message"]["content"]), (&json!(model), answer), "{id}");
    }
    let wrong = &errors["none"]["response"];
    assert_eq!((&wrong["status_code"], &wrong["body"]["error"]["code"]), (&json!(404), &json!("model_not_found")));

    // Each model is tried on its own hosts, and evaluated by its name.
    let tested = cluster.run(&["self-test", "-o", "json"]);
    assert_eq!(tested.status.code(), Some(0), "{}", String::from_utf8_lossy(&tested.stderr));
    let report: Value = serde_json::from_slice(&tested.stdout).expect("JSON");
    let names: Vec<&str> =
        report["checks"].as_array().expect("checks").iter().filter_map(|one| one["name"].as_str()).collect();
    for name in ["asterism-7m: dense on context-0", "next: dense on next-context", "next: all of it on next-query"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let record =
        json!({"input_context": "The grass is green. ".repeat(20), "input_query": "What is green?", "answer": "grass"});
    fs::write(cluster.folder().join("questions.jsonl"), record.to_string()).expect("a file");
    let evaluated = |name: &str| {
        let asked =
            ["eval", "questions.jsonl", "--methods", "dense", "--max-tokens", "4", "--model-name", name, "-o", "jsonl"];
        let output = cluster.run(&asked);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let of = printed.lines().next().and_then(|line| serde_json::from_str::<Value>(line).ok());
        (
            output.status.code(),
            of.unwrap_or_default()["model"].clone(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for model in [EMBEDDED, SECOND] {
        let (code, of, said) = evaluated(model);
        assert_eq!((code, of.as_str()), (Some(0), Some(model)), "{said}");
    }

    // One that lacks hosts is named, and the other goes on.
    let ready = |query: &str| text_of(&cluster, &format!("SERVER/readyz{query}"));
    assert_eq!(ready("?model=next"), (200, "ready\n".to_owned()));
    for host in ["next-query", "next-context"] {
        assert_eq!(cluster.run(&["host", "cordon", host]).status.code(), Some(0));
    }
    assert_eq!(ready(""), (200, "[-] model next does not answer\nready\n".to_owned()));
    assert_eq!(ready("?model=next"), (503, "[-] model next does not answer\nnot ready\n".to_owned()));
    assert_eq!(ready("?model=asterism-7m").0, 200);
    assert_eq!(ready("?model=nxt").0, 404);
    let metrics = cluster.metrics();
    for (model, answers) in [(EMBEDDED, 1), (SECOND, 0)] {
        assert!(metrics.contains(&format!("asterism_model_answers{{model=\"{model}\"}} {answers}\n")), "{model}");
    }
    assert_eq!(answered(EMBEDDED), answers[0]);
    let tested = cluster.run(&["self-test"]);
    let said = String::from_utf8_lossy(&tested.stderr).into_owned();
    assert!(
        tested.status.code() == Some(3) && said.contains("next: no context host or no query host is ready"),
        "{said}"
    );
}

#[test]
fn a_second_model_comes_beside_the_first_and_the_first_goes() {
    let cluster = first();
    let (of_first, named) = asked(&cluster, "alone", None);
    assert_eq!((named.as_str(), listed(&cluster)), (Some(FIRST), vec![FIRST.to_owned()]));
    fs::write(cluster.folder().join("document.txt"), "The road to town is long. ".repeat(40)).expect("written");
    let made = |arguments: &[&str]| {
        let output = cluster.run(&[&["session", "create", "--context", "document.txt", "--name"], arguments].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(made(&["old"]).0, Some(0));
    let of_old = session(&cluster, "old");
    let text = fs::read_to_string(cluster.file()).expect("its file");

    // What contradicts itself changes nothing, and says where.
    let two = text.replace("[model]", "[[model]]") + &second();
    for (wrong, words) in [
        (
            two.replace("model = \"next\"", "model = \"nxt\""),
            "host 'next-context' holds model 'nxt', which is not in the file",
        ),
        (
            two.replace("role = \"query\"\nmodel = \"next\"", "role = \"spare\"\nmodel = \"next\""),
            "model 'next' has no host with role = \"query\"",
        ),
        (two.clone() + "\n[[model]]\nname = \"next\"\n", "two models are named 'next'"),
        (two.clone() + "\n[[model]]\n", "[[model]] 3 of 3 has none"),
        (two.replace("tiny-qwen2", "tiny-none"), "tiny-none"),
    ] {
        let (code, said) = applied(&cluster, &wrong);
        assert!(code == Some(2) && said.contains(words), "{code:?} {said}");
    }
    assert_eq!(listed(&cluster), [FIRST]);

    let (code, said) = applied(&cluster, &two);
    assert!(code == Some(0) && said.contains("model.next"), "{said}");
    cluster.wait_for("hosts of the second model", |status| {
        ready(status) && status["hosts"].as_array().is_some_and(|hosts| hosts.len() == 4)
    });
    assert_eq!(listed(&cluster), [FIRST, SECOND]);
    let (of_second, named) = asked(&cluster, "second", Some(SECOND));
    assert_eq!(named, SECOND);
    assert_ne!(of_second, of_first, "another model says something else");
    assert_eq!(asked(&cluster, "first", Some(FIRST)), (of_first.clone(), FIRST.into()));
    assert_eq!(asked(&cluster, "unnamed", None).0, of_first);
    for model in [FIRST, SECOND] {
        let (status, body) = completed(&cluster, model);
        assert_eq!((status, body["model"].as_str()), (200, Some(model)), "{body:#}");
    }
    let (status, body) = completed(&cluster, "nxt");
    assert_eq!(
        (status, body["error"]["code"].as_str(), body["error"]["param"].as_str()),
        (404, Some("model_not_found"), Some("model"))
    );
    assert_eq!(body["error"]["message"], "there is no model 'nxt' here, expected 'tiny-llama' or 'next'");
    assert_eq!(made(&["new", "--model-name", SECOND]).0, Some(0));
    let (code, said) = made(&["none", "--model-name", "nxt"]);
    assert!(code == Some(5) && said.contains("there is no model 'nxt'"), "{code:?} {said}");
    let of_new = session(&cluster, "new");
    assert_eq!(session(&cluster, "old"), of_old);

    // Another supervisor has both, and what each holds.
    let pid = cluster.supervisor();
    signal("-KILL", pid);
    eventually("another supervisor", || cluster.supervisor() != pid && cluster.try_status().is_some());
    cluster.wait_for("all hosts", |status| ready(status) && host(status, "next-query")["model"] == SECOND);
    assert_eq!((session(&cluster, "old"), session(&cluster, "new")), (of_old, of_new.clone()));

    // The first goes, with its hosts.
    let hosts =
        "[[host]]\nname = \"context-0\"\nrole = \"context\"\n\n[[host]]\nname = \"query-0\"\nrole = \"query\"\n";
    let (before, rest) = text.split_once("[model]").expect("a model");
    let (_, rest) = rest.split_once("[supervisor]").expect("what stands behind it");
    let third = format!("{before}[supervisor]{rest}{}", second());
    assert!(third.contains(hosts), "{third}");
    let (code, said) = applied(&cluster, &third.replace(hosts, ""));
    assert_eq!(code, Some(0), "{said}");
    cluster.wait_for("the first model's hosts to go", |status| {
        ready(status) && status["hosts"].as_array().is_some_and(|hosts| hosts.len() == 2)
    });
    assert_eq!(listed(&cluster), [SECOND]);
    assert_eq!(asked(&cluster, "after", None), (of_second, SECOND.into()));
    assert_eq!(completed(&cluster, FIRST).0, 404);
    assert_eq!(session(&cluster, "new"), of_new);
}
