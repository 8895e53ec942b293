//! Metrics of this process as Prometheus text: the facade's recorder, and the buckets of every histogram by hand.

use std::sync::{Arc, OnceLock};

use asterism_actors::{metric, tally::Tally};
use metrics::{SharedString, Unit};
use metrics_prometheus::failure::strategy;
use prometheus::{
    HistogramOpts, HistogramVec, Registry, TextEncoder,
    proto::{Metric, MetricType},
};

use crate::observe::version::Version;

/// Buckets of waits and of whole requests: a very long context takes most of an hour to its first token.
const LONG_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 160.0,
    240.0, 320.0, 480.0, 640.0, 960.0, 1280.0, 1920.0, 2560.0,
];
/// Buckets of prompt lengths.
const PROMPT_LENGTH_BUCKETS: &[f64] =
    &[128.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0, 262144.0, 524288.0, 1048576.0];

/// Every histogram: name, labels, buckets.
const HISTOGRAMS: &[(&str, &[&str], &[f64])] = &[
    (metric::TIME_TO_FIRST_TOKEN, &["method", "model"], LONG_SECONDS),
    (metric::E2E_REQUEST_LATENCY, &["method", "model"], LONG_SECONDS),
    (metric::REQUEST_QUEUE_TIME, &["method", "model"], LONG_SECONDS),
    (metric::REQUEST_PREFILL_TIME, &["method", "model"], LONG_SECONDS),
    (metric::REQUEST_DECODE_TIME, &["method", "model"], LONG_SECONDS),
    (metric::INTER_TOKEN_LATENCY, &["method", "model"], metric::PHASE2_SECONDS),
    (metric::REQUEST_PROMPT_TOKENS, &["method", "model"], PROMPT_LENGTH_BUCKETS),
    (metric::PHASE1_SHARD_ENCODE, &["host", "method"], LONG_SECONDS),
    (metric::PHASE2_STEP, &["host", "method"], metric::PHASE2_SECONDS),
    (metric::PHASE2_LAYER_WAIT, &["host", "method"], metric::PHASE2_SECONDS),
    (metric::PHASE2_MERGE, &["host", "method"], metric::PHASE2_SECONDS),
    (metric::PHASE2_MASK, &["host", "method"], metric::PHASE2_SECONDS),
    (metric::RECOVERY_DURATION, &[], LONG_SECONDS),
];

static REGISTRY: OnceLock<Registry> = OnceLock::new();

/// Installs the recorder; a second call, as tests make, changes nothing.
pub fn install() {
    REGISTRY.get_or_init(|| {
        let registry = Registry::new();
        let mut builder =
            metrics_prometheus::Recorder::builder().with_registry(&registry).with_failure_strategy(strategy::NoOp);
        for (name, labels, buckets) in HISTOGRAMS {
            let options = HistogramOpts::new(*name, help(name)).buckets(buckets.to_vec());
            let histogram = HistogramVec::new(options, labels).expect("names, labels and buckets are constants");
            builder = builder.with_metric(histogram);
        }
        // Only another recorder can refuse this one, and nothing else in this program installs any.
        let _ = builder.build_and_install();
        describe();
        registry
    });
    let version = Version::current();
    let labels = [("version", version.version), ("target", version.target), ("profile", version.profile)];
    metrics::gauge!(metric::BUILD_INFO, &labels).set(1.0);
}

/// Has a host's process count into what it reports; a second call, as tests make, counts nothing.
pub fn tally() -> Arc<Tally> {
    let tally = Arc::new(Tally::default());
    let _ = metrics::set_global_recorder(tally.clone());
    tally
}

