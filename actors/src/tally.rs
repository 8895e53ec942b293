//! What a host's process counts of its own, for the reports that it sends: it serves no metrics itself. The facade's recorder of
//! such a process; whatever else is recorded there, nobody hears.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::{
    messages::{Refused, Traffic},
    metric,
};

/// Counts of one process.
#[derive(Debug)]
pub struct Tally {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    refused: Vec<(&'static str, Arc<AtomicU64>)>,
    spans_dropped: Arc<AtomicU64>,
    /// The bits of a float, as gauges are.
    certificate_ends: Arc<AtomicU64>,
}

impl Default for Tally {
    fn default() -> Self {
        let refused = metric::REJECTIONS.iter().map(|reason| (*reason, Arc::default())).collect();
        let (sent, received, spans_dropped, certificate_ends) = Default::default();
        Self { sent, received, refused, spans_dropped, certificate_ends }
    }
}

impl Tally {
    /// What was counted so far.
    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = self.refused.iter().map(|(reason, peers)| ((*reason).to_owned(), count(peers)));
        let ends = f64::from_bits(count(&self.certificate_ends));
        Traffic {
            sent_bytes: count(&self.sent),
            received_bytes: count(&self.received),
            refused: refused.filter(|(_, peers)| *peers > 0).map(|(reason, peers)| Refused { reason, peers }).collect(),
            spans_dropped: count(&self.spans_dropped),
            certificate_ends_s: (ends > 0.0).then_some(ends),
        }
    }

    fn counter(&self, key: &Key) -> Option<&Arc<AtomicU64>> {
        let label = |name: &str| key.labels().find(|label| label.key() == name).map(|label| label.value());
        match key.name() {
            metric::TRANSPORT_BYTES if label("direction") == Some("sent") => Some(&self.sent),
            metric::TRANSPORT_BYTES => Some(&self.received),
            metric::SPANS_DROPPED => Some(&self.spans_dropped),
            metric::TRANSPORT_REJECTS => {
                let known = self.refused.iter().find(|(reason, _)| label("reason") == Some(reason));
                known.map(|(_, peers)| peers)
            }
            _ => None,
        }
    }
}

impl Recorder for Tally {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.counter(key).map_or_else(Counter::noop, |counter| Counter::from_arc(counter.clone()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        match key.name() {
            metric::CERTIFICATE_EXPIRY => Gauge::from_arc(self.certificate_ends.clone()),
            _ => Gauge::noop(),
        }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[cfg(test)]
mod tests {
    use asterism_transport::Observer;
    use metrics::gauge;

    use super::*;
    use crate::metric::TransportMetrics;

    #[test]
    fn what_a_process_counts_stands_in_its_report() {
        let tally = Tally::default();
        assert_eq!(tally.traffic(), Traffic::default());
        metrics::with_local_recorder(&tally, || {
            let transport = TransportMetrics { transport: "quic" };
            [10, 20].into_iter().for_each(|bytes| transport.bytes(true, bytes));
            transport.bytes(false, 5);
            transport.rejected("frame");
            transport.rejected("of no list");
            metric::refused("role", "somebody", &"may not");
            gauge!(metric::CERTIFICATE_EXPIRY, "host" => "context-0").set(1.5e9);
            gauge!(metric::REQUESTS_RUNNING).set(3.0);
        });
        let refused = |reason: &str| Refused { reason: reason.into(), peers: 1 };
        let expected = Traffic {
            sent_bytes: 30,
            received_bytes: 5,
            refused: vec![refused("frame"), refused("role")],
            spans_dropped: 0,
            certificate_ends_s: Some(1.5e9),
        };
        assert_eq!(tally.traffic(), expected);
    }
}
