//! Dense attention while it is the cheaper one, else the most accurate of the cheap methods. What each would cost decides.

use serde::{Deserialize, Serialize};

use super::{DenseConfig, Method, PulsarConfig};
use crate::{Choice, Conditions, Cost, Forecast, Plan, PlanError, PlanRequest, RefreshRule};

/// Context tokens below which no plan but dense's is looked at: summaries need 1,152 tokens, so that none is cheaper.
const DENSE_BELOW_TOKENS: usize = 2048;

/// Blocks are no smaller than this, however many the hosts: some are then left idle. Blocks of 256 tokens lose facts that are
/// spread over a few hundred.
const LEAST_BLOCK_TOKENS: usize = 512;

/// Where to change over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoConfig {
    /// Contexts with fewer tokens are encoded dense, whatever that costs.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(deserialize_with = "crate::size::size")]
    pub dense_below_tokens: usize,
}

impl Default for AutoConfig {
    fn default() -> Self {
        Self { dense_below_tokens: DENSE_BELOW_TOKENS }
    }
}

fn is_default(tokens: &usize) -> bool {
    *tokens == DENSE_BELOW_TOKENS
}

impl Method for AutoConfig {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let (tokens, hosts, limit) = (request.context.len(), request.hosts, self.dense_below_tokens);
        let dense = DenseConfig {}.plan(request)?;
        if hosts == 1 {
            return Ok(because(dense, "one context host: nothing to split over".to_owned()));
        }
        if tokens < limit {
            return Ok(because(dense, format!("{tokens} context tokens are fewer than {limit}")));
        }
        let block_tokens = (tokens.div_ceil(hosts) < LEAST_BLOCK_TOKENS).then_some(LEAST_BLOCK_TOKENS);
        let split = PulsarConfig { block_tokens, ..PulsarConfig::default() }.plan(request)?;
        if let Some(reason) = dearer(&split, &dense, request) {
            return Ok(because(dense, format!("{tokens} context tokens over {hosts} hosts: {reason}")));
        }
        let known = match split.refresh {
            Some(RefreshRule { tokens, .. }) => format!("rare chunks; each question gets {tokens} tokens anew"),
            None => "chunks that the query asks for".to_owned(),
        };
        let reason = format!("{tokens} context tokens over {hosts} hosts: blocks behind summaries of {known}");
        Ok(because(split, reason))
    }
}

fn because(plan: Plan, reason: String) -> Plan {
    Plan { method: Choice { reason: Some(reason), ..plan.method }, ..plan }
}

/// Why `split` costs more than `dense`. Never more (row, key) pairs; and of seconds, where the speeds are known, or else of
/// operations fewer: of all hosts where they share the cores of one machine, of the busiest where each has its own.
fn dearer(split: &Plan, dense: &Plan, request: &PlanRequest) -> Option<String> {
    let [split, dense] = [split, dense].map(|plan| Cost::of(plan, request.shape));
    if split.prefill_pairs > dense.prefill_pairs {
        return Some(format!(
            "split, {} of dense attention's pairs",
            percent(split.prefill_pairs, dense.prefill_pairs)
        ));
    }
    if let Some(speeds) = request.speeds {
        let machines: Vec<usize> = (0..request.hosts).map(|host| if request.one_machine { 0 } else { host }).collect();
        let on = Conditions { shape: request.shape, machines: &machines, query_tokens: request.query.len().max(1) };
        let [split, dense] = [split, dense].map(|cost| Forecast::of(&cost, &on, speeds).encode_s);
        return (split >= dense).then(|| format!("split, {split:.2} s to encode instead of {dense:.2} s"));
    }
    let work = |cost: &Cost| match request.one_machine {
        true => cost.hosts.iter().map(|host| host.flops).sum(),
        false => cost.critical_host().map_or(0, |host| host.flops),
    };
    let (split, dense) = (work(&split), work(&dense));
    (split >= dense).then(|| format!("split, {} of dense attention's operations", percent(split, dense)))
}

/// Rounded up, so that what is more than the whole says so.
fn percent(part: u64, whole: u64) -> String {
    format!("{}%", (u128::from(part) * 100).div_ceil(u128::from(whole.max(1))))
}