/// What a scraper reads: nothing of hosts that were `removed`. A gauge that is not a number has nothing to say.
pub fn render(removed: &[String]) -> String {
    let mut families = REGISTRY.get().map(Registry::gather).unwrap_or_default();
    for family in families.iter_mut().filter(|family| family.get_field_type() == MetricType::GAUGE) {
        family.mut_metric().retain(|metric| !metric.get_gauge().get_value().is_nan());
    }
    let is_of_removed = |metric: &Metric| {
        let mut hosts = metric.get_label().iter().filter(|label| label.name() == "host");
        hosts.any(|label| removed.iter().any(|host| host == label.value()))
    };
    if !removed.is_empty() {
        families.iter_mut().for_each(|family| family.mut_metric().retain(|metric| !is_of_removed(metric)));
    }
    families.retain(|family| !family.get_metric().is_empty());
    TextEncoder::new().encode_to_string(&families).unwrap_or_else(|error| {
        tracing::error!(%error, "metrics cannot be rendered");
        String::new()
    })
}

fn describe() {
    for (name, help) in metric::ALL {
        let (name, help) = (*name, SharedString::const_str(help.trim()));
        if HISTOGRAMS.iter().any(|(histogram, ..)| *histogram == name) {
            metrics::describe_histogram!(name, Unit::Count, help);
        } else if name.ends_with("_total") {
            metrics::describe_counter!(name, Unit::Count, help);
        } else {
            metrics::describe_gauge!(name, Unit::Count, help);
        }
    }
}

