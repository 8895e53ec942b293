//! Exact attention unless the most accurate of the cheap methods saves enough of its work. What each would cost decides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    blockwise::pulsar::PulsarConfig,
    exact::{chain::ChainConfig, dense::DenseConfig},
};
use crate::{Choice, Conditions, Cost, Forecast, Method, Plan, PlanError, PlanRequest};

/// Context tokens below which no plan but dense's is looked at: summaries need 1,152 tokens, so that none is cheaper.
const DENSE_BELOW_TOKENS: usize = 2048;

/// Blocks are no smaller than this, however many the hosts: some are then left idle. Blocks of 256 tokens lose facts that are
/// spread over a few hundred.
const LEAST_CHOSEN_BLOCK: usize = 512;

/// Tokens of the blocks of a session that is too long to be exact. Of 160 questions about 30k tokens, a model of 1.5 billion parameters
/// answered 46% by exact keys, 48% by blocks of 4,096 tokens and 41% by blocks of 1,024, an eighth of either encoded anew for each.
const LONG_SESSION_BLOCK: usize = 4096;

/// Questions that a session is taken to be asked: what they cost beside its encoding counts as much as that.
const SESSION_QUESTIONS: f64 = 16.0;

/// What an approximation has to save of exact attention's work: below it, what is lost of an answer buys too little. By it models
/// of 1.5 billion parameters are exact up to 32k tokens on one device, of 8 billion up to 48k.
const LEAST_SAVING: f64 = 0.35;

/// Where to change over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AutoConfig {
    /// Contexts with fewer tokens are encoded dense, whatever that costs.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(deserialize_with = "crate::size::size")]
    #[schemars(range(max = crate::size::MOST))]
    pub dense_below_tokens: usize,
    /// The part of exact attention's work in phase 1, from 0 to 1, that an approximation has to save.
    #[serde(skip_serializing_if = "is_least_saving")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub least_saving: f64,
}

impl Default for AutoConfig {
    fn default() -> Self {
        Self { dense_below_tokens: DENSE_BELOW_TOKENS, least_saving: LEAST_SAVING }
    }
}

fn is_default(tokens: &usize) -> bool {
    *tokens == DENSE_BELOW_TOKENS
}

fn is_least_saving(part: &f64) -> bool {
    *part == LEAST_SAVING
}

/// A plan that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// Its method.
    pub method: String,
    /// Whether it is the one taken.
    pub taken: bool,
    /// (row, key) pairs that phase 1 computes, over all hosts: [`HostCost::attention_pairs`](crate::HostCost::attention_pairs).
    pub pairs: u64,
    /// Operations of phase 1, over all hosts.
    pub flops: u64,
    /// Seconds of phase 1, where the speeds are known.
    pub encode_s: Option<f64>,
    /// Why it was taken, or was not.
    pub why: String,
}

impl Method for AutoConfig {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        if !(0.0..=1.0).contains(&self.least_saving) {
            let (expected, got) = ("a part from 0 to 1".into(), self.least_saving.to_string());
            return Err(PlanError::Size { name: "least_saving", expected, got });
        }
        if let Some(reason) = self.needs_dense(request) {
            return Ok(because(exact(request)?, reason));
        }
        let split = split(request)?;
        if request.query.is_empty() {
            return session(split, request);
        }
        let (of, dense) = (extent(request), DenseConfig {}.plan(request)?);
        if let Some(reason) = self.saves_too_little(&split, &dense, request) {
            return Ok(because(dense, format!("{of}: {reason}")));
        }
        Ok(because(split, format!("{of}: blocks behind summaries of chunks that the query asks for")))
    }
}

impl AutoConfig {
    /// The plans between which it chooses, the one taken first, and why the other is not.
    ///
    /// # Errors
    /// When there is no plan.
    pub fn alternatives(&self, request: &PlanRequest) -> Result<Vec<Alternative>, PlanError> {
        let taken = self.plan(request)?;
        let (dense, split) = match request.query.is_empty() {
            true => (ChainConfig::default().plan(request)?, split(request)?),
            false => (DenseConfig {}.plan(request)?, split(request)?),
        };
        let reason = taken.method.reason.clone().unwrap_or_default();
        let (other, why) = match taken.method.name == dense.method.name {
            true => (split, self.needs_dense(request).unwrap_or_else(|| reason.clone())),
            false => {
                let [cheap, dear] = [&taken, &dense].map(|plan| Cost::of(plan, request.shape));
                let part = percent(cheap.prefill_pairs, dear.prefill_pairs);
                (dense, format!("the one taken computes {part} of its pairs; no answer gets better by more"))
            }
        };
        Ok(vec![looked_at(&taken, true, reason, request), looked_at(&other, false, why, request)])
    }

    /// Why no plan but dense's is looked at, if so.
    fn needs_dense(&self, request: &PlanRequest) -> Option<String> {
        let (tokens, limit) = (request.context.len(), self.dense_below_tokens);
        if request.hosts == 1 && request.query.is_empty() {
            return Some("a session on one context host: nothing to split over".to_owned());
        }
        (tokens < limit).then(|| format!("{tokens} context tokens are fewer than {limit}"))
    }

