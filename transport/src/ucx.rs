//! UCX between processes: shared memory within a machine, TCP and, where it is built in, InfiniBand between machines.
//!
//! Who the peer is, that it lives, and why it closes is known from a QUIC connection beside each link: over it both sides say
//! where their UCX workers are and give each other a token, which every message of the link must carry. UCX itself encrypts
//! nothing, and whoever reaches a port of its TCP can end the process: bytes from anybody are taken for a peer's messages before
//! any of this is looked at. [`SHARED_MEMORY`] has no ports; give it others on networks that nobody else reaches.
//!
//! All unsafe code of this crate is in `context`, `worker`, `endpoint`, `fetch`, `found`, `drive` and `gate`.

mod channel;
pub(crate) mod config;
mod context;
mod core;
mod endpoint;
mod hello;
mod link;
mod message;
mod table;
#[cfg(test)]
mod tests;
mod windows;
mod worker;

use std::{net::SocketAddr, sync::Arc, time::Instant};

use futures_util::future::BoxFuture;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use crate::ucx::table::failing::FailingPeers;
use crate::{
    Link, Observer, Transport, TransportError,
    frame::buffers::Buffers,
    local::TRANSPORT_CLOSED,
    quic::{QuicTransport, cause, vouch::Vouched},
    signal::Signal,
};
pub use config::UcxConfig;
use context::Context;
use core::{Core, LinkStart};
use endpoint::{Failure, UcxEndpoint};
use hello::Hello;
use link::UcxLink;
use message::{Addressee, TOKEN_BYTES};
use table::Table;
use windows::{HeldBytes, Windows};
use worker::{Worker, drive};

/// UCX's name for memory that processes of one user share. It listens to nobody: files and signals are the user's own, and other
/// users may wake a process at most.
pub const SHARED_MEMORY: &str = "posix";

/// Links that have met but wait for `accept`.
const UCX_LINKS_IN_FLIGHT: usize = 256;

/// UCX beside a QUIC transport, whose addresses and certificates it shares. Dropping it closes it, not the QUIC transport.
pub struct UcxTransport {
    shared: Arc<Shared>,
    accepted: AsyncMutex<mpsc::Receiver<Arc<dyn Link>>>,
}

struct Shared {
    quic: Arc<QuicTransport>,
    config: UcxConfig,
    observer: Arc<dyn Observer>,
    version: String,
    worker: Arc<Worker>,
    table: Arc<Table>,
    ailing: FailingPeers,
    buffers: Arc<Buffers>,
    holding: Arc<HeldBytes>,
    random: SystemRandom,
    closed: Arc<Signal<bool>>,
}

