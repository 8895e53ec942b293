//! Requests that are nearly right: their refusal says what was meant, in words of whoever wrote them.

use serde_json::{Value, json};

use crate::api::openai::{CHAT, JSON, answered, cluster, send};

fn one() -> Value {
    json!([{"role": "user", "content": "Which colour?"}])
}

#[test]
fn a_field_that_is_nearly_known_is_told_the_known_one() {
    let cluster = cluster(None);
    let conversation = json!({"messages": one(), "max_token": 3});
    for (path, body) in [
        (CHAT, conversation.clone()),
        ("/v1/messages", conversation.clone()),
        ("/v1/messages", json!({"messages": one(), "max_tokens": 3, "stop_sequence": ["a"]})),
        ("/v1/completions", json!({"prompt": "a", "max_token": 3})),
        ("/v1/responses", json!({"input": "a", "max_output_token": 3})),
        (CHAT, json!({"message": one()})),
        ("/tokenize", json!({"prompt": "a", "return_token_str": true})),
        ("/v1/batches", json!({"input_file_id": "a", "endpoint": CHAT, "completion_windo": "24h"})),
    ] {
        let (status, answer) = send(&cluster, ("POST", path), &[JSON], &body.to_string());
        let message = answer["error"]["message"].as_str().expect("a message");
        assert_eq!((status, message.contains("did you mean")), (400, true), "{path} {body}: {answer}");
        let known = message.split("did you mean ").nth(1).unwrap_or_default().trim_end_matches('?');
        assert!(!body.to_string().contains(&format!("\"{known}\"")), "{path} {body}: {answer}");
    }
    let job = json!({"context": "c", "query": "q", "max_token": 3}).to_string();
    let answer = ureq::post(format!("{}/api/v1/jobs", cluster.server()))
        .config()
        .http_status_as_error(false)
        .build()
        .header(JSON.0, JSON.1)
        .send(job)
        .expect("an answer");
    let text = answer.into_body().read_to_string().expect("UTF-8");
    assert!(text.contains("did you mean `max_tokens`?") && text.contains("\"param\":\"max_token\""), "{text}");
}

#[test]
fn refusals_name_no_types_of_this_program() {
    let cluster = cluster(None);
    let sound = json!({"messages": one(), "max_tokens": 3}).to_string();
    for (body, words) in [
        (sound.replace('3', "\"many\""), "string \"many\", expected a whole number from 0 on"),
        (sound.replace('3', "-1"), "expected a whole number from 0 on"),
        (sound.replace("Which", "\\ud800"), "half of a surrogate pair"),
        (json!({"messages": [], "max_tokens": 3}).to_string(), "expected a message of role user"),
    ] {
        let (status, answer) = send(&cluster, ("POST", CHAT), &[JSON], &body);
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(words), "{body}: {answer}");
    }
    let alone = json!({"system": "a", "messages": [], "max_tokens": 3}).to_string();
    let (status, answer) = send(&cluster, ("POST", "/v1/messages"), &[JSON], &alone);
    assert!(status == 400 && answer.to_string().contains("expected a message of role user"), "{answer}");
}

#[test]
fn a_conversation_is_cut_with_its_tools_as_a_chat_renders_it() {
    let cluster = cluster(None);
    let tool = json!({"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}});
    let with_tools = json!({"messages": one(), "tools": [tool]});
    let counted = |body: &Value| answered(&cluster, "/tokenize", body)["count"].as_u64().expect("a count");
    let chat = json!({"messages": one(), "tools": [tool], "max_tokens": 1});
    let plain = json!({"messages": one()});
    assert!(counted(&with_tools) > counted(&plain));
    assert_eq!(answered(&cluster, CHAT, &chat)["usage"]["prompt_tokens"], counted(&with_tools));
}

#[test]
fn a_text_that_is_too_long_by_its_bytes_is_told_its_lengths() {
    let cluster = cluster(None);
    let text = "The whale is white. ".repeat(1 << 16);
    let body = json!({"messages": [{"role": "user", "content": text}]}).to_string();
    let (status, answer) = send(&cluster, ("POST", CHAT), &[JSON], &body);
    let message = answer["error"]["message"].as_str().expect("a message");
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_too_long")), "{answer}");
    assert!(message.contains(&format!("However, messages has {} bytes of text", text.len())), "{message}");
    assert!(message.contains("tokens at least") && message.contains("maximum context length is 16384"), "{message}");
}
