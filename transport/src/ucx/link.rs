//! A link and its channels as their user holds them.

pub(crate) mod halves;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use super::{channel::SharedChannel, core::Core};
use crate::{Channel, Link, TransportError, certificates::Member};
use halves::HeldLink;

pub(super) struct UcxLink {
    held: Arc<HeldLink>,
    accepted: AsyncMutex<mpsc::UnboundedReceiver<Arc<SharedChannel>>>,
}

impl UcxLink {
    pub fn new(core: Arc<Core>, accepted: mpsc::UnboundedReceiver<Arc<SharedChannel>>) -> Self {
        Self { held: Arc::new(HeldLink { core }), accepted: AsyncMutex::new(accepted) }
    }

    async fn open_next(&self) -> Result<Channel, TransportError> {
        let core = &self.held.core;
        loop {
            let room = core.room.notified();
            if let Some(error) = core.ended() {
                return Err(error);
            }
            if let Some(shared) = core.open() {
                return Ok(halves::halves(shared, &self.held));
            }
            room.await;
        }
    }
}

impl Link for UcxLink {
    fn peer_address(&self) -> SocketAddr {
        self.held.core.address
    }

    fn peer(&self) -> Option<&Member> {
        self.held.core.met.member.as_ref()
    }

    fn rtt(&self) -> Option<Duration> {
        let core = &self.held.core;
        core.round_trip()
    }

    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(self.open_next())
    }

    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            let core = &self.held.core;
            let mut accepted = self.accepted.lock().await;
            let shared = tokio::select! {
                biased;
                error = core.end_of() => return Err(error),
                shared = accepted.recv() => shared,
            };
            match shared {
                Some(shared) => Ok(halves::halves(shared, &self.held)),
                None => Err(core.end_of().await),
            }
        })
    }

    fn close(&self, reason: &str) {
        self.held.core.close(reason);
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        Box::pin(self.held.core.end_of())
    }
}
