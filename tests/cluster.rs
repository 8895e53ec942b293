//! Scenarios with real processes over QUIC: the same tokens as the reference, and clean failures.

#[path = "golden/cases.rs"]
mod cases;
#[path = "cluster/devices.rs"]
mod devices;
#[path = "cluster/measured.rs"]
mod measured;

use std::{fs, net::UdpSocket, sync::Arc, thread::available_parallelism};

use asterism_kernels::{Cpu, CpuOptions, DType};
use asterism_models::{Checkpoint, Decoder, DecoderParts, Generator, LocalContext, Sampler, Sampling, encode_plan};
use asterism_plan::{Method, MethodConfig, PlanRequest};
use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec, golden, golden_cases, kill};

const BINARY: &str = env!("CARGO_BIN_EXE_asterism-under-test");

fn embedded(contexts: usize) -> ClusterSpec {
    ClusterSpec { contexts, model: None, method: "[attention.star]", listen: "127.0.0.1:0".to_string() }
}

fn tiny(contexts: usize) -> ClusterSpec {
    ClusterSpec { model: Some(golden().join("models/tiny-llama")), ..embedded(contexts) }
}

/// What a cluster of the tiny model calls its retaining heads.
const HEADS: &str = "trained";

/// A case's method as clients write it, and the context hosts its plan is for.
fn method(case: &Value) -> (Value, usize) {
    let context = case["context_ids"].as_array().expect("token ids").len();
    let name = case["method"].as_str().expect("a method");
    let (method, hosts) = cases::method(name, &case["params"], context, HEADS);
    (serde_json::to_value(method).expect("JSON"), hosts)
}

#[test]
fn star_over_quic_gives_the_golden_tokens_on_any_number_of_hosts() {
    for contexts in [1, 2, 5] {
        let cluster = Cluster::start(BINARY, &tiny(contexts));
        for case in &golden_cases("tiny-llama", "star") {
            let status = cluster.answer_tokens(case, method(case).0);
            assert_eq!(status["tokens"], case["expected"]["greedy_tokens"], "{}: {status:#}", case["id"]);
        }
    }
}

#[test]
fn idle_cores_go_to_the_host_that_computes() {
    let cores = available_parallelism().map_or(1, |cores| cores.get()) as u64;
    if cores < 2 {
        return tests::skipped("it takes two cores");
    }
    let cluster = Cluster::start(BINARY, &embedded(2));
    let validated = cluster.run(&["validate", "-o", "json"]);
    let validated: Value = serde_json::from_slice(&validated.stdout).expect("JSON");
    assert_eq!(validated["hosts"][0]["threads"], json!({"least": cores / 2, "most": cores}));
    fs::write(cluster.folder().join("long.txt"), "The harbour was quiet. ".repeat(2000)).expect("written");
    let submit = ["job", "submit", "--context", "long.txt", "--query", "Where?", "--method", "dense", "--no-wait"];
    let contexts = |status: &Value| [0, 1].map(|host| status["hosts"][host]["threads"].as_u64());
    cluster.wait_for("all cores at the only host that computes", |status| {
        // A fast machine is done before it tells.
        if status["jobs_running"] == 0 {
            assert!(cluster.run(&submit).status.success());
        }
        let threads = contexts(status);
        threads.contains(&Some(cores)) && threads.contains(&Some(cores / 2))
    });
    cluster.wait_for("its share", |status| contexts(status) == [Some(cores / 2); 2]);
}

#[test]
fn every_method_over_quic_gives_the_golden_tokens() {
    for model in ["tiny-llama", "tiny-qwen2"] {
        for contexts in 1..=5 {
            let names = ["dense", "star", "pulsar", "apb", "anchor", "streaming", "ring", "ulysses"];
            let all = names.iter().flat_map(|name| golden_cases(model, name));
            let ours: Vec<Value> = all.filter(|case| method(case).1 == contexts).collect();
            if ours.is_empty() {
                continue;
            }
            let spec = ClusterSpec { model: Some(golden().join("models").join(model)), ..embedded(contexts) };
            let cluster = Cluster::start(BINARY, &spec);
            for case in &ours {
                let status = cluster.answer_tokens(case, method(case).0);
                assert_eq!(status["tokens"], case["expected"]["greedy_tokens"], "{}: {status:#}", case["id"]);
            }
        }
    }
}

