//! What a plan costs, host by host: work, memory and bytes. Counts, not seconds: a device's speed is not known here.

use serde::{Deserialize, Serialize};

use crate::{LocalAttention, Plan, Shard};

/// Bytes of one log-sum-exp on the wire.
const LSE_BYTES: u64 = 4;
/// Bytes of one phase-1 input token on the wire: its id and its position.
const INPUT_BYTES: u64 = 8;

/// The sizes of a decoder that its cost depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub query_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of the residual stream.
    pub hidden: usize,
    /// Elements inside the gated MLP.
    pub intermediate: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Bytes of an element of a cached key, and of a query or attention output on the wire.
    pub kv_bytes_per_element: usize,
}

impl ModelShape {
    /// Bytes of KV that one token keeps over all layers.
    pub fn kv_bytes_per_token(&self) -> u64 {
        (2 * self.layers * self.kv_heads * self.head_dim * self.kv_bytes_per_element) as u64
    }

    /// Floating-point operations of one token through the linear parts of all layers: projections and MLP.
    pub fn linear_flops_per_token(&self) -> u64 {
        let (query, kv) = (self.query_heads * self.head_dim, self.kv_heads * self.head_dim);
        let weights = self.hidden * (query + 2 * kv) + query * self.hidden + 3 * self.hidden * self.intermediate;
        (2 * self.layers * weights) as u64
    }

    /// Floating-point operations of one (query row, key) pair of one head: score and weighted value.
    pub fn attention_flops_per_pair(&self) -> u64 {
        4 * self.head_dim as u64
    }

    /// Floating-point operations that one token of phase 2 costs the query host, attention apart.
    pub fn step_flops_per_token(&self) -> u64 {
        self.linear_flops_per_token() + (2 * self.hidden * self.vocab) as u64
    }
}

/// What one context host spends on a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCost {
    /// Logical context host.
    pub host: usize,
    /// Shards it encodes.
    pub shards: usize,
    /// Tokens through the linear layers in phase 1, prefixes included.
    pub linear_tokens: u64,
    /// (query row, key) pairs in phase-1 softmaxes over all layers and query heads, rows of prefixes included.
    pub attention_pairs: u64,
    /// Floating-point operations of phase 1.
    pub flops: u64,
    /// Context tokens whose KV it keeps.
    pub kept_tokens: u64,
    /// Bytes of KV it keeps.
    pub kv_bytes: u64,
    /// Bytes it receives to start phase 1: token and position ids.
    pub input_bytes: u64,
    /// Bytes to and from it for each token of phase 2: queries in; per shard an output and a log-sum-exp back.
    pub step_bytes_per_token: u64,
}

/// What a plan costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// One entry a context host, idle ones included.
    pub hosts: Vec<HostCost>,
    /// Phase-1 pairs over all hosts.
    pub prefill_pairs: u64,
    /// Pairs of dense attention over the same context.
    pub dense_pairs: u64,
    /// Operations of the query host for each token of phase 2, attention apart.
    pub step_flops_per_token: u64,
}

impl Cost {
    /// The cost of carrying `plan` out on a model of this `shape`.
    pub fn of(plan: &Plan, shape: &ModelShape) -> Self {
        let mut hosts: Vec<_> = (0..plan.hosts).map(|host| HostCost { host, ..HostCost::default() }).collect();
        for shard in &plan.shards {
            hosts[shard.host].add(shard, shape);
        }
        Self {
            prefill_pairs: hosts.iter().map(|host| host.attention_pairs).sum(),
            dense_pairs: heads(shape) * causal_pairs(plan.context_tokens),
            step_flops_per_token: shape.step_flops_per_token(),
            hosts,
        }
    }

    /// The host with the most phase-1 work: encoding ends when it does.
    pub fn critical_host(&self) -> Option<&HostCost> {
        self.hosts.iter().max_by_key(|host| host.flops)
    }

    /// Phase-1 pairs saved over dense attention, `1 - prefill / dense`; below zero when prefixes cost more than blocks save.
    pub fn sparsity(&self) -> f64 {
        1.0 - self.prefill_pairs as f64 / self.dense_pairs as f64
    }
}

impl HostCost {
    fn add(&mut self, shard: &Shard, shape: &ModelShape) {
        let (tokens, kept) = (shard.input_ids.len() as u64, shard.kept_tokens() as u64);
        let pairs = heads(shape) * visible_pairs(shard);
        let output_bytes = (shape.head_dim * shape.kv_bytes_per_element) as u64;
        if self.shards == 0 {
            self.step_bytes_per_token += heads(shape) * output_bytes;
        }
        self.shards += 1;
        self.linear_tokens += tokens;
        self.attention_pairs += pairs;
        self.flops += tokens * shape.linear_flops_per_token() + pairs * shape.attention_flops_per_pair();
        self.kept_tokens += kept;
        self.kv_bytes += kept * shape.kv_bytes_per_token();
        self.input_bytes += tokens * INPUT_BYTES;
        self.step_bytes_per_token += heads(shape) * (output_bytes + LSE_BYTES);
    }
}

/// Query heads over all layers.
fn heads(shape: &ModelShape) -> u64 {
    (shape.layers * shape.query_heads) as u64
}

/// (row, key) pairs of one head in one layer.
fn visible_pairs(shard: &Shard) -> u64 {
    match shard.attention {
        LocalAttention::Causal => causal_pairs(shard.input_ids.len()),
    }
}

fn causal_pairs(tokens: usize) -> u64 {
    let tokens = tokens as u64;
    tokens * (tokens + 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Method, MethodConfig, PlanRequest, methods::StarConfig};

    const LLAMA_8B: ModelShape = ModelShape {
        layers: 32,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        hidden: 4096,
        intermediate: 14336,
        vocab: 128_256,
        kv_bytes_per_element: 2,
    };

    fn cost(method: MethodConfig, hosts: usize) -> Cost {
        let context = vec![0; 131_072];
        Cost::of(&method.plan(&PlanRequest { context: &context, query: &[], hosts }).unwrap(), &LLAMA_8B)
    }

    /// `a` to three digits.
    fn rounded(a: u64) -> String {
        format!("{:.2e}", a as f64)
    }

    #[test]
    fn llama_8b_at_128k() {
        assert_eq!(LLAMA_8B.kv_bytes_per_token(), 128 * 1024);
        let dense = cost(MethodConfig::Dense(Default::default()), 8);
        assert_eq!(rounded(dense.dense_pairs / (32 * 32)), "8.59e9");
        assert_eq!(dense.sparsity(), 0.0);
        assert_eq!(rounded(dense.hosts[0].flops), "6.33e15");

        let star = cost(MethodConfig::Star(StarConfig::default()), 8);
        let critical = star.critical_host().unwrap();
        assert_eq!(critical.linear_tokens, 32_768);
        assert_eq!(rounded(critical.attention_pairs / (32 * 32)), "5.37e8");
        assert_eq!(rounded(critical.flops), "7.39e14");
        assert_eq!(critical.kv_bytes, 16_384 * 128 * 1024);
        // Per layer: a query of 8 KiB in, an output of 8 KiB and 32 log-sum-exps back.
        assert_eq!(critical.step_bytes_per_token, 32 * (8192 + 8192 + 128));
    }
}
