//! What a cluster says of itself: its hosts' times, links and rare events, as metrics and by `bench links`.

use serde_json::{Value, json};
use tests::{Cluster, golden_cases};

use super::{BINARY, embedded, method, tiny};

#[test]
fn the_supervisor_serves_what_its_hosts_measure() {
    const LAYERS: f64 = 4.0;
    let cluster = Cluster::start(BINARY, &tiny(2));
    let case = &golden_cases("tiny-llama", "star")[0];
    let status = cluster.answer_tokens(case, method(case).0);
    let tokens = status["tokens"].as_array().expect("an answer").len() as f64;
    let metrics = cluster.metrics();
    let value = |name: &str| -> f64 {
        let series = format!("asterism_phase2_{name}{{host=\"query-0\",method=\"star\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
        line.unwrap_or_else(|| panic!("{series}\n{metrics}")).parse().expect("a number")
    };
    assert_eq!(value("step_seconds_count"), tokens);
    let between = format!(
        "asterism_inter_token_latency_seconds_count{{method=\"star\",model=\"tiny-llama\"}} {}\n",
        tokens - 1.0
    );
    assert!(metrics.contains(&between), "{between}{metrics}");
    assert_eq!([value("layer_wait_seconds_count"), value("merge_seconds_count")], [tokens * LAYERS; 2]);
    let [step, wait, merge] = ["step", "layer_wait", "merge"].map(|name| value(&format!("{name}_seconds_sum")));
    assert!(wait > 0.0 && merge > 0.0 && wait + merge < step, "{wait} {merge} {step}");
    assert!(metrics.contains("asterism_config_info{cluster=\"scenario\",dtype=\"f32\",method=\"star\""), "{metrics}");
    assert!(metrics.contains("asterism_transport_reconnects_total{host=\"query-0\"} "), "{metrics}");
    // A link's round trip comes with the next heartbeat, and so do bytes: a context host's go to the query host too.
    for (host, direction) in
        ["context-0", "query-0", "supervisor"].into_iter().flat_map(|host| [(host, "sent"), (host, "received")])
    {
        let labels = format!("{{direction=\"{direction}\",host=\"{host}\",transport=\"quic\"}} ");
        let series = format!("asterism_transport_bytes_total{labels}");
        cluster.wait_for(&series, |_| {
            let metrics = cluster.metrics();
            let bytes = metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
            bytes.is_some_and(|bytes| bytes > 1000.0)
        });
    }
    for peer in ["supervisor\"", "hosts\""] {
        let series = format!("asterism_transport_rtt_seconds{{host=\"query-0\",peer=\"{peer}");
        cluster.wait_for(&series, |_| {
            let metrics = cluster.metrics();
            let mut links = metrics.lines().filter(|line| line.starts_with(&series));
            links.any(|line| {
                let rtt = line.rsplit_once(' ').and_then(|(_, rtt)| rtt.parse::<f64>().ok());
                line.contains("transport=\"quic\"} ") && rtt.is_some_and(|rtt| rtt > 0.0 && rtt < 5.0)
            })
        });
    }
}

#[test]
fn hosts_measure_their_links_to_each_other() {
    let cluster = Cluster::start(BINARY, &embedded(2));
    let output = cluster.run(&["bench", "links", "-o", "json"]);
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{notes}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut pairs = Vec::new();
    for link in report["links"].as_array().expect("links") {
        let seconds = link["round_trip_s"].as_f64().expect("it was measured");
        let rate = link["bytes_per_s"].as_f64().expect("it was measured");
        assert!(seconds > 1e-6 && seconds < 1.0 && rate > 1e6, "{link:#}");
        pairs.push(format!("{} {} {}", link["from"], link["to"], link["transport"]).replace('"', ""));
    }
    pairs.sort();
    let expected = ["context-0 context-1", "context-1 context-0", "query-0 context-0", "query-0 context-1"];
    assert_eq!(pairs, expected.map(|pair| format!("{pair} quic")));
    let slowest = |field: &str| report["wire"][field].as_f64().is_some_and(|value| value > 0.0);
    assert!(slowest("round_trip_s") && slowest("bytes_per_s"), "{report:#}");
    assert!(report.get("written").is_none() && notes.contains("not written for `plan`: not calibrated"), "{notes}");
    // Jobs go on over the same links.
    let case = json!({"context_ids": [5, 6, 7, 8], "query_ids": [9], "max_new_tokens": 2});
    let status = cluster.answer_tokens(&case, json!({"dense": {}}));
    assert_eq!(status["state"], "SUCCEEDED", "{status:#}");
    // What is known of links comes with heartbeats, and each has bytes behind it.
    let series = "asterism_transport_bytes_total{direction=\"sent\",host=\"query-0\",transport=\"quic\"} ";
    let sent = || cluster.metrics().lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok());
    let before = sent();
    cluster.wait_for("a heartbeat after the job", |_| sent() > before);
    let status = cluster.status();
    let query = status["hosts"].as_array().expect("hosts").iter().find(|host| host["name"] == "query-0");
    assert_eq!(query.expect("a query host")["data_links"][0]["links"], 2, "{status:#}");
    let metrics = cluster.metrics();
    assert!(metrics.contains("asterism_transport_reconnects_total{host=\"query-0\"} 0\n"), "opened again: {metrics}");
}

#[test]
fn what_counts_rare_events_is_there_before_the_first() {
    let cluster = Cluster::start(BINARY, &tiny(1));
    let metrics = cluster.metrics();
    for series in [
        "host_failures_total{reason=\"heartbeat\"} 0",
        "host_failures_total{reason=\"exited\"} 0",
        "host_restarts_total{host=\"context-0\"} 0",
        "requests_failed_total{error_type=\"host_lost\"} 0",
        "requests_failed_total{error_type=\"not_finite_logits\"} 0",
        "requests_failed_total{error_type=\"other\"} 0",
        "transport_rejects_total{host=\"supervisor\",reason=\"certificate\"} 0",
        "transport_rejects_total{host=\"context-0\",reason=\"role\"} 0",
        "requests_cancelled_total 0",
        "request_success_total{finished_reason=\"stop\"} 0",
        "shard_reencodes_total{reason=\"lost\"} 0",
        "recovery_duration_seconds_count 0",
    ] {
        assert!(metrics.contains(&format!("asterism_{series}\n")), "{series}\n{metrics}");
    }
    let above_zero = |series: &str| {
        let series = format!("asterism_{series}{{host=\"context-0\"}} ");
        let metrics = cluster.metrics();
        let value = metrics.lines().find_map(|line| line.strip_prefix(&series)?.parse::<f64>().ok());
        value.is_some_and(|value| value > 0.0)
    };
    assert!(above_zero("host_weights_bytes"), "{metrics}");
    // What a process takes comes with its next heartbeat.
    for series in [
        "host_process_resident_memory_bytes",
        "host_process_cpu_seconds",
        "host_process_threads",
        "certificate_expiry_timestamp_seconds",
    ] {
        cluster.wait_for(series, |_| above_zero(series));
    }
}
