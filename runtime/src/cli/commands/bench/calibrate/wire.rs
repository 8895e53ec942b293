//! How fast questions and answers of a step go between hosts of this machine: real links and threads, nothing computed.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, mpsc::Sender},
    thread,
    time::Instant,
};

use asterism_transport::{
    Channel, Frame, FrameHeader, FrameKind, FrameSender, Link, Meta, NoObserver, PayloadType, Transport,
    TransportError,
    quic::{QuicConfig, QuicTransport, Security},
};
use bytes::Bytes;
use tokio::{runtime::Runtime, sync::mpsc};

use crate::{error::CliError, processes::wiring::runtime};

const ROUND_TRIPS: usize = 300;
const BULK_FRAME: usize = 1 << 20;
const BULK_FRAMES: usize = 48;

/// What came out.
pub struct LinkMeasurement {
    /// Seconds from a question to all hosts until the last answer, at the median.
    pub round_trip_s: f64,
    /// Bytes one way in a second, to one host.
    pub bytes_per_s: f64,
}

/// Asks as a query host does, from a thread that blocks; `sizes` are those of a question and of an answer in bytes.
pub fn measure(hosts: usize, [question, answer]: [usize; 2]) -> Result<LinkMeasurement, CliError> {
    let runtime = runtime()?;
    let refused = |error: TransportError| CliError::unreachable(format!("the transport cannot be timed: {error}"));
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let near = runtime.block_on(async { bind() }).map_err(refused)?;
    let mut asked = Vec::with_capacity(hosts);
    for _ in 0..hosts {
        let address = start_answering(answer)?;
        asked.push(runtime.block_on(open(&near, address, arrived.clone())).map_err(refused)?);
    }
    let mut trips = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        for (_, sender) in &mut asked {
            runtime.block_on(sender.send(frame(FrameKind::Request, question))).map_err(refused)?;
        }
        for _ in 0..hosts {
            arrivals.blocking_recv();
        }
        trips.push(started.elapsed().as_secs_f64());
    }
    trips.sort_by(f64::total_cmp);
    let started = Instant::now();
    send_bulk(&runtime, asked[0].1.as_mut(), question).map_err(refused)?;
    arrivals.blocking_recv();
    let bytes_per_s = (BULK_FRAMES * BULK_FRAME) as f64 / started.elapsed().as_secs_f64();
    Ok(LinkMeasurement { round_trip_s: trips[trips.len() / 2], bytes_per_s })
}

fn send_bulk(runtime: &Runtime, sender: &mut dyn FrameSender, question: usize) -> Result<(), TransportError> {
    for _ in 0..BULK_FRAMES {
        runtime.block_on(sender.send(frame(FrameKind::Data, BULK_FRAME)))?;
    }
    runtime.block_on(sender.send(frame(FrameKind::Request, question)))
}

fn bind() -> Result<QuicTransport, TransportError> {
    let config = QuicConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Security::Insecure);
    QuicTransport::bind(config, Arc::new(NoObserver))
}

type MeasuredPair = (Arc<dyn Link>, Box<dyn FrameSender>);

/// A channel whose answers go to `arrived`.
async fn open(
    near: &QuicTransport,
    address: SocketAddr,
    arrived: mpsc::UnboundedSender<Frame>,
) -> Result<MeasuredPair, TransportError> {
    let link = near.connect(address).await?;
    let Channel { sender, mut receiver } = link.open().await?;
    tokio::spawn(async move {
        while let Ok(Some(frame)) = receiver.receive().await {
            if arrived.send(frame).is_err() {
                return;
            }
        }
    });
    Ok((link, sender))
}

/// A context host with threads of its own that computes nothing; it ends with its link.
fn start_answering(answer: usize) -> Result<SocketAddr, CliError> {
    let runtime = runtime()?;
    let (bound, address) = std::sync::mpsc::channel();
    thread::spawn(move || runtime.block_on(answer_all(bound, answer)));
    let failed = || CliError::unreachable("no UDP port of this machine can be bound for timing the transport");
    address.recv().map_err(|_| failed())
}

async fn answer_all(bound: Sender<SocketAddr>, answer: usize) -> Result<(), TransportError> {
    let far = bind()?;
    // Whoever waits for the address waits until this thread ends.
    let _ = bound.send(far.local_address());
    let Some(link) = far.accept().await else { return Ok(()) };
    let mut channel = link.accept().await?;
    while let Some(asked) = channel.receiver.receive().await? {
        if asked.header.kind == FrameKind::Request {
            // A context host attends on a thread that may block.
            let answered = tokio::task::spawn_blocking(move || frame(FrameKind::Response, answer)).await;
            channel.sender.send(answered.expect("making a frame does not panic")).await?;
        }
    }
    Ok(())
}

fn frame(kind: FrameKind, bytes: usize) -> Frame {
    let header = FrameHeader { kind, payload_type: PayloadType::F32, correlation: 0 };
    Frame::new(header, Meta::default(), Bytes::from(vec![0; bytes]))
}