/// The same where hosts share a process and hand each other tensors in memory.
#[test]
fn every_method_within_one_process_gives_the_golden_tokens() {
    let names = ["star", "pulsar", "apb", "ring", "ulysses"];
    let all: Vec<Value> = names.iter().flat_map(|name| golden_cases("tiny-llama", name)).collect();
    for contexts in 2..=3 {
        let cluster =
            Cluster::written(BINARY, &tiny(contexts), |text| text.replace("\nrole = ", "\nprocess = \"all\"\nrole = "));
        let up = cluster.run(&["up", "--detach"]);
        assert!(up.status.success(), "up failed:\n{}", String::from_utf8_lossy(&up.stderr));
        for case in all.iter().filter(|case| method(case).1 == contexts) {
            let status = cluster.answer_tokens(case, method(case).0);
            assert_eq!(status["tokens"], case["expected"]["greedy_tokens"], "{}: {status:#}", case["id"]);
        }
        let status = cluster.wait_for("links", |status| {
            status["hosts"][contexts]["data_links"].as_array().is_some_and(|links| !links.is_empty())
        });
        let hosts = status["hosts"].as_array().expect("hosts");
        assert!(hosts.iter().all(|host| host["pid"] == hosts[0]["pid"]), "{status:#}");
        let mut links = hosts.iter().flat_map(|host| host["data_links"].as_array().into_iter().flatten());
        assert!(links.all(|links| links["transport"] == "local" && links["why"].is_null()), "{status:#}");
        let metrics = cluster.metrics();
        let reported =
            |name: &str| metrics.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0")).count();
        assert_eq!(
            reported("asterism_host_process_resident_memory_bytes{"),
            1,
            "the process is told of once: {metrics}"
        );
        assert!(cluster.folder().join("data/logs/all.log").exists());
    }
}

/// Methods that no fixture has, and options of the others: the tokens of the encoder and generator in this process.
#[test]
fn every_method_over_quic_gives_the_tokens_of_one_process() {
    let hosts = 4;
    let methods = [
        json!({"minference": {"vertical": 30, "slash": 100}}),
        json!({"flexprefill": {"gamma": 0.5, "tau": 0.1, "min_budget": 128}}),
        json!({"ring": {"layout": "zigzag"}}),
        json!({"star": {"anchor_tokens": 16, "balanced": true}}),
        json!({"star": {"shared_prefix": false, "local_attention": {"stripes": {"theta": 3.0, "step": 1, "block_q": 16, "block_kv": 16}}}}),
        json!({"star": {"anchor_content": {"random": {"seed": 3}}, "anchor_position": {"random": {"seed": 4}}}}),
        json!({"pulsar": {"sink_tokens": 8, "summary_fraction": 0.25}}),
        json!({"pulsar": {"sink_tokens": 8, "summary_fraction": 0.25, "balanced": true, "shared_prefix": false}}),
        json!({"pulsar": {"sink_tokens": 8, "heuristic": "bm25", "chunk_tokens": 8, "positions": "contiguous"}}),
        json!({"apb": {"anchor_tokens": 24, "passing_tokens": 12, "query_insert_at": 2}}),
        json!({"apb": {"first_skip": "held", "local_attention": {"streaming": {"sink_tokens": 8, "window_tokens": 32}}}}),
        json!({"auto": {"dense_below_tokens": 100}}),
        json!({"auto": {"dense_below_tokens": 1000}}),
    ];
    let cluster = Cluster::start(BINARY, &tiny(hosts));
    let case = json!({
        "context_ids": (0..390).map(|i| i * i * 7 % 509).collect::<Vec<u32>>(),
        "query_ids": [11, 49, 7, 343, 300],
        "max_new_tokens": 12,
    });
    for method in methods {
        let status = cluster.answer_tokens(&case, method.clone());
        assert_eq!(status["tokens"], json!(in_process(&case, &method, hosts)), "{method}: {status:#}");
        let chosen = status["method"].as_str().expect("a method");
        match method.get("auto") {
            Some(_) => {
                assert!(status["method_reason"].as_str().is_some_and(|reason| reason.contains("390")), "{status:#}")
            }
            None => assert!(method.get(chosen).is_some(), "{status:#}"),
        }
    }
}