impl UcxTransport {
    /// Makes UCX ready and takes the peers that ask for it over `quic`. Must be called within a tokio runtime, which then
    /// drives UCX.
    pub fn bind(
        config: UcxConfig,
        quic: Arc<QuicTransport>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, TransportError> {
        let table = Table::new(observer.clone());
        let worker = Worker::new(Context::new(&config)?, Box::new(table.clone()), !config.spin.is_zero())?;
        let closed = Arc::new(Signal::default());
        let driving = drive::drive(worker.clone(), config.spin, closed.clone());
        let driving = driving.map_err(|error| context::failed(error.to_string(), "raise the limit of open files"))?;
        let vouched = quic.take_vouched().ok_or_else(|| {
            context::failed("another UCX transport uses this QUIC transport", "bind one UCX transport to each")
        })?;
        tokio::spawn(driving);
        let (version, random, buffers) = (context::version(), SystemRandom::new(), Arc::default());
        let holding = HeldBytes::new(config.most_held);
        let ailing = FailingPeers::default();
        let shared =
            Shared { quic, config, observer, version, worker, table, ailing, buffers, holding, random, closed };
        let shared = Arc::new(shared);
        let (sender, accepted) = mpsc::channel(UCX_LINKS_IN_FLIGHT);
        tokio::spawn(listen(shared.clone(), vouched, sender));
        Ok(Self { shared, accepted: AsyncMutex::new(accepted) })
    }

    /// What UCX finds here for so many transports at once, each of its own with its device, such as `tcp/eth0`; the error says why
    /// one of them cannot be had, and what to do. Nothing is kept.
    pub fn probe(configs: &[UcxConfig]) -> Result<Vec<Vec<String>>, TransportError> {
        let mut workers = Vec::with_capacity(configs.len());
        let mut found = Vec::with_capacity(configs.len());
        for config in configs {
            let worker = Context::new(config).and_then(|context| {
                found.push(context.found());
                Worker::new(context, Box::new(Arc::new(Table::default())), false)
            });
            workers.push(worker.map_err(|error| match error {
                TransportError::Ucx { cause, remedy } if !workers.is_empty() => TransportError::Ucx {
                    cause: format!("{cause}, for host {} of {} on this machine", workers.len() + 1, configs.len()),
                    remedy,
                },
                error => error,
            })?);
        }
        Ok(found)
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Arc<dyn Link>, TransportError> {
        let shared = &self.shared;
        if shared.closed.get() {
            return Err(TransportError::TransportClosed);
        }
        let own = shared.addressee()?;
        let (core, accepted) = shared
            .quic
            .in_time(address, async {
                let vouched = shared.quic.connect_vouched(address).await?;
                let lost = |error| cause::of_handshake(error, address);
                let (mut send, mut receive) = vouched.connection.open_bi().await.map_err(lost)?;
                hello::send_hello(&mut send, &shared.hello(own), address).await?;
                let theirs = hello::receive_hello(&mut receive, address).await?;
                shared.meet(vouched, own, theirs, true)
            })
            .await?;
        tokio::spawn(shared.clone().watch(core.clone(), own.link));
        let link = UcxLink::new(core.clone(), accepted);
        core.reached(shared.config.connect_timeout).await?;
        Ok(Arc::new(link))
    }
}

impl Shared {
    /// A number and a token that no other link has.
    fn addressee(&self) -> Result<Addressee, TransportError> {
        let mut token = [0; TOKEN_BYTES];
        self.random
            .fill(&mut token)
            .map_err(|_| context::failed("the system has no random numbers", "see that /dev/urandom can be read"))?;
        Ok(Addressee { token, link: self.table.number() })
    }

    fn hello(&self, addressee: Addressee) -> Hello {
        let (version, window) = (self.version.clone(), self.config.receive_window);
        Hello { version, place: self.config.place(), addressee, window, worker: self.worker.address().to_vec() }
    }

    /// A link to the peer that said `theirs`. Messages reach it from now on.
    fn meet(
        &self,
        vouched: Vouched,
        own: Addressee,
        theirs: Hello,
        connected: bool,
    ) -> Result<(Arc<Core>, mpsc::UnboundedReceiver<Arc<channel::SharedChannel>>), TransportError> {
        let Vouched { connection, known } = vouched;
        let (member, serial) = known.map(|known| (known.member, known.serial)).unzip();
        let peer = connection.remote_address();
        theirs.check(&self.version, self.config.place(), peer)?;
        let failure = Arc::new(Failure::default());
        let endpoint = UcxEndpoint::new(&self.worker, &theirs.worker, failure.clone())
            .map_err(|cause| TransportError::UcxLost { peer, cause: cause.into() })?;
        // Neither side holds more for the other than it would have the other hold.
        let windows = Windows::new(theirs.window.min(self.config.receive_window).into(), self.holding.clone());
        let shares_memory = self.config.place().is_shared_with(theirs.place);
        let met = LinkStart {
            theirs: theirs.addressee,
            windows,
            connected,
            connection,
            member,
            endpoint,
            shares_memory,
            failure,
        };
        let (core, accepted) = Core::new(met, self.observer.clone(), self.buffers.clone());
        self.table.insert(own, &core);
        serial.iter().for_each(|serial| self.quic.watch_revoked(serial, &core));
        // A transport that closes closes what it finds in the table.
        if self.closed.get() {
            core.close(TRANSPORT_CLOSED);
        }
        Ok((core, accepted))
    }

    async fn watch(self: Arc<Self>, core: Arc<Core>, link: u32) {
        if let Some(cause) = core.watch(self.config.silence).await {
            self.ailing.note(core.address, cause, Instant::now());
        }
        self.table.remove(link);
    }

    /// Meets a peer that asks for UCX.
    async fn welcome(self: &Arc<Self>, vouched: Vouched) -> Result<Arc<dyn Link>, TransportError> {
        let connection = vouched.connection.clone();
        let peer = connection.remote_address();
        let own = self.addressee()?;
        let (core, accepted, mut send) = self
            .quic
            .in_time(peer, async {
                let lost = |error| cause::of_handshake(error, peer);
                let (mut send, mut receive) = connection.accept_bi().await.map_err(lost)?;
                let theirs = hello::receive_hello(&mut receive, peer).await?;
                let stated = self.hello(own);
                if let Err(error) = theirs.check(&self.version, self.config.place(), peer) {
                    // The peer refuses it as well, with words of its own.
                    hello::send_hello(&mut send, &stated, peer).await?;
                    connection.closed().await;
                    return Err(error);
                }
                let (core, accepted) = self.meet(vouched, own, theirs, false)?;
                Ok((core, accepted, send))
            })
            .await?;
        let link = UcxLink::new(core.clone(), accepted);
        let stated = hello::send_hello(&mut send, &self.hello(own), peer).await;
        // The peer speaks first, once it can be spoken to.
        let reached = match stated {
            Ok(()) => core.reached(self.config.connect_timeout).await,
            Err(error) => Err(error),
        };
        if let Err(error) = reached {
            self.table.remove(own.link);
            return Err(error);
        }
        tokio::spawn(self.clone().watch(core, own.link));
        Ok(Arc::new(link))
    }
}

/// Meets every peer at once, so that a slow one delays no other.
async fn listen(shared: Arc<Shared>, mut vouched: mpsc::Receiver<Vouched>, accepted: mpsc::Sender<Arc<dyn Link>>) {
    loop {
        let next = tokio::select! {
            biased;
            _ = shared.closed.wait_for(|closed| *closed) => None,
            next = vouched.recv() => next,
        };
        let Some(next) = next else { break };
        let (shared, accepted) = (shared.clone(), accepted.clone());
        tokio::spawn(async move {
            let peer = next.connection.remote_address();
            match shared.welcome(next).await {
                // A receiver that is gone means a closed transport; the link closes with it.
                Ok(link) => drop(accepted.send(link).await),
                Err(error) => {
                    shared.observer.rejected("handshake");
                    shared.observer.turned_away(peer, &error.to_string());
                    tracing::warn!(%peer, %error, "refused a peer that asked for UCX");
                }
            }
        });
    }
}

impl Transport for UcxTransport {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn local_address(&self) -> SocketAddr {
        self.shared.quic.local_address()
    }

    fn offered(&self) -> String {
        hello::offered(self.local_address(), self.shared.config.stays_within())
    }

    fn resolve(&self, offered: &str) -> Result<Option<SocketAddr>, String> {
        hello::address_in(offered, self.shared.config.stays_within()).map(Some)
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, Result<Arc<dyn Link>, TransportError>> {
        Box::pin(self.connect_to(address))
    }

    fn ailing(&self, address: SocketAddr) -> Option<String> {
        self.shared.ailing.of(address, Instant::now())
    }

    fn accept(&self) -> BoxFuture<'_, Option<Arc<dyn Link>>> {
        Box::pin(async {
            let mut accepted = self.accepted.lock().await;
            tokio::select! {
                biased;
                _ = self.shared.closed.wait_for(|closed| *closed) => None,
                link = accepted.recv() => link,
            }
        })
    }

    fn close(&self) {
        self.shared.closed.set(true);
        self.shared.table.held().iter().for_each(|(core, _)| core.close(TRANSPORT_CLOSED));
        self.shared.worker.nudge();
    }

    /// Peers are told over QUIC: drain that transport too before the process ends.
    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Drop for UcxTransport {
    fn drop(&mut self) {
        self.close();
    }
}
