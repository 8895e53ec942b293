//! `bench transport`: round trips and bulk between two ends of this machine, over every transport and plain TCP.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

#[cfg(feature = "ucx")]
use asterism_transport::ucx::{UcxConfig, UcxTransport};
use asterism_transport::{
    NoObserver, TransportError,
    local::LocalNetwork,
    measure::{self, Load, MeasureError, Timed},
    quic::{QuicConfig, QuicTransport, Security},
};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    cli::output::{self, Table},
    cluster::size::{bytes, up_to},
    error::{CliError, Exit},
    globals::{Format, Globals},
};

/// What is timed.
#[derive(Args, Debug)]
pub struct TransportArgs {
    /// Transports, with commas [default: all]; plain TCP is what the others are compared with
    #[arg(long, value_name = "NAME", value_enum, value_delimiter = ',')]
    pub transport: Vec<TransportKind>,
    /// Timed round trips of small payloads; of 1 MiB a tenth
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = up_to::<1_000_000>)]
    pub round_trips: usize,
    /// Timed payloads of 64 MiB, one way
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = up_to::<10_000>)]
    pub bulk: usize,
    /// Further sockets of QUIC for large payloads, each with a thread of its own
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=15))]
    pub lanes: u8,
}

/// What carries bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// Plain TCP: no frames, no encryption
    Tcp,
    /// Within a process
    Local,
    /// QUIC with TLS 1.3
    Quic,
    /// UCX over shared memory
    #[cfg(feature = "ucx")]
    #[value(name = "ucx-shm")]
    #[serde(rename = "ucx-shm")]
    UcxShm,
    /// UCX over TCP
    #[cfg(feature = "ucx")]
    #[value(name = "ucx-tcp")]
    #[serde(rename = "ucx-tcp")]
    UcxTcp,
}

impl TransportKind {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Times and prints.
pub fn run(globals: &Globals, args: &TransportArgs) -> Result<Exit, CliError> {
    let loads = loads(args);
    let mut rows = Vec::new();
    // In their order: plain TCP comes first, the others are told by it.
    for kind in TransportKind::value_variants().iter().copied() {
        if !args.transport.is_empty() && !args.transport.contains(&kind) {
            continue;
        }
        let done = |timed: &Timed| {
            let row = TransportRow::new(kind, timed, &[]);
            globals.note(format_args!("{}, {}: {:.1} us", kind.name(), row.what(), 1e6 * row.median_s));
        };
        for timed in time(kind, args, &loads, done).map_err(|error| refused(kind, &error))? {
            rows.push(TransportRow::new(kind, &timed, &rows));
        }
    }
    output::print_rows(&rows, globals.format, table)?;
    if globals.format == Format::Table {
        globals.note("both ends are threads of this process; one that waits for a core waits here too");
    }
    Ok(Exit::Success)
}

fn loads(args: &TransportArgs) -> [Load; 4] {
    let there_and_back = |bytes, rounds| Load { bytes, there_and_back: true, rounds };
    [
        there_and_back(1, args.round_trips),
        there_and_back(16 << 10, args.round_trips),
        there_and_back(1 << 20, args.round_trips.div_ceil(10)),
        Load { bytes: 64 << 20, there_and_back: false, rounds: args.bulk },
    ]
}

fn time(
    kind: TransportKind,
    args: &TransportArgs,
    loads: &[Load],
    done: impl FnMut(&Timed),
) -> Result<Vec<Timed>, MeasureError> {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    match kind {
        TransportKind::Tcp => measure::tcp(loads, done),
        TransportKind::Local => {
            let network = LocalNetwork::new();
            measure::between(move || network.bind(here, Arc::new(NoObserver)), loads, done)
        }
        TransportKind::Quic => {
            let lanes = args.lanes.into();
            measure::between(move || quic(here, lanes), loads, done)
        }
        #[cfg(feature = "ucx")]
        TransportKind::UcxShm => measure::between(move || ucx(here, "shm"), loads, done),
        #[cfg(feature = "ucx")]
        TransportKind::UcxTcp => measure::between(move || ucx(here, "tcp"), loads, done),
    }
}

fn quic(here: SocketAddr, lanes: usize) -> Result<QuicTransport, TransportError> {
    let config = QuicConfig { lanes, ..QuicConfig::new(here, Security::Insecure) };
    QuicTransport::bind(config, Arc::new(NoObserver))
}

#[cfg(feature = "ucx")]
fn ucx(here: SocketAddr, transports: &str) -> Result<UcxTransport, TransportError> {
    let config = UcxConfig { transports: Some(transports.into()), ..UcxConfig::default() };
    UcxTransport::bind(config, Arc::new(quic(here, 0)?), Arc::new(NoObserver))
}

fn refused(kind: TransportKind, error: &MeasureError) -> CliError {
    CliError::unreachable(format!("{} cannot be timed: {error}", kind.name()))
        .hint("`asterism doctor` says what this machine lacks")
}

/// One load over one transport.
#[derive(Serialize)]
struct TransportRow {
    transport: TransportKind,
    bytes: usize,
    there_and_back: bool,
    rounds: usize,
    median_s: f64,
    p99_s: f64,
    /// At the median, all that went over the wire.
    bytes_per_s: f64,
    /// The median by that of plain TCP in the same run.
    by_tcp: Option<f64>,
}

impl TransportRow {
    fn new(transport: TransportKind, timed: &Timed, before: &[Self]) -> Self {
        let Load { bytes, there_and_back, rounds } = timed.load;
        let [median_s, p99_s] = [50, 99].map(|percent| timed.percentile(percent).as_secs_f64());
        let is_same = |row: &&Self| row.transport == TransportKind::Tcp && row.bytes == bytes;
        let tcp = before.iter().find(is_same).map(|row| row.median_s);
        let by_tcp = tcp.filter(|_| transport != TransportKind::Tcp).map(|tcp| median_s / tcp);
        let ways = if there_and_back { 2 } else { 1 };
        let bytes_per_s = (ways * bytes) as f64 / median_s;
        Self { transport, bytes, there_and_back, rounds, median_s, p99_s, bytes_per_s, by_tcp }
    }

    fn what(&self) -> String {
        let way = if self.there_and_back { "there and back" } else { "one way" };
        format!("{} {way}", bytes(self.bytes as u64))
    }
}

fn table(rows: &[TransportRow]) -> Table {
    let mut table = Table::new(["TRANSPORT", "PAYLOAD", "ROUNDS", "MEDIAN US", "P99 US", "GB/S", "BY TCP"]);
    for row in rows {
        table.row([
            row.transport.name(),
            row.what(),
            row.rounds.to_string(),
            format!("{:.1}", 1e6 * row.median_s),
            format!("{:.1}", 1e6 * row.p99_s),
            format!("{:.3}", row.bytes_per_s * 1e-9),
            row.by_tcp.map_or("-".into(), |by| format!("{by:.2}")),
        ]);
    }
    table
}
