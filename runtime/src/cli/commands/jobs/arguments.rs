//! Arguments that jobs and plans have in common: the method and the placement. Runs nothing.

use asterism_actors::api::{Arrangement, PlacementPolicy};
use asterism_plan::{
    MethodConfig,
    methods::{PulsarConfig, StarConfig},
};
use clap::{Args, ValueEnum};

use crate::{cli::method_spec, cluster::size::Tokens, error::CliError};

/// Attention of a job.
#[derive(Args, Clone, Debug, Default)]
pub struct MethodArgs {
    /// Attention method, its options behind it: star, star:block_tokens=4k [default: the cluster's]
    #[arg(long, value_name = "NAME[:KEY=VALUE]...")]
    pub method: Option<String>,
    /// Tokens of a block, such as 4k [default: the context spread over the hosts]
    #[arg(long, value_name = "TOKENS")]
    pub block_size: Option<Tokens>,
    /// Tokens of the anchor, such as 1k [default: a block]
    #[arg(long, value_name = "TOKENS")]
    pub anchor_size: Option<Tokens>,
}

/// Which hosts a job's shards go to.
#[derive(Args, Clone, Debug, Default)]
pub struct PlacementArgs {
    /// Lay shards over many nodes, or on few
    #[arg(long, value_enum, default_value_t)]
    pub placement: PlacementChoice,
    /// Only hosts with this label; several must all be there
    #[arg(long = "host-label", value_name = "KEY=VALUE", value_parser = label)]
    pub host_labels: Vec<(String, String)>,
}

/// How shards lie over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PlacementChoice {
    /// In turn over the nodes
    #[default]
    Spread,
    /// All hosts of one node before the next
    Pack,
}

impl PlacementArgs {
    /// As a request has it.
    pub fn policy(&self) -> PlacementPolicy {
        let arrangement = match self.placement {
            PlacementChoice::Spread => Arrangement::Spread,
            PlacementChoice::Pack => Arrangement::Pack,
        };
        PlacementPolicy { arrangement, labels: self.host_labels.iter().cloned().collect(), query_host: None }
    }
}

impl MethodArgs {
    /// The method with its sizes; `None`: the cluster's own.
    pub fn resolve(&self) -> Result<Option<MethodConfig>, CliError> {
        let sizes = [("block_tokens", self.block_size), ("anchor_tokens", self.anchor_size)];
        let sizes: Vec<(&str, usize)> = sizes.into_iter().filter_map(|(key, size)| Some((key, size?.0))).collect();
        let named = match &self.method {
            None if sizes.is_empty() => return Ok(None),
            None if self.anchor_size.is_some() => MethodConfig::Star(StarConfig::default()),
            None => MethodConfig::Pulsar(PulsarConfig::default()),
            Some(spec) => method_spec::parse(spec)?,
        };
        let mut typed = serde_json::to_value(&named).expect("a method is JSON");
        for (key, size) in sizes {
            typed[named.name()][key] = size.into();
        }
        let method: MethodConfig = serde_json::from_value(typed).map_err(|_| {
            CliError::usage(format!("the method {} takes no --block-size or --anchor-size", named.name()))
                .hint("leave them out, or choose another --method")
        })?;
        method_spec::checked(&method)?;
        Ok(Some(method))
    }
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".into()),
    }
}
