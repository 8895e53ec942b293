//! Chats over OpenAI's API, which send all that was said each time: what was encoded is not encoded again, and no answer is
//! another for it, whoever dies and whoever asks.

use std::fs;

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};

use super::{BINARY, embedded, eventually, signal};

/// SHA-256 of "moon" and of "sun".
const KEYS: &str = "alice 9e78b43ea00edcac8299e0cc8df7f6f913078171335f733a21d5d911b6999132 8\n\
                    bob 27756f050e14a1cb1c1ee867f0eace9ea4d9fcb81b8bee089469f1ebd5fd7b17 8\n";
const DEFAULT: &str = "[supervisor]\nrecovery = \"redistribute\"\nmax_restarts = 1000\n\n[attention.auto]";

fn cluster(contexts: usize) -> Cluster {
    let spec = ClusterSpec { method: DEFAULT, ..embedded(contexts) };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        text.replace("[api]\n", "[api]\nlisten = \"127.0.0.1:0\"\napi_key_file = \"keys\"\n")
    });
    fs::write(cluster.folder().join("keys"), KEYS).expect("a file");
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

/// A document that no other test asks about.
fn document(of: &str) -> String {
    let line =
        |town: usize| format!("The road to {of} {town} is long and the river {} beside it is slow. ", town * 7 % 31);
    (0..400).map(line).collect()
}

/// The answer to a request of a key.
fn sent(cluster: &Cluster, key: &str, (path, body): (&str, &Value)) -> Value {
    let record = cluster.record();
    let url = format!("http://{}/v1/{path}", record["api"].as_str().expect("an address"));
    let request = ureq::post(url).header("authorization", format!("Bearer {key}"));
    let answer = request.send_json(body).expect("an answer");
    answer.into_body().read_json().expect("JSON")
}

/// Status and body of the answer to a chat that is refused.
fn refusal(cluster: &Cluster, key: &str, body: &Value) -> (u16, Value) {
    let record = cluster.record();
    let url = format!("http://{}/v1/chat/completions", record["api"].as_str().expect("an address"));
    let request = ureq::post(url).config().http_status_as_error(false).build();
    let answer = request.header("authorization", format!("Bearer {key}")).send_json(body).expect("an answer");
    (answer.status().as_u16(), answer.into_body().read_json().expect("JSON"))
}

/// A conversation, by the key that holds it.
struct Chat {
    key: &'static str,
    method: &'static str,
    messages: Vec<Value>,
}

impl Chat {
    fn about(document: &str, key: &'static str, method: &'static str) -> Self {
        Self { key, method, messages: vec![json!({"role": "system", "content": document})] }
    }

    /// Asks as far as it has got. Returns the answer, the tokens that were held and those of the prompt.
    fn ask(&self, cluster: &Cluster) -> (String, u64, u64) {
        let body = json!({"messages": self.messages, "max_tokens": 12, "ignore_eos": true, "attention": self.method});
        let answer = sent(cluster, self.key, ("chat/completions", &body));
        let usage = &answer["usage"];
        let held = usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        let text = answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
        (text, held, usage["prompt_tokens"].as_u64().expect("a number"))
    }

    fn turn(&mut self, cluster: &Cluster, question: &str) -> (String, u64, u64) {
        self.messages.push(json!({"role": "user", "content": question}));
        let (text, held, prompt) = self.ask(cluster);
        self.messages.push(json!({"role": "assistant", "content": text}));
        (text, held, prompt)
    }
}

const QUESTIONS: [&str; 4] =
    ["Which road is long?", "Which river is slow?", "And what is beside town 7?", "And town 99?"];

