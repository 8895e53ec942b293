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