/// What one process makes of a case.
fn in_process(case: &Value, method: &Value, hosts: usize) -> Vec<u32> {
    let checkpoint = Checkpoint::open(&golden().join("models/tiny-llama")).expect("a model");
    let backend = Cpu::new(CpuOptions::default()).expect("a device");
    let decoder = Decoder::load(Arc::new(backend), &checkpoint, DecoderParts::All).expect("a decoder");
    let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("token ids");
    let (context, query, shape) = (ids("context_ids"), ids("query_ids"), decoder.config().shape(DType::F32));
    let request =
        PlanRequest { context: &context, query: &query, hosts, one_device: true, shape: &shape, speeds: None };
    let method: MethodConfig = serde_json::from_value(method.clone()).expect("a method");
    let plan = method.plan(&request).expect("a plan");
    let shards = encode_plan(&decoder, &plan, &context, None, &mut |_, _| true).expect("shards");
    let mut host = LocalContext::new(decoder.backend(), &shards);
    let (mut generator, mut sampler) = (Generator::of(&plan), Sampler::new(Sampling::default()));
    let mut tokens: Vec<u32> = Vec::new();
    while tokens.len() < case["max_new_tokens"].as_u64().expect("a number") as usize {
        let step = tokens.last().map_or(query.clone(), |&last| vec![last]);
        let x = generator.step(&decoder, &step, &mut host).expect("a step");
        tokens.push(sampler.next(&decoder.logits(&x).expect("logits")));
    }
    tokens
}

#[test]
fn without_recovery_a_killed_context_host_fails_the_job_and_nothing_else() {
    let method = "[supervisor]\nrecovery = \"fail\"\n\n[attention.star]";
    let cluster = Cluster::start(BINARY, &ClusterSpec { method, ..embedded(2) });
    let document = cluster.folder().join("document.txt");
    fs::write(&document, "The grass is green. The sky is blue. The sun is yellow.\n".repeat(700)).expect("a document");
    let path = document.to_str().expect("UTF-8");
    let question = "What is the special magic number for sky-blue?";
    let ask = ["job", "submit", "--context", path, "--query", question, "--max-tokens", "2"];
    let pid = cluster.pid("context-1");
    let mut no_wait = ask.to_vec();
    no_wait.extend(["--no-wait", "--id", "hit"]);
    assert_eq!(cluster.run(&no_wait).status.code(), Some(0));
    cluster.wait_for("the job to run", |status| status["jobs_running"] == 1);
    kill(pid);
    let result = cluster.run(&["job", "result", "hit"]);
    let printed = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(1), "{printed}");
    assert!(printed.contains("host_lost") && printed.contains("context-1"), "{printed}");
    let status = cluster.status();
    assert_eq!([&status["hosts"][0]["health"], &status["hosts"][2]["health"]], ["ready", "ready"]);
    cluster.wait_for("another process of the host", |status| {
        status["ready"] == true && status["hosts"][1]["pid"].as_u64().is_some_and(|now| now != pid)
    });
    let next = cluster.run(&ask);
    assert_eq!(next.status.code(), Some(0), "{}", String::from_utf8_lossy(&next.stderr));
    assert!(cluster.metrics().contains("asterism_host_failures_total{reason=\"exited\"} 1\n"));
}

#[test]
fn down_leaves_no_process() {
    let cluster = Cluster::start(BINARY, &tiny(2));
    let hosts = ["context-0", "context-1", "query-0"].map(|host| cluster.pid(host));
    let down = cluster.run(&["down"]);
    assert_eq!(down.status.code(), Some(0), "{}", String::from_utf8_lossy(&down.stderr));
    for pid in hosts {
        assert!(!fs::exists(format!("/proc/{pid}")).expect("a process table"), "process {pid} is left");
    }
}

