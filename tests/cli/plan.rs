//! What `plan` says: costs, and refusals of methods whose sizes make no plan.

use std::fs;

use tests::golden;

use super::{Place, SMALL, validate};

/// A place with three context hosts.
fn wide() -> Place {
    let host = |name: &str| format!("[[host]]\nname = \"{name}\"\nrole = \"context\"\n");
    Place::new(&(SMALL.to_string() + &host("context-1") + &host("context-2")))
}

/// What `plan` says of a method, for 2,000 tokens on three context hosts.
fn plan(method: &str) -> String {
    plan_of("2000", method)
}

fn plan_of(tokens: &str, method: &str) -> String {
    wide().says(&["plan", "--tokens", tokens, "--method", method])
}

#[test]
fn methods_whose_sizes_make_no_plan() {
    let methods = [
        "pulsar:summary_tokens=8:chunk_tokens=16:heuristic=max-idf",
        "star:block_tokens=500:anchor_tokens=501",
        "star:block_tokens=1500",
        "apb:anchor_tokens=63",
        "apb:anchor_tokens=1001",
        "apb:retaining_heads=/dev/zero",
        "ulysses",
        "apb:embed_query=false",
        "anchor:theta=nan",
        "anchor:step=0",
        "streaming:window_tokens=0",
        "pulsar:summary_fraction=1.5",
        "pulsar:positions=contiguous:shared_prefix=true",
        "star:balanced=true:block_tokens=500",
    ];
    let printed: Vec<_> = methods.iter().map(|method| format!("{method}\n{}", plan(method))).collect();
    insta::assert_snapshot!(printed.join("\n"));
}

#[test]
fn what_no_host_can_hold_is_refused_before_anything_starts() {
    let tight = |edits: &[(&str, &str)]| {
        let mut text = SMALL.to_string() + "[[host]]\nname = \"context-1\"\nrole = \"context\"\n";
        for (host, line) in edits {
            let name = format!("name = \"{host}\"\n");
            text = text.replace(&name, &format!("{name}{line}\n"));
        }
        Place::new(&text)
    };
    let plan =
        |place: &Place, more: &[&str]| place.says(&[&["plan", "--tokens", "4000", "--method", "star"], more].concat());
    let full = tight(&[("context-0", "memory_limit = \"32MiB\""), ("context-1", "memory_limit = \"40MiB\"")]);
    let roomy = tight(&[("context-0", "memory_limit = \"64MiB\""), ("context-1", "labels = { rack = \"a\" }")]);
    let query = tight(&[("query-0", "memory_limit = \"16MiB\"")]);
    let printed = [
        plan(&full, &[]),
        plan(&roomy, &[]),
        plan(&roomy, &["--host-label", "rack=a"]),
        plan(&roomy, &["--host-label", "rack=b", "--placement", "pack"]),
        plan(&query, &[]),
    ];
    insta::assert_snapshot!(printed.join("\n"));
}

#[test]
fn a_calibrated_machine_tells_times() {
    let place = wide();
    let measured = place.run(&["bench", "calibrate", "-o", "json"]);
    assert!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    let measured: serde_json::Value = serde_json::from_slice(&measured.stdout).expect("JSON");
    for speed in ["linear_s_per_flop", "attention_s_per_pair", "wire_bytes_per_s", "round_trip_s"] {
        assert!(measured["speeds"][speed].as_f64().is_some_and(|speed| speed > 0.0), "{speed}: {measured}");
    }
    let planned = place.run(&["plan", "--tokens", "4k", "--method", "star", "-o", "json"]);
    let hosts: Vec<serde_json::Value> = serde_json::from_slice(&planned.stdout).expect("JSON");
    let encode = |host: &serde_json::Value| host["encode_s"].as_f64();
    assert!(hosts[..3].iter().all(|host| encode(host).is_some_and(|seconds| seconds > 0.0)), "{hosts:?}");
    assert!(hosts[3]["token_s"].as_f64() < hosts[3]["query_s"].as_f64(), "{hosts:?}");
    assert!(String::from_utf8_lossy(&planned.stderr).contains("expected: phase 1 in"));
}

