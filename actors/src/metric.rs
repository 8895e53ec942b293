//! Every metric by name, and the observations that feed them. Exports nothing: the process that serves `/metrics` does.

use asterism_transport::Observer;
use metrics::{counter, gauge, histogram};

use crate::{
    api::{ClusterStatus, FinishReason, HostHealth, SessionState, Timings},
    messages::{LinkReport, Phase2Times, SPREAD_SECONDS, Spread},
    supervisor::{SupervisorConfig, codes},
};

/// Declares a metric name with its help text.
macro_rules! names {
    ($($(#[doc = $help:literal])+ $constant:ident = $name:literal;)+) => {
        $($(#[doc = $help])+ pub const $constant: &str = concat!("asterism_", $name);)+
        /// Every name with its help text.
        pub const ALL: &[(&str, &str)] = &[$(($constant, concat!($($help),+))),+];
    };
}

names! {
    /// Jobs that run.
    REQUESTS_RUNNING = "requests_running";
    /// Jobs that wait.
    REQUESTS_WAITING = "requests_waiting";
    /// Jobs that ended with an answer, by reason.
    REQUEST_SUCCESS = "request_success_total";
    /// Jobs that their users cancelled.
    REQUESTS_CANCELLED = "requests_cancelled_total";
    /// Jobs that failed, by error code.
    REQUESTS_FAILED = "requests_failed_total";
    /// Context and query tokens of answered jobs.
    PROMPT_TOKENS = "prompt_tokens_total";
    /// Tokens generated.
    GENERATION_TOKENS = "generation_tokens_total";
    /// Seconds from submission to the first token.
    TIME_TO_FIRST_TOKEN = "time_to_first_token_seconds";
    /// Seconds from one token of an answer to the next, each for itself, on the query host.
    INTER_TOKEN_LATENCY = "inter_token_latency_seconds";
    /// Seconds from submission to the end.
    E2E_REQUEST_LATENCY = "e2e_request_latency_seconds";
    /// Seconds from submission to the start of work.
    REQUEST_QUEUE_TIME = "request_queue_time_seconds";
    /// Seconds of phase 1 and the query step.
    REQUEST_PREFILL_TIME = "request_prefill_time_seconds";
    /// Seconds of decoding.
    REQUEST_DECODE_TIME = "request_decode_time_seconds";
    /// Context and query tokens of a job.
    REQUEST_PROMPT_TOKENS = "request_prompt_tokens";
    /// Seconds of phase 1 of one shard.
    PHASE1_SHARD_ENCODE = "phase1_shard_encode_seconds";
    /// Tokens run through the model in phase 1, prefixes included.
    PHASE1_TOKENS = "phase1_tokens_total";
    /// Seconds of a step of phase 2 on the query host: the query or a token through every layer, to the next token's choice.
    PHASE2_STEP = "phase2_step_seconds";
    /// Seconds that the query host waits in a layer of phase 2 for the slowest context host, its own attention being done.
    PHASE2_LAYER_WAIT = "phase2_layer_wait_seconds";
    /// Seconds that the query host merges partials in a layer of phase 2.
    PHASE2_MERGE = "phase2_merge_seconds";
    /// Share of dense attention's pairs that phase 1 of the latest job did not compute, by method; 0 where it computed more.
    ATTENTION_SPARSITY = "attention_sparsity_ratio";
    /// Bytes of keys and values a host holds.
    KV_CACHE_BYTES = "kv_cache_bytes";
    /// Bytes of the weights that a host holds.
    HOST_WEIGHTS_BYTES = "host_weights_bytes";
    /// Most bytes of weights, keys and values that a host may hold, where that is limited.
    HOST_MEMORY_LIMIT_BYTES = "host_memory_limit_bytes";
    /// Bytes in memory of a host's process, as it last told.
    HOST_RESIDENT_BYTES = "host_process_resident_memory_bytes";
    /// Seconds of CPU that a host's present process has taken, as it last told.
    HOST_CPU_SECONDS = "host_process_cpu_seconds";
    /// Threads of a host's process, as it last told.
    HOST_THREADS = "host_process_threads";
    /// 1 while a host is ready.
    HOST_UP = "host_up";
    /// Seconds since a host was last heard.
    HOST_HEARTBEAT_AGE = "host_heartbeat_age_seconds";
    /// Hosts declared dead, by reason.
    HOST_FAILURES = "host_failures_total";
    /// Times that a host's process was started again.
    HOST_RESTARTS = "host_restarts_total";
    /// Shards encoded again after a loss.
    SHARD_REENCODES = "shard_reencodes_total";
    /// Times that a job or a session went on, on hosts whose results differ in their last bits.
    NUMERICS_MIXED = "numerics_mixed_total";
    /// Seconds from a loss to the next token or encoded context.
    RECOVERY_DURATION = "recovery_duration_seconds";
    /// Sessions, by state.
    SESSIONS = "sessions";
    /// Questions to sessions.
    SESSION_HITS = "session_hits_total";
    /// Bytes of frames that the supervisor's process sent and received, by direction.
    TRANSPORT_BYTES = "transport_bytes_total";
    /// Smoothed round trip of a link, as the host at its near end last told it; NaN while there is no link.
    TRANSPORT_RTT = "transport_rtt_seconds";
    /// Links that a host opened in the place of one it had lost, since its process started.
    TRANSPORT_RECONNECTS = "transport_reconnects_total";
    /// Peers that the supervisor's process refused, by reason.
    TRANSPORT_REJECTS = "transport_rejects_total";
    /// Always 1; its labels say what runs.
    BUILD_INFO = "build_info";
    /// Always 1; its labels say what the supervisor was told to run.
    CONFIG_INFO = "config_info";
}

/// Buckets of phase 2's times: the ones that hosts count by, so that nothing is lost on the way.
pub const PHASE2_SECONDS: &[f64] = &SPREAD_SECONDS;

/// Something worth counting or timing, as state machines report it.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A job failed.
    RequestFailed {
        /// Error code.
        code: String,
    },
    /// A job ended without an error; `None` when its user cancelled it.
    RequestEnded {
        /// Why it ended.
        reason: Option<FinishReason>,
    },
    /// An answered job's sizes and times.
    Request {
        /// Method by name.
        method: String,
        /// Model by name.
        model: String,
        /// Context and query tokens.
        prompt_tokens: usize,
        /// Tokens generated.
        generated_tokens: usize,
        /// Seconds spent.
        timings: Timings,
    },
    /// A shard was encoded.
    ShardEncoded {
        /// Host.
        host: String,
        /// Method by name.
        method: String,
        /// Seconds of compute.
        seconds: f64,
        /// Tokens run through the model.
        tokens: usize,
    },
    /// Every shard of a job is encoded.
    JobEncoded {
        /// Method by name.
        method: String,
        /// Share of dense attention's pairs that were not computed.
        sparsity: f64,
    },
    /// A generation ended with an answer.
    Phase2 {
        /// Query host.
        host: String,
        /// Method by name.
        method: String,
        /// Model by name.
        model: String,
        /// Where its seconds went.
        times: Box<Phase2Times>,
    },
    /// A host told of its links; the latest stands.
    Links {
        /// Host.
        host: String,
        /// What it told.
        report: LinkReport,
    },
    /// A session was asked.
    SessionHit,
    /// A job or a session goes on, on hosts whose results differ in their last bits.
    NumericsMixed,
    /// Shards are encoded again.
    ShardsReencoded {
        /// How many.
        shards: usize,
    },
    /// A job goes on after a loss.
    Recovered {
        /// Seconds since the loss was declared.
        seconds: f64,
    },
    /// A host's process was started again.
    HostRestarted {
        /// Host.
        host: String,
    },
    /// A member was refused what it wanted.
    Refused {
        /// From a short list.
        reason: &'static str,
        /// Who wanted it.
        who: String,
        /// What was expected, and what came.
        cause: String,
    },
    /// A host was declared dead.
    HostFailed {
        /// Why, from a short list.
        reason: &'static str,
    },
}

impl Observation {
    /// Hands the observation to the metrics facade.
    pub fn record(&self) {
        match self {
            Self::RequestFailed { code } => counter!(REQUESTS_FAILED, "error_type" => code.clone()).increment(1),
            Self::RequestEnded { reason } => {
                let reason = match reason {
                    Some(FinishReason::Stop) => "stop",
                    Some(FinishReason::Length) => "length",
                    None => return counter!(REQUESTS_CANCELLED).increment(1),
                };
                counter!(REQUEST_SUCCESS, "finished_reason" => reason).increment(1);
            }
            Self::Request { method, model, prompt_tokens, generated_tokens, timings } => {
                let labels = [("method", method.clone()), ("model", model.clone())];
                let seconds = |name: &'static str, value: f64| histogram!(name, &labels).record(value);
                counter!(PROMPT_TOKENS, &labels).increment(*prompt_tokens as u64);
                counter!(GENERATION_TOKENS, &labels).increment(*generated_tokens as u64);
                seconds(REQUEST_PROMPT_TOKENS, *prompt_tokens as f64);
                seconds(TIME_TO_FIRST_TOKEN, timings.queue_s + timings.encode_s + timings.query_s);
                seconds(E2E_REQUEST_LATENCY, timings.total_s);
                seconds(REQUEST_QUEUE_TIME, timings.queue_s);
                seconds(REQUEST_PREFILL_TIME, timings.encode_s + timings.query_s);
                seconds(REQUEST_DECODE_TIME, timings.decode_s);
            }
            Self::ShardEncoded { host, method, seconds, tokens } => {
                let labels = [("host", host.clone()), ("method", method.clone())];
                histogram!(PHASE1_SHARD_ENCODE, &labels).record(*seconds);
                counter!(PHASE1_TOKENS, "host" => host.clone()).increment(*tokens as u64);
            }
            Self::JobEncoded { method, sparsity } => {
                gauge!(ATTENTION_SPARSITY, "method" => method.clone()).set(sparsity.max(0.0));
            }
            Self::Phase2 { host, method, model, times } => {
                let of_host = [("host", host.clone()), ("method", method.clone())];
                let of_model = [("method", method.clone()), ("model", model.clone())];
                let spread_of = |name: &'static str, labels: &[(&'static str, String); 2], spread: &Spread| {
                    let histogram = histogram!(name, labels);
                    spread.buckets().for_each(|(count, seconds)| histogram.record_many(seconds, count));
                };
                spread_of(INTER_TOKEN_LATENCY, &of_model, &times.token);
                let spread = |name: &'static str, spread: &Spread| spread_of(name, &of_host, spread);
                spread(PHASE2_STEP, &times.step);
                spread(PHASE2_LAYER_WAIT, &times.layer_wait);
                spread(PHASE2_MERGE, &times.merge);
            }
            Self::Links { host, report } => record_links(host, report),
            Self::SessionHit => counter!(SESSION_HITS).increment(1),
            Self::NumericsMixed => counter!(NUMERICS_MIXED).increment(1),
            Self::ShardsReencoded { shards } => counter!(SHARD_REENCODES).increment(*shards as u64),
            Self::Recovered { seconds } => histogram!(RECOVERY_DURATION).record(*seconds),
            Self::HostRestarted { host } => counter!(HOST_RESTARTS, "host" => host.clone()).increment(1),
            Self::Refused { reason, who, cause } => refused(reason, who, cause),
            Self::HostFailed { reason } => counter!(HOST_FAILURES, "reason" => *reason).increment(1),
        }
    }
}

fn record_links(host: &str, report: &LinkReport) {
    let process = |name: &'static str, value: f64| gauge!(name, "host" => host.to_string()).set(value);
    process(HOST_RESIDENT_BYTES, report.process.resident_bytes as f64);
    process(HOST_CPU_SECONDS, report.process.cpu_s.max(0.0));
    process(HOST_THREADS, report.process.threads as f64);
    counter!(TRANSPORT_RECONNECTS, "host" => host.to_string()).absolute(report.reconnects);
    for reading in &report.links {
        let (transport, peer) = (report.transport.clone(), reading.peer.clone());
        let labels = [("transport", transport), ("host", host.to_string()), ("peer", peer)];
        gauge!(TRANSPORT_RTT, &labels).set(reading.rtt_s.unwrap_or(f64::NAN));
    }
}

/// Says what a supervisor runs.
pub fn record_config(config: &SupervisorConfig) {
    let labels = [
        ("cluster", config.cluster.clone()),
        ("model", config.model.clone()),
        ("dtype", format!("{:?}", config.dtype).to_lowercase()),
        ("method", config.method.name().to_string()),
        ("recovery", format!("{:?}", config.recovery).to_lowercase()),
    ];
    gauge!(CONFIG_INFO, &labels).set(1.0);
    for host in &config.hosts {
        let of_host = |name: &'static str, bytes: u64| gauge!(name, "host" => host.name.clone()).set(bytes as f64);
        of_host(HOST_WEIGHTS_BYTES, config.weight_bytes);
        host.memory_limit.into_iter().for_each(|limit| of_host(HOST_MEMORY_LIMIT_BYTES, limit));
        counter!(HOST_RESTARTS, "host" => host.name.clone()).increment(0);
    }
    start_at_zero();
}

/// Why peers are refused: by a transport, at a door, and by the supervisor.
const REJECTIONS: &[&str] = &[
    "certificate",
    "frame",
    "handshake",
    "hello",
    "identity",
    "input_mismatch",
    "node",
    "protocol_version",
    "role",
    "ticket",
];

/// What counts rare events is there before the first: an alert sees no change from nothing to one.
fn start_at_zero() {
    for reason in ["exited", "disconnected", "heartbeat", "unfit"] {
        counter!(HOST_FAILURES, "reason" => reason).increment(0);
    }
    for reason in ["stop", "length"] {
        counter!(REQUEST_SUCCESS, "finished_reason" => reason).increment(0);
    }
    for code in codes::all() {
        counter!(REQUESTS_FAILED, "error_type" => code).increment(0);
    }
    for reason in REJECTIONS {
        counter!(TRANSPORT_REJECTS, "reason" => *reason).increment(0);
    }
    for name in [REQUESTS_CANCELLED, SHARD_REENCODES, NUMERICS_MIXED, SESSION_HITS] {
        counter!(name).increment(0);
    }
    let _ = histogram!(RECOVERY_DURATION);
}

/// Sets the gauges that describe the cluster as it is now.
pub fn record_cluster(status: &ClusterStatus) {
    gauge!(REQUESTS_RUNNING).set(status.jobs_running as f64);
    gauge!(REQUESTS_WAITING).set(status.jobs_pending as f64);
    for host in &status.hosts {
        let role = format!("{:?}", host.role).to_lowercase();
        let labels = [("host", host.name.clone()), ("role", role)];
        gauge!(HOST_UP, &labels).set(if host.health == HostHealth::Ready { 1.0 } else { 0.0 });
        if let Some(age) = host.heartbeat_age_s {
            gauge!(HOST_HEARTBEAT_AGE, "host" => host.name.clone()).set(age);
        }
        gauge!(KV_CACHE_BYTES, "host" => host.name.clone(), "state" => "held").set(host.kv_bytes as f64);
    }
}

/// Sets the gauges that count the sessions there are now.
pub fn record_sessions(counts: &[(SessionState, usize)]) {
    for (state, count) in counts {
        gauge!(SESSIONS, "state" => format!("{state:?}").to_lowercase()).set(*count as f64);
    }
}

/// Counts somebody who was refused, and says so with who and why.
pub fn refused(reason: &'static str, who: &str, cause: &dyn std::fmt::Display) {
    counter!(TRANSPORT_REJECTS, "reason" => reason).increment(1);
    tracing::warn!(who, reason, %cause, "refused a peer");
}

/// Counts what a transport does.
pub struct TransportMetrics {
    /// Transport by name, such as `quic`.
    pub transport: &'static str,
}

impl Observer for TransportMetrics {
    fn bytes(&self, sent: bool, bytes: usize) {
        let direction = if sent { "sent" } else { "received" };
        counter!(TRANSPORT_BYTES, "direction" => direction, "transport" => self.transport).increment(bytes as u64);
    }

    fn rejected(&self, reason: &'static str) {
        counter!(TRANSPORT_REJECTS, "reason" => reason).increment(1);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use super::*;

    #[test]
    fn every_reason_to_refuse_a_peer_starts_at_zero() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut said: BTreeSet<String> = BTreeSet::new();
        let mut folders = ["actors/src", "transport/src"].map(|path| folder.join(path)).to_vec();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).expect("a source");
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                for before in
                    ["rejected(\"", "metric::refused(\"", "Observation::Refused { reason: \"", "IDENTITY: &str = \""]
                {
                    said.extend(text.split(before).skip(1).filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
                }
                for function in ["fn rejection(", "impl Denied {"] {
                    let body = text.split(function).nth(1).and_then(|rest| rest.split("\n}\n").next());
                    said.extend(
                        body.into_iter().flat_map(|body| body.split('"').skip(1).step_by(2).map(str::to_owned)),
                    );
                }
            }
        }
        let known: BTreeSet<String> = REJECTIONS.iter().map(|reason| (*reason).to_owned()).collect();
        assert_eq!(said, known);
    }
}
