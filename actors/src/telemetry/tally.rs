//! What a host's process counts of its own, for the reports that it sends: it serves no metrics itself. The facade's recorder of
//! such a process; whatever else is recorded there, nobody hears.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::{
    metric,
    readings::{Carried, Refused, Traffic},
};

/// Counts of one process.
#[derive(Debug)]
pub struct Tally {
    /// Bytes sent and received, by transport.
    carried: Vec<(&'static str, [Arc<AtomicU64>; 2])>,
    refused: Vec<(&'static str, Arc<AtomicU64>)>,
    spans_dropped: Arc<AtomicU64>,
    /// The bits of a float, as gauges are.
    certificate_ends: Arc<AtomicU64>,
}

impl Default for Tally {
    fn default() -> Self {
        let refused = metric::REJECTIONS.iter().map(|reason| (*reason, Arc::default())).collect();
        let carried = metric::TRANSPORTS.iter().map(|transport| (*transport, Default::default())).collect();
        let (spans_dropped, certificate_ends) = Default::default();
        Self { carried, refused, spans_dropped, certificate_ends }
    }
}

impl Tally {
    /// What was counted so far.
    pub fn traffic(&self) -> Traffic {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let refused = self.refused.iter().map(|(reason, peers)| ((*reason).to_owned(), count(peers)));
        let carried = self.carried.iter().map(|(transport, [sent, received])| Carried {
            transport: (*transport).to_owned(),
            sent_bytes: count(sent),
            received_bytes: count(received),
        });
        let ends = f64::from_bits(count(&self.certificate_ends));
        Traffic {
            carried: carried.filter(|carried| carried.sent_bytes + carried.received_bytes > 0).collect(),
            refused: refused.filter(|(_, peers)| *peers > 0).map(|(reason, peers)| Refused { reason, peers }).collect(),
            spans_dropped: count(&self.spans_dropped),
            certificate_ends_s: (ends > 0.0).then_some(ends),
        }
    }

    fn counter(&self, key: &Key) -> Option<&Arc<AtomicU64>> {
        let label = |name: &str| key.labels().find(|label| label.key() == name).map(|label| label.value());
        match key.name() {
            metric::TRANSPORT_BYTES => {
                let known = self.carried.iter().find(|(transport, _)| label("transport") == Some(transport));
                known.map(|(_, [sent, received])| if label("direction") == Some("sent") { sent } else { received })
            }
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
            let transport = TransportMetrics::new("quic");
            [10, 20].into_iter().for_each(|bytes| transport.bytes(true, bytes));
            transport.bytes(false, 5);
            TransportMetrics::new("ucx").bytes(false, 7);
            transport.rejected("frame");
            transport.rejected("of no list");
            metric::refused("role", "somebody", &"may not");
            gauge!(metric::CERTIFICATE_EXPIRY, "host" => "context-0").set(1.5e9);
            gauge!(metric::REQUESTS_RUNNING).set(3.0);
        });
        let refused = |reason: &str| Refused { reason: reason.into(), peers: 1 };
        let expected = Traffic {
            carried: vec![
                Carried { transport: "ucx".into(), sent_bytes: 0, received_bytes: 7 },
                Carried { transport: "quic".into(), sent_bytes: 30, received_bytes: 5 },
            ],
            refused: vec![refused("frame"), refused("role")],
            spans_dropped: 0,
            certificate_ends_s: Some(1.5e9),
        };
        assert_eq!(tally.traffic(), expected);
    }
}
