//! Two peers, whether they hear each other, and how each side's view of a link ends. Sends no frame.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    FrameError, Observer, TransportError,
    local::{LocalNetwork, side::LINK_DROPPED},
    signal::{Signal, lock},
    sim::faults::{Fault, Faults, SimConfig},
};

pub(super) const CUT: &str = "the link was cut";

/// Two peers and whether they hear each other.
#[derive(Default)]
pub(super) struct Pair {
    /// Faults of their own.
    pub faults: Mutex<Option<Faults>>,
    /// While they are partitioned: the number of that partition.
    pub(super) blocked: Signal<Option<u64>>,
    pub(super) state: Mutex<PairState>,
}

#[derive(Default)]
pub(super) struct PairState {
    pub(super) partitions: u64,
    pub(super) connections: Vec<Weak<SimConnection>>,
    /// Links made so far, by who connected.
    pub(super) links: HashMap<SocketAddr, u64>,
}

impl Pair {
    /// Completes while the two hear each other.
    pub(super) async fn wait_open(&self) {
        self.blocked.wait_for(Option::is_none).await;
    }

    pub(super) fn connections(&self) -> Vec<Arc<SimConnection>> {
        lock(&self.state).connections.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn cut(&self) {
        self.connections().iter().for_each(|connection| connection.cut());
    }

    /// Silence. Links that it outlasts end on both sides.
    pub(super) fn block(self: &Arc<Self>, idle_timeout: Duration) {
        let partition = {
            let mut state = lock(&self.state);
            if self.is_blocked() {
                return;
            }
            state.partitions += 1;
            self.blocked.set(Some(state.partitions));
            state.partitions
        };
        let pair = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = pair.blocked.wait_for(|now| *now != Some(partition)) => {}
                () = tokio::time::sleep(idle_timeout) => {
                    pair.connections().iter().for_each(|connection| connection.time_out());
                }
            }
        });
    }

    pub(super) fn heal(&self) {
        // Ends come first: what was closed across the silence delivers nothing any more.
        self.connections().iter().for_each(|connection| connection.spread_end());
        self.blocked.set(None);
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.get().is_some()
    }
}

/// What both sides of a link share. Side 0 connected, side 1 accepted.
pub(super) struct SimConnection {
    pub(super) network: Arc<Shared>,
    pub pair: Arc<Pair>,
    pub(super) addresses: [SocketAddr; 2],
    pub(super) number: u64,
    /// How the link ended, as each side sees it.
    pub(super) ends: [Signal<Option<TransportError>>; 2],
    /// Sides that gave the link up without a word.
    pub(super) given_up: [AtomicBool; 2],
    /// Channels that only their opener knows of so far, by opener and number.
    pub(super) half_taken: Mutex<HashMap<(usize, u64), Arc<Refusals>>>,
}

/// Why the frames of each side were refused by the other.
#[derive(Default)]
pub(super) struct Refusals(pub [OnceLock<FrameError>; 2]);

impl SimConnection {
    pub(super) fn new(network: &Arc<Shared>, addresses: [SocketAddr; 2]) -> Arc<Self> {
        let pair = network.pair(addresses[0], addresses[1]);
        let mut state = lock(&pair.state);
        let links = state.links.entry(addresses[0]).or_default();
        let number = *links;
        *links += 1;
        let connection = Arc::new(Self {
            network: network.clone(),
            pair: pair.clone(),
            addresses,
            number,
            ends: Default::default(),
            given_up: Default::default(),
            half_taken: Mutex::default(),
        });
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.push(Arc::downgrade(&connection));
        drop(state);
        connection
    }

    pub(super) fn network(&self) -> &Shared {
        &self.network
    }

    pub(super) fn side_of(&self, address: SocketAddr) -> usize {
        usize::from(self.addresses[0] != address)
    }

    /// Ends the link on `side`, and on the other if that hears it.
    pub(super) fn close(&self, side: usize, reason: &str) {
        self.end(side, Self::closed(self.addresses[1 - side], reason));
        if !self.pair.is_blocked() {
            self.spread_end();
        }
    }

