//! Times the links of a host to others, over the way that tensors take, and answers those who time theirs. Decides nothing.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use asterism_transport::{Channel, Frame, FrameHeader, FrameKind, PayloadType, TransportError};
use bytes::Bytes;
use rkyv::util::AlignedVec;

use crate::{
    link::Links,
    messages::{ChannelOpening, LinkPeer, MeasuredLink, WireMessage},
    readings::LinkReport,
};

/// Bytes of the rows of a question about one layer, as models of some billion parameters have them.
const QUESTION: usize = 16 << 10;
const ROUND_TRIPS: usize = 200;
const BULK_FRAME: usize = 1 << 20;
const BULK_FRAMES: usize = 64;
/// Before either is timed.
const WARM_UP: usize = 20;
/// Longest wait for one link's times.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Measures links one after another. Best run on a thread that may block: a query host asks from one.
pub async fn measure(links: Arc<Links>, peers: Vec<LinkPeer>) -> Vec<MeasuredLink> {
    let mut measured = Vec::with_capacity(peers.len());
    for LinkPeer { host, endpoints } in peers {
        let reached = async {
            let channel = links.reach(&host, &endpoints).await.map_err(|error| error.to_string())?;
            time(channel).await.map_err(|error| error.to_string())
        };
        let timed = tokio::time::timeout(PROBE_TIMEOUT, reached).await;
        let timed = timed.unwrap_or_else(|_| Err(format!("nothing was done within {PROBE_TIMEOUT:?}")));
        let mut report = LinkReport::default();
        links.report(&mut report);
        let way = report.links.into_iter().find(|link| link.peer == host).unwrap_or_default();
        let (round_trip_s, bytes_per_s, error) = match timed {
            Ok((round_trip_s, bytes_per_s)) => (round_trip_s, bytes_per_s, String::new()),
            Err(error) => (0.0, 0.0, error),
        };
        let (transport, why) = (way.transport, way.why);
        measured.push(MeasuredLink { peer: host, transport, why, round_trip_s, bytes_per_s, error });
    }
    measured
}

/// Seconds there and back at the median, and bytes one way in a second.
async fn time(mut channel: Channel) -> Result<(f64, f64), TransportError> {
    channel.sender.send(ChannelOpening::Probe.frame()).await?;
    let (question, parcel) = (zeros(QUESTION), zeros(BULK_FRAME));
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for round in 0..WARM_UP + ROUND_TRIPS {
        let started = Instant::now();
        ask(&mut channel, &question).await?;
        if round >= WARM_UP {
            trips.push(started.elapsed().as_secs_f64());
        }
    }
    trips.sort_by(f64::total_cmp);
    let mut started = Instant::now();
    for round in 0..WARM_UP + BULK_FRAMES {
        if round == WARM_UP {
            ask(&mut channel, &Bytes::new()).await?;
            started = Instant::now();
        }
        channel.sender.send(frame(FrameKind::Data, &parcel)).await?;
    }
    ask(&mut channel, &Bytes::new()).await?;
    let bytes_per_s = (BULK_FRAMES * BULK_FRAME) as f64 / started.elapsed().as_secs_f64();
    Ok((trips[trips.len() / 2], bytes_per_s))
}

/// Sends what comes back.
async fn ask(channel: &mut Channel, payload: &Bytes) -> Result<(), TransportError> {
    channel.sender.send(frame(FrameKind::Request, payload)).await?;
    match channel.receiver.receive().await? {
        Some(_) => Ok(()),
        None => Err(TransportError::Frame(asterism_transport::FrameError::Truncated)),
    }
}

/// Gives back what is asked, and takes parcels, until whoever times has done.
pub async fn answer(mut channel: Channel) -> Result<(), TransportError> {
    while let Some(asked) = channel.receiver.receive().await? {
        if asked.header.kind == FrameKind::Request {
            channel.sender.send(frame(FrameKind::Response, &asked.payload)).await?;
        }
    }
    Ok(())
}

fn frame(kind: FrameKind, payload: &Bytes) -> Frame {
    let payload_type = if payload.is_empty() { PayloadType::None } else { PayloadType::F32 };
    let header = FrameHeader { kind, payload_type, correlation: 0 };
    Frame::new(header, AlignedVec::new(), payload.clone())
}

/// Whole elements at an aligned address, as tensors are.
fn zeros(bytes: usize) -> Bytes {
    let mut buffer = AlignedVec::<64>::with_capacity(bytes);
    buffer.resize(bytes, 0);
    Bytes::from_owner(buffer)
}