fn help(name: &str) -> &'static str {
    metric::ALL.iter().find(|(known, _)| *known == name).map_or("", |(_, help)| help.trim())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use asterism_actors::{
        api::{ClusterStatus, GpuStatus, Timings},
        cores::GpuMemory,
        metric::Observation,
        readings::{AnswerReading, Carried, LinkReading, LinkReport, Phase2Times, ProcessReading, Refused, Traffic},
    };

    use super::*;

    #[test]
    fn observations_are_rendered_with_the_registered_buckets() {
        install();
        Observation::Request {
            method: "star".into(),
            model: "m".into(),
            prompt_tokens: 16000,
            generated_tokens: 8,
            timings: Timings { encode_s: 1500.0, ..Timings::default() },
        }
        .record();
        let text = render(&[]);
        assert!(text.contains("# HELP asterism_time_to_first_token_seconds Seconds"), "{text}");
        let bucket = "asterism_time_to_first_token_seconds_bucket{method=\"star\",model=\"m\",le=\"2560\"} 1";
        assert!(text.contains(bucket), "{text}");
        assert!(text.contains("asterism_prompt_tokens_total{method=\"star\",model=\"m\"} 16000"), "{text}");
        assert!(text.contains("asterism_build_info{"), "{text}");
    }

    #[test]
    fn what_hosts_measured_is_rendered_as_they_counted_it() {
        install();
        let mut times = Box::<Phase2Times>::default();
        [3, 3, 4, 700].map(Duration::from_millis).into_iter().for_each(|took| times.step.add(took));
        times.layer_wait.add(Duration::from_micros(40));
        times.merge.add(Duration::from_secs(60));
        [3, 4, 700].map(Duration::from_millis).into_iter().for_each(|took| times.token.add(took));
        let (host, method, model): (String, String, _) = ("query-0".into(), "star".into(), "m7".into());
        let masks = Box::new(times.layer_wait.clone());
        Observation::Masked { host: host.clone(), method: method.clone(), masks }.record();
        times.guessed(15, 4);
        Observation::Phase2 { host, method, model, times }.record();
        Observation::Recovered { seconds: 1.5 }.record();
        let text = render(&[]);
        let labels = "{host=\"query-0\",method=\"star\"";
        for line in [
            "# TYPE asterism_phase2_step_seconds histogram".to_string(),
            "# HELP asterism_phase2_step_seconds Seconds".to_string(),
            format!("asterism_phase2_step_seconds_bucket{labels},le=\"0.0025\"}} 0\n"),
            format!("asterism_phase2_step_seconds_bucket{labels},le=\"0.005\"}} 3\n"),
            "asterism_inter_token_latency_seconds_bucket{method=\"star\",model=\"m7\",le=\"0.005\"} 6\n".to_string(),
            "asterism_inter_token_latency_seconds_count{method=\"star\",model=\"m7\"} 7\n".to_string(),
            "asterism_spec_decode_num_draft_tokens_total{host=\"query-0\"} 15\n".to_string(),
            "asterism_spec_decode_num_accepted_tokens_total{host=\"query-0\"} 4\n".to_string(),
            format!("asterism_phase2_step_seconds_count{labels}}} 4\n"),
            format!("asterism_phase2_step_seconds_sum{labels}}} 0.71"),
            format!("asterism_phase2_layer_wait_seconds_bucket{labels},le=\"0.00005\"}} 1\n"),
            format!("asterism_phase2_mask_seconds_bucket{labels},le=\"0.00005\"}} 1\n"),
            format!("asterism_phase2_merge_seconds_bucket{labels},le=\"25\"}} 0\n"),
            format!("asterism_phase2_merge_seconds_count{labels}}} 1\n"),
            "asterism_recovery_duration_seconds_bucket{le=\"2.5\"} 1\n".to_string(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_cancelled_job_is_no_success_and_a_share_never_negative() {
        install();
        Observation::RequestEnded { reason: None }.record();
        Observation::JobEncoded { method: "doubled".into(), sparsity: -0.25 }.record();
        let text = render(&[]);
        assert!(text.contains("asterism_requests_cancelled_total 1\n"), "{text}");
        assert!(!text.contains("finished_reason=\"cancelled\""), "{text}");
        assert!(text.contains("asterism_attention_sparsity_ratio{method=\"doubled\"} 0\n"), "{text}");
    }

    #[test]
    fn a_report_of_links_that_comes_again_changes_nothing() {
        install();
        let link = |peer: &str, rtt_s: Option<f64>| LinkReading {
            peer: peer.into(),
            transport: "quic".into(),
            why: String::new(),
            open: rtt_s.is_some(),
            rtt_s,
        };
        let report = |reconnects, rtt_s| Observation::Links {
            host: "query-1".into(),
            report: LinkReport {
                process: ProcessReading {
                    resident_bytes: 4096,
                    cpu_s: 1.25,
                    threads: 3,
                    computing: 1,
                    gpu: Some(GpuMemory { used: 700, free: 300 }),
                },
                links: vec![
                    link("supervisor", Some(0.002)),
                    link("context-0", rtt_s),
                    link("context-1", rtt_s.map(|rtt| rtt / 2.0)),
                ],
                reconnects,
                fallbacks: 3 + reconnects,
                unix_s: 0.0,
                traffic: Traffic {
                    carried: vec![Carried {
                        transport: "quic".into(),
                        sent_bytes: 4096 + reconnects,
                        received_bytes: 7,
                    }],
                    refused: vec![Refused { reason: "frame".into(), peers: reconnects }],
                    spans_dropped: 0,
                    certificate_ends_s: Some(2e9),
                },
                answered: AnswerReading { seconds: 1.5, operations: 7 },
            },
        };
        let line = |name: &str, rest: &str| format!("asterism_transport_{name}{rest}\n");
        let of_quic = "{host=\"query-1\",transport=\"quic\"}";
        let of_hosts = "{host=\"query-1\",peer=\"hosts\",transport=\"quic\"}";
        // A process that was started again counts anew.
        for (reconnects, rtt) in [(2, Some(0.25)), (2, Some(0.25)), (1, None)] {
            report(reconnects, rtt).record();
            let text = render(&[]);
            for line in [
                "asterism_host_process_resident_memory_bytes{host=\"query-1\"} 4096\n".to_string(),
                "asterism_host_process_cpu_seconds{host=\"query-1\"} 1.25\n".to_string(),
                "asterism_host_process_threads{host=\"query-1\"} 3\n".to_string(),
                "asterism_gpu_memory_bytes{host=\"query-1\",state=\"free\"} 300\n".to_string(),
                "asterism_gpu_memory_bytes{host=\"query-1\",state=\"used\"} 700\n".to_string(),
                line("fallbacks_total", &format!("{{host=\"query-1\"}} {}", 3 + reconnects)),
                line("links", &format!("{of_quic} {}", if rtt.is_some() { 2 } else { 0 })),
                line("reconnects_total", &format!("{{host=\"query-1\"}} {reconnects}")),
                line("rtt_seconds", "{host=\"query-1\",peer=\"supervisor\",transport=\"quic\"} 0.002"),
                line(
                    "bytes_total",
                    &format!("{{direction=\"sent\",host=\"query-1\",transport=\"quic\"}} {}", 4096 + reconnects),
                ),
                line("bytes_total", "{direction=\"received\",host=\"query-1\",transport=\"quic\"} 7"),
                line("rejects_total", &format!("{{host=\"query-1\",reason=\"frame\"}} {reconnects}")),
                "asterism_certificate_expiry_timestamp_seconds{host=\"query-1\"} 2000000000\n".to_string(),
            ] {
                assert!(text.contains(&line), "{line}\n{text}");
            }
            let shown = text.contains(&line("rtt_seconds", &format!("{of_hosts} 0.25")));
            assert_eq!((shown, text.contains(of_hosts)), (rtt.is_some(), rtt.is_some()), "{text}");
        }
    }

    #[test]
    fn what_a_host_told_goes_with_it() {
        install();
        let gpu = serde_json::json!({"node": "west", "index": 1, "celsius": 61});
        let gpu: GpuStatus = serde_json::from_value(gpu).unwrap();
        let host = |health: &str| {
            let status = serde_json::json!({
                "name": "gone-0", "role": "context", "device": "cpu", "health": health, "pid": 7, "address": null,
                "heartbeat_age_s": 3.0, "kv_bytes": 512, "cause": null,
            });
            ClusterStatus {
                self_test: None,
                stored: None,
                name: "c".into(),
                model: "m".into(),
                model_digest: None,
                models: Vec::new(),
                method: "star".into(),
                version: "0".into(),
                ready: false,
                answers: false,
                removed: Vec::new(),
                hosts: vec![serde_json::from_value(status).unwrap()],
                gpus: if health == "ready" { vec![gpu.clone()] } else { Vec::new() },
                jobs_pending: 0,
                jobs_running: 0,
            }
        };
        let links = vec![LinkReading {
            peer: "supervisor".into(),
            transport: "quic".into(),
            rtt_s: Some(0.1),
            ..LinkReading::default()
        }];
        let process = ProcessReading { resident_bytes: 4096, cpu_s: 1.0, threads: 3, computing: 1, gpu: None };
        let report = LinkReport { links, process, ..LinkReport::default() };
        let reported = Observation::Links { host: "gone-0".into(), report };
        let gauges =
            ["kv_cache_bytes", "host_process_resident_memory_bytes", "host_process_threads", "transport_rtt_seconds"];
        for (health, up, there) in [("ready", 1, true), ("dead", 0, false), ("ready", 1, true)] {
            if there {
                reported.record();
            }
            metric::record_cluster(&host(health));
            let text = render(&[]);
            for gauge in gauges {
                assert_eq!(
                    text.contains(&format!("asterism_{gauge}{{host=\"gone-0\"")),
                    there,
                    "{gauge} {health}\n{text}"
                );
            }
            assert_eq!(
                text.contains("asterism_gpu_temperature_celsius{gpu=\"1\",node=\"west\"} 61\n"),
                there,
                "{text}"
            );
            assert!(text.contains("asterism_model_answers{model=\"m\"} 0\n"), "{text}");
            assert!(text.contains(&format!("asterism_host_up{{host=\"gone-0\",role=\"context\"}} {up}\n")), "{text}");
            assert!(!text.contains("NaN"), "{text}");
        }
    }
}
