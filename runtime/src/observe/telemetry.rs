//! Spans of this process on their way to a collector: OTLP over HTTP, in JSON. The queue is bounded and nobody waits for it: what a
//! collector does not take in time is counted and forgotten. Makes no span.

mod otlp;

use std::{
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use asterism_actors::{
    metric,
    trace::{self, Span},
};
use metrics::counter;
use ureq::Agent;

use crate::{cluster::Cluster, error::CliError};
use otlp::Resource;

/// Spans that wait for the collector.
const QUEUED: usize = 4096;
/// Spans that are sent together, and how long they wait for each other.
const TOGETHER: (usize, Duration) = (512, Duration::from_millis(500));
/// How long the collector may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long the end of a process waits for its last spans.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// Where spans go, for as long as this process runs.
#[derive(Debug)]
pub struct Telemetry {
    queue: SyncSender<Item>,
}

enum Item {
    Span(Box<Span>),
    /// CallPiece when all before it went out.
    Flush(SyncSender<()>),
}

/// Has the spans of the process called `instance` go where the cluster file says, if anywhere.
pub fn start(cluster: &Cluster, instance: &str) -> Result<Option<Telemetry>, CliError> {
    let Some(endpoint) = &cluster.otlp_endpoint else { return Ok(None) };
    let resource = Resource { cluster: cluster.name.clone(), instance: instance.to_owned() };
    let sender = Sender { url: format!("{endpoint}/v1/traces"), resource, agent: agent() };
    let (queue, items) = sync_channel(QUEUED);
    let failed = |error| CliError::unreachable(format!("no thread can be started for spans: {error}"));
    thread::Builder::new().name("spans".into()).spawn(move || sender.run(&items)).map_err(failed)?;
    let spans = queue.clone();
    trace::install(Box::new(move |span| {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = spans.try_send(Item::Span(Box::new(span))) {
            dropped(1);
        }
    }));
    Ok(Some(Telemetry { queue }))
}

impl Telemetry {
    /// Waits a little for the last spans to go out.
    pub fn flush(self) {
        let (reported, heard) = sync_channel(1);
        if self.queue.try_send(Item::Flush(reported)).is_ok() {
            let _ = heard.recv_timeout(FLUSH_WITHIN);
        }
    }
}

fn agent() -> Agent {
    Agent::config_builder().timeout_global(Some(ANSWER_WITHIN)).build().into()
}

fn dropped(spans: usize) {
    counter!(metric::SPANS_DROPPED, "host" => metric::SUPERVISOR_LABEL).increment(spans as u64);
}

struct Sender {
    url: String,
    resource: Resource,
    agent: Agent,
}

impl Sender {
    /// Sends what comes, some together, until nobody can say anything any more.
    fn run(self, items: &Receiver<Item>) {
        let mut is_lost = false;
        while let Ok(first) = items.recv() {
            let (mut spans, mut flushed) = (Vec::new(), Vec::new());
            let (most, due) = (TOGETHER.0, Instant::now() + TOGETHER.1);
            let mut next = Some(first);
            while let Some(item) = next.take() {
                match item {
                    Item::Span(span) => spans.push(*span),
                    Item::Flush(reported) => flushed.push(reported),
                }
                if spans.len() < most && flushed.is_empty() {
                    next = items.recv_timeout(due.saturating_duration_since(Instant::now())).ok();
                }
            }
            if !spans.is_empty() {
                is_lost = !self.send(&spans, is_lost);
            }
            for reported in flushed {
                // Who waited for it may be gone.
                let _ = reported.try_send(());
            }
        }
    }

    /// Whether the collector took them; that it does not is said once until it does again.
    fn send(&self, spans: &[Span], was_lost: bool) -> bool {
        let body = otlp::request(&self.resource, spans).to_string();
        let sent = self.agent.post(&self.url).header("content-type", "application/json").send(body);
        match sent {
            Ok(_) => true,
            Err(error) => {
                dropped(spans.len());
                if !was_lost {
                    tracing::warn!(collector = %self.url, %error, "spans are dropped until the collector takes them");
                }
                false
            }
        }
    }
}
