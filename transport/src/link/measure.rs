//! How fast frames go between two ends of this machine, each on a thread of its own, with plain TCP to compare with. What
//! arrives is looked at; printing is others' business.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rkyv::util::AlignedVec;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::mpsc::unbounded_channel,
};

use crate::{Channel, Frame, FrameHeader, FrameKind, PayloadType, Transport, TransportError, frame::codec};

/// Rounds of a [`Load`] that are not timed: one for so many that are, and one at least.
const ROUNDS_PER_WARM_UP: usize = 10;

/// What goes over the wire, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes of a payload.
    pub bytes: usize,
    /// Whether they come back; else an empty frame answers them.
    pub there_and_back: bool,
    /// How often it is timed.
    pub rounds: usize,
}

impl Load {
    fn warm_up(&self) -> usize {
        self.rounds.div_ceil(ROUNDS_PER_WARM_UP)
    }

    fn all_rounds(&self) -> usize {
        self.warm_up() + self.rounds
    }

    fn kind(&self) -> FrameKind {
        if self.there_and_back { FrameKind::Request } else { FrameKind::Data }
    }
}

/// How long one [`Load`] took.
#[derive(Clone, Debug)]
pub struct Timed {
    /// What went over the wire.
    pub load: Load,
    times: Vec<Duration>,
}

impl Timed {
    fn new(load: Load, mut times: Vec<Duration>) -> Self {
        times.drain(..load.warm_up());
        times.sort();
        Self { load, times }
    }

    /// The time that `percent` of all rounds did not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        self.times[((self.times.len() * percent).div_ceil(100)).clamp(1, self.times.len()) - 1]
    }
}

/// Why nothing was timed.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// The transport cannot be used.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The system has no socket or no thread for it.
    #[error("no link within this machine: {0}")]
    System(#[from] io::Error),
    /// The other end is gone.
    #[error("the other end ended early")]
    Ended,
    /// Something else arrived than was sent.
    #[error("a frame of {bytes} bytes came back changed")]
    Damaged {
        /// Bytes of its payload.
        bytes: usize,
    },
}

/// Times `loads` over a link between two transports that `bind` makes, each within the runtime that drives it. `done` hears of
/// each load once it is through.
pub fn between<T: Transport>(
    bind: impl Fn() -> Result<T, TransportError> + Clone + Send + 'static,
    loads: &[Load],
    mut done: impl FnMut(&Timed),
) -> Result<Vec<Timed>, MeasureError> {
    let (bound, address) = mpsc::channel();
    let far = {
        let bind = bind.clone();
        thread::spawn(move || {
            let answering = async move {
                let transport = bind()?;
                // Whoever waits for the address waits until this thread ends.
                let _ = bound.send(transport.local_address());
                answer(&transport).await
            };
            let runtime = one_thread()?;
            runtime.block_on(runtime.spawn(answering)).unwrap_or(Err(MeasureError::Ended))
        })
    };
    let Ok(address) = address.recv() else { return Err(failure(far.join())) };
    let timed = one_thread()?.block_on(async {
        let (loads, (tell, mut reported)) = (loads.to_vec(), unbounded_channel());
        // A task as hosts answer in: the one that a runtime is started with is looked at less often.
        let asking = tokio::spawn(async move {
            // Whoever is told waits for all of them.
            ask(&bind()?, address, &loads, |timed| drop(tell.send(timed.clone()))).await
        });
        while let Some(timed) = reported.recv().await {
            done(&timed);
        }
        asking.await.unwrap_or(Err(MeasureError::Ended))
    });
    match (timed, far.join()) {
        (Ok(timed), _) => Ok(timed),
        // What went wrong at the other end shows here as a link that closed.
        (Err(MeasureError::Transport(TransportError::Closed { .. })), Ok(Err(error))) => Err(error),
        (Err(error), _) => Err(error),
    }
}

fn failure(ended: thread::Result<Result<(), MeasureError>>) -> MeasureError {
    ended.ok().and_then(Result::err).unwrap_or(MeasureError::Ended)
}

fn one_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Times `loads` over a link to whoever [`answer`]s at `address`, then closes `transport`.
pub async fn ask(
    transport: &dyn Transport,
    address: SocketAddr,
    loads: &[Load],
    mut done: impl FnMut(&Timed),
) -> Result<Vec<Timed>, MeasureError> {
    let link = transport.connect(address).await?;
    let mut channel = link.open().await?;
    let mut timed = Vec::with_capacity(loads.len());
    for load in loads {
        timed.push(Timed::new(*load, time(&mut channel, *load).await?));
        timed.last().into_iter().for_each(&mut done);
    }
    drop((channel, link));
    transport.close();
    transport.drained().await;
    Ok(timed)
}

async fn time(channel: &mut Channel, load: Load) -> Result<Vec<Duration>, MeasureError> {
    // Aligned as received payloads are, so that no transport has to copy it for that.
    let pattern = (0..load.bytes).map(|index| (index * 31 + (index >> 8)) as u8).collect::<Vec<_>>();
    let payload = codec::align(Bytes::from(pattern));
    let mut times = Vec::with_capacity(load.all_rounds());
    for round in 0..load.all_rounds() {
        let sent = frame(load.kind(), round as u64, payload.clone());
        let started = Instant::now();
        channel.sender.send(sent).await?;
        let got = channel.receiver.receive().await?.ok_or(MeasureError::Ended)?;
        times.push(started.elapsed());
        let expected = if load.there_and_back { &payload[..] } else { &[] };
        if got.header.correlation != round as u64 || content(&got) != expected {
            return Err(MeasureError::Damaged { bytes: load.bytes });
        }
    }
    Ok(times)
}

