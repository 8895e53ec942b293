//! How a process listens: over QUIC, with its certificates, counted. Decides nothing about tensors.

use std::{net::SocketAddr, sync::Arc};

use asterism_actors::metric::TransportMetrics;
use asterism_transport::{
    Observer, PlacePort, TransportError,
    certificates::MemberRole,
    quic::{QuicConfig, QuicTransport},
};

use crate::{
    certificates::{credentials, members::NamedMember, rotation::Rotation},
    cluster::Cluster,
    error::{CliError, Exit},
};

/// Names of transports.
pub(crate) const QUIC: &str = "quic";

pub(crate) const LOCAL: &str = "local";

pub(crate) fn no_threads(error: &std::io::Error) -> CliError {
    CliError::unreachable(format!("no threads can be started: {error}"))
}

pub(crate) fn counted(transport: &'static str) -> Arc<dyn Observer> {
    Arc::new(TransportMetrics::new(transport))
}

/// Listens as a member, whose certificates are followed from then on.
pub(crate) fn bind(
    cluster: &Cluster,
    member: NamedMember<'_>,
    (listen, lanes): (SocketAddr, u16),
    observer: Arc<dyn Observer>,
) -> Result<Arc<QuicTransport>, CliError> {
    let rotation = Rotation::new(cluster, member);
    let security = credentials::load(cluster, member)?;
    credentials::log_certificate_end(member, &security);
    let mut config = QuicConfig::new(listen, security);
    config.idle_timeout = cluster.liveness.dead_after;
    // Heartbeats are what keeps a host's link to the supervisor alive; those between hosts have none.
    let beaten = cluster.liveness.heartbeat * 5 / 4;
    config.keep_alive = (config.idle_timeout / 5).max(beaten).min(config.idle_timeout / 2);
    config.lanes = usize::from(lanes);
    let transport = QuicTransport::bind(config, observer).map_err(|error| match error {
        TransportError::Bind { address, cause } => {
            CliError::no_listener(&listener(member), (address, &key(member, listen)), cause)
        }
        error => transport_refusal(&error),
    });
    let transport = Arc::new(transport?);
    if let Some(rotation) = rotation {
        rotation.follow(&transport);
    }
    Ok(transport)
}

/// Who listens, in words.
fn listener((role, name): NamedMember<'_>) -> String {
    match role {
        MemberRole::Supervisor => "the supervisor".to_owned(),
        MemberRole::Node => format!("the agent of node '{name}'"),
        _ => format!("host '{name}'"),
    }
}

/// The key of the cluster file that says where.
fn key((role, name): NamedMember<'_>, listen: SocketAddr) -> String {
    match role {
        MemberRole::Supervisor => "[cluster] listen".to_owned(),
        MemberRole::Node => format!("the address of [[node]] '{name}'"),
        _ if listen.port() == 0 => format!("the address of the [[node]] of host '{name}'"),
        _ => format!("the port of [[host]] '{name}'"),
    }
}

pub(crate) fn transport_refusal(error: &TransportError) -> CliError {
    match error.code() {
        "certificate" => CliError::new(Exit::Authentication, error)
            .hint("every process needs a certificate of this cluster's CA: `asterism cert show`"),
        "bind" => CliError::unreachable(error).hint("free the port, or set it to 0 to have one chosen"),
        "ucx" => CliError::unreachable(error)
            .hint("or write [transport] data = \"auto\", which takes QUIC where UCX cannot be had and says so"),
        _ => CliError::unreachable(error).hint("is the supervisor up? `asterism status`"),
    }
}

/// Where a process of this machine listens, whose name may be a new address's since it last started.
pub(crate) fn here(own: &PlacePort) -> Result<SocketAddr, CliError> {
    own.resolve().map_err(|error| {
        CliError::unreachable(format!("this node's name {} has no address: {error}", own.place))
            .hint("its [[node]] names it in the cluster file; the name must stand for an address of this machine")
    })
}
