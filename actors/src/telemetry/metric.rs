//! The observations that feed the metrics. Exports nothing: the process that serves `/metrics` does.

mod names;

use std::{
    collections::BTreeSet,
    sync::{Mutex, OnceLock, PoisonError},
};

use asterism_transport::Observer;
use metrics::{Counter, counter, gauge, histogram};

use crate::{
    api::{ClusterStatus, FinishReason, GpuReading, GpuStatus, HostHealth, HostStatus, SessionState, Timings},
    cores::GpuMemory,
    error::codes,
    readings::{Carried, DurationHistogram, LinkReport, Phase2Times, Refused, SPREAD_SECONDS, Traffic},
    trace::Span,
};
pub use names::*;

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
        /// Seconds of computing, and of waiting for others.
        seconds: (f64, f64),
        /// Tokens run through the model.
        tokens: usize,
    },
    /// A shard was not encoded: its host held the same already.
    ShardCached {
        /// Host.
        host: String,
        /// Tokens of its block.
        tokens: usize,
    },
    /// A shard is held where it moved to.
    ShardMoved {
        /// `transferred` as it lay, or `encoded` anew.
        how: &'static str,
    },
    /// Every shard of a job is encoded.
    JobEncoded {
        /// Method by name.
        method: String,
        /// Share of dense attention's pairs that were not computed.
        sparsity: f64,
    },
    /// A job's context is encoded for the first time.
    ContextReused {
        /// How much of it hosts held already: all, part or none.
        held: &'static str,
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
    /// An answer was held to a form.
    Masked {
        /// Query host.
        host: String,
        /// Method by name.
        method: String,
        /// What its masks took.
        masks: Box<DurationHistogram>,
    },
    /// A host reported its links; the latest stands.
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
        /// `lost`, or `together` with those lost.
        reason: &'static str,
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
    /// Something was done for a request whose spans are wanted.
    Span(Span),
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
            Self::ShardEncoded { host, method, seconds: (computing_s, waiting_s), tokens } => {
                let labels = [("host", host.clone()), ("method", method.clone())];
                histogram!(PHASE1_SHARD_ENCODE, &labels).record(computing_s + waiting_s);
                gauge!(PHASE1_COMPUTING, &labels).increment(*computing_s);
                gauge!(PHASE1_WAITING, &labels).increment(*waiting_s);
                counter!(PHASE1_TOKENS, "host" => host.clone()).increment(*tokens as u64);
            }
            Self::ShardCached { host, tokens } => {
                counter!(PHASE1_CACHED_TOKENS, "host" => host.clone()).increment(*tokens as u64);
            }
            Self::ShardMoved { how } => counter!(SHARDS_MOVED, "how" => *how).increment(1),
            Self::ContextReused { held } => counter!(CONTEXTS_REUSED, "held" => *held).increment(1),
            Self::JobEncoded { method, sparsity } => {
                gauge!(ATTENTION_SPARSITY, "method" => method.clone()).set(sparsity.max(0.0));
            }
            Self::Phase2 { host, method, model, times } => {
                let of_host = [("host", host.clone()), ("method", method.clone())];
                let of_model = [("method", method.clone()), ("model", model.clone())];
                spread_of(INTER_TOKEN_LATENCY, &of_model, &times.token);
                let spread = |name: &'static str, spread: &DurationHistogram| spread_of(name, &of_host, spread);
                spread(PHASE2_STEP, &times.step);
                spread(PHASE2_LAYER_WAIT, &times.layer_wait);
                spread(PHASE2_MERGE, &times.merge);
                let count = |name: &'static str, tokens| counter!(name, "host" => host.clone()).increment(tokens);
                count(SPEC_DECODE_DRAFT_TOKENS, times.guesses);
                count(SPEC_DECODE_ACCEPTED_TOKENS, times.right_guesses);
            }
            Self::Masked { host, method, masks } => {
                spread_of(PHASE2_MASK, &[("host", host.clone()), ("method", method.clone())], masks);
            }
            Self::Links { host, report } => record_links(host, report),
            Self::SessionHit => counter!(SESSION_HITS).increment(1),
            Self::NumericsMixed => counter!(NUMERICS_MIXED).increment(1),
            Self::ShardsReencoded { reason, shards } => {
                counter!(SHARD_REENCODES, "reason" => *reason).increment(*shards as u64);
            }
            Self::Recovered { seconds } => histogram!(RECOVERY_DURATION).record(*seconds),
            Self::HostRestarted { host } => counter!(HOST_RESTARTS, "host" => host.clone()).increment(1),
            Self::Refused { reason, who, cause } => refused(reason, who, cause),
            Self::Span(span) => span.clone().finish(),
            Self::HostFailed { reason } => counter!(HOST_FAILURES, "reason" => *reason).increment(1),
        }
    }
}