#[test]
fn a_host_of_another_certificate_authority_is_refused_and_counted() {
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let theirs = Cluster::start(BINARY, &ClusterSpec { listen: free.to_string(), ..tiny(1) });
    let ours = Cluster::start(BINARY, &tiny(1));
    let stray = ours.run(&["run-host", "--name", "context-0", "--supervisor", &free.to_string()]);
    assert_eq!(stray.status.code(), Some(6), "{}", String::from_utf8_lossy(&stray.stderr));
    // The stray may end before the refused side has counted it.
    let series = "asterism_transport_rejects_total{host=\"supervisor\",reason=\"certificate\"} ";
    let counted = |page: String| page.lines().filter_map(|line| line.strip_prefix(series)).any(|count| count != "0");
    theirs.wait_for("the refusal to be counted", |_| counted(theirs.metrics()));
}

/// Two context hosts that compute different bits, with room for some 1,400 tokens each.
fn unequal(mixed_numerics: &str) -> Cluster {
    let cluster = Cluster::written(BINARY, &tiny(2), |text| {
        let text = text.replace("[cluster]\n", &format!("[cluster]\nmixed_numerics = \"{mixed_numerics}\"\n"));
        let text = text.replace("role = \"context\"\n", "role = \"context\"\nmemory_limit = \"4MiB\"\n");
        let text = text.replace("name = \"context-0\"\n", "name = \"context-0\"\nkernels = \"avx2\"\n");
        // The query host, which has room for all, takes no shards.
        let text = text.replace("[[node]]", "[supervisor]\nrecovery = \"fail\"\n\n[[node]]");
        text.replace("name = \"context-1\"\n", "name = \"context-1\"\nkernels = \"portable\"\n")
    });
    let up = cluster.run(&["up", "--detach"]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    cluster
}

#[test]
fn hosts_of_other_kernels_share_a_job_only_where_that_is_allowed_and_said() {
    if !std::is_x86_feature_detected!("avx2") {
        return tests::skipped("this machine has one kind of kernels");
    }
    let ids = |tokens: u64| (0..tokens).map(|i| i * i * 7 % 509).collect::<Vec<u64>>();
    let case = |tokens| json!({"context_ids": ids(tokens), "query_ids": [11, 49, 7], "max_new_tokens": 4});
    let method = json!({"star": {}});

    let cluster = unequal("refuse");
    let status = cluster.answer_tokens(&case(600), method.clone());
    let hosts = status["timings"]["hosts"].as_array().expect("hosts");
    assert_eq!(hosts.len(), 1, "{status:#}");
    assert_eq!(status.get("mixed_numerics"), None);
    let numerics = |host: usize| cluster.status()["hosts"][host]["numerics"].as_str().expect("a ready host").to_owned();
    assert!(numerics(0).starts_with("cpu avx2 f32 ") && numerics(1).starts_with("cpu portable f32 "));
    let printed = cluster.run(&["status"]);
    let printed = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(printed.contains("numerics differ") && printed.contains(&numerics(1)), "{printed}");
    let request =
        json!({"context": ids(2000), "query": [11], "max_tokens": 4, "method": method, "allow_idle_hosts": true});
    let post = ureq::post(format!("{}/api/v1/jobs", cluster.server()));
    let refused = post.config().http_status_as_error(false).build().send_json(&request).expect("an answer");
    let refused: Value = refused.into_body().read_json().expect("JSON");
    assert_eq!(refused["error"]["code"], "placement_impossible", "{refused:#}");
    let message = refused["error"]["message"].as_str().expect("a message");
    assert!(message.contains("mixed_numerics of [cluster] is \"mark\""), "{message}");
    drop(cluster);

    let cluster = unequal("mark");
    let status = cluster.answer_tokens(&case(600), method.clone());
    assert_eq!((status["timings"]["hosts"].as_array().map(Vec::len), status.get("mixed_numerics")), (Some(1), None));
    let status = cluster.answer_tokens(&case(2000), method);
    assert_eq!((&status["state"], &status["mixed_numerics"]), (&json!("SUCCEEDED"), &json!(true)), "{status:#}");
    assert!(cluster.metrics().contains("asterism_numerics_mixed_total 1\n"));
}
