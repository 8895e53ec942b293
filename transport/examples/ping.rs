//! Round trips of small frames and one-way throughput over `local` and `quic`, both ends in this process. It checks what
//! arrives before it times anything.
//!
//! `cargo run --release -p asterism-transport --example ping`

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, ensure};
use asterism_transport::{
    Channel, Frame, FrameHeader, FrameKind, Link, NoObserver, PayloadType, Transport,
    certificates::{CertificateAuthority, Credentials, MemberRole, Validity},
    local::LocalNetwork,
    quic::{QuicConfig, QuicTransport, Security},
};
use bytes::Bytes;
use rkyv::util::AlignedVec;

const ROUND_TRIPS: usize = 5000;
const BULK_FRAME: usize = 8 << 20;
const BULK_FRAMES: usize = 64;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let address = "127.0.0.1:0".parse()?;
    let network = LocalNetwork::new();
    let local = || -> Result<Arc<dyn Transport>> { Ok(Arc::new(network.bind(address, Arc::new(NoObserver))?)) };
    measure("local", [local()?, local()?]).await?;

    let validity = Validity::starting(SystemTime::now(), Duration::from_secs(3600));
    let authority = CertificateAuthority::create("ping", validity)?;
    let quic = |host| -> Result<Arc<dyn Transport>> {
        let security = Security::Mutual(Credentials::issue(&authority, (MemberRole::Context, host), validity)?);
        Ok(Arc::new(QuicTransport::bind(QuicConfig::new(address, security), Arc::new(NoObserver))?))
    };
    measure("quic", [quic("near")?, quic("far")?]).await
}

async fn measure(name: &str, [near, far]: [Arc<dyn Transport>; 2]) -> Result<()> {
    let echo = tokio::spawn({
        let far = far.clone();
        async move {
            let link = far.accept().await.context("the transport is open")?;
            let channel = link.accept().await?;
            answer(channel).await?;
            anyhow::Ok(link)
        }
    });
    let link: Arc<dyn Link> = near.connect(far.local_address()).await?;
    let mut channel = link.open().await?;
    for bytes in [1 << 10, 4 << 10, 16 << 10] {
        let mut times = round_trips(&mut channel, bytes).await?;
        times.sort();
        let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e6;
        println!(
            "{name:>6} {:>3} KiB there and back: median {:7.1} us, 90% {:7.1} us, 99% {:7.1} us",
            bytes >> 10,
            at(0.5),
            at(0.9),
            at(0.99)
        );
    }
    let rate = one_way(&mut channel).await?;
    println!("{name:>6} one way, {} MiB frames: {rate:.2} GB/s", BULK_FRAME >> 20);
    drop(channel.sender);
    echo.await??;
    Ok(())
}

/// Sends frames back; of bulk frames only the count, once the last has come.
async fn answer(mut channel: Channel) -> Result<()> {
    let mut bulk = 0;
    while let Some(frame) = channel.receiver.receive().await? {
        if frame.header.kind == FrameKind::Query {
            channel.sender.send(frame).await?;
            continue;
        }
        ensure!(frame.payload.len() == BULK_FRAME && frame.payload[BULK_FRAME - 1] == 0xa5, "a bulk frame was damaged");
        bulk += 1;
        if bulk == BULK_FRAMES {
            channel.sender.send(Frame::control(AlignedVec::new())).await?;
        }
    }
    Ok(())
}

async fn round_trips(channel: &mut Channel, bytes: usize) -> Result<Vec<Duration>> {
    let payload: Bytes = (0..bytes).map(|index| (index * 31 + (index >> 8)) as u8).collect();
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for round in 0..ROUND_TRIPS + ROUND_TRIPS / 10 {
        let sent = frame(FrameKind::Query, round as u32, payload.clone());
        let start = Instant::now();
        channel.sender.send(sent.clone()).await?;
        let got = channel.receiver.receive().await?.context("the echo goes on")?;
        let time = start.elapsed();
        ensure!(got.header == sent.header && got.payload == sent.payload, "frame {round} came back changed");
        // The first tenth warms up.
        if round >= ROUND_TRIPS / 10 {
            times.push(time);
        }
    }
    Ok(times)
}

/// Bytes a second times 1e-9, to the answer to the last frame.
async fn one_way(channel: &mut Channel) -> Result<f64> {
    let payload = Bytes::from(vec![0xa5; BULK_FRAME]);
    let start = Instant::now();
    for step in 0..BULK_FRAMES {
        channel.sender.send(frame(FrameKind::Partials, step as u32, payload.clone())).await?;
    }
    channel.receiver.receive().await?.context("the echo goes on")?;
    Ok((BULK_FRAME * BULK_FRAMES) as f64 / start.elapsed().as_secs_f64() * 1e-9)
}

fn frame(kind: FrameKind, step: u32, payload: Bytes) -> Frame {
    let header = FrameHeader { kind, job: 1, shard_set: 1, layer: 0, step, rows: 1, payload_type: PayloadType::F32 };
    let mut meta = AlignedVec::new();
    meta.extend_from_slice(&[1; 40]);
    Frame::new(header, meta, payload)
}
