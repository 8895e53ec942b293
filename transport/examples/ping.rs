//! What `asterism bench transport` times within a machine, between two machines, which trust anybody.
//!
//! `cargo run --release --workspace --example ping -- serve ADDRESS` on one and `ask ADDRESS [BYTES ROUNDS]` on the other, both
//! behind `--ucx` to take what `UCX_TLS` says.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Result, bail};
#[cfg(feature = "ucx")]
use asterism_transport::ucx::{UcxConfig, UcxTransport};
use asterism_transport::{
    NoObserver, Transport,
    measure::{self, Load, Timed},
    quic::{QuicConfig, QuicTransport, Security},
};

const LOADS: [Load; 3] = [
    Load { bytes: 16 << 10, there_and_back: true, rounds: 5000 },
    Load { bytes: 1 << 20, there_and_back: true, rounds: 300 },
    Load { bytes: 64 << 20, there_and_back: false, rounds: 20 },
];

fn main() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = named.iter().map(String::as_str).filter(|word| *word != "--ucx").collect();
    let over_ucx = words.len() < named.len();
    match words[..] {
        ["serve", address] => serve(address.parse()?, over_ucx),
        ["ask", address] => ask(address.parse()?, &LOADS, over_ucx),
        ["ask", address, bytes, rounds] => {
            let load = Load { bytes: bytes.parse()?, there_and_back: false, rounds: rounds.parse()? };
            ask(address.parse()?, &[load], over_ucx)
        }
        ["serve" | "ask", ..] => bail!("an address is missing"),
        _ => bail!("expected `serve ADDRESS` or `ask ADDRESS [BYTES ROUNDS]`"),
    }
}

/// Answers whoever asks, one after another, until it is ended.
#[tokio::main(flavor = "current_thread")]
async fn serve(address: SocketAddr, over_ucx: bool) -> Result<()> {
    let transport = bind_either(address, over_ucx)?;
    println!("at {}", transport.local_address());
    // A task of its own: while UCX looks for messages, the one that a runtime is started with is looked at less often.
    let answering = tokio::spawn(async move {
        loop {
            // Who leaves early is none of the next one's business.
            let _ = measure::answer(transport.as_ref()).await;
        }
    });
    Ok(answering.await?)
}

#[tokio::main(flavor = "current_thread")]
async fn ask(address: SocketAddr, loads: &[Load], over_ucx: bool) -> Result<()> {
    let any =
        SocketAddr::new(if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }, 0);
    let transport = bind_either(any, over_ucx)?;
    let loads = loads.to_vec();
    let asking =
        async move { measure::ask(transport.as_ref(), address, &loads, |timed| show(transport.name(), timed)).await };
    tokio::spawn(asking).await??;
    Ok(())
}

fn bind_either(address: SocketAddr, over_ucx: bool) -> Result<Box<dyn Transport>> {
    let quic = QuicTransport::bind(QuicConfig::new(address, Security::Insecure), Arc::new(NoObserver))?;
    if !over_ucx {
        return Ok(Box::new(quic));
    }
    #[cfg(feature = "ucx")]
    return Ok(Box::new(UcxTransport::bind(UcxConfig::default(), Arc::new(quic), Arc::new(NoObserver))?));
    #[cfg(not(feature = "ucx"))]
    bail!("it was built without UCX: --features asterism/ucx")
}

fn show(name: &str, timed: &Timed) {
    let [median, late] = [50, 99].map(|percent| timed.percentile(percent).as_secs_f64());
    let rate = timed.load.bytes as f64 / median * 1e-9;
    println!(
        "{name:>6} {:>9} bytes {}: median {:9.1} us, p99 {:9.1} us, {rate:.3} GB/s",
        timed.load.bytes,
        if timed.load.there_and_back { "there and back" } else { "one way       " },
        median * 1e6,
        late * 1e6,
    );
}
