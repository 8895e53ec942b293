//! OpenAI's API where nobody waits: responses in the background, files and batches, and whose they are.

use std::time::Instant;

use serde_json::{Value, json};
use tests::{Cluster, DEADLINE, kill};

use super::openai::{CHAT, JSON, KEYS, cluster, send, whale};

#[test]
fn a_response_in_the_background_outlives_its_connection_and_its_supervisor() {
    let cluster = cluster(None);
    let body = json!({"instructions": whale(), "input": "Which colour?", "max_output_tokens": 400, "ignore_eos": true, "background": true});
    let (status, made) = send(&cluster, ("POST", "/v1/responses"), &[JSON], &body.to_string());
    assert_eq!((status, &made["background"]), (200, &json!(true)), "{made}");
    let path = format!("/v1/responses/{}", made["id"].as_str().expect("an id"));
    let lost = cluster.supervisor();
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    let started = Instant::now();
    let ended = loop {
        let (status, response) = send(&cluster, ("GET", &path), &[], "");
        assert_eq!(status, 200, "{response}");
        if response["status"] == "incomplete" {
            break response;
        }
        assert!(["queued", "in_progress"].map(Value::from).contains(&response["status"]), "{response}");
        assert!(started.elapsed() < DEADLINE, "{response}");
    };
    assert_eq!(ended["usage"]["output_tokens"], 400, "{ended}");
    let text = ended["output"][0]["content"][0]["text"].as_str().expect("text");
    // The stream of a job that has ended goes on from any byte.
    let (_, stream) = send(&cluster, ("GET", &format!("{path}?stream=true&starting_after=13")), &[], "");
    let stream = stream.as_str().expect("events");
    let delta = stream.lines().find(|line| line.contains("output_text.delta\"")).expect("the rest");
    let delta: Value = serde_json::from_str(delta.strip_prefix("data: ").expect("an event")).expect("JSON");
    assert_eq!(delta["delta"].as_str(), text.get(10..), "{stream}");
    // Behind its last event there is nothing, and beyond that no event at all.
    let numbers = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut numbers = numbers.filter_map(|data| serde_json::from_str::<Value>(data).ok()?["sequence_number"].as_u64());
    let last = numbers.next_back().expect("events");
    let behind = |after: u64| send(&cluster, ("GET", &format!("{path}?stream=true&starting_after={after}")), &[], "");
    let (status, nothing) = behind(last);
    assert!(status == 200 && !nothing.as_str().unwrap_or_default().contains("sequence_number"), "{nothing}");
    for beyond in [last + 1, 99_999, u64::MAX] {
        let (status, refused) = behind(beyond);
        assert_eq!((status, refused["error"]["param"].as_str()), (400, Some("starting_after")), "{refused}");
        let message = refused["error"]["message"].as_str().expect("a message");
        let stated =
            format!("starting_after is {beyond}, and the last event of this response has sequence_number {last};");
        assert!(message.starts_with(&stated), "{message}");
    }
}

#[test]
fn a_response_is_there_for_its_key_alone() {
    let cluster = cluster(Some(KEYS));
    let ask = |way: (&str, &str), key: &str, body: &str| {
        let key = format!("Bearer {key}");
        send(&cluster, way, &[JSON, ("authorization", &key)], body)
    };
    let body = json!({"input": "Which colour has the whale?", "max_output_tokens": 2, "background": true}).to_string();
    let (status, made) = ask(("POST", "/v1/responses"), "moon", &body);
    assert_eq!(status, 200, "{made}");
    let id = made["id"].as_str().expect("an id");
    let (path, cancel) = (format!("/v1/responses/{id}"), format!("/v1/responses/{id}/cancel"));
    assert_eq!(ask(("GET", &path), "moon", "").0, 200);
    let job = id.replace("resp_", "job-");
    let strange = ["resp_..%2f..%2fetc%2fpasswd", "resp_", &job, "%ff", &id.to_uppercase()]
        .map(|id| format!("/v1/responses/{id}"));
    for path in &strange {
        let (status, answer) = ask(("GET", path), "moon", "");
        assert!([400, 404].contains(&status), "{path}: {answer}");
    }
    for way in [("GET", path.as_str()), ("POST", cancel.as_str())] {
        let (status, answer) = ask(way, "sun", "");
        assert_eq!((status, answer["error"]["code"].as_str()), (404, Some("response_not_found")), "{way:?}");
    }
    let (status, answer) = ask(("GET", &format!("{path}?starting_after=x")), "moon", "");
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("invalid_request")), "{answer}");
    // A job of the admin API is no response, whatever its id.
    let request = json!({"context": whale(), "query": "Which colour?", "max_tokens": 1});
    let sent = ureq::post(format!("{}/api/v1/jobs", cluster.server())).send_json(&request).expect("the job is taken");
    let job: Value = sent.into_body().read_json().expect("JSON");
    let path = format!("/v1/responses/{}", job["id"].as_str().expect("an id").replace("job-", "resp_"));
    assert_eq!(ask(("GET", &path), "moon", "").0, 404);
    let body = json!({"input": "Which colour?", "previous_response_id": id, "max_output_tokens": 2}).to_string();
    let (status, answer) = ask(("POST", "/v1/responses"), "sun", &body);
    assert_eq!((status, answer["error"]["code"].as_str()), (404, Some("previous_response_not_found")), "{answer}");
}