fn spread_of(name: &'static str, labels: &[(&'static str, String); 2], spread: &DurationHistogram) {
    let histogram = histogram!(name, labels);
    spread.buckets().for_each(|(count, seconds)| histogram.record_many(seconds, count));
}

fn record_links(host: &str, report: &LinkReport) {
    let process = |name: &'static str, value: f64| gauge!(name, "host" => host.to_string()).set(value);
    process(HOST_RESIDENT_BYTES, report.process.resident_bytes as f64);
    process(HOST_CPU_SECONDS, report.process.cpu_s.max(0.0));
    process(HOST_THREADS, report.process.threads as f64);
    process(PHASE2_ANSWERING, report.answered.seconds.max(0.0));
    if let Some(GpuMemory { used, free }) = report.process.gpu {
        for (state, bytes) in [("used", used), ("free", free)] {
            gauge!(GPU_MEMORY_BYTES, "host" => host.to_string(), "state" => state).set(bytes as f64);
        }
    }
    counter!(TRANSPORT_RECONNECTS, "host" => host.to_string()).absolute(report.reconnects);
    counter!(TRANSPORT_FALLBACKS, "host" => host.to_string()).absolute(report.fallbacks);
    let Traffic { carried, refused, certificate_ends_s, .. } = &report.traffic;
    for Carried { transport, sent_bytes, received_bytes } in carried {
        for (direction, bytes) in [("sent", sent_bytes), ("received", received_bytes)] {
            let labels = [("host", host), ("direction", direction), ("transport", transport)];
            counter!(TRANSPORT_BYTES, &labels.map(owned)).absolute(*bytes);
        }
    }
    for Refused { reason, peers } in refused {
        counter!(TRANSPORT_REJECTS, &[("host", host), ("reason", reason)].map(owned)).absolute(*peers);
    }
    counter!(SPANS_DROPPED, "host" => host.to_string()).absolute(report.traffic.spans_dropped);
    process(CERTIFICATE_EXPIRY, certificate_ends_s.unwrap_or(f64::NAN));
    // Of what it ever spoke over. By pair of hosts they would be as many as there are hosts, squared.
    let spoken = |transport: &&str| {
        let carries = carried.iter().any(|carried| carried.transport == *transport);
        carries || report.links.iter().any(|link| link.transport == *transport)
    };
    for transport in TRANSPORTS.into_iter().filter(spoken) {
        let links = || report.links.iter().filter(|link| link.transport == transport);
        for (peer, of_supervisor) in [(SUPERVISOR_LABEL, true), ("hosts", false)] {
            let of_peer = links().filter(|link| (link.peer == SUPERVISOR_LABEL) == of_supervisor);
            let longest = of_peer.filter_map(|link| link.rtt_s).fold(f64::NAN, f64::max);
            let labels = [("host", host), ("peer", peer), ("transport", transport)];
            gauge!(TRANSPORT_RTT, &labels.map(owned)).set(longest);
        }
        let open = links().filter(|link| link.peer != SUPERVISOR_LABEL && link.open).count();
        let open = if links().next().is_some() { open as f64 } else { f64::NAN };
        gauge!(TRANSPORT_LINKS, &[("host", host), ("transport", transport)].map(owned)).set(open);
    }
}

