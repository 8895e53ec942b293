//! Limits are a key's, whatever it asks for, and one key cannot use up what all share.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Instant,
};

use asterism_actors::machine;
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, DEADLINE, kill};

use super::openai::{BINARY, CHAT, JSON, KEYS, api, send, whale};

/// A cluster whose keys are moon, and sun, who may have one request open; with more in its `[api]`.
fn cluster(settings: &str) -> Cluster {
    let method = "[attention.star]\nblock_tokens = 64";
    let spec = ClusterSpec { contexts: 1, model: None, method, listen: "127.0.0.1:0".into() };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        let api = format!("[api]\nlisten = \"127.0.0.1:0\"\napi_key_file = \"keys\"\n{settings}\n");
        text.replace("[api]\n", &api)
    });
    fs::write(cluster.folder().join("keys"), KEYS).expect("a file");
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

fn ask(cluster: &Cluster, key: &str, way: (&str, &str), body: &str) -> (u16, Value) {
    send(cluster, way, &[JSON, ("authorization", &format!("Bearer {key}"))], body)
}

fn models(cluster: &Cluster) -> (u16, Value) {
    ask(cluster, "sun", ("GET", "/v1/models"), "")
}

/// Waits until sun may ask again.
fn wait_for_place(cluster: &Cluster) {
    let started = Instant::now();
    while models(cluster).0 == 429 {
        assert!(started.elapsed() < DEADLINE, "its place is not free again");
    }
}

fn upload(cluster: &Cluster, key: &str, content: &str) -> (u16, Value) {
    let part = |name: &str, text: &str| format!("--w\r\nContent-Disposition: form-data; name={name}\r\n\r\n{text}\r\n");
    let body = part("\"purpose\"", "batch") + &part("\"file\"; filename=\"q.jsonl\"", content) + "--w--\r\n";
    let form = ("content-type", "multipart/form-data; boundary=w");
    send(cluster, ("POST", "/v1/files"), &[form, ("authorization", &format!("Bearer {key}"))], &body)
}

#[test]
fn a_response_in_the_background_takes_a_place_until_it_has_ended() {
    let cluster = cluster("");
    let body = json!({"input": format!("{}\n\nWhich?", whale()), "max_output_tokens": 4000, "ignore_eos": true, "background": true});
    let (status, made) = ask(&cluster, "sun", ("POST", "/v1/responses"), &body.to_string());
    assert_eq!(status, 200, "{made}");
    let (status, answer) = models(&cluster);
    assert_eq!((status, answer["error"]["code"].as_str()), (429, Some("rate_limit_exceeded")), "{answer}");
    assert!(answer["error"]["message"].as_str().expect("a message").contains("background"), "{answer}");
    // So it does when the supervisor is another one.
    let lost = cluster.supervisor();
    kill(lost);
    cluster.wait_for("another supervisor", |status| status["ready"] == true && cluster.supervisor() != lost);
    assert_eq!(models(&cluster).0, 429);
    let job = made["id"].as_str().expect("an id").replace("resp_", "job-");
    let cancelled = ureq::post(format!("{}/api/v1/jobs/{job}/cancel", cluster.server())).send_empty();
    assert_eq!(cancelled.expect("it is cancelled").status(), 200);
    wait_for_place(&cluster);
}

#[test]
fn a_download_takes_a_place_until_it_has_been_read() {
    let cluster = cluster("");
    let (status, file) = upload(&cluster, "sun", &"x".repeat(24 << 20));
    assert_eq!(status, 200, "{file}");
    let path = format!("/v1/files/{}/content", file["id"].as_str().expect("an id"));
    let mut slow = TcpStream::connect(api(&cluster)).expect("a listener");
    slow.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    write!(slow, "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sun\r\n\r\n").expect("sent");
    slow.read_exact(&mut [0; 12]).expect("an answer");
    for _ in 0..3 {
        assert_eq!(models(&cluster).0, 429);
    }
    drop(slow);
    wait_for_place(&cluster);
}