#[test]
fn a_conversation_goes_on_behind_a_response_whatever_dies() {
    let cluster = cluster(None);
    let asked = |body: &Value| send(&cluster, ("POST", "/v1/responses"), &[JSON], &body.to_string());
    let text = |response: &Value| response["output"][0]["content"][0]["text"].as_str().expect("text").to_owned();
    let first = json!({"instructions": whale(), "input": "Which colour?", "max_output_tokens": 4, "temperature": 0.0,
                       "metadata": {"topic": "whales"}, "text": {"format": {"type": "text"}, "verbosity": "medium"}});
    let (status, made) = asked(&first);
    assert_eq!(status, 200, "{made}");
    let id = made["id"].as_str().expect("an id");
    let lost = cluster.supervisor();
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    let (_, read) = send(&cluster, ("GET", &format!("/v1/responses/{id}")), &[], "");
    for response in [&made, &read] {
        let told = (&response["instructions"], &response["metadata"], &response["max_output_tokens"]);
        assert_eq!(told, (&first["instructions"], &first["metadata"], &json!(4)), "{response}");
    }
    let second = json!({"instructions": "Be brief.", "input": "And how large?", "previous_response_id": id, "max_output_tokens": 4,
                        "include": ["message.output_text.logprobs"], "top_logprobs": 1});
    let (status, answer) = asked(&second);
    assert_eq!((status, answer["previous_response_id"].as_str()), (200, Some(id)), "{answer}");
    let logprobs = answer["output"][0]["content"][0]["logprobs"].as_array().expect("a list").len();
    assert_eq!(Some(logprobs as u64), answer["usage"]["output_tokens"].as_u64(), "{answer}");
    let said = [
        ("system", "Be brief.".to_owned()),
        ("user", "Which colour?".into()),
        ("assistant", text(&made)),
        ("user", "And how large?".into()),
    ];
    let messages: Vec<Value> =
        said.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    let (_, chat) =
        send(&cluster, ("POST", CHAT), &[JSON], &json!({"messages": messages, "max_tokens": 4}).to_string());
    assert_eq!(chat["choices"][0]["message"]["content"], json!(text(&answer)), "{chat}");
    assert_eq!(chat["usage"]["prompt_tokens"], answer["usage"]["input_tokens"]);
    // What was not to be stored cannot be gone on with.
    let (_, unstored) = asked(&json!({"input": "Which colour?", "max_output_tokens": 1, "store": false}));
    let (status, refused) = asked(&json!({"input": "And?", "previous_response_id": unstored["id"]}));
    assert_eq!((status, refused["error"]["param"].as_str()), (400, Some("previous_response_id")), "{refused}");
}

