//! What a request asks of the hosts that get its shards: plain values. Places nothing.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a job asks of the hosts that get its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementPolicy {
    /// How shards lie over nodes.
    pub arrangement: Arrangement,
    /// Labels that a host must carry, all of them.
    pub labels: BTreeMap<String, String>,
    /// The host that generates, by name; any where none is named. For the cluster's own tests: no request names it.
    #[serde(skip)]
    pub query_host: Option<String>,
}

/// How a job's shards lie over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arrangement {
    /// In turn over the nodes, so that one that is lost costs few shards; idle hosts come before busy ones.
    #[default]
    Spread,
    /// On few nodes: all hosts of one before the next, so that exchanges stay within machines.
    Pack,
}