pub(crate) fn owned((name, value): (&'static str, &str)) -> (&'static str, String) {
    (name, value.to_owned())
}

/// The supervisor among the hosts that processes are labelled by.
pub const SUPERVISOR_LABEL: &str = "supervisor";
/// What hosts may say that they speak over.
pub const TRANSPORTS: [&str; 4] = ["local", "ucx", "quic", "sim"];

/// Why peers are refused: by a transport, at a door, and by the supervisor.
pub const REJECTIONS: &[&str] = &[
    "certificate",
    "frame",
    "half_open",
    "handshake",
    "hello",
    "identity",
    "input_mismatch",
    "model",
    "node",
    "partials",
    "protocol_version",
    "role",
    "ticket",
    "ucx_token",
];

/// What counts rare events is there before the first: an alert sees no change from nothing to one.
pub fn start_at_zero() {
    for reason in ["exited", "disconnected", "heartbeat", "unfit", "lied", "misread"] {
        counter!(HOST_FAILURES, "reason" => reason).increment(0);
    }
    for reason in ["stop", "length"] {
        counter!(REQUEST_SUCCESS, "finished_reason" => reason).increment(0);
    }
    for code in codes::all() {
        counter!(REQUESTS_FAILED, "error_type" => code).increment(0);
    }
    for reason in ["lost", "together"] {
        counter!(SHARD_REENCODES, "reason" => reason).increment(0);
    }
    for code in ["capacity_exhausted", "invalid_request", "overloaded", "unauthorized"] {
        counter!(REQUESTS_REFUSED, "error_type" => code).increment(0);
    }
    counter!(SPANS_DROPPED, "host" => SUPERVISOR_LABEL).increment(0);
    for how in ["transferred", "encoded"] {
        counter!(SHARDS_MOVED, "how" => how).increment(0);
    }
    for held in ["all", "part", "none"] {
        counter!(CONTEXTS_REUSED, "held" => held).increment(0);
    }
    for name in [REQUESTS_CANCELLED, NUMERICS_MIXED, SESSION_HITS] {
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
        gauge!(HOST_SLOWDOWN, "host" => host.name.clone()).set(host.slowdown);
        gauge!(KV_CACHE_BYTES, "host" => host.name.clone(), "state" => "held").set(host.kv_bytes as f64);
        gauge!(KV_IDLE_BYTES, "host" => host.name.clone()).set(host.idle_kv_bytes as f64);
        if matches!(host.health, HostHealth::Starting | HostHealth::Dead) {
            forget(&host.name);
        }
    }
    let mut passing = models(status);
    let offset = |host: &HostStatus| -> Option<PassingGauge> {
        Some((HOST_CLOCK_OFFSET, vec![owned(("host", &host.name))], host.clock_offset_s?))
    };
    passing.extend(status.hosts.iter().filter_map(offset));
    status.gpus.iter().for_each(|GpuStatus { node, gpu }| passing.extend(of_gpu(node, gpu)));
    record_passing(passing);
}

/// A series by its name and labels.
type Series = (&'static str, Vec<(&'static str, String)>);
/// A gauge that is there as long as what it is about: its name, its labels, and what it says.
type PassingGauge = (&'static str, Vec<(&'static str, String)>, f64);

/// Whether each model answers.
fn models(status: &ClusterStatus) -> Vec<PassingGauge> {
    let gauge = |name: &str, answers: bool| -> PassingGauge {
        (MODEL_ANSWERS, vec![owned(("model", name))], f64::from(u8::from(answers)))
    };
    match &status.models[..] {
        [] => vec![gauge(&status.model, status.answers)],
        models => models.iter().map(|model| gauge(&model.name, model.answers)).collect(),
    }
}

/// What is known of a GPU of a node's machine.
fn of_gpu(node: &str, gpu: &GpuReading) -> Vec<PassingGauge> {
    let labels = || vec![owned(("node", node)), ("gpu", gpu.index.to_string())];
    let with = |label: &'static str, value: &str| [labels(), vec![(label, value.to_owned())]].concat();
    let mhz = |clock: Option<u32>| clock.map(|mhz| f64::from(mhz) * 1e6);
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let xid = gpu.last_xid.map(|number| with("xid", &number.to_string()));
    let told = [
        (GPU_BUSY, labels(), gpu.busy_percent.map(|percent| f64::from(percent) / 100.0)),
        (GPU_DEVICE_MEMORY_BYTES, with("state", "used"), bytes(gpu.used_bytes)),
        (GPU_DEVICE_MEMORY_BYTES, with("state", "free"), bytes(gpu.free_bytes)),
        (GPU_TEMPERATURE, labels(), gpu.celsius.map(f64::from)),
        (GPU_CLOCK, with("clock", "sm"), mhz(gpu.sm_mhz)),
        (GPU_CLOCK, with("clock", "memory"), mhz(gpu.memory_mhz)),
        (GPU_ECC_ERRORS, with("kind", "corrected"), bytes(gpu.corrected_errors)),
        (GPU_ECC_ERRORS, with("kind", "uncorrected"), bytes(gpu.uncorrected_errors)),
        (GPU_XIDS, labels(), Some(gpu.xids as f64)),
        (GPU_LAST_XID, xid.clone().unwrap_or_default(), xid.and(bytes(gpu.last_xid_at))),
    ];
    told.into_iter().filter_map(|(name, labels, value)| Some((name, labels, value?))).collect()
}