#[test]
fn the_oldest_of_a_conversation_that_is_too_long_is_left_out_where_that_is_asked_for() {
    let cluster = cluster(None);
    let (_, models) = send(&cluster, ("GET", "/v1/models"), &[], "");
    let most = models["data"][0]["max_model_len"].as_u64().expect("a length");
    let said = |role: &str, text: String| json!({"role": role, "content": text});
    let input: Vec<Value> = (0..6)
        .flat_map(|number| [said("user", format!("{number} {}", whale())), said("assistant", "It is.".into())])
        .chain([said("user", "Is it white?".into())])
        .collect();
    // The answer is one word, whatever room it has.
    let body = |truncation: &str| json!({"input": input, "max_output_tokens": most - 700, "guided_choice": ["yes"], "truncation": truncation});
    let asked = |truncation| send(&cluster, ("POST", "/v1/responses"), &[JSON], &body(truncation).to_string());
    let (status, refused) = asked("disabled");
    assert_eq!((status, refused["error"]["code"].as_str()), (400, Some("context_too_long")), "{refused}");
    let (status, answer) = asked("auto");
    assert_eq!((status, answer["output"][0]["content"][0]["text"].as_str()), (200, Some("yes")), "{answer}");
    let tokens = answer["usage"]["input_tokens"].as_u64().expect("a number");
    assert!((200..=700).contains(&tokens), "{answer}");
    assert_eq!(answer["truncation"], "auto");
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=whale");

/// The id of a file of these lines.
fn upload(cluster: &Cluster, key: &str, purpose: &str, lines: &str) -> (u16, Value) {
    let part =
        |name: &str, text: &str| format!("--whale\r\nContent-Disposition: form-data; name={name}\r\n\r\n{text}\r\n");
    let body = part("\"purpose\"", purpose) + &part("\"file\"; filename=\"../../q.jsonl\"", lines) + "--whale--\r\n";
    send(cluster, ("POST", "/v1/files"), &[FORM, ("authorization", &format!("Bearer {key}"))], &body)
}

fn question(name: &str, text: &str) -> String {
    let messages = json!([{"role": "system", "content": whale()}, {"role": "user", "content": text}]);
    let body = json!({"messages": messages, "max_tokens": 24, "ignore_eos": true});
    json!({"custom_id": name, "method": "POST", "url": CHAT, "body": body}).to_string() + "\n"
}

#[test]
fn a_batch_is_answered_once_whatever_dies_on_the_way() {
    const QUESTIONS: usize = 24;
    let cluster = cluster(None);
    let lines: String =
        (0..QUESTIONS).map(|at| question(&format!("q{at}"), &format!("Which colour, number {at}?"))).collect();
    let (status, file) = upload(&cluster, "none", "batch", &lines);
    assert_eq!(status, 200, "{file}");
    let body = json!({"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}).to_string();
    let (status, made) = send(&cluster, ("POST", "/v1/batches"), &[JSON], &body);
    assert_eq!(status, 200, "{made}");
    let path = format!("/v1/batches/{}", made["id"].as_str().expect("an id"));
    let started = Instant::now();
    let wait_for = |what: &str, done: &dyn Fn(&Value) -> bool| loop {
        let (status, batch) = send(&cluster, ("GET", &path), &[], "");
        assert_eq!(status, 200, "{batch}");
        if done(&batch) {
            break batch;
        }
        assert!(started.elapsed() < 2 * DEADLINE, "{what}: {batch}");
    };
    wait_for("the first answers", &|batch| batch["request_counts"]["completed"].as_u64() >= Some(2));
    // What it asks is its own from then on.
    let input = format!("/v1/files/{}", file["id"].as_str().expect("an id"));
    assert_eq!(send(&cluster, ("DELETE", &input), &[], "").0, 200);
    cluster.kill("context-0");
    let lost = cluster.supervisor();
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    let batch = wait_for("every answer", &|batch| batch["status"] == "completed");
    assert_eq!(batch["request_counts"], json!({"total": QUESTIONS, "completed": QUESTIONS, "failed": 0}), "{batch}");
    let content = format!("/v1/files/{}/content", batch["output_file_id"].as_str().expect("a file"));
    let (_, answers) = send(&cluster, ("GET", &content), &[], "");
    let answers: Vec<Value> =
        answers.as_str().expect("lines").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<&str> = answers.iter().map(|answer| answer["custom_id"].as_str().expect("a name")).collect();
    assert_eq!(names, (0..QUESTIONS).map(|at| format!("q{at}")).collect::<Vec<_>>());
    let usage = |answer: &Value| answer["response"]["body"]["usage"].clone();
    for answer in &answers {
        assert!(usage(answer)["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(100), "{answer}");
        assert_eq!(usage(answer)["completion_tokens"], 24, "{answer}");
    }
    // Each line was one job, and the document is not kept.
    let jobs = ureq::get(format!("{}/api/v1/jobs?limit=500", cluster.server())).call().expect("jobs");
    let jobs: Vec<Value> = jobs.into_body().read_json().expect("JSON");
    assert_eq!(jobs.iter().filter(|job| job["labels"]["batch"] == batch["id"]).count(), QUESTIONS);
    let sessions = ureq::get(format!("{}/api/v1/sessions", cluster.server())).call().expect("sessions");
    assert_eq!(sessions.into_body().read_json::<Value>().expect("JSON"), json!([]));
}

#[test]
fn files_and_batches_are_there_for_their_key_alone() {
    let cluster = cluster(Some(KEYS));
    let ask = |way: (&str, &str), key: &str, body: &str| {
        send(&cluster, way, &[JSON, ("authorization", &format!("Bearer {key}"))], body)
    };
    let (status, file) = upload(&cluster, "moon", "batch", &question("a", "Which colour?"));
    assert_eq!(status, 200, "{file}");
    let id = file["id"].as_str().expect("an id");
    let create = |file: &str| json!({"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}).to_string();
    for (way, code) in [
        (("GET", format!("/v1/files/{id}")), "file_not_found"),
        (("GET", format!("/v1/files/{id}/content")), "file_not_found"),
        (("DELETE", format!("/v1/files/{id}")), "file_not_found"),
    ] {
        let (status, answer) = ask((way.0, &way.1), "sun", "");
        assert_eq!((status, answer["error"]["code"].as_str()), (404, Some(code)), "{way:?}");
    }
    assert_eq!(ask(("POST", "/v1/batches"), "sun", &create(id)).0, 404);
    assert_eq!(ask(("GET", "/v1/files"), "sun", "").1["data"], json!([]));
    assert_eq!(ask(("GET", "/v1/files"), "moon", "").1["data"][0]["id"], file["id"]);
    for strange in ["file-..%2f..%2fjournal", "..%2f..%2fcluster.toml", "file-", "%2e%2e", "batch_00"] {
        let (status, answer) = ask(("GET", &format!("/v1/files/{strange}/content")), "moon", "");
        assert!([400, 404].contains(&status), "{strange}: {answer}");
        assert!([400, 404].contains(&ask(("POST", "/v1/batches"), "moon", &create(strange)).0), "{strange}");
    }
    let (status, batch) = ask(("POST", "/v1/batches"), "moon", &create(id));
    assert_eq!(status, 200, "{batch}");
    let path = format!("/v1/batches/{}", batch["id"].as_str().expect("an id"));
    assert_eq!((ask(("GET", &path), "moon", "").0, ask(("GET", &path), "sun", "").0), (200, 404));
    for (purpose, lines, expected) in
        [("fine-tune", "{}".to_owned(), Some("purpose")), (&"x".repeat(300), "{}".to_owned(), None)]
    {
        let (status, answer) = upload(&cluster, "moon", purpose, &lines);
        assert!([400, 413].contains(&status) && answer["error"]["param"].as_str() == expected, "{answer}");
    }
    let key = ("authorization", "Bearer moon");
    for (kind, body) in [(JSON, "{}"), (FORM, ""), (FORM, "--whale"), (FORM, "--whale\r\n\r\n\r\n--whale--")] {
        let (status, answer) = send(&cluster, ("POST", "/v1/files"), &[kind, key], body);
        assert!((400..500).contains(&status), "{kind:?} {body}: {answer}");
    }
    for (lines, cause) in [("moon", "line 1"), ("", "no line"), (&(question("a", "?") + &question("a", "?")), "line 2")]
    {
        let (_, file) = upload(&cluster, "moon", "batch", lines);
        let (status, answer) = ask(("POST", "/v1/batches"), "moon", &create(file["id"].as_str().expect("an id")));
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(status == 400 && message.contains(cause), "{answer}");
    }
}
