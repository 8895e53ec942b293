//! Control channels as queues: an outbox that a task writes out, and typed reading; links kept open, and what is known of
//! them. Decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex as SyncMutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use asterism_transport::{
    Channel, DataPlane, Endpoint, FrameKind, FrameReceiver, FrameSender, Link, Reached, TransportError,
};
use futures_util::FutureExt;
use thiserror::Error;
use tokio::{
    runtime::Handle,
    sync::{Mutex, mpsc},
};

use crate::{
    authority::{self, AuthorizedMessage, Denied, Party},
    messages::{InvalidMessage, WireMessage},
    metric,
    readings::{LinkReading, LinkReport},
};

/// Messages to a host that it does not read, before its link is closed: it receives all again when it comes back.
pub const UNREAD: usize = 65_536;
/// Longest wait for a host to accept a channel.
const CONNECT_DEADLINE: Duration = Duration::from_secs(7);

/// Where messages for one peer are queued; clones write to the same peer, in order. Sending never blocks, and a message
/// for a peer that is gone is dropped: its link's end is reported where it is read.
pub struct Outbox<M> {
    queue: mpsc::UnboundedSender<M>,
    queued: Arc<AtomicUsize>,
    /// The link, and how many messages may wait.
    limit: Option<(Arc<dyn Link>, usize)>,
}

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), queued: self.queued.clone(), limit: self.limit.clone() }
    }
}

impl<M: WireMessage + AuthorizedMessage + Send + 'static> Outbox<M> {
    /// Starts writing queued messages to `sender`, to a peer that speaks `version`: what came later is not said to it.
    pub fn new(mut sender: Box<dyn FrameSender>, version: u16) -> Self {
        let (queue, mut messages) = mpsc::unbounded_channel::<M>();
        let queued = Arc::new(AtomicUsize::new(0));
        let waiting = queued.clone();
        tokio::spawn(async move {
            let mut unsaid = BTreeSet::new();
            while let Some(message) = messages.recv().await {
                waiting.fetch_sub(1, Ordering::Relaxed);
                if message.since() > version {
                    let (since, act) = (message.since(), format!("{:?}", message.act()));
                    // Once a link: some are said every few seconds.
                    if unsaid.insert(act.clone()) {
                        tracing::warn!(
                            message = act,
                            since,
                            version,
                            "not said to a peer of an older protocol version"
                        );
                    }
                    continue;
                }
                if let Err(error) = sender.send(message.frame()).await {
                    tracing::debug!(%error, "a control message was not sent");
                    return;
                }
            }
        });
        Self { queue, queued, limit: None }
    }

    /// Closes the link rather than to keep more than `most` messages for a peer that does not read them.
    pub fn bounded(self, link: &Arc<dyn Link>, most: usize) -> Self {
        Self { limit: Some((link.clone(), most)), ..self }
    }

    /// Queues a message.
    pub fn send(&self, message: M) {
        if let Some((link, most)) = &self.limit
            && self.queued.load(Ordering::Relaxed) >= *most
        {
            return link.close("it does not read what it is told");
        }
        self.queued.fetch_add(1, Ordering::Relaxed);
        let _ = self.queue.send(message);
    }
}

