//! The attention methods, one a file, behind one trait. What a method does is in its file alone.

mod dense;
mod star;

use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use dense::DenseConfig;
pub use star::{AnchorContent, AnchorPosition, StarConfig};

use crate::{Plan, PlanError, PlanRequest};

/// An attention method with its sizes resolved.
pub trait Method {
    /// The name users type and metrics carry.
    fn name(&self) -> &'static str;

    /// Shards, positions, kept KV and exchange for `request`.
    ///
    /// # Errors
    /// [`PlanError`] when the request or the method's sizes make no plan.
    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError>;
}

/// Makes [`MethodConfig`] and its dispatch from one line a method.
macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident($config:ty),)+) => {
        /// A method and its sizes as typed: `{"star": {"block_tokens": 4096}}`, or the same as a TOML table.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl MethodConfig {
    /// The name users type and metrics carry.
    pub fn name(&self) -> &'static str {
        self.method().name()
    }
}

impl Default for MethodConfig {
    fn default() -> Self {
        Self::Star(StarConfig::default())
    }
}

impl Method for MethodConfig {
    fn name(&self) -> &'static str {
        self.method().name()
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        if request.context.is_empty() {
            return Err(PlanError::EmptyContext);
        }
        if request.hosts == 0 {
            return Err(PlanError::NoHosts);
        }
        self.method().plan(request)
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
            assert_eq!(text, format!("{{\"{}\":{{}}}}", method.name()));
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
        assert_eq!(error.to_string(), r#"no attention method is called "comet"; known are dense, star"#);
    }

    #[test]
    fn nothing_to_encode_and_nobody_to_encode_it() {
        for method in MethodConfig::all() {
            let empty = PlanRequest { context: &[], query: &[], hosts: 1 };
            assert_eq!(method.plan(&empty), Err(PlanError::EmptyContext));
            let alone = PlanRequest { context: &[1], query: &[], hosts: 0 };
            assert_eq!(method.plan(&alone), Err(PlanError::NoHosts));
        }
    }
}
