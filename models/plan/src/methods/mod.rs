//! The table of the attention methods, one a file, behind one trait. What a method does is in its file alone: a new one is a file,
//! its `mod` line and a row here.

mod auto;
mod blockwise;
mod exact;
mod reusable;
mod sparse;

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use auto::{Alternative, AutoConfig};
pub use blockwise::{
    apb::{ApbConfig, FirstSkip},
    pulsar::{Positions, PulsarConfig},
    star::{AnchorContent, AnchorPosition, Permutation, RandomPositions, RandomTokens, StarConfig},
};
pub use exact::{
    chain::{APPENDED_TOKENS, ChainConfig},
    dense::DenseConfig,
    ring::{RingConfig, RingLayout},
    ulysses::UlyssesConfig,
};
pub use sparse::{
    anchor::AnchorConfig,
    flexprefill::FlexprefillConfig,
    minference::MinferenceConfig,
    streaming::{Phase2, StreamingConfig},
};

use crate::{Method, Plan, PlanError, PlanRequest};

/// Makes [`MethodConfig`] and its dispatch from one line a method.
macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident($config:ty),)+) => {
        /// A method and its sizes as typed: `{"star": {"block_tokens": 4096}}`, or the same as a TOML table.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        #[non_exhaustive]
        pub enum MethodConfig {
            $($(#[$doc])* $variant($config),)+
        }

        impl MethodConfig {
            /// Every method at its default sizes.
            pub fn all() -> Vec<Self> {
                vec![$(Self::$variant(<$config>::default())),+]
            }

            fn method(&self) -> &dyn Method {
                match self {
                    $(Self::$variant(config) => config,)+
                }
            }
        }
    };
}

methods! {
    /// Exact attention over the whole context on one host.
    Dense(DenseConfig),
    /// Star Attention: blocks behind an anchor, encoded without communication.
    Star(StarConfig),
    /// Pulsar Attention: blocks behind a sink and summaries of the blocks before.
    Pulsar(PulsarConfig),
    /// APB: blocks behind an anchor, passing compressed keys and values on.
    Apb(ApbConfig),
    /// AnchorAttention: one host, stripes chosen by scores.
    Anchor(AnchorConfig),
    /// Ring attention: exact, keys and values passed on.
    Ring(RingConfig),
    /// Ulysses: exact, heads split over hosts.
    Ulysses(UlyssesConfig),
    /// Exact attention that can be appended to: blocks on one host, each behind the kept keys of those before.
    Chain(ChainConfig),
    /// StreamingLLM: one host, a sink and a window.
    Streaming(StreamingConfig),
    /// MInference: one host, columns and diagonals.
    Minference(MinferenceConfig),
    /// FlexPrefill: one host, blocks up to a share of the mass.
    Flexprefill(FlexprefillConfig),
    /// Dense or the best cheap method, by the length of the context.
    Auto(AutoConfig),
}

impl MethodConfig {
    /// The name users type and metrics carry.
    pub fn name(&self) -> &'static str {
        self.method().name()
    }
}

impl Default for MethodConfig {
    fn default() -> Self {
        Self::Auto(AutoConfig::default())
    }
}

impl Method for MethodConfig {
    fn name(&self) -> &'static str {
        self.method().name()
    }

    fn review(&self, request: &PlanRequest) -> Result<(), PlanError> {
        answerable(request)?;
        self.method().review(request)
    }

    fn block_tokens(&self) -> Option<usize> {
        self.method().block_tokens()
    }

    fn retaining_heads(&self) -> Option<&str> {
        self.method().retaining_heads()
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        answerable(request)?;
        Ok(rotated(self.method().plan(request)?, request))
    }
}

/// The plan with its shards rotated for the length of all of it.
fn rotated(mut plan: Plan, request: &PlanRequest) -> Plan {
    let rope_length = request.shape.rope.stands_for(plan.length(request.query.len()));
    plan.shards.iter_mut().for_each(|shard| shard.rope_length = rope_length);
    plan
}

fn answerable(request: &PlanRequest) -> Result<(), PlanError> {
    match request {
        PlanRequest { context: [], .. } => Err(PlanError::EmptyContext),
        PlanRequest { hosts: 0, .. } => Err(PlanError::NoHosts),
        _ => Ok(()),
    }
}

/// A method by name, at its default sizes.
impl FromStr for MethodConfig {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        let all = Self::all();
        let known = all.iter().map(Self::name).collect::<Vec<_>>().join(", ");
        all.into_iter()
            .find(|method| method.name() == name)
            .ok_or_else(|| PlanError::UnknownMethod { name: name.to_owned(), known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_the_method() {
        let star: MethodConfig =
            serde_json::from_str(r#"{"star": {"block_tokens": 4096, "anchor_tokens": 64}}"#).unwrap();
        let sizes = StarConfig { block_tokens: Some(4096), anchor_tokens: Some(64), ..StarConfig::default() };
        assert_eq!(star, MethodConfig::Star(sizes));
        assert_eq!(serde_json::to_string(&star).unwrap(), r#"{"star":{"block_tokens":4096,"anchor_tokens":64}}"#);
        for method in MethodConfig::all() {
            let text = serde_json::to_string(&method).unwrap();
            assert_eq!(
                serde_json::from_str::<MethodConfig>(&format!("{{\"{}\":{{}}}}", method.name())).unwrap(),
                method
            );
            assert_eq!(serde_json::from_str::<MethodConfig>(&text).unwrap(), method);
            assert_eq!(method.name().parse::<MethodConfig>().unwrap(), method);
        }
    }

    #[test]
    fn unknown_keys_and_methods_are_refused() {
        for wrong in [r#"{"star": {"blocktokens": 1}}"#, r#"{"dense": {"block_tokens": 1}}"#, r#"{"comet": {}}"#] {
            assert!(serde_json::from_str::<MethodConfig>(wrong).is_err(), "{wrong}");
        }
        let error = "comet".parse::<MethodConfig>().unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"no attention method is called "comet"; known are dense, star, pulsar, apb, anchor, ring, ulysses, chain, streaming, minference, flexprefill, auto"#
        );
    }

    #[test]
    fn nothing_to_encode_and_nobody_to_encode_it() {
        for method in MethodConfig::all() {
            let shape = &crate::ModelShape::TINY;
            let empty = PlanRequest { context: &[], query: &[], hosts: 1, one_device: true, shape, speeds: None };
            assert_eq!(method.plan(&empty), Err(PlanError::EmptyContext));
            let alone = PlanRequest { context: &[1], hosts: 0, ..empty };
            assert_eq!(method.plan(&alone), Err(PlanError::NoHosts));
        }
    }
}
