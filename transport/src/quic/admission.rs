//! Which handshakes a socket takes while nobody has shown a certificate: a rule over counts, with time as an argument, and the
//! thin driver that applies it to what comes. Checks no certificate and reads no packet.
//!
//! A peer first shows that it receives at the address that it sends from (Retry: RFC 9000, section 8.1.2), which costs no memory
//! here, a round trip, and answers with less than was sent; quinn alone lets the last datagram exceed three times that. Then a
//! source has so many handshakes under way, and so have all sources that have not shown a certificate lately. What is beyond that
//! is dropped: an honest peer's first packet comes again, and finds a place once others have ended.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use quinn::{Incoming, ServerConfig};

use crate::signal::lock;

/// The label under which handshakes that found no place are counted.
const NO_PLACE: &str = "half_open";
/// Sources that are remembered for a certificate that they showed, the latest.
const PROVEN: usize = 1024;
/// Sources whose refusals are told apart in the log.
const TOLD_APART: usize = 1024;
/// A source's refusals are logged once in this time.
const TELL_EVERY: Duration = Duration::from_secs(60);
/// First packets that wait to be looked at, and the bytes that come after them, each and all.
const HANDSHAKES_WAITING: usize = 512;
const WAITING_BYTES: u64 = 64 << 10;
const ALL_WAITING_BYTES: u64 = 2 << 20;

/// How many handshakes may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of one source.
    pub by_source: usize,
    /// Of all sources that showed no certificate lately.
    pub in_all: usize,
}

/// What becomes of a peer's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It shakes hands, and counts until [`Admission::end`].
    Shake,
    /// It is to come again with what proves its address.
    Validate,
    /// It is dropped.
    Drop,
}

/// Who sends, as far as that can be told: an address, or the network of one site in IPv6, whose addresses are free to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source(IpAddr);

impl Source {
    fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()),
            address => Self(address),
        }
    }
}

/// The handshakes under way, and who has ended one well.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    half_open: HashMap<Source, usize>,
    all: usize,
    proven: VecDeque<Source>,
}

impl Admission {
    pub fn new(limits: Limits) -> Self {
        Self { limits, half_open: HashMap::new(), all: 0, proven: VecDeque::new() }
    }

    /// A peer's first packet came.
    pub fn arrive(&mut self, from: IpAddr, validated: bool) -> Verdict {
        let source = Source::of(from);
        if !validated {
            return Verdict::Validate;
        }
        let own = self.half_open.get(&source).copied().unwrap_or_default();
        if own >= self.limits.by_source || (self.all >= self.limits.in_all && !self.proven.contains(&source)) {
            return Verdict::Drop;
        }
        self.half_open.insert(source, own + 1);
        self.all += 1;
        Verdict::Shake
    }

    /// A handshake ended; `proven` says that the peer has shown that it belongs here.
    pub fn end(&mut self, from: IpAddr, proven: bool) {
        let source = Source::of(from);
        let Some(own) = self.half_open.get_mut(&source) else { return };
        *own -= 1;
        self.all -= 1;
        if *own == 0 {
            self.half_open.remove(&source);
        }
        if proven {
            self.proven.retain(|known| *known != source);
            self.proven.push_back(source);
            self.proven.drain(..self.proven.len().saturating_sub(PROVEN));
        }
    }
}

/// Which refusals are logged: one a source and minute, with how many there were.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    reported: HashMap<Source, RefusalNotice>,
}

#[derive(Debug)]
struct RefusalNotice {
    at: Instant,
    since: u64,
}

impl RefusalLog {
    /// Somebody was refused at `now`: how many others of that source were since it was told last, if it is to be told now.
    pub fn add(&mut self, now: Instant, from: IpAddr) -> Option<u64> {
        let mut source = Source::of(from);
        if self.reported.len() >= TOLD_APART && !self.reported.contains_key(&source) {
            self.reported.retain(|_, reported| now < reported.at + TELL_EVERY);
            if self.reported.len() >= TOLD_APART {
                source = Source(Ipv6Addr::UNSPECIFIED.into());
            }
        }
        match self.reported.get_mut(&source) {
            Some(reported) if now < reported.at + TELL_EVERY => {
                reported.since += 1;
                None
            }
            Some(reported) => {
                reported.at = now;
                Some(std::mem::take(&mut reported.since))
            }
            None => {
                self.reported.insert(source, RefusalNotice { at: now, since: 0 });
                Some(0)
            }
        }
    }
}

/// The rule, as the sockets of a listener share it.
#[derive(Debug)]
pub(crate) struct AdmissionGuard {
    admission: Mutex<Admission>,
    complaints: Mutex<RefusalLog>,
}