/// Answers the frames of the next link's first channel until whoever asks is done.
pub async fn answer(transport: &dyn Transport) -> Result<(), MeasureError> {
    let link = transport.accept().await.ok_or(MeasureError::Ended)?;
    let mut channel = link.accept().await?;
    while let Ok(Some(got)) = channel.receiver.receive().await {
        let back = match got.header.kind {
            FrameKind::Request => got,
            kind => frame(kind, got.header.correlation, Bytes::new()),
        };
        channel.sender.send(back).await?;
    }
    Ok(())
}

/// What has no whole elements, such as one byte, goes as meta.
fn frame(kind: FrameKind, correlation: u64, content: Bytes) -> Frame {
    let whole = content.len().is_multiple_of(2);
    let payload_type = if whole && !content.is_empty() { PayloadType::Bf16 } else { PayloadType::None };
    let header = FrameHeader { kind, payload_type, correlation };
    let mut meta = AlignedVec::new();
    if !whole {
        meta.extend_from_slice(&content);
        return Frame::new(header, meta, Bytes::new());
    }
    Frame::new(header, meta, content)
}

fn content(frame: &Frame) -> &[u8] {
    if frame.payload.is_empty() { &frame.meta } else { &frame.payload }
}

/// The same over plain TCP: no frames, no encryption, one buffer at each end.
pub fn tcp(loads: &[Load], mut done: impl FnMut(&Timed)) -> Result<Vec<Timed>, MeasureError> {
    let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let far = {
        let loads = loads.to_vec();
        thread::spawn(move || {
            one_thread()?.block_on(async {
                listener.set_nonblocking(true)?;
                let (stream, _) = TcpListener::from_std(listener)?.accept().await?;
                answer_plainly(stream, &loads).await
            })
        })
    };
    let timed = one_thread()?.block_on(async {
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut timed = Vec::with_capacity(loads.len());
        for load in loads {
            timed.push(Timed::new(*load, time_plainly(&mut stream, *load).await?));
            timed.last().into_iter().for_each(&mut done);
        }
        Ok::<_, io::Error>(timed)
    })?;
    far.join().map_err(|_| MeasureError::Ended)??;
    Ok(timed)
}

async fn time_plainly(stream: &mut TcpStream, load: Load) -> io::Result<Vec<Duration>> {
    let sent = vec![0xa5; load.bytes];
    let mut got = vec![0; answer_bytes(load)];
    let mut times = Vec::with_capacity(load.all_rounds());
    for _ in 0..load.all_rounds() {
        let started = Instant::now();
        stream.write_all(&sent).await?;
        stream.read_exact(&mut got).await?;
        times.push(started.elapsed());
    }
    Ok(times)
}

async fn answer_plainly(mut stream: TcpStream, loads: &[Load]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for load in loads {
        let mut got = vec![0; load.bytes];
        for _ in 0..load.all_rounds() {
            stream.read_exact(&mut got).await?;
            stream.write_all(&got[..answer_bytes(*load)]).await?;
        }
    }
    Ok(())
}

fn answer_bytes(load: Load) -> usize {
    if load.there_and_back { load.bytes } else { 1 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        NoObserver,
        local::LocalNetwork,
        quic::{
            QuicTransport,
            config::{QuicConfig, Security},
        },
    };

    const LOADS: [Load; 3] = [
        Load { bytes: 1, there_and_back: true, rounds: 20 },
        Load { bytes: 16 << 10, there_and_back: true, rounds: 3 },
        Load { bytes: 2 << 20, there_and_back: false, rounds: 1 },
    ];

    fn here() -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
    }

    /// Every load is timed in turn, and told once.
    fn check(measure: impl FnOnce(&mut dyn FnMut(&Timed)) -> Result<Vec<Timed>, MeasureError>) {
        let mut reported = Vec::new();
        let timed = measure(&mut |timed| reported.push(timed.load)).expect("loopback works");
        assert_eq!(reported, LOADS);
        assert_eq!(timed.iter().map(|timed| timed.times.len()).collect::<Vec<_>>(), [20, 3, 1]);
        assert!(timed.iter().all(|timed| timed.percentile(50) <= timed.percentile(99)));
    }

    #[test]
    fn every_load_is_timed_over_every_transport() {
        let network = LocalNetwork::new();
        check(|done| between(move || network.bind(here(), Arc::new(NoObserver)), &LOADS, done));
        let quic = || QuicTransport::bind(QuicConfig::new(here(), Security::Insecure), Arc::new(NoObserver));
        check(|done| between(quic, &LOADS, done));
        check(|done| tcp(&LOADS, done));
    }

    #[test]
    fn a_transport_that_cannot_be_bound_says_why() {
        let bind = || Err::<QuicTransport, _>(TransportError::TransportClosed);
        let refused = between(bind, &LOADS, |_| ()).err();
        assert!(matches!(refused, Some(MeasureError::Transport(TransportError::TransportClosed))), "{refused:?}");
    }

    #[test]
    fn a_percentile_is_a_time_that_was_seen() {
        let load = Load { bytes: 1, there_and_back: true, rounds: 100 };
        let times = (0..110).rev().map(Duration::from_micros).collect();
        let timed = Timed::new(load, times);
        let micros = [0, 1, 50, 99, 100].map(|percent| timed.percentile(percent).as_micros());
        assert_eq!(micros, [0, 0, 49, 98, 99]);
    }
}