#[test]
fn what_is_kept_is_counted_by_key_and_shown() {
    let cluster = cluster("max_stored_bytes = \"3MiB\"\nmax_stored_bytes_per_key = \"2MiB\"");
    let (status, file) = upload(&cluster, "moon", &"x".repeat(1 << 20));
    assert_eq!(status, 200, "{file}");
    let (status, answer) = upload(&cluster, "moon", &"x".repeat(1 << 20));
    assert_eq!((status, answer["error"]["code"].as_str()), (507, Some("storage_full")), "{answer}");
    assert!(answer["error"]["message"].as_str().expect("a message").contains("this key"), "{answer}");
    wait_for_place(&cluster);
    assert_eq!(upload(&cluster, "sun", &"x".repeat(1 << 20)).0, 200, "another key's room");
    wait_for_place(&cluster);
    let (status, answer) = upload(&cluster, "sun", &"x".repeat((1 << 20) - 9000));
    assert!(status == 507 && answer["error"]["message"].as_str().expect("a message").contains("all keys"), "{answer}");
    let stored = &cluster.status()["stored"];
    assert_eq!((&stored["max_bytes"], &stored["max_bytes_per_key"]), (&json!(3 << 20), &json!(2 << 20)), "{stored}");
    assert!(stored["bytes"].as_u64() > Some(2 << 20), "{stored}");
    let path = format!("/v1/files/{}", file["id"].as_str().expect("an id"));
    assert_eq!(ask(&cluster, "moon", ("DELETE", &path), "").0, 200);
    assert_eq!(upload(&cluster, "moon", &"x".repeat(1 << 20)).0, 200, "what was deleted counts no more");
}

#[test]
fn metadata_is_as_long_as_published_and_lists_read_what_they_show() {
    let cluster = cluster("");
    let body = json!({"messages": [{"role": "user", "content": whale()}, {"role": "user", "content": "Which?"}], "max_tokens": 1});
    let line = json!({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}).to_string();
    let (_, file) = upload(&cluster, "moon", &line);
    let create = |metadata: Value| {
        let body =
            json!({"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h", "metadata": metadata});
        ask(&cluster, "moon", ("POST", "/v1/batches"), &body.to_string())
    };
    let pairs = |count: usize| (0..count).map(|at| (format!("k{at}"), json!("v"))).collect::<serde_json::Map<_, _>>();
    for wrong in
        [json!({"k": "v".repeat(513)}), json!({"k".repeat(65): "v"}), pairs(17).into(), json!({"k": [1]}), json!([])]
    {
        let (status, answer) = create(wrong);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("metadata")), "{answer}");
    }
    let most = json!({"é".repeat(64): "é".repeat(512)});
    let made: Vec<Value> = [json!(null), most.clone(), pairs(16).into()].map(|metadata| create(metadata).1).into();
    assert!(made.iter().all(|batch| batch["id"].is_string()) && made[1]["metadata"] == most, "{made:?}");
    let list = |query: &str| ask(&cluster, "moon", ("GET", &format!("/v1/batches?{query}")), "").1;
    let ids = |list: &Value| -> Vec<Value> {
        list["data"].as_array().expect("a list").iter().map(|batch| batch["id"].clone()).collect()
    };
    let mut all = ids(&list("limit=100"));
    let pages = ["limit=1".to_owned(), format!("limit=1&after={}", all[0].as_str().expect("an id"))];
    assert_eq!(pages.map(|page| ids(&list(&page))), [vec![all[0].clone()], vec![all[1].clone()]]);
    assert_eq!((list("limit=1")["has_more"].clone(), list("limit=3")["has_more"].clone()), (json!(true), json!(false)));
    all.sort_by_key(Value::to_string);
    let mut expected: Vec<Value> = made.iter().map(|batch| batch["id"].clone()).collect();
    expected.sort_by_key(Value::to_string);
    assert_eq!(all, expected);
    assert_eq!(ask(&cluster, "moon", ("GET", "/v1/batches?limit=101"), "").0, 400);
}

