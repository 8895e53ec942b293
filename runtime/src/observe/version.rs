//! What this program is. Prints nothing.

use schemars::JsonSchema;
use serde::Serialize;

/// What this program is, as `version` prints it and `/api/v1/version` serves it.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Version {
    /// Of the program.
    pub version: &'static str,
    /// Of frames and messages between hosts.
    pub protocol: u16,
    /// Processor and system it was built for.
    pub target: &'static str,
    /// `release` or `debug`.
    pub profile: &'static str,
}

impl Version {
    /// This program's.
    pub fn current() -> Self {
        let target = match (std::env::consts::ARCH, std::env::consts::OS) {
            ("x86_64", "linux") => "x86_64-linux",
            ("aarch64", "linux") => "aarch64-linux",
            ("aarch64", "macos") => "aarch64-macos",
            _ => "another platform",
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            protocol: asterism_transport::PROTOCOL_VERSION,
            target,
            profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        }
    }
}