#[test]
fn a_calibration_that_could_not_be_kept_is_not_made() {
    let place = Place::new(&SMALL.replace("data_dir = \"data\"", "data_dir = \"cluster.toml/data\""));
    let refused = place.run(&["bench", "calibrate"]);
    let printed = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{printed}");
    assert!(printed.contains("cannot write to data_dir") && !printed.contains("loading the model"), "{printed}");
}

#[test]
fn retaining_heads_of_another_shape() {
    let heads = "[models.heads.trained]\npath = \"heads.safetensors\"\n";
    let place = Place::new(&(SMALL.to_string() + heads));
    let heads = golden().join("models/tiny-qwen2/retaining_heads.safetensors");
    place.write("heads.safetensors", &fs::read(heads).expect("the fixture"));
    insta::assert_snapshot!(place.says(&["plan", "--tokens", "2000"]));
}

#[test]
fn a_plan_shows_what_a_job_costs_and_why_auto_chose() {
    insta::assert_snapshot!([plan("auto"), plan_of("2133", "auto"), plan_of("15k", "auto")].join("\n"));
}

#[test]
fn a_plan_of_a_session_shows_what_each_question_costs() {
    let plan =
        |method: &str, more: &[&str]| wide().says(&[&["plan", "--method", method, "--tokens", "8k"], more].concat());
    insta::assert_snapshot!(
        [
            plan("pulsar", &["--session"]),
            plan("auto", &["--session"]),
            plan("auto", &["--explain"]),
            plan("auto", &["--session", "--explain"])
        ]
        .join("\n")
    );
}

#[test]
fn a_plan_says_that_a_text_can_change_it() {
    let says = |method| plan_of("8k", method).contains("a text can change it");
    assert_eq!(["pulsar", "dense", "star"].map(says), [true, false, false]);
}

#[test]
fn a_plan_and_its_explanation_count_pairs_alike() {
    let place = wide();
    let rows = |more: &[&str]| -> Vec<serde_json::Value> {
        let planned = place.run(&[&["plan", "--tokens", "8k", "-o", "json"], more].concat());
        serde_json::from_slice(&planned.stdout).expect("JSON")
    };
    let total: u64 = rows(&["--method", "dense"]).iter().filter_map(|host| host["attention_pairs"].as_u64()).sum();
    let explained = rows(&["--method", "auto", "--explain"]);
    let dense = explained.iter().find(|plan| plan["method"] == "dense").expect("it is looked at");
    assert_eq!(dense["pairs"].as_u64(), Some(total), "{explained:?}");
}

#[test]
fn what_no_model_takes_is_refused_by_the_options_of_plan() {
    insta::assert_snapshot!([wide().says(&["plan", "--tokens", "0"]), plan_of("16384", "dense")].join("\n"));
}