/// Why no message comes from a peer any more.
#[derive(Debug, Error)]
pub enum InboxError {
    /// The network.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Bytes that are no message.
    #[error(transparent)]
    Message(#[from] InvalidMessage),
    /// Not the peer's to say.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The peer has said all it had to.
    #[error("{peer} closed its channel")]
    Closed {
        /// The peer.
        peer: String,
    },
    /// A frame that is no message.
    #[error("{peer} sent a {kind:?} frame on a control channel; run the same version of asterism on every host")]
    Frame {
        /// The peer.
        peer: String,
        /// The frame's kind.
        kind: FrameKind,
    },
    /// The peer says nothing.
    #[error("no answer to hello in {} s; is it an asterism supervisor, and does it run?", waited.as_secs())]
    Silent {
        /// For how long.
        waited: Duration,
    },
}

/// Why there is no channel to a host.
#[derive(Debug, Error)]
pub enum ReachError {
    /// The network, or another than the host is there.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The host says nothing.
    #[error("no answer in {} s from any of {offered}", CONNECT_DEADLINE.as_secs())]
    Silent {
        /// Its endpoints.
        offered: String,
    },
}

/// Typed messages from a peer, who may say them.
pub struct Inbox {
    receiver: Box<dyn FrameReceiver>,
    link: Arc<dyn Link>,
    /// As [`peer_name`].
    peer: String,
    /// What a peer without a certificate says that it is.
    claimed: Option<Party>,
}

impl Inbox {
    /// The next message, or why there is none.
    pub async fn receive<M: WireMessage + AuthorizedMessage>(&mut self) -> Result<M, InboxError> {
        let peer = || self.peer.clone();
        let frame = self.receiver.receive().await?.ok_or_else(|| InboxError::Closed { peer: peer() })?;
        if frame.header.kind != FrameKind::Control {
            return Err(InboxError::Frame { peer: peer(), kind: frame.header.kind });
        }
        let message = M::read(&frame.meta, &self.peer)?;
        authority::admit(self.link.peer(), &mut self.claimed, &message)
            .inspect_err(|denied| metric::refused(denied.code(), &self.peer, denied))?;
        Ok(message)
    }
}

/// Splits a control channel of a link.
pub fn control<M: WireMessage + AuthorizedMessage + Send + 'static>(
    channel: Channel,
    link: &Arc<dyn Link>,
) -> (Outbox<M>, Inbox) {
    let inbox = Inbox { receiver: channel.receiver, link: link.clone(), peer: peer_name(link.as_ref()), claimed: None };
    (Outbox::new(channel.sender, link.version()), inbox)
}

/// A peer for logs: who it is, as far as that is known, and where.
pub fn peer_name(link: &dyn Link) -> String {
    let address = link.peer_address();
    link.peer().map_or_else(|| address.to_string(), |member| format!("{member} at {address}"))
}

/// A link that is open, or being opened by whoever holds the lock.
type LinkSlot = Arc<Mutex<Option<Arc<dyn Link>>>>;

/// Links to context hosts, kept between jobs. A host that does not answer keeps nobody from the others.
pub struct Links {
    plane: Arc<DataPlane>,
    open: SyncMutex<BTreeMap<Vec<Endpoint>, LinkSlot>>,
    book: SyncMutex<LinkBook>,
}

impl Links {
    /// None open yet.
    pub fn new(plane: Arc<DataPlane>) -> Self {
        Self { plane, open: SyncMutex::default(), book: SyncMutex::default() }
    }

    /// What drives them, and had best run whoever reads and writes them often.
    pub fn runtime(&self) -> &Handle {
        self.plane.runtime()
    }

    /// What they are made on.
    pub fn plane(&self) -> &DataPlane {
        &self.plane
    }

    /// A channel to the context host of this name, over the link there is or a new one.
    pub async fn channel(&self, host: &str, endpoints: &[Endpoint]) -> Result<Channel, TransportError> {
        let slot = self.open.lock().expect("no holder panics").entry(endpoints.to_vec()).or_default().clone();
        let mut open = slot.lock().await;
        if let Some(link) = open.as_ref()
            && authority::is_host(link.peer(), host).is_ok()
            && let Ok(channel) = link.open().await
        {
            return Ok(channel);
        }
        let reached = self.plane.connect(endpoints).await?;
        let link = reached.link.clone();
        authority::is_host(link.peer(), host).map_err(|denied| {
            metric::refused(denied.code(), &peer_name(link.as_ref()), &denied);
            link.close(&denied.to_string());
            TransportError::Handshake { peer: link.peer_address(), cause: denied.to_string() }
        })?;
        self.book.lock().expect("no holder panics").opened(host, &reached);
        *open = Some(link.clone());
        link.open().await
    }

    /// As [`Links::channel`], and not for long.
    pub async fn reach(&self, host: &str, endpoints: &[Endpoint]) -> Result<Channel, ReachError> {
        match tokio::time::timeout(CONNECT_DEADLINE, self.channel(host, endpoints)).await {
            Ok(channel) => Ok(channel?),
            Err(_) => {
                let offered: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
                Err(ReachError::Silent { offered: offered.join(", ") })
            }
        }
    }

    /// Adds what is known of them.
    pub fn report(&self, report: &mut LinkReport) {
        self.book.lock().expect("no holder panics").report(report);
    }

    /// The next channel to who is there goes over a new link. Channels that are open keep theirs.
    pub fn forget(&self, endpoints: &[Endpoint]) {
        self.open.lock().expect("no holder panics").remove(endpoints);
    }
}

