//! Peers whose UCX path was lost while they lived: for a while they had best be reached otherwise.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::signal::lock;

/// How long such a path is left alone.
const LEFT_ALONE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct FailingPeers {
    lost: Mutex<HashMap<SocketAddr, (Instant, String)>>,
}

impl FailingPeers {
    /// The path to `peer` was lost `now`.
    pub fn note(&self, peer: SocketAddr, cause: String, now: Instant) {
        let mut lost = lock(&self.lost);
        lost.retain(|_, (since, _)| now.duration_since(*since) < LEFT_ALONE);
        lost.insert(peer, (now, cause));
    }

    /// Why the path to `peer` had best be left alone.
    pub fn of(&self, peer: SocketAddr, now: Instant) -> Option<String> {
        let lost = lock(&self.lost);
        let (since, cause) = lost.get(&peer)?;
        let ago = now.duration_since(*since);
        (ago < LEFT_ALONE).then(|| format!("its path was lost, and is tried again after {LEFT_ALONE:?}: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_path_is_left_alone_for_a_while() {
        let (ailing, now) = (FailingPeers::default(), Instant::now());
        let [one, other] = ["10.0.0.1:7", "10.0.0.2:7"].map(|address| address.parse().expect("an address"));
        ailing.note(one, "silence".into(), now);
        let later = now + LEFT_ALONE - Duration::from_millis(1);
        assert!(ailing.of(one, later).is_some_and(|cause| cause.ends_with(": silence")));
        assert_eq!(ailing.of(other, later), None);
        assert_eq!(ailing.of(one, now + LEFT_ALONE), None);
        ailing.note(other, "silence".into(), now + LEFT_ALONE);
        assert_eq!(lock(&ailing.lost).len(), 1, "what is over is forgotten");
    }
}
