//! Has hosts measure their links to each other, one host after another so that none measures another's load. Keeps nothing.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::{LinkSpeed, Role},
    error::JobError,
    messages::{HostCommand, LinkPeer, MeasuredLink},
    supervisor::{shell::actor::Supervisor, state::view::ReadyHost},
};

/// Longest wait for one host.
const MEASURING_TIMEOUT: Duration = Duration::from_secs(120);
/// Of so many hosts each is measured with each; of more, one of each role on each node.
const FEW: usize = 8;

impl Supervisor {
    /// Measures the links that jobs take: from query hosts and context hosts to context hosts.
    ///
    /// # Errors
    /// [`JobError::Stopping`] and [`JobError::Busy`].
    pub async fn measure_links(&self) -> Result<Vec<LinkSpeed>, JobError> {
        let hosts = self.ask(|shell| shell.state().ready_hosts()).await?;
        let mut found = Vec::new();
        for (host, peers) in asked(&hosts) {
            let (connection, order) = (host.connection, HostCommand::Measure { peers: peers.clone() });
            let answer = self.ask(move |shell| shell.measure(connection, order)).await?;
            let measured = match tokio::time::timeout(MEASURING_TIMEOUT, answer).await {
                Ok(Ok(measured)) => measured,
                _ => Vec::new(),
            };
            found.extend(peers.iter().map(|peer| speed(&host.peer.host, &peer.host, &measured)));
        }
        Ok(found)
    }
}

fn speed(from: &str, to: &str, measured: &[MeasuredLink]) -> LinkSpeed {
    let speed = LinkSpeed { from: from.into(), to: to.into(), ..LinkSpeed::default() };
    match measured.iter().find(|link| link.peer == to) {
        None => LinkSpeed { error: Some("the host did not say".into()), ..speed },
        Some(link) => {
            let (transport, why) = (link.transport.clone(), link.why.clone());
            let good = |value: f64| (link.error.is_empty() && value.is_finite() && value > 0.0).then_some(value);
            let (round_trip_s, bytes_per_s) = (good(link.round_trip_s), good(link.bytes_per_s));
            let error = (!link.error.is_empty()).then(|| link.error.clone());
            LinkSpeed { transport, why, round_trip_s, bytes_per_s, error, ..speed }
        }
    }
}

/// Who measures, and with whom.
fn asked(hosts: &[ReadyHost]) -> Vec<(&ReadyHost, Vec<LinkPeer>)> {
    let working = || hosts.iter().filter(|host| matches!(host.role, Role::Context | Role::Query));
    let few = working().count() <= FEW;
    let mut seen = BTreeSet::new();
    let taken: Vec<&ReadyHost> =
        working().filter(|host| few || seen.insert((host.role == Role::Query, &host.node))).collect();
    let context = |host: &&&ReadyHost| host.role == Role::Context;
    let peers = |from: &ReadyHost| {
        let others = taken.iter().filter(context).filter(|to| to.peer.host != from.peer.host);
        others.map(|to| to.peer.clone()).collect::<Vec<_>>()
    };
    taken.iter().map(|from| (*from, peers(from))).filter(|(_, peers)| !peers.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, role: Role, node: &str) -> ReadyHost {
        let peer = LinkPeer { host: name.into(), endpoints: Vec::new() };
        ReadyHost { peer, role, node: node.into(), connection: 1 }
    }

    fn pairs(hosts: &[ReadyHost]) -> Vec<String> {
        let asked = asked(hosts);
        let names = |peers: &[LinkPeer]| peers.iter().map(|peer| peer.host.clone()).collect::<Vec<_>>().join(" ");
        asked.iter().map(|(from, peers)| format!("{}: {}", from.peer.host, names(peers))).collect()
    }

    #[test]
    fn few_hosts_measure_with_each_and_many_by_node() {
        let (context, query, spare) = (Role::Context, Role::Query, Role::Spare);
        let few = [host("q", query, "a"), host("c0", context, "a"), host("c1", context, "b"), host("s", spare, "b")];
        assert_eq!(pairs(&few), ["q: c0 c1", "c0: c1", "c1: c0"]);
        let mut many = vec![host("q", query, "a")];
        many.extend((0..9).map(|at| host(&format!("c{at}"), context, if at < 5 { "a" } else { "b" })));
        assert_eq!(pairs(&many), ["q: c0 c5", "c0: c5", "c5: c0"]);
        assert_eq!(pairs(&[host("q", query, "a")]), Vec::<String>::new());
    }

    #[test]
    fn what_was_not_measured_says_why() {
        let link = |peer: &str, bytes_per_s, error: &str| MeasuredLink {
            peer: peer.into(),
            transport: "quic".into(),
            round_trip_s: 1e-4,
            bytes_per_s,
            error: error.into(),
            ..MeasuredLink::default()
        };
        let stated = [link("c0", 1e9, ""), link("c1", 1e9, "no answer"), link("c2", f64::NAN, "")];
        assert_eq!(speed("q", "c0", &stated).bytes_per_s, Some(1e9));
        let failed = speed("q", "c1", &stated);
        assert_eq!((failed.bytes_per_s, failed.error.as_deref()), (None, Some("no answer")));
        assert_eq!(speed("q", "c2", &stated).bytes_per_s, None);
        assert!(speed("q", "c3", &stated).error.is_some());
    }
}
