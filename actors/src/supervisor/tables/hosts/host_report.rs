//! What a host told of itself: where it is reached, what its links go over, its threads, clock and GPU. Decides nothing.

use std::{collections::BTreeMap, time::Duration};

use asterism_transport::Endpoint;

use crate::{
    api::DataLinks,
    cores::GpuMemory,
    metric,
    readings::{AnswerReading, LinkReport},
};

/// A host's name, and where others reach it.
pub type Address = (String, Vec<Endpoint>);

/// More endpoints than a host has.
const ENDPOINTS: usize = 8;
/// More bytes than an endpoint's address has.
const ADDRESS_BYTES: usize = 256;
/// Reasons of links that are kept, and characters of each.
const REASONS: usize = 8;
const REASON_CHARS: usize = 500;

/// What a host's last report of its links told.
#[derive(Debug, Default)]
pub struct HostReport {
    /// Threads that it computes with.
    pub threads: Option<u64>,
    /// Seconds that its clock is ahead of this supervisor's.
    pub clock_offset_s: Option<f64>,
    /// Memory of its GPU, whoever uses that.
    pub gpu: Option<GpuMemory>,
    /// Its links to other hosts that are up.
    pub data_links: Vec<DataLinks>,
    /// What it had answered by then.
    pub answered: AnswerReading,
}

impl HostReport {
    /// Of a report that came `now`.
    pub fn of(report: &LinkReport, now: Duration) -> Self {
        let apart = report.unix_s - now.as_secs_f64();
        Self {
            threads: (report.process.computing > 0).then_some(report.process.computing),
            clock_offset_s: (report.unix_s > 0.0 && apart.is_finite()).then_some(apart),
            gpu: report.process.gpu,
            data_links: data_links(report),
            answered: report.answered,
        }
    }
}

/// The links to other hosts that are up, counted by what carries them and why.
fn data_links(report: &LinkReport) -> Vec<DataLinks> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let up = report.links.iter().filter(|link| link.open && link.peer != metric::SUPERVISOR_LABEL);
    up.for_each(|link| *counts.entry((&link.transport, &link.why)).or_default() += 1);
    let links = |((transport, why), links): ((&str, &str), usize)| DataLinks {
        transport: transport.to_owned(),
        why: why.chars().take(REASON_CHARS).collect(),
        links,
    };
    counts.into_iter().take(REASONS).map(links).collect()
}

/// Whether a host's endpoints are what any host's are; the error says what is not.
pub fn check_endpoints(endpoints: &[Endpoint]) -> Result<(), String> {
    if endpoints.len() > ENDPOINTS {
        return Err(format!("it names {} endpoints, at most {ENDPOINTS} are taken", endpoints.len()));
    }
    let long = endpoints.iter().map(|one| one.transport.len().max(one.address.len())).find(|len| *len > ADDRESS_BYTES);
    long.map_or(Ok(()), |len| Err(format!("it names an endpoint of {len} bytes, at most {ADDRESS_BYTES} are taken")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readings::LinkReading;

    #[test]
    fn links_are_counted_by_transport_and_reason() {
        let link = |peer: &str, transport: &str, why: &str, open| LinkReading {
            peer: peer.into(),
            transport: transport.into(),
            why: why.into(),
            open,
            rtt_s: None,
        };
        let long = "x".repeat(2 * REASON_CHARS);
        let links = vec![
            link("supervisor", "quic", "", true),
            link("c0", "ucx", "", true),
            link("c1", "ucx", "", true),
            link("c2", "quic", &long, true),
            link("c3", "quic", "", false),
        ];
        let got = data_links(&LinkReport { links, ..LinkReport::default() });
        let expected =
            |transport: &str, why: &str, links| DataLinks { transport: transport.into(), why: why.into(), links };
        assert_eq!(got, [expected("quic", &long[..REASON_CHARS], 1), expected("ucx", "", 2)]);
    }

    #[test]
    fn endpoints_of_no_host_are_refused() {
        let of = |count: usize, len: usize| vec![Endpoint::new("quic", "x".repeat(len)); count];
        assert_eq!(check_endpoints(&of(ENDPOINTS, ADDRESS_BYTES)), Ok(()));
        assert!(check_endpoints(&of(ENDPOINTS + 1, 1)).is_err());
        assert!(check_endpoints(&of(1, ADDRESS_BYTES + 1)).is_err());
    }
}
