//! What a UCX transport is made with. Opens nothing.

use std::time::Duration;

use crate::ucx::hello::ProcessLocation;

/// Which of UCX's ways to use, and how.
#[derive(Clone, Debug)]
pub struct UcxConfig {
    /// UCX's names of transports, as in `UCX_TLS`: `tcp`, `shm`, `shm,tcp`; none leaves the choice to `UCX_TLS`, or to UCX.
    pub transports: Option<String>,
    /// Network interfaces to use, as in `UCX_NET_DEVICES`; none means all.
    pub interfaces: Vec<String>,
    /// More of UCX's settings, by their names without `UCX_`.
    pub settings: Vec<(String, String)>,
    /// How long to look for the next message before sleeping; a sleeper takes tens of microseconds to wake.
    pub spin: Duration,
    /// Bytes a peer may send ahead of the reader, per channel and per link, each frame's bookkeeping among them; the last
    /// frame may go beyond it. The smaller of both sides' values counts.
    pub receive_window: u32,
    /// Bytes of all links together that wait for their readers: beyond it a link ends that takes more than its share.
    pub most_held: u64,
    /// Longest wait for the peer's first word over UCX.
    pub connect_timeout: Duration,
    /// How often UCX looks whether a silent peer is alive.
    pub keep_alive: Duration,
    /// A peer from whom nothing comes over UCX for so long, longer while much is under way, has lost its path.
    pub silence: Duration,
}

impl Default for UcxConfig {
    fn default() -> Self {
        Self {
            transports: None,
            interfaces: Vec::new(),
            settings: Vec::new(),
            spin: Duration::from_micros(50),
            receive_window: 64 << 20,
            most_held: 8 << 30,
            connect_timeout: Duration::from_secs(5),
            keep_alive: Duration::from_secs(1),
            silence: Duration::from_secs(5),
        }
    }
}

impl UcxConfig {
    /// Where this process is, as far as sharing memory with it goes.
    pub(super) fn place(&self) -> ProcessLocation {
        if shares_memory(&self.asked_transports()) { ProcessLocation::here() } else { ProcessLocation::nowhere() }
    }

    /// What UCX is asked for.
    pub(crate) fn asked_transports(&self) -> String {
        let environment = || std::env::var("UCX_TLS").unwrap_or_else(|_| "all".into());
        self.transports.clone().unwrap_or_else(environment)
    }

    /// Whether UCX is asked for nothing that reaches beyond this machine, and so has no ports.
    pub fn stays_within(&self) -> bool {
        stays_within(&self.asked_transports())
    }
}

/// Those of them that may share memory with a process of the same machine.
pub(crate) const SHARING: &[&str] = &["all", "shm", "sm", "mm", "posix", "sysv", "xpmem"];

/// Those of them that reach no further than this machine.
pub(crate) const WITHIN: &[&str] = &["self", "shm", "sm", "mm", "posix", "sysv", "xpmem", "cma", "knem"];

/// Whether UCX may share memory with other processes where it is asked for these.
pub(crate) fn shares_memory(asked: &str) -> bool {
    asked.starts_with('^') || asked.split(',').any(|name| SHARING.contains(&name.trim().trim_start_matches('\\')))
}

/// Whether UCX reaches nobody beyond this machine where it is asked for these.
pub(crate) fn stays_within(asked: &str) -> bool {
    asked.split(',').all(|name| WITHIN.contains(&name.trim().trim_start_matches('\\')))
}
