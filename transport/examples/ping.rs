//! Round trips and bulk over `local`, QUIC and plain TCP, each end on a thread of its own: `bench transport` without the rest.
//!
//! `cargo run --release -p asterism-transport --example ping [-- NAME...]`

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::Result;
use asterism_transport::{
    NoObserver,
    local::LocalNetwork,
    measure::{self, Load, Timed},
    quic::{QuicConfig, QuicTransport, Security},
};

const LOADS: [Load; 4] = [
    Load { bytes: 1, there_and_back: true, rounds: 5000 },
    Load { bytes: 16 << 10, there_and_back: true, rounds: 5000 },
    Load { bytes: 1 << 20, there_and_back: true, rounds: 300 },
    Load { bytes: 64 << 20, there_and_back: false, rounds: 20 },
];

fn main() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    for name in ["local", "quic", "tcp"] {
        if !named.is_empty() && !named.iter().any(|other| other == name) {
            continue;
        }
        let show = |timed: &Timed| show(name, timed);
        match name {
            "local" => {
                let network = LocalNetwork::new();
                measure::between(move || network.bind(address, Arc::new(NoObserver)), &LOADS, show)?
            }
            "quic" => {
                let bind =
                    move || QuicTransport::bind(QuicConfig::new(address, Security::Insecure), Arc::new(NoObserver));
                measure::between(bind, &LOADS, show)?
            }
            _ => measure::tcp(&LOADS, show)?,
        };
    }
    Ok(())
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
