//! `supervisor` and `host`: one process a role, as service managers and `up` start them. They log; they print nothing.

use std::{io::Read, net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    cli::seconds,
    error::{CliError, Exit},
    globals::{DEFAULT_FILE, Globals},
    logging, metrics,
    service::Service,
    wiring,
};

/// `asterism supervisor`
#[derive(Args, Debug)]
pub struct SupervisorArgs {
    /// Give up when a host is not ready after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    pub timeout: Duration,
}

/// `asterism host`
#[derive(Args, Debug)]
pub struct HostArgs {
    /// Host of the cluster file
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Where the supervisor listens [default: cluster.listen]
    #[arg(long, value_name = "ADDRESS")]
    pub supervisor: Option<SocketAddr>,
    /// End when standard input ends
    #[arg(long)]
    pub end_with_stdin: bool,
}

/// Serves the cluster until asked to end.
pub fn supervisor(globals: &Globals, args: &SupervisorArgs) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    logging::process(&cluster.log, globals)?;
    let file = cluster_file(globals)?;
    runtime()?.block_on(async {
        metrics::install();
        let mut signals = Signals::listen(Hangup::Ignored)?;
        let service = Service::start(cluster, file).await?;
        let ready = tokio::select! {
            ready = service.ready(args.timeout, |_, _| ()) => ready.map(Some),
            () = service.stop_wanted() => Ok(None),
            () = signals.next() => Ok(None),
        };
        if let Ok(Some(status)) = &ready {
            tracing::info!(cluster = %status.name, admin = %service.record.admin, "ready");
            tokio::select! {
                () = service.stop_wanted() => tracing::info!("a client asked for the end"),
                () = signals.next() => tracing::info!("a signal asked for the end"),
            }
        }
        service.stop().await;
        ready.map(|_| Exit::Success)
    })
}

/// Runs one host until its supervisor ends it or is gone.
pub fn host(globals: &Globals, args: &HostArgs) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    logging::process(&cluster.log, globals)?;
    let Some(host) = cluster.host(&args.name) else {
        let known: Vec<_> = cluster.hosts.iter().map(|host| host.name.as_str()).collect();
        return Err(CliError::usage(format!("no host '{}' is in the cluster file", args.name))
            .hint(format!("known: {}", known.join(", "))));
    };
    if args.end_with_stdin {
        end_with_stdin();
    }
    let supervisor = args.supervisor.unwrap_or(cluster.listen);
    runtime()?.block_on(async {
        let mut signals = Signals::listen(Hangup::Ends)?;
        tokio::select! {
            ended = wiring::run_host(&cluster, host, supervisor) => ended.map(|()| Exit::Success),
            () = signals.next() => Ok(Exit::Success),
        }
    })
}

/// The cluster file as an absolute path, for host processes.
pub fn cluster_file(globals: &Globals) -> Result<PathBuf, CliError> {
    let file = globals.file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    std::path::absolute(&file).map_err(|error| CliError::usage(format!("{}: {error}", file.display())))
}

/// The runtime of a process that serves.
pub fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(2)
        .build()
        .map_err(|error| CliError::unreachable(format!("no threads can be started: {error}")))
}

/// What a closed terminal means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// The end.
    Ends,
    /// Nothing: a detached process outlives its terminal.
    Ignored,
}

/// The signals that ask a process to end.
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    on_hangup: Hangup,
}

impl Signals {
    /// From now on these signals are ours.
    pub fn listen(on_hangup: Hangup) -> Result<Self, CliError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen =
            |kind| signal(kind).map_err(|error| CliError::unreachable(format!("signals cannot be handled: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            on_hangup,
        })
    }

    /// Completes when one came.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => {
                    if self.on_hangup == Hangup::Ends {
                        return;
                    }
                }
            }
        }
    }
}

/// Ends this process when the other end of its standard input does, whatever it is doing.
fn end_with_stdin() {
    std::thread::spawn(|| {
        let mut stdin = std::io::stdin().lock();
        let mut byte = [0];
        while stdin.read(&mut byte).is_ok_and(|read| read > 0) {}
        tracing::warn!("the supervisor is gone");
        std::process::exit(Exit::Unreachable as i32);
    });
}
