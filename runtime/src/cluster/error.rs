//! Why a cluster file that parses is refused: which host or key, what it says, what was expected.

use std::net::SocketAddr;

use asterism_plan::PlanError;
use asterism_transport::PlacePort;

/// Why a file that parses describes no cluster.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// Another format version.
    #[error("version = {got}, but this program reads version {FILE_VERSION}")]
    Version {
        /// What the file says.
        got: u32,
    },
    /// An address that is none.
    #[error("{key} = \"{got}\" is not {expected}")]
    Address {
        /// Key of the file.
        key: String,
        /// What it says.
        got: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A value out of range.
    #[error("{key} = {got}: {expected}")]
    Value {
        /// Key of the file.
        key: &'static str,
        /// What it says.
        got: String,
        /// What was expected.
        expected: String,
    },
    /// The method's sizes make no plan.
    #[error("[attention.{method}]: {cause}")]
    Method {
        /// The method.
        method: &'static str,
        /// What the planner says.
        cause: PlanError,
    },
    /// A name used twice.
    #[error("two {kind}s are named '{name}'; names must differ")]
    Duplicate {
        /// `host` or `node`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A host on a node that is not in the file.
    #[error("host '{host}' is on node '{node}', which is not in the file; known: {known}")]
    UnknownNode {
        /// The host.
        host: String,
        /// Its node.
        node: String,
        /// Nodes of the file.
        known: String,
    },
    /// A host of a model that is not in the file.
    #[error(
        "host '{host}' holds model '{model}', which is not in the file; known: {known}. Add [[model]] with that name"
    )]
    UnknownModel {
        /// The host.
        host: String,
        /// Its model.
        model: String,
        /// Models of the file.
        known: String,
    },
    /// A model that nobody encodes or generates for.
    #[error(
        "{} has no host with role = \"{role}\"; add a [[host]] with that role{}, or take the model out",
        model.as_ref().map_or("the first model".into(), |model| format!("model '{model}'")),
        model.as_ref().map_or(String::new(), |model| format!(" and model = \"{model}\""))
    )]
    NoHostOfModel {
        /// The model.
        model: Option<String>,
        /// The role.
        role: &'static str,
    },
    /// A host without a node where there are several or none.
    #[error("host '{host}' names no node and the file has {nodes}; add node = \"...\"")]
    NoNode {
        /// The host.
        host: String,
        /// Number of nodes.
        nodes: usize,
    },
    /// Two processes that would bind one address.
    #[error("'{first}' and '{second}' both want {address}; give one of them another port, or 0 to have one chosen")]
    PortTaken {
        /// First in the file.
        first: String,
        /// Second.
        second: String,
        /// The address.
        address: PlacePort,
    },
    /// Not the hosts a cluster needs.
    #[error("the file has {got} hosts with role = \"{role}\"; a cluster needs {expected}")]
    Hosts {
        /// The role.
        role: &'static str,
        /// How many are needed.
        expected: &'static str,
        /// How many there are.
        got: usize,
    },
    /// A name that a process of the cluster has.
    #[error("{kind} '{name}' has the name of {owner}; choose another")]
    TakenName {
        /// `host` or `node`.
        kind: &'static str,
        /// The name.
        name: String,
        /// Whose it is.
        owner: &'static str,
    },
    /// An admin API open to the network.
    #[error(
        "api.admin_listen = \"{listen}\" lets everybody who reaches this machine submit jobs and end the cluster; expected 127.0.0.1, or a token: set [security] token_file, or allow_open_admin = true where the network is closed"
    )]
    OpenAdmin {
        /// Where it would listen.
        listen: SocketAddr,
    },
    /// Some, not all, of ca, cert and key.
    #[error("[security] names {named} but not {missing}; name ca, cert and key, or none to have them made")]
    PartialCertificates {
        /// Keys that are there.
        named: String,
        /// Keys that are missing.
        missing: String,
    },
    /// A certificate without its key, or the other way round.
    #[error("[api] names {named} but not {missing}; name both, or none for plain HTTP")]
    PartialTls {
        /// The key that is there.
        named: &'static str,
        /// The one that is missing.
        missing: &'static str,
    },
    /// OpenAI's API for everybody on the network.
    #[error(
        "api.listen = \"{listen}\" lets everybody who reaches this machine ask questions; expected 127.0.0.1, or keys: set [api] api_key_file, or [security] allow_open_admin = true where the network is closed"
    )]
    OpenApi {
        /// Where it would listen.
        listen: SocketAddr,
    },
    /// A key that may keep more than all together.
    #[error(
        "api.max_stored_bytes_per_key is {of_key}, expected at most api.max_stored_bytes, which is {all}; lower one or raise the other"
    )]
    StoredPerKey {
        /// What all may keep.
        all: u64,
        /// What a key may.
        of_key: u64,
    },
    /// Something else than an origin.
    #[error(
        "api.allow_origins has '{got}', expected at most 64 origins as browsers write them, such as \"https://app.example\" or \"http://localhost:3000\", or \"*\""
    )]
    NoOrigin {
        /// What stands there.
        got: String,
    },
}

/// Version of `cluster.toml` that this program reads.
pub const FILE_VERSION: u32 = 1;