    /// Why `split` is not worth what it loses. It computes no more (row, key) pairs than `dense`, and saves its part of the seconds,
    /// where the speeds are known, or else of the operations: of all hosts where they share a device, of the busiest where each has
    /// its own.
    fn saves_too_little(&self, split: &Plan, dense: &Plan, request: &PlanRequest) -> Option<String> {
        let [split, dense] = [split, dense].map(|plan| Cost::of(plan, request.shape));
        let most = 1.0 - self.least_saving;
        let worth = format!("they are worth it from {:.0}% down", 100.0 * most);
        if split.prefill_pairs > dense.prefill_pairs {
            let part = percent(split.prefill_pairs, dense.prefill_pairs);
            return Some(format!("blocks would take {part} of dense attention's pairs"));
        }
        if let (Some(split), Some(dense)) = (encode_s(&split, request), encode_s(&dense, request)) {
            let takes = || format!("blocks would take {split:.2} s to encode instead of {dense:.2} s; {worth}");
            return (split >= dense || split > most * dense).then(takes);
        }
        let (split, dense) = (operations(&split, request), operations(&dense, request));
        let takes = || format!("blocks would take {} of dense attention's operations; {worth}", percent(split, dense));
        (split >= dense || split as f64 > most * dense as f64).then(takes)
    }
}

/// Exact attention: over a context that may grow, in a form that grows with it.
fn exact(request: &PlanRequest) -> Result<Plan, PlanError> {
    match request.query.is_empty() {
        true => ChainConfig::default().plan(request),
        false => DenseConfig {}.plan(request),
    }
}

/// What is encoded, and by how many, in words.
fn extent(request: &PlanRequest) -> String {
    let hosts = request.hosts;
    format!("{} context tokens over {hosts} host{}", request.context.len(), if hosts == 1 { "" } else { "s" })
}

/// A session is encoded once and asked often: exact, where that costs no more than blocks do with what
/// [`SESSION_QUESTIONS`] questions get anew.
fn session(split: Plan, request: &PlanRequest) -> Result<Plan, PlanError> {
    let (tokens, of) = (request.context.len(), format!("a session of {}", extent(request)));
    if split.shards.len() == 1 {
        return Ok(because(exact(request)?, format!("{of}: exact, since it has one block")));
    }
    let Some(anew) = split.refresh.map(|rule| rule.tokens.min(tokens)).filter(|anew| *anew > 0) else {
        return Ok(because(split, format!("{of}: blocks behind the sink")));
    };
    let (exact, question) = (exact(request)?, PlanRequest { context: &request.context[..anew], hosts: 1, ..*request });
    let question = DenseConfig {}.plan(&question)?;
    let work = |plan: &Plan| phase1_work(plan, request);
    let blocks = work(&split) + SESSION_QUESTIONS * work(&question);
    Ok(match work(&exact) <= blocks {
        true => because(exact, format!("{of}: exact, for no more than blocks with {SESSION_QUESTIONS} questions cost")),
        false => because(split, format!("{of}: blocks behind the sink; each question gets {anew} tokens anew")),
    })
}

/// Seconds of phase 1 where the speeds are known, else operations: of all hosts where they share a device, of the
/// busiest where each has its own.
fn phase1_work(plan: &Plan, request: &PlanRequest) -> f64 {
    let cost = Cost::of(plan, request.shape);
    encode_s(&cost, request).unwrap_or_else(|| operations(&cost, request) as f64)
}

fn operations(cost: &Cost, request: &PlanRequest) -> u64 {
    match request.one_device {
        true => cost.hosts.iter().map(|host| host.flops).sum(),
        false => cost.critical_host().map_or(0, |host| host.flops),
    }
}

/// Blocks behind what stands for others. Those of a session stand on a grid whatever they cost here: a context that grows
/// keeps those that it has.
fn split(request: &PlanRequest) -> Result<Plan, PlanError> {
    let small = request.context.len().div_ceil(request.hosts) < LEAST_CHOSEN_BLOCK;
    let block_tokens = match request.query.is_empty() {
        true => Some(LONG_SESSION_BLOCK),
        false => small.then_some(LEAST_CHOSEN_BLOCK),
    };
    PulsarConfig { block_tokens, ..PulsarConfig::default() }.plan(request)
}

fn looked_at(plan: &Plan, taken: bool, why: String, request: &PlanRequest) -> Alternative {
    let cost = Cost::of(plan, request.shape);
    Alternative {
        method: plan.method.name.clone(),
        taken,
        pairs: cost.hosts.iter().map(|host| host.attention_pairs).sum(),
        flops: cost.hosts.iter().map(|host| host.flops).sum(),
        encode_s: encode_s(&cost, request),
        why,
    }
}

fn because(plan: Plan, reason: String) -> Plan {
    Plan { method: Choice { reason: Some(reason), ..plan.method }, ..plan }
}

/// Seconds of phase 1, where the speeds are known.
fn encode_s(cost: &Cost, request: &PlanRequest) -> Option<f64> {
    let devices: Vec<usize> = (0..request.hosts).map(|host| if request.one_device { 0 } else { host }).collect();
    let on = Conditions { shape: request.shape, devices: &devices, query_tokens: request.query.len().max(1) };
    Some(Forecast::of(cost, &on, request.speeds?).encode_s)
}

/// Rounded up, so that what is more than the whole says so.
fn percent(part: u64, whole: u64) -> String {
    format!("{}%", (u128::from(part) * 100).div_ceil(u128::from(whole.max(1))))
}