    /// Ends the link on both sides, whether they hear each other or not.
    pub(super) fn cut(&self) {
        (0..2).for_each(|side| self.end(side, Self::closed(self.addresses[1 - side], CUT)));
    }

    /// Ends the link on `side`, and on the other one `later`.
    pub(super) fn half_close(self: &Arc<Self>, side: usize, later: Duration) {
        self.given_up[side].store(true, Ordering::Relaxed);
        self.end(side, TransportError::TimedOut { peer: self.addresses[1 - side] });
        let connection = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(later).await;
            connection.end(1 - side, TransportError::TimedOut { peer: connection.addresses[side] });
        });
    }

    /// Completes when nothing of what `side` has sent arrives any more.
    pub(super) async fn silent(&self, side: usize) {
        self.ended(side).await;
        self.pend_if_given_up(side).await;
    }

    /// Who gives a link up says nothing, not even that a channel ends.
    pub(super) async fn pend_if_given_up(&self, side: usize) {
        if self.given_up[side].load(Ordering::Relaxed) {
            std::future::pending().await
        }
    }

    /// Whether the link has ended on both sides.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.get().is_some())
    }

    /// Completes with the cause once the link has ended on `side`.
    pub(super) async fn ended(&self, side: usize) -> TransportError {
        self.ends[side].wait_for(Option::is_some).await.expect("it was waited for")
    }

    pub(super) fn time_out(&self) {
        (0..2).for_each(|side| self.end(side, TransportError::TimedOut { peer: self.addresses[1 - side] }));
    }

    /// Tells either side what the other said when it closed.
    pub(super) fn spread_end(&self) {
        for side in 0..2 {
            let end = self.ends[1 - side].get();
            if let Some(TransportError::Closed { reason, .. }) = end {
                self.end(side, Self::closed(self.addresses[1 - side], &reason));
            }
        }
    }

    /// The first end stands.
    pub(super) fn end(&self, side: usize, error: TransportError) {
        self.ends[side].set_once(error);
    }

    pub(super) fn closed(peer: SocketAddr, reason: &str) -> TransportError {
        TransportError::Closed { peer, reason: reason.into() }
    }
}

/// One side of a link, held by the link and its channels; the link ends with its last holder.
pub(super) struct SimSide {
    pub connection: Arc<SimConnection>,
    /// Which one.
    pub index: usize,
    pub observer: Arc<dyn Observer>,
}

impl SimSide {
    pub(super) fn peer(&self) -> SocketAddr {
        self.connection.addresses[1 - self.index]
    }

    pub(super) async fn ended(&self) -> TransportError {
        self.connection.ended(self.index).await
    }
}

impl Drop for SimSide {
    fn drop(&mut self) {
        self.connection.close(self.index, LINK_DROPPED);
    }
}

/// What the clones of a network share.
pub(super) struct Shared {
    pub(super) config: SimConfig,
    pub(super) local: LocalNetwork,
    /// Faults of peers that have none of their own.
    pub(super) faults: Mutex<Faults>,
    pub(super) pairs: Mutex<BTreeMap<(SocketAddr, SocketAddr), Arc<Pair>>>,
    /// Links that only one side has taken so far, by the number of the link beneath.
    pub(super) half_taken: Mutex<HashMap<u64, Arc<SimConnection>>>,
    pub(super) log: Mutex<Vec<Fault>>,
}

impl Shared {
    pub(super) fn pair(&self, left: SocketAddr, right: SocketAddr) -> Arc<Pair> {
        lock(&self.pairs).entry((left.min(right), left.max(right))).or_default().clone()
    }

    pub(super) fn faults_of(&self, pair: &Pair) -> Faults {
        lock(&pair.faults).clone().unwrap_or_else(|| lock(&self.faults).clone())
    }

    pub(super) fn log(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.log).extend(faults);
    }
}
