//! How lanes come to the link that they are of, on both sides. Sends no part of a frame.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use quinn::{Connecting, Connection, ConnectionError};

use crate::{
    certificates::CLUSTER_DNS_NAME,
    quic::{
        admission::HalfOpen,
        cause::{self, LANE_CLOSED},
        lanes::{AnnouncedLanes, LaneToken, TOKEN_BYTES},
        peer::{Peer, stripes},
        settings::{HandshakeSettings, Rejected},
    },
    signal::lock,
};

/// How long a peer may take to say which link a lane is for.
pub(super) const INTRODUCTION: Duration = Duration::from_secs(5);

/// Lets peers' lanes in, each on the thread of the lane that it reached.
pub(super) fn accept(settings: &Arc<HandshakeSettings>) {
    for (index, lane) in settings.lanes.lanes.iter().enumerate() {
        let (endpoint, settings) = (lane.endpoint.clone(), Arc::downgrade(settings));
        lane.runtime.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let Some(settings) = settings.upgrade() else { return };
                let peer = incoming.remote_address();
                let Some(coming) = settings.receive(incoming) else { continue };
                tokio::spawn(async move {
                    if let Err(rejected) = admit(&settings, index, coming).await {
                        settings.refused(peer, &rejected);
                    }
                });
            }
        });
    }
}

/// A lane of a peer: it must be a member, and of the link whose token it knows.
pub(super) async fn admit(
    settings: &Arc<HandshakeSettings>,
    index: usize,
    coming: (Connecting, HalfOpen),
) -> Result<(), Rejected> {
    let (lane, known) = settings.shaken(coming).await?;
    let member = known.map(|known| known.member);
    let refuse = |cause: String| {
        lane.close(cause::WRONG_IDENTITY, cause.as_bytes());
        Rejected { reason: cause::IDENTITY, cause }
    };
    let introduced = tokio::time::timeout(INTRODUCTION, introduction(&lane)).await;
    let Ok(Some((token, count))) = introduced else { return Err(refuse("a lane did not say what it is for".into())) };
    let peer = lock(&settings.lanes.expected).get(&token).and_then(Weak::upgrade);
    let Some(peer) = peer.filter(|peer| peer.member == member && count <= settings.lanes.lanes.len()) else {
        return Err(refuse("a lane named a link that is not there".into()));
    };
    if attach(settings, &peer, (index, count), lane.clone()).map_err(|cause| refuse(cause.into()))? {
        lock(&settings.lanes.expected).remove(&token);
    }
    Ok(())
}

/// What a lane says first: the token of its link, and how many lanes there will be.
pub(super) async fn introduction(lane: &Connection) -> Option<(LaneToken, usize)> {
    let mut stated = [0; TOKEN_BYTES + 1];
    lane.accept_uni().await.ok()?.read_exact(&mut stated).await.ok()?;
    let (token, count) = stated.split_at(TOKEN_BYTES);
    Some((token.try_into().ok()?, usize::from(count[0])))
}

/// Connects as many lanes as both sides have, while the link is in use already. Without them it goes on alone.
pub(super) fn connect(settings: &Arc<HandshakeSettings>, peer: &Arc<Peer>, announced: &AnnouncedLanes) {
    let count = settings.lanes.lanes.len().min(announced.ports.len());
    for (index, lane) in settings.lanes.lanes.iter().enumerate().take(count) {
        let address = SocketAddr::new(peer.address.ip(), announced.ports[index]);
        let (settings, peer, token) = (settings.clone(), Arc::downgrade(peer), announced.token);
        lane.runtime.spawn(async move {
            let joined = join(&settings, &peer, (index, count), (address, token));
            let joined = tokio::time::timeout(settings.connect_timeout, joined).await;
            if let Err(cause) = joined.unwrap_or_else(|_| Err("no answer in time".into())) {
                tracing::warn!(%address, cause, "a lane cannot be had; its link goes on without");
            }
        });
    }
}

pub(super) async fn join(
    settings: &Arc<HandshakeSettings>,
    peer: &Weak<Peer>,
    place: (usize, usize),
    (address, token): (SocketAddr, LaneToken),
) -> Result<(), String> {
    let trust = settings.trust();
    let client = trust.sides(address).client.clone();
    let endpoint = &settings.lanes.lanes[place.0].endpoint;
    let connecting = endpoint.connect_with(client, address, CLUSTER_DNS_NAME).map_err(|error| error.to_string())?;
    let lane = connecting.await.map_err(cause::words)?;
    let member = settings.identify(&lane, &trust)?.map(|known| known.member);
    let mut introduction = lane.open_uni().await.map_err(cause::words)?;
    let stated = [&token[..], &[place.1 as u8]].concat();
    introduction.write_all(&stated).await.map_err(|error| error.to_string())?;
    let Some(peer) = peer.upgrade().filter(|peer| peer.member == member) else {
        return Err("its link is gone, or it ends at another member".into());
    };
    attach(settings, &peer, place, lane)?;
    Ok(())
}

/// Gives a link its lane; whether it has all of them now. Called on the lane's thread, which reads it from then on.
pub(super) fn attach(
    settings: &Arc<HandshakeSettings>,
    peer: &Arc<Peer>,
    (index, count): (usize, usize),
    lane: Connection,
) -> Result<bool, &'static str> {
    let are_all = peer.stripes.attach(index, count, lane.clone())?;
    if are_all {
        settings.observer.lanes(peer.address, count);
    }
    tokio::spawn(read(Arc::downgrade(peer), (index, count), lane, settings.idle_timeout));
    Ok(are_all)
}

/// Reads a lane until it ends. One that is lost takes its link with it.
pub(super) async fn read(peer: Weak<Peer>, (index, count): (usize, usize), lane: Connection, patience: Duration) {
    let Some(stripes) = peer.upgrade().map(|peer| peer.stripes.clone()) else { return };
    let lost = loop {
        match lane.accept_uni().await {
            Ok(stream) => {
                let stripes = stripes.clone();
                tokio::spawn(async move { stripes::receive(&stripes, index, stream).await });
            }
            Err(error) => break error,
        }
    };
    match &lost {
        // Lanes are closed with their link, which says why.
        ConnectionError::LocallyClosed => return,
        ConnectionError::ApplicationClosed(close) if close.error_code == LANE_CLOSED => return,
        // A silent peer is noticed by the link itself, perhaps a moment later.
        ConnectionError::TimedOut => tokio::time::sleep(patience).await,
        _ => {}
    }
    if let Some(peer) = peer.upgrade() {
        peer.close(&format!("lane {} of {count} was lost: {}", index + 1, cause::words(lost)));
    }
}