/// A key that asks for everything beside one that asks for a little.
#[test]
fn who_asks_for_a_little_does_not_wait_behind_who_asks_for_everything() {
    const MANY: usize = 120;
    let cluster = cluster("");
    let body = |tokens: usize| json!({"input": format!("{}\n\nWhich?", whale().repeat(8)), "max_output_tokens": tokens, "ignore_eos": true});
    let mut all = body(64);
    all["background"] = json!(true);
    let all = all.to_string();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..MANY / 8 {
                    assert_eq!(ask(&cluster, "moon", ("POST", "/v1/responses"), &all).0, 200);
                }
            });
        }
    });
    let pending = || cluster.status()["jobs_pending"].as_u64().expect("a number");
    let before = pending();
    let began = Instant::now();
    let (status, answer) = ask(&cluster, "sun", ("POST", "/v1/responses"), &body(2).to_string());
    let (took, left) = (began.elapsed(), pending());
    assert_eq!(status, 200, "{answer}");
    println!("answered after {took:?}, while {left} of {before} waited");
    assert!(before < 20 || left * 2 > before, "answered after {took:?}, when {left} of {before} still waited");
}

/// For five minutes, or as many seconds as `ASTERISM_FLOOD_S` says. Those who flood stand for other machines: the cluster's processes
/// and the quiet client have the cores before them.
#[test]
#[ignore = "takes minutes"]
fn a_flood_of_one_key_leaves_anothers_chats_as_quick_as_twice_alone() {
    let seconds = std::env::var("ASTERISM_FLOOD_S").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(300);
    let cluster = cluster("");
    let chat = json!({"messages": [{"role": "user", "content": whale()}, {"role": "user", "content": "Which?"}], "max_tokens": 2});
    let chat = chat.to_string();
    let long = json!({"messages": [{"role": "user", "content": "The whale is white. ".repeat(10_000)}]}).to_string();
    let response = json!({"input": format!("{}\n\nWhich?", whale()), "max_output_tokens": 32, "ignore_eos": true, "background": true});
    let response = response.to_string();
    let fine = format!("{{\"messages\":[{}0]}}", "{\"\":0},".repeat(150_000));
    let quick = |until: &dyn Fn(usize) -> bool| {
        let mut took = Vec::new();
        while !until(took.len()) {
            let began = Instant::now();
            let (status, answer) = ask(&cluster, "sun", ("POST", CHAT), &chat);
            // The place of the answer before may not be free yet.
            if status != 429 {
                assert_eq!(status, 200, "{answer}");
                took.push(began.elapsed());
            }
        }
        took.sort_unstable();
        (took[took.len() / 2], took[took.len() * 99 / 100], took.len())
    };
    let alone = quick(&|count| count >= 100);
    let began = Instant::now();
    let is_over = || began.elapsed().as_secs() >= seconds;
    let beside = thread::scope(|scope| {
        for at in 0..16 {
            let (cluster, long, response, fine) = (&cluster, &long, &response, &fine);
            scope.spawn(move || {
                machine::stand_back();
                while !is_over() {
                    match at % 4 {
                        0 => drop(ask(cluster, "moon", ("POST", CHAT), long)),
                        1 => drop(ask(cluster, "moon", ("POST", "/v1/responses"), response)),
                        2 => drop(ask(cluster, "moon", ("POST", CHAT), fine)),
                        _ => {
                            let (_, file) = upload(cluster, "moon", fine);
                            let path = format!("/v1/files/{}", file["id"].as_str().unwrap_or("none"));
                            ask(cluster, "moon", ("GET", &format!("{path}/content")), "");
                            ask(cluster, "moon", ("DELETE", &path), "");
                        }
                    }
                }
            });
        }
        quick(&|_| is_over())
    });
    println!("median, 99th of a hundred, and count: alone {alone:?}, beside the flood {beside:?}");
    assert!(beside.1 <= 2 * alone.1, "alone {alone:?}, beside the flood {beside:?}");
}