#[test]
fn what_cannot_be_simulated_is_refused_in_one_line() {
    let place = wide();
    let cases: [(&[&str], &str); 5] = [
        (&["--hosts", "0"], "'0' is not a whole number from 1 to 16384"),
        (
            &["--hosts", "4", "--failures", "5"],
            "--failures 5: there are 4 context hosts, expected no more failures than that",
        ),
        (&["--tokens", "10q"], "'10q' is not a number of tokens"),
        (&["--tflops", "0"], "'0' is not a number of Tflop/s above 0"),
        (&["--tokens", "0"], "--tokens 0 --query-tokens 64: expected at least 1 each"),
    ];
    for (options, words) in cases {
        let tokens: &[&str] = if options.contains(&"--tokens") { &[] } else { &["--tokens", "10k"] };
        let said = place.says(&[&["simulate"], tokens, options].concat());
        assert!(said.contains(words) && said.contains("exit 2"), "{options:?}: {said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
    }
}

#[test]
fn a_simulation_says_what_happens_and_draws_it() {
    let place = wide();
    let options =
        ["simulate", "--tokens", "60k", "--hosts", "12", "--failures", "2", "--method", "star:anchor_tokens=512"];
    let (said, again) = (place.says(&options), place.says(&options));
    let timeline =
        |said: &str| said.lines().take_while(|line| !line.contains(" in ")).map(str::to_owned).collect::<Vec<_>>();
    assert!(said.contains("exit 0") && said.contains("the job has ended: succeeded"), "{said}");
    assert!(said.contains("Tflop/s a host are assumed") && said.contains("its bound of"), "{said}");
    assert_eq!(timeline(&said), timeline(&again), "a seed gives one run");
}

#[test]
fn plan_says_who_got_no_shard_and_why() {
    let node = "address = \"127.0.0.1\"\nlabels = { island = \"s\", rack = \"r1\" }";
    let spare = "[[host]]\nname = \"other\"\nrole = \"spare\"\nlabels = { rack = \"r2\" }\n";
    let place = Place::new(&(SMALL.replace("address = \"127.0.0.1\"", node) + spare));
    let said = place.says(&["plan", "--tokens", "2000", "--method", "auto", "--explain"]);
    assert!(said.contains("1 shard on context-0"), "{said}");
    assert!(said.contains("not on other: a spare or slow host"), "{said}");
    assert!(said.contains("island s, by label: context-0"), "{said}");
    let wrong = SMALL.replace("address = \"127.0.0.1\"", "address = \"127.0.0.1\"\nlabels = { host = \"a\" }");
    let said = validate(&wrong);
    assert!(
        said.contains("exit 2") && said.contains("node.labels") && said.contains("no label 'host' of 'local'"),
        "{said}"
    );
}

#[test]
fn plan_says_which_islands_links_were_measured_for() {
    let nodes = (0..4).map(|at| format!("[[node]]\nname = \"n{at}\"\naddress = \"10.0.0.{at}\"\n"));
    let hosts = (0..4).map(|at| format!("[[host]]\nname = \"c{at}\"\nnode = \"n{at}\"\nrole = \"context\"\n"));
    let query = "[[host]]\nname = \"q\"\nnode = \"n0\"\nrole = \"query\"\n".to_owned();
    let file = "version = 1\n[cluster]\nlisten = \"10.0.0.0:7400\"\ndata_dir = \"data\"\n".to_owned();
    let place = Place::new(&[file].into_iter().chain(nodes).chain(hosts).chain([query]).collect::<String>());
    let plan = ["plan", "--tokens", "8k", "--explain"];
    assert!(!place.says(&plan).contains("island"), "nothing was measured");
    let link = |from: usize, to: usize, rate: f64| serde_json::json!({"from": format!("c{from}"), "to": format!("c{to}"), "transport": "quic", "bytes_per_s": rate});
    // Two switches, whose machines are far from those of the other.
    let near = [link(0, 2, 11e9), link(1, 3, 12e9)];
    let far = [link(0, 1, 2e9), link(0, 3, 2.1e9), link(2, 1, 1.9e9), link(2, 3, 2e9)];
    let links: Vec<_> = near.into_iter().chain(far).collect();
    std::fs::create_dir(place.path().join("data")).expect("a folder");
    place.write("data/links.json", serde_json::json!({"version": 1, "links": links}).to_string().as_bytes());
    let said = place.says(&plan);
    for words in [
        "near-n0, by links that `bench links` measured: c0, c2",
        "near-n1, by links that `bench links` measured: c1, c3",
    ] {
        assert!(said.contains(words), "{said}");
    }
    place.write("data/links.json", b"{");
    let said = place.says(&plan);
    assert!(said.contains("exit 0") && said.contains("run `asterism bench links`"), "{said}");
}