#[test]
fn a_chat_goes_on_with_what_was_encoded_and_answers_as_a_fresh_cluster() {
    let cluster = cluster(3);
    for method in ["auto", "dense"] {
        let mut chat = Chat::about(&document(method), "moon", method);
        let turns: Vec<_> = QUESTIONS.iter().map(|question| chat.turn(&cluster, question)).collect();
        let held: Vec<u64> = turns.iter().map(|(_, held, _)| *held).collect();
        assert_eq!(held[0], 0, "{method}: {held:?}");
        let full = |prompt: u64| (prompt - 200) / 1024 * 1024;
        assert!(held[2] >= full(turns[1].2) && held[3] >= full(turns[2].2), "{method}: {turns:?}");
        if method == "dense" {
            assert!(held[1] >= full(turns[0].2), "{held:?}");
        }
        // Another key finds nothing of it, and gets the same.
        chat.messages.pop();
        let other = Chat { key: "sun", messages: chat.messages.clone(), ..chat };
        let (text, held, _) = other.ask(&cluster);
        assert_eq!((text, held), (turns[3].0.clone(), 0), "{method}");
        // Nor does what hosts held change an answer.
        assert_eq!(chat.ask(&cluster).0, turns[3].0, "{method}");
    }
    let jobs: Value =
        serde_json::from_slice(&cluster.run(&["job", "list", "--limit", "1", "-o", "json"]).stdout).unwrap();
    assert!(jobs[0]["reused_tokens"].as_u64() >= Some(4096), "{jobs:#}");
    let reason = jobs[0]["method_reason"].as_str().expect("a reason");
    assert!(reason.contains("may come again with more"), "{reason}");
    let shown = cluster.run(&["job", "status", jobs[0]["id"].as_str().expect("an id")]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("tokens of the context, which hosts held"));
    let metrics = cluster.metrics();
    assert!(metrics.contains("asterism_contexts_reused_total{held=\"part\"}"), "{metrics}");
}

#[test]
fn a_chat_goes_on_whoever_dies() {
    let (cluster, document) = (cluster(2), document("town"));
    let mut chat = Chat::about(&document, "moon", "auto");
    for question in &QUESTIONS[..3] {
        chat.turn(&cluster, question);
    }
    chat.messages.push(json!({"role": "user", "content": QUESTIONS[3]}));
    let (undisturbed, held, _) = chat.ask(&cluster);
    assert!(held >= 4096, "{held}");
    for victim in ["context-0", "context-1"] {
        signal("-KILL", cluster.pid(victim));
        eventually("a host that came back", || {
            cluster.try_status().is_some_and(|status| super::ready(&status) && cluster.pid(victim) > 0)
        });
        assert_eq!(chat.ask(&cluster).0, undisturbed, "{victim}");
    }
    // One of the two had it all: it was encoded again, and is held again.
    assert!(chat.ask(&cluster).1 >= 4096);
}