/// Whom links were opened to, and how often again. Keeps no link open.
#[derive(Default)]
pub struct LinkBook {
    links: BTreeMap<String, KnownLink>,
    reconnects: u64,
    fallbacks: u64,
}

/// The latest link to a peer.
struct KnownLink {
    link: Weak<dyn Link>,
    transport: &'static str,
    why: String,
}

impl LinkBook {
    /// A link to `peer` was opened, in the place of any before.
    pub fn opened(&mut self, peer: &str, Reached { link, transport, why }: &Reached) {
        let known = KnownLink { link: Arc::downgrade(link), transport, why: why.clone() };
        self.fallbacks += u64::from(!why.is_empty());
        self.reconnects += u64::from(self.links.insert(peer.to_string(), known).is_some());
    }

    /// Adds its links; a peer that is there already keeps its round trip if it has one.
    pub fn report(&self, report: &mut LinkReport) {
        report.reconnects += self.reconnects;
        report.fallbacks += self.fallbacks;
        for (peer, KnownLink { link, transport, why }) in &self.links {
            let link = link.upgrade();
            let rtt_s = link.as_ref().and_then(|link| link.rtt()).map(|rtt| rtt.as_secs_f64());
            let open = link.is_some_and(|link| link.closed().now_or_never().is_none());
            match report.links.iter_mut().find(|reading| reading.peer == *peer) {
                Some(known) => (known.rtt_s, known.open) = (known.rtt_s.or(rtt_s), known.open || open),
                None => {
                    let (peer, transport, why) = (peer.clone(), (*transport).to_owned(), why.clone());
                    report.links.push(LinkReading { peer, transport, why, open, rtt_s });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use asterism_transport::{Frame, NoObserver, Transport, local::LocalNetwork};

    use super::*;
    use crate::messages::HostCommand;

    /// A peer that takes nothing.
    struct Deaf;

    impl FrameSender for Deaf {
        fn poll_send(&mut self, _: &mut Context<'_>, _: &mut Option<Frame>) -> Poll<Result<(), TransportError>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_loses_its_link_and_costs_no_more() {
        let network = LocalNetwork::new();
        let address = "127.0.0.1:0".parse().expect("an address");
        let (near, far) = [0, 1].map(|_| network.bind(address, Arc::new(NoObserver)).expect("a port")).into();
        let link = near.connect(far.local_address()).await.expect("it listens");
        let outbox = Outbox::<HostCommand>::new(Box::new(Deaf), link.version()).bounded(&link, 8);
        for job in 0..8 {
            outbox.send(HostCommand::Stop { job });
        }
        assert!(link.open().await.is_ok(), "it is still open");
        (8..1000).for_each(|job| outbox.send(HostCommand::Stop { job }));
        link.closed().await;
        assert!(outbox.queued.load(Ordering::Relaxed) <= 8);
    }

    #[tokio::test]
    async fn a_link_in_the_place_of_another_is_a_reconnect() {
        let network = LocalNetwork::new();
        let bind = || {
            let address = "127.0.0.1:0".parse().expect("an address");
            Arc::new(network.bind(address, Arc::new(NoObserver)).expect("a port"))
        };
        let (near, far, other) = (bind(), bind(), bind());
        let links = Links::new(DataPlane::of(near));
        let report = || {
            let mut report = LinkReport::default();
            links.report(&mut report);
            let peers: Vec<String> = report.links.into_iter().map(|reading| reading.peer).collect();
            (peers, report.reconnects)
        };
        assert_eq!(report(), (vec![], 0));
        let of = |transport: &dyn Transport| vec![Endpoint::of(transport)];
        let there = of(far.as_ref());
        let first = links.channel("c1", &there).await.expect("it listens");
        links.channel("c1", &there).await.expect("it listens");
        links.channel("c0", &of(other.as_ref())).await.expect("it listens");
        assert_eq!(report(), (vec!["c0".to_string(), "c1".to_string()], 0), "the same link carries both channels");
        links.forget(&there);
        links.channel("c1", &there).await.expect("it listens");
        assert_eq!(report().1, 1);
        drop(first);
        far.accept().await.expect("a link").close("enough");
        far.accept().await.expect("a link").close("enough");
        links.channel("c1", &there).await.expect("it listens");
        assert_eq!(report().1, 2);
    }
}
