//! What clients of other servers ask for: prompts that are told back, several answers, forms, calls of tools, and the Messages API.

use serde_json::{Value, json};

use super::openai::{CHAT, JSON, answered, cluster, send, streamed};

const TEXT: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";

fn question() -> Value {
    json!([{"role": "system", "content": super::openai::whale()}, {"role": "user", "content": "Which colour?"}])
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "paint", "description": "Paints.", "parameters": {
        "type": "object",
        "properties": {"colour": {"enum": ["white", "black"]}, "times": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["colour", "times"], "additionalProperties": false}}})
}

#[test]
fn a_prompt_is_told_back_with_what_it_was_worth() {
    let cluster = cluster(None);
    let ids: Vec<u32> = (0..700).map(|at| 300 + (at * 37) % 500).collect();
    let told = |body: Value| answered(&cluster, TEXT, &body)["choices"][0]["logprobs"].clone();
    // A question of one token after the other, and the same prompt as a whole, in parts of several steps.
    let whole = told(json!({"prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 1}));
    let worth = whole["token_logprobs"].as_array().expect("numbers");
    assert_eq!((worth.len(), &worth[0]), (ids.len(), &Value::Null));
    for at in [1, 5, 300, 512, 699] {
        let before = json!({"prompt": ids[..at], "max_tokens": 1, "ignore_eos": true, "logprobs": 1, "attention": "dense",
                            "logit_bias": {ids[at].to_string(): 100.0}});
        let one = told(before);
        let (one, all) = (one["token_logprobs"][0].as_f64(), worth[at].as_f64());
        assert!(one.zip(all).is_some_and(|(one, all)| (one - all).abs() < 1e-3), "token {at}: {one:?} and {all:?}");
    }
    let body =
        json!({"prompt": "The whale is white.", "max_tokens": 4, "ignore_eos": true, "echo": true, "logprobs": 0});
    let answer = answered(&cluster, TEXT, &body);
    let (choice, chunks) = (&answer["choices"][0], streamed(&cluster, TEXT, &body));
    assert!(choice["text"].as_str().is_some_and(|text| text.starts_with("The whale is white.")), "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
    let all = |field: &str| -> Vec<Value> {
        let lists = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][field].as_array());
        lists.flatten().cloned().collect()
    };
    assert_eq!(all("tokens"), *choice["logprobs"]["tokens"].as_array().expect("tokens"));
    assert_eq!(all("text_offset"), *choice["logprobs"]["text_offset"].as_array().expect("numbers"));
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, choice["text"]);
    let chat = answered(&cluster, CHAT, &json!({"messages": question(), "max_tokens": 2, "prompt_logprobs": 1}));
    let told = chat["prompt_logprobs"].as_array().expect("a list").len() as u64;
    assert_eq!(Some(told), chat["usage"]["prompt_tokens"].as_u64());
}

#[test]
fn several_prompts_and_answers_are_told_together() {
    let cluster = cluster(None);
    let body = json!({"prompt": ["The whale is", "The sea is"], "n": 2, "max_tokens": 3, "temperature": 0.9, "seed": 5, "ignore_eos": true});
    let answer = answered(&cluster, TEXT, &body);
    let texts: Vec<&Value> =
        answer["choices"].as_array().expect("choices").iter().map(|choice| &choice["text"]).collect();
    assert_eq!((texts.len(), answer["usage"]["completion_tokens"].as_u64()), (4, Some(12)), "{answer}");
    let mut together = vec![String::new(); 4];
    for chunk in streamed(&cluster, TEXT, &body) {
        let choice = &chunk["choices"][0];
        let index = choice["index"].as_u64().expect("a number") as usize;
        together[index] += choice["text"].as_str().expect("text");
    }
    assert_eq!(json!(together), json!(texts), "a seed repeats");
    let one = answered(&cluster, TEXT, &json!({"prompt": [[421]], "max_tokens": 2, "ignore_eos": true}));
    assert_eq!(one["usage"]["prompt_tokens"], 1, "{one}");
    let (status, refused) = send(&cluster, ("POST", TEXT), &[JSON], &json!({"prompt": vec!["a"; 129]}).to_string());
    assert_eq!((status, refused["error"]["code"].as_str()), (400, Some("invalid_request")), "{refused}");
}

#[test]
fn answers_have_their_form_and_calls_their_arguments() {
    let cluster = cluster(None);
    let schema = tool()["function"]["parameters"].clone();
    let format = json!({"type": "json_schema", "json_schema": {"name": "p", "schema": schema, "strict": true}});
    for heat in [0.0, 1.5] {
        let body = json!({"messages": question(), "max_tokens": 60, "temperature": heat, "seed": 3, "response_format": format});
        let answer = answered(&cluster, CHAT, &body);
        let text = answer["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
        let value: Value = serde_json::from_str(&text).expect(&text);
        assert!(["white", "black"].contains(&value["colour"].as_str().expect("a colour")), "{text}");
        assert!(value["times"].as_u64().is_some_and(|times| (1..=9).contains(&times)), "{text}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let chunks = streamed(&cluster, CHAT, &body);
        let said: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(said, text);
    }
    let chosen = answered(
        &cluster,
        CHAT,
        &json!({"messages": question(), "max_tokens": 20, "guided_choice": ["left", "right"]}),
    );
    assert!(
        ["left", "right"].contains(&chosen["choices"][0]["message"]["content"].as_str().expect("text")),
        "{chosen}"
    );
    let named = json!({"type": "function", "function": {"name": "paint"}});
    for choice in [json!("required"), named] {
        let body = json!({"messages": question(), "max_tokens": 90, "tools": [tool()], "tool_choice": choice});
        let answer = answered(&cluster, CHAT, &body);
        let (message, reason) = (&answer["choices"][0]["message"], &answer["choices"][0]["finish_reason"]);
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(
            (call["name"].as_str(), reason.as_str(), &message["content"]),
            (Some("paint"), Some("tool_calls"), &Value::Null)
        );
        let arguments = call["arguments"].as_str().expect("JSON").to_owned();
        assert!(serde_json::from_str::<Value>(&arguments).expect(&arguments)["times"].is_u64());
        let chunks = streamed(&cluster, CHAT, &body);
        let calls = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]);
        assert_eq!(calls.filter_map(Value::as_str).collect::<String>(), arguments);
    }
    let wrong = json!({"messages": question(), "response_format": {"type": "json_schema", "json_schema": {"schema": {
        "type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}}}}});
    let (status, refused) = send(&cluster, ("POST", CHAT), &[JSON], &wrong.to_string());
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("/properties/a"), "{status} {refused}");
}

#[test]
fn what_was_called_before_is_told_the_model() {
    let cluster = cluster(None);
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"city\": \"Oslo\"}"}});
    let turns = json!([
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "cold"},
        {"role": "user", "content": "Which city did you look up?"},
    ]);
    let ids = answered(&cluster, "/tokenize", &json!({"messages": turns}));
    let text = answered(&cluster, "/detokenize", &json!({"tokens": ids["tokens"]}))["prompt"].clone();
    let text = text.as_str().expect("text");
    assert!(text.contains("Oslo") && text.contains("cold") && text.contains("look"), "{text}");
    assert_eq!(send(&cluster, ("GET", "/health"), &[], "").0, 200);
    assert!(send(&cluster, ("GET", "/version"), &[], "").1["version"].is_string());
}

#[test]
fn the_messages_api_answers_as_a_chat_does() {
    let cluster = cluster(None);
    let chat = answered(&cluster, CHAT, &json!({"messages": question(), "max_tokens": 8}));
    let body = json!({"max_tokens": 8, "system": super::openai::whale(), "messages": [{"role": "user", "content": "Which colour?"}]});
    let answer = answered(&cluster, MESSAGES, &body);
    assert_eq!(answer["content"][0]["text"], chat["choices"][0]["message"]["content"], "{answer}");
    let counted = answered(&cluster, "/v1/messages/count_tokens", &body);
    assert_eq!(counted["input_tokens"], chat["usage"]["prompt_tokens"]);
    let events = streamed(&cluster, MESSAGES, &body);
    let said: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(said, answer["content"][0]["text"]);
    assert_eq!(events.last().expect("events")["type"], "message_stop");
    let mut called = body.clone();
    called["max_tokens"] = json!(90);
    called["tools"] = json!([{"name": "paint", "input_schema": tool()["function"]["parameters"]}]);
    called["tool_choice"] = json!({"type": "any"});
    let answer = answered(&cluster, MESSAGES, &called);
    let call = &answer["content"][0];
    assert_eq!(
        (call["type"].as_str(), answer["stop_reason"].as_str()),
        (Some("tool_use"), Some("tool_use")),
        "{answer}"
    );
    assert!(call["input"]["times"].is_u64(), "{answer}");
}

#[test]
fn the_messages_api_says_what_ended_an_answer_and_refuses_in_its_own_words() {
    let cluster = cluster(None);
    let mut body = json!({"max_tokens": 40, "system": super::openai::whale(), "messages": [{"role": "user", "content": "Which colour?"}]});
    let plain = answered(&cluster, MESSAGES, &body);
    let text = plain["content"][0]["text"].as_str().expect("text");
    let stop: String = text.chars().skip(2).take(3).collect();
    let before = text.split_once(&stop).expect("it is in it").0;
    body["stop_sequences"] = json!(["never said", stop]);
    let answer = answered(&cluster, MESSAGES, &body);
    let told = (answer["stop_reason"].as_str(), &answer["stop_sequence"], &answer["content"][0]["text"]);
    assert_eq!(told, (Some("stop_sequence"), &json!(stop), &json!(before)), "{answer}");
    let events = streamed(&cluster, MESSAGES, &body);
    let delta = events.iter().find(|event| event["type"] == "message_delta").expect("an end");
    assert_eq!(delta["delta"], json!({"stop_reason": "stop_sequence", "stop_sequence": stop}));
    for (wrong, status, kind) in [
        (json!({"messages": 3}), 400, "invalid_request_error"),
        (json!({"messages": body["messages"]}), 400, "invalid_request_error"),
        (json!({"model": "x", "messages": body["messages"]}), 404, "not_found_error"),
    ] {
        let (got, refused) = send(&cluster, ("POST", MESSAGES), &[JSON], &wrong.to_string());
        assert_eq!(
            (got, refused["type"].as_str(), refused["error"]["type"].as_str()),
            (status, Some("error"), Some(kind)),
            "{refused}"
        );
    }
}
