//! `[transport]`: what carries tensors between hosts.

use asterism_transport::quic::MOST_LANES;

use super::ClusterError;
use crate::cluster::file::{DataTransport, TransportSection};

/// What carries tensors between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// Which transport.
    pub transport: DataTransport,
    /// Network interfaces that UCX may take; the one that has the host's address if there is none.
    pub interfaces: Vec<String>,
    /// Sockets with threads of their own over which QUIC spreads large payloads, where the file says so.
    pub lanes: Option<u16>,
}

impl Data {
    /// Resolves the section.
    pub(super) fn resolve(section: &TransportSection) -> Result<Self, ClusterError> {
        let TransportSection { data: transport, interfaces, lanes, .. } = section.clone();
        if let Some(lanes) = lanes.filter(|lanes| usize::from(*lanes) > MOST_LANES) {
            return Err(ClusterError::Value {
                key: "transport.lanes",
                expected: format!("at most {MOST_LANES}"),
                got: lanes.to_string(),
            });
        }
        Ok(Self { transport, interfaces, lanes })
    }
}