/// A name for what is cached together says from the first request on that it comes again, also without messages.
#[test]
fn what_is_named_is_found_in_completions_and_responses() {
    let (cluster, document) = (cluster(2), document("town"));
    let body =
        |text: &str| json!({"prompt": format!("{document}{text}"), "max_tokens": 4, "prompt_cache_key": "roads"});
    let held = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let [first, second] = ["\n\nWhich road?", "The end.\n\nWhich river?"]
        .map(|text| sent(&cluster, "moon", ("completions", &body(text))));
    assert_eq!(held(&first), Some(0), "{first}");
    assert!(held(&second) >= Some(4096), "{second}");
    let more = |more: &str| {
        let document = document.replace("town", "village") + more;
        let input = json!([{"role": "user", "content": document}, {"role": "user", "content": "Which road?"}]);
        let body = json!({"input": input, "max_output_tokens": 4, "prompt_cache_key": "roads"});
        let answer = sent(&cluster, "moon", ("responses", &body));
        answer["usage"]["input_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!(more(""), Some(0));
    assert!(more("And that is all of it.") >= Some(4096));
}

/// A salt sets contexts apart, whole ones and what they begin with, in every API.
#[test]
fn what_was_asked_for_with_one_salt_is_found_with_that_alone() {
    let (cluster, document) = (cluster(2), document("salt"));
    let held = |answer: &Value, of: &str| answer["usage"][of]["cached_tokens"].as_u64().expect("a number");
    let chat = |salt: Option<&str>| {
        let messages = json!([{"role": "system", "content": document}, {"role": "user", "content": QUESTIONS[0]}]);
        let body = json!({"messages": messages, "max_tokens": 4, "ignore_eos": true, "cache_salt": salt});
        let answer = sent(&cluster, "moon", ("chat/completions", &body));
        (answer["choices"][0]["message"]["content"].clone(), held(&answer, "prompt_tokens_details"))
    };
    let first = [None, Some("a"), Some("b")].map(chat);
    assert!(first.iter().all(|(text, held)| *text == first[0].0 && *held == 0), "{first:?}");
    let second = [None, Some("a"), Some("b"), Some("c")].map(chat);
    assert!(second[..3].iter().all(|(text, held)| *text == second[3].0 && *held >= 4096), "{second:?}");
    assert_eq!(second[3].1, 0, "{second:?}");
    // Whose prefix it is.
    let completion = |salt: Option<&str>, more: &str| {
        let prompt = format!("{}{more}\n\nWhich road?", document.replace("salt", "town"));
        let body = json!({"prompt": prompt, "max_tokens": 4, "prompt_cache_key": "roads", "cache_salt": salt});
        held(&sent(&cluster, "moon", ("completions", &body)), "prompt_tokens_details")
    };
    assert_eq!([completion(Some("a"), ""), completion(None, "More."), completion(Some("b"), "More.")], [0; 3]);
    assert!(completion(Some("a"), "More.") >= 4096);
    let response = |salt: &str| {
        let document = document.replace("salt", "village");
        let input = json!([{"role": "user", "content": document}, {"role": "user", "content": QUESTIONS[0]}]);
        let body = json!({"input": input, "max_output_tokens": 4, "cache_salt": salt});
        held(&sent(&cluster, "moon", ("responses", &body)), "input_tokens_details")
    };
    assert_eq!([response("a"), response("b")], [0; 2]);
    assert!(response("a") >= 4096);
    let message = |salt: &str| {
        let messages = json!([{"role": "user", "content": QUESTIONS[0]}]);
        let system = document.replace("salt", "harbour");
        let body = json!({"system": system, "messages": messages, "max_tokens": 4, "cache_salt": salt});
        sent(&cluster, "moon", ("messages", &body))["usage"]["cache_read_input_tokens"].as_u64().expect("a number")
    };
    assert_eq!([message("a"), message("b")], [0; 2]);
    assert!(message("a") >= 4096);
    fs::write(cluster.folder().join("roads.txt"), document.replace("salt", "tower")).expect("written");
    let submit = |salt: &[&str]| {
        let asked =
            ["job", "submit", "--context", "roads.txt", "--query", QUESTIONS[0], "--max-tokens", "4", "-o", "json"];
        let output = cluster.run(&[&asked[..], salt].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["cached_tokens"].as_u64().expect("a number")
    };
    let salts = [&[][..], &["--cache-salt", "a"], &["--cache-salt", "b"]];
    assert_eq!(salts.map(submit), [0; 3]);
    assert!(salts.map(submit).iter().all(|held| *held >= 4096));
    let made = cluster.run(&["session", "create", "--context", "roads.txt", "--name", "roads"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let submitted = |id: &str, salt: Option<&str>| {
        let mut body = json!({"context": document.replace("salt", "tower"), "query": QUESTIONS[1], "id": id});
        (body["cache_salt"], body["reuse"]) = (json!(salt), json!("likely"));
        ureq::post(format!("{}/api/v1/jobs", cluster.server())).send_json(&body).expect("taken");
        let result = cluster.run(&["job", "result", id, "-o", "json"]);
        serde_json::from_slice::<Value>(&result.stdout).expect("JSON")["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(submitted("salted", Some("c")), 0);
    assert!(submitted("plain", None) >= 4096, "the session's");
    let body =
        json!({"messages": [{"role": "user", "content": "Which road?"}], "session_id": "roads", "cache_salt": "a"});
    let (status, refused) = refusal(&cluster, "moon", &body);
    let error = &refused["error"];
    assert_eq!(
        (status, error["code"].as_str(), error["param"].as_str()),
        (400, Some("invalid_request"), Some("cache_salt"))
    );
    assert!(error["message"].as_str().is_some_and(|message| message.contains("leave it out")), "{refused}");
}