/// Sets these, and has those that were set before and are not among them be served no more.
fn record_passing(gauges: Vec<PassingGauge>) {
    static SET: Mutex<BTreeSet<Series>> = Mutex::new(BTreeSet::new());
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::take(&mut *set);
    for (name, labels, value) in gauges {
        gauge!(name, &labels).set(value);
        set.insert((name, labels));
    }
    for (name, labels) in before.difference(&set) {
        gauge!(*name, labels).set(f64::NAN);
    }
}

/// What a process told last is not so any more once it is gone: gauges that are not a number are not served.
fn forget(host: &str) {
    for name in [HOST_RESIDENT_BYTES, HOST_CPU_SECONDS, HOST_THREADS, CERTIFICATE_EXPIRY, PHASE2_ANSWERING] {
        gauge!(name, "host" => host.to_owned()).set(f64::NAN);
    }
    gauge!(KV_CACHE_BYTES, "host" => host.to_owned(), "state" => "held").set(f64::NAN);
    gauge!(KV_IDLE_BYTES, "host" => host.to_owned()).set(f64::NAN);
    for transport in TRANSPORTS {
        for peer in [SUPERVISOR_LABEL, "hosts"] {
            let labels = [("host", host), ("peer", peer), ("transport", transport)];
            gauge!(TRANSPORT_RTT, &labels.map(owned)).set(f64::NAN);
        }
        gauge!(TRANSPORT_LINKS, &[("host", host), ("transport", transport)].map(owned)).set(f64::NAN);
    }
}

/// Sets the gauges that count the sessions there are now, and the bytes that they pin.
pub fn record_sessions(counts: &[(SessionState, usize)], pinned_bytes: u64) {
    gauge!(SESSION_PINNED_BYTES).set(pinned_bytes as f64);
    for (state, count) in counts {
        gauge!(SESSIONS, "state" => format!("{state:?}").to_lowercase()).set(*count as f64);
    }
}

/// Counts somebody who was refused, and says so with who and why.
pub fn refused(reason: &'static str, who: &str, cause: &dyn std::fmt::Display) {
    counter!(TRANSPORT_REJECTS, "host" => SUPERVISOR_LABEL, "reason" => reason).increment(1);
    tracing::warn!(who, reason, %cause, "refused a peer");
}

/// Counts what the transport of this process does. A host's own counts go into its [`crate::tally::Tally`], which asks for no
/// host, and are the host's where the supervisor serves them.
pub struct TransportMetrics {
    transport: &'static str,
    /// Found once: bytes are counted with every frame.
    sent: OnceLock<Counter>,
    received: OnceLock<Counter>,
}

impl TransportMetrics {
    /// Of a transport by name, such as `quic`.
    pub fn new(transport: &'static str) -> Self {
        Self { transport, sent: OnceLock::new(), received: OnceLock::new() }
    }
}

impl Observer for TransportMetrics {
    fn bytes(&self, sent: bool, bytes: usize) {
        let (direction, counter) = if sent { ("sent", &self.sent) } else { ("received", &self.received) };
        let labels = [("host", SUPERVISOR_LABEL), ("direction", direction), ("transport", self.transport)];
        counter.get_or_init(|| counter!(TRANSPORT_BYTES, &labels)).increment(bytes as u64);
    }

    fn rejected(&self, reason: &'static str) {
        counter!(TRANSPORT_REJECTS, "host" => SUPERVISOR_LABEL, "reason" => reason).increment(1);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::PathBuf};

    use super::*;

    #[test]
    fn every_reason_to_refuse_a_peer_starts_at_zero() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut stated: BTreeSet<String> = BTreeSet::new();
        let mut folders = ["actors/src", "transport/src"].map(|path| folder.join(path)).to_vec();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).expect("a source");
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                for before in [
                    "rejected(\"",
                    "metric::refused(\"",
                    "Observation::Refused { reason: \"",
                    "IDENTITY: &str = \"",
                    "HANDSHAKE: &str = \"",
                    "NO_PLACE: &str = \"",
                ] {
                    stated
                        .extend(text.split(before).skip(1).filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
                }
                for function in ["fn rejection(", "impl Denied {"] {
                    let body = text.split(function).nth(1).and_then(|rest| rest.split("\n}\n").next());
                    stated.extend(
                        body.into_iter().flat_map(|body| body.split('"').skip(1).step_by(2).map(str::to_owned)),
                    );
                }
            }
        }
        let known: BTreeSet<String> = REJECTIONS.iter().map(|reason| (*reason).to_owned()).collect();
        assert_eq!(stated, known);
    }
}