/// What becomes of a peer that came.
pub(crate) enum Received {
    /// It shakes hands now; the place is its own until dropped.
    Shake(Box<Incoming>, HalfOpen),
    /// It was told to come again.
    Later,
    /// It found no place; the label under which that is counted.
    Dropped(&'static str),
}

impl AdmissionGuard {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { admission: Mutex::new(Admission::new(limits)), complaints: Mutex::default() })
    }

    /// Applies the rule to a peer.
    pub fn receive(self: &Arc<Self>, incoming: Incoming) -> Received {
        let from = incoming.remote_address().ip();
        // Told apart from the lock's own statement, which would hold it while a packet is sent.
        let verdict = lock(&self.admission).arrive(from, incoming.remote_address_validated());
        match verdict {
            Verdict::Shake => {
                Received::Shake(Box::new(incoming), HalfOpen { reception: self.clone(), from, proven: false })
            }
            Verdict::Validate => {
                // It fails only for addresses that are validated.
                let _ = incoming.retry();
                Received::Later
            }
            Verdict::Drop => {
                incoming.ignore();
                Received::Dropped(NO_PLACE)
            }
        }
    }

    /// Logs that somebody was refused, unless its source was named within the minute.
    pub fn log_refusal(&self, peer: SocketAddr, reason: &str, cause: &str) {
        let reported = lock(&self.complaints).add(Instant::now(), peer.ip());
        if let Some(more) = reported {
            tracing::warn!(%peer, reason, cause, more, "refused a peer; more of its address were since it was told last");
        }
    }
}

/// A handshake under way.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    reception: Arc<AdmissionGuard>,
    from: IpAddr,
    proven: bool,
}

impl HalfOpen {
    /// The peer has shown that it belongs here.
    pub fn prove(mut self) {
        self.proven = true;
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        lock(&self.reception.admission).end(self.from, self.proven);
    }
}

/// Bounds what waits before the rule sees it.
pub(crate) fn bound_waiting(server: &mut ServerConfig) -> &mut ServerConfig {
    server
        .max_incoming(HANDSHAKES_WAITING)
        .incoming_buffer_size(WAITING_BYTES)
        .incoming_buffer_size_total(ALL_WAITING_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { by_source: 3, in_all: 5 };

    fn address(number: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, number])
    }

    #[test]
    fn who_only_sends_costs_nothing() {
        let mut admission = Admission::new(LIMITS);
        assert!((0..1000).all(|peer| admission.arrive(address(peer as u8), false) == Verdict::Validate));
        assert_eq!((admission.all, admission.half_open.len()), (0, 0));
        assert_eq!(admission.arrive(address(9), true), Verdict::Shake);
    }

    #[test]
    fn a_source_and_all_sources_have_so_many_places_and_get_them_back() {
        let mut admission = Admission::new(LIMITS);
        let came: Vec<Verdict> = (0..4).map(|_| admission.arrive(address(1), true)).collect();
        assert_eq!(came, [Verdict::Shake, Verdict::Shake, Verdict::Shake, Verdict::Drop]);
        let came: Vec<Verdict> = (2..5).map(|peer| admission.arrive(address(peer), true)).collect();
        assert_eq!(came, [Verdict::Shake, Verdict::Shake, Verdict::Drop], "five in all");
        admission.end(address(1), true);
        assert_eq!(admission.arrive(address(4), true), Verdict::Shake);
        assert_eq!(admission.arrive(address(5), true), Verdict::Drop);
        assert_eq!(admission.arrive(address(1), true), Verdict::Shake, "its certificate was good just now");
        assert_eq!(admission.arrive(address(1), true), Verdict::Drop, "its own places are as many as anybody's");
        for (peer, count) in [(1, 3), (2, 1), (3, 1), (4, 1)] {
            (0..count).for_each(|_| admission.end(address(peer), false));
        }
        assert_eq!((admission.all, admission.half_open.len()), (0, 0));
        admission.end(address(9), false);
        assert_eq!(admission.all, 0, "who never came does not end");
    }

    #[test]
    fn a_site_of_ipv6_is_one_source() {
        let source = |text: &str| Source::of(text.parse().expect("an address"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:127.0.0.1"), source("127.0.0.1"));
    }

    #[test]
    fn a_source_is_named_once_a_minute_and_all_of_them_cost_a_bounded_memory() {
        let (mut complaints, start) = (RefusalLog::default(), Instant::now());
        assert_eq!(complaints.add(start, address(1)), Some(0));
        assert_eq!((0..7).find_map(|_| complaints.add(start + TELL_EVERY / 2, address(1))), None);
        assert_eq!(complaints.add(start, address(2)), Some(0), "another one is told");
        assert_eq!(complaints.add(start + TELL_EVERY, address(1)), Some(7));
        let reported: usize = (0..100_000_u32)
            .filter(|peer| complaints.add(start + TELL_EVERY, IpAddr::from(peer.to_be_bytes())).is_some())
            .count();
        assert!(complaints.reported.len() <= TOLD_APART + 1 && reported <= TOLD_APART + 1, "{reported}");
        assert_eq!(complaints.add(start + TELL_EVERY * 3, address(200)), Some(0));
        assert_eq!(complaints.reported.len(), 1, "what is old is forgotten");
    }
}
