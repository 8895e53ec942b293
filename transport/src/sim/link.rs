//! Two peers, the links between them, and how each side's view of a link ends. Sends no frame.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;

use super::{
    channel::{self, ChannelEnd},
    faults::Course,
};
use crate::{
    Channel, Link, Observer, PROTOCOL_VERSION, TransportError,
    certificates::Member,
    local::LocalLink,
    signal::lock,
    sim::pair::{Refusals, SimConnection, SimSide},
};

pub(super) struct SimLink {
    side: Arc<SimSide>,
    inner: Arc<LocalLink>,
}

impl SimLink {
    pub(super) fn new(
        connection: Arc<SimConnection>,
        index: usize,
        inner: Arc<LocalLink>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { side: Arc::new(SimSide { connection, index, observer }), inner }
    }

    /// The `number`th channel opened by `opener`, over `inner`.
    fn channel(&self, opener: usize, number: u64, inner: Channel) -> Channel {
        let connection = &self.side.connection;
        let refusals = {
            let mut half_taken = lock(&connection.half_taken);
            half_taken.remove(&(opener, number)).unwrap_or_else(|| {
                let refusals = Arc::new(Refusals::default());
                half_taken.insert((opener, number), refusals.clone());
                refusals
            })
        };
        let here = self.side.index;
        let course = Course {
            seed: connection.network.config.seed,
            from: connection.addresses[here],
            to: connection.addresses[1 - here],
            link: connection.number,
            sender_connected: here == 0,
            sender_opened: here == opener,
            channel: number,
        };
        channel::over(inner, ChannelEnd { side: self.side.clone(), refusals, course })
    }
}

impl Link for SimLink {
    fn peer_address(&self) -> SocketAddr {
        self.side.peer()
    }

    fn peer(&self) -> Option<&Member> {
        None
    }

    fn version(&self) -> u16 {
        PROTOCOL_VERSION
    }

    fn rtt(&self) -> Option<Duration> {
        None
    }

    fn open(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            tokio::select! {
                biased;
                error = self.side.ended() => Err(error),
                // The link beneath may end first; this side hears of it when it should.
                Ok((number, channel)) = self.inner.open_numbered() => Ok(self.channel(self.side.index, number, channel)),
            }
        })
    }

    fn accept(&self) -> BoxFuture<'_, Result<Channel, TransportError>> {
        Box::pin(async {
            tokio::select! {
                biased;
                error = self.side.ended() => Err(error),
                Ok((number, channel)) = self.inner.accept_numbered() => {
                    Ok(self.channel(1 - self.side.index, number, channel))
                }
            }
        })
    }

    fn close(&self, reason: &str) {
        self.side.connection.close(self.side.index, reason);
    }

    fn closed(&self) -> BoxFuture<'_, TransportError> {
        Box::pin(self.side.ended())
    }
}
