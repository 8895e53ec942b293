//! What a plan costs, host by host: work, memory and bytes. Counts, not seconds: a device's speed is not known here.

mod exactness;
pub(crate) mod forecast;
mod shape;

use serde::{Deserialize, Serialize};

use crate::{Exchange, Plan, PlanError, Shard, TokenSet, attention::causal_pairs};
pub use exactness::exact_layers;
pub use shape::{HeadShare, ModelShape};

/// Bytes of an element of a partial on the wire: outputs and log-sum-exps travel in f32.
const F32_BYTES: u64 = 4;
/// Bytes of a token's id on the wire, and of a span of tokens.
const ID_BYTES: u64 = 4;
const SPAN_BYTES: u64 = 12;

/// What one context host spends on a plan. The last layer's rows feed nothing: their attention, MLP and exchange are
/// skipped, and not counted here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCost {
    /// Logical context host.
    pub host: usize,
    /// Shards it encodes.
    pub shards: usize,
    /// Tokens through the linear layers in phase 1, prefixes included.
    pub linear_tokens: u64,
    /// (query row, key) pairs in the softmaxes of one layer of phase 1, over all query heads, rows of prefixes included.
    pub layer_pairs: u64,
    /// The same over all layers that are computed.
    pub attention_pairs: u64,
    /// Floating-point operations of phase 1.
    pub flops: u64,
    /// Context tokens whose KV it keeps.
    pub kept_tokens: u64,
    /// Bytes of KV it keeps.
    pub kv_bytes: u64,
    /// Bytes it receives to start phase 1: each token's id once, and the spans of its shards.
    pub input_bytes: u64,
    /// Bytes of tensors it receives from other hosts in one layer of phase 1.
    pub layer_exchange_bytes: u64,
    /// The same over all layers that are computed.
    pub exchange_bytes: u64,
    /// Bytes to and from it for each token of phase 2: queries in; an output and a log-sum-exp back, its
    /// shards merged.
    pub step_bytes_per_token: u64,
}

/// What a plan costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// One entry a context host, idle ones included.
    pub hosts: Vec<HostCost>,
    /// Whether scores choose keys at run time, so that pairs and operations are the most there can be.
    pub at_most: bool,
    /// Phase-1 pairs over all hosts and all layers, the last included, as the methods' authors count.
    pub prefill_pairs: u64,
    /// Pairs of dense attention over the same context, all layers.
    pub dense_pairs: u64,
    /// Operations of the query host for each token of phase 2, attention apart.
    pub step_flops_per_token: u64,
}

impl Cost {
    /// The cost of carrying `plan` out on a model of this `shape`.
    pub fn of(plan: &Plan, shape: &ModelShape) -> Self {
        let mut hosts: Vec<_> = (0..plan.hosts).map(|host| HostCost { host, ..HostCost::default() }).collect();
        let mut read = vec![TokenSet::default(); plan.hosts];
        let mut given = Given { by_host: vec![0; plan.hosts], all: 0 };
        for shard in &plan.shards {
            let host = &mut hosts[shard.host];
            host.add(plan, shard, given.all, shape);
            for span in shard.sources() {
                read[shard.host].add(span.range());
            }
            // What the last of its shards sees, it has received.
            host.layer_exchange_bytes = received_bytes(plan, shard, &given, shape);
            given.add(shard.host, passed_tokens(plan, shard));
        }
        for (host, read) in hosts.iter_mut().zip(read) {
            host.input_bytes += read.tokens() * ID_BYTES;
            host.layer_exchange_bytes += exported_bytes(plan, host.host, shape);
            host.finish(shape);
        }
        Self {
            prefill_pairs: shape.layers as u64 * hosts.iter().map(|host| host.layer_pairs).sum::<u64>(),
            dense_pairs: (shape.layers * shape.query_heads) as u64 * causal_pairs(plan.context_tokens),
            at_most: plan.shards.iter().any(|shard| shard.attention.is_chosen_at_run_time()),
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
    fn add(&mut self, plan: &Plan, shard: &Shard, before: usize, shape: &ModelShape) {
        let (tokens, kept, heads) = (shard.rows() as u64, shard.kept_tokens() as u64, shape.query_heads as u64);
        if self.shards == 0 {
            // Its shards are a merge group: it answers by one partial.
            let partial = heads * (shape.head_dim as u64 + 1) * F32_BYTES;
            self.step_bytes_per_token = (shape.layer_query_bytes() + partial) * shape.layers as u64;
        }
        self.shards += 1;
        self.linear_tokens += tokens;
        self.layer_pairs += match plan.exchange {
            // Every shard takes an equal share of the heads, over all rows.
            Exchange::AllToAll => heads / plan.shards.len() as u64 * causal_pairs(plan.context_tokens),
            _ => heads * visible_pairs(plan, shard, before),
        };
        self.kept_tokens += kept;
        self.kv_bytes += kept * shape.kv_bytes_per_token();
        self.input_bytes += shard.spans().count() as u64 * SPAN_BYTES;
    }

    fn finish(&mut self, shape: &ModelShape) {
        let computed = shape.layers as u64 - 1;
        self.attention_pairs = self.layer_pairs.saturating_mul(computed);
        self.exchange_bytes = computed * self.layer_exchange_bytes;
        let linear =
            shape.linear_flops_per_token() / shape.layers as u64 * computed + shape.projection_flops_per_token();
        let attention = self.attention_pairs.saturating_mul(shape.attention_flops_per_pair());
        self.flops = self.linear_tokens.saturating_mul(linear).saturating_add(attention);
    }
}

/// Tokens whose keys and values `shard` gives to later ones in each layer.
fn passed_tokens(plan: &Plan, shard: &Shard) -> usize {
    match &plan.exchange {
        Exchange::None | Exchange::AllToAll => 0,
        Exchange::SharedPrefix { sink_rows } => shard.prefix_rows() + if shard.block == 0 { *sink_rows } else { 0 },
        Exchange::PassCompressed(passing) => passing.passed_tokens(shard),
        Exchange::Broadcast => shard.rows(),
    }
}

/// What messages can carry.
#[derive(Clone, Copy, Debug)]
pub struct Carried {
    /// Bytes of what a shard passes another in a layer.
    pub parcel_bytes: u64,
    /// Spans of an order.
    pub order_spans: u64,
}

impl Carried {
    /// Whether messages can carry a plan: what a shard passes another in a layer, and the spans that an order names.
    ///
    /// # Errors
    /// [`PlanError::TooLarge`] with what cannot be carried.
    pub fn check(&self, plan: &Plan, shape: &ModelShape) -> Result<(), PlanError> {
        let refused = |what, unit, got, most| Err(PlanError::TooLarge { what, unit, got, most });
        let passed = plan.shards.iter().map(|shard| passed_bytes(plan, shard, shape)).max().unwrap_or(0);
        if passed > self.parcel_bytes {
            return refused("what a shard passes others in a layer", "bytes", passed, self.parcel_bytes);
        }
        let spans = |shard: &Shard| shard.spans().count() as u64;
        // Shards that pass each other something may all go to one host in one order.
        let spans = match plan.exchange {
            Exchange::None => plan.shards.iter().map(spans).max().unwrap_or(0),
            _ => plan.shards.iter().map(spans).sum(),
        };
        if spans > self.order_spans {
            return refused("an order", "ranges of the context", spans, self.order_spans);
        }
        Ok(())
    }
}

/// Bytes of the largest parcel of a shard in one layer.
fn passed_bytes(plan: &Plan, shard: &Shard, shape: &ModelShape) -> u64 {
    if plan.exchange == Exchange::AllToAll {
        let each = |share: &HeadShare| (share.query.len() + 2 * share.kv.len()) as u64;
        let heads = shape.head_shares(plan.shards.len()).iter().map(each).max().unwrap_or(0);
        return shard.rows() as u64 * heads * (shape.head_dim * shape.kv_bytes_per_element) as u64;
    }
    passed_tokens(plan, shard) as u64 * shape.layer_kv_bytes()
}

/// (row, key) pairs of one head in one layer, of a shard that sees so many tokens of those before it.
fn visible_pairs(plan: &Plan, shard: &Shard, before: usize) -> u64 {
    let (rows, prefix, block) = (shard.rows(), shard.prefix_rows(), shard.block_tokens());
    match &plan.exchange {
        Exchange::None | Exchange::AllToAll => shard.attention.pairs(rows) + (rows * shard.behind) as u64,
        Exchange::SharedPrefix { sink_rows } => {
            let before_own = if shard.block == 0 { *sink_rows } else { before };
            let own = (prefix * before_own) as u64 + causal_pairs(prefix);
            own + (block * before) as u64 + causal_pairs(block)
        }
        Exchange::PassCompressed(_) => shard.attention.pairs(rows) + (block * before) as u64,
        Exchange::Broadcast => causal_pairs(rows) + (rows * before) as u64,
    }
}

/// Tokens whose keys and values the shards so far give to later ones in each layer.
struct Given {
    by_host: Vec<usize>,
    all: usize,
}

impl Given {
    fn add(&mut self, host: usize, tokens: usize) {
        self.by_host[host] += tokens;
        self.all += tokens;
    }
}

/// Bytes of tensors that the host of its `last` shard receives from other hosts in one layer, of shards before that: once
/// each, however many of its shards use them.
fn received_bytes(plan: &Plan, last: &Shard, given: &Given, shape: &ModelShape) -> u64 {
    if plan.exchange == Exchange::AllToAll {
        // In: a share of every other shard's heads. Back: the other shares' outputs of the own rows.
        let own = last.rows();
        let HeadShare { query, kv } = shape.head_shares(plan.shards.len()).swap_remove(last.block);
        let others = plan.context_tokens - own;
        let heads = others * (query.len() + 2 * kv.len()) + own * (shape.query_heads - query.len());
        return (heads * shape.head_dim * shape.kv_bytes_per_element) as u64;
    }
    let taken = given.all - given.by_host[last.host];
    taken as u64 * shape.layer_kv_bytes()
}

/// Bytes of the queries that the second shard lends the first, where APB scores by them.
fn exported_bytes(plan: &Plan, host: usize, shape: &ModelShape) -> u64 {
    match (&plan.exchange, plan.shards.as_slice()) {
        (Exchange::PassCompressed(passing), [first, second, ..]) if first.host == host && second.host != host => {
            passing.exported_rows() as u64 * shape.layer_query_bytes()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Method, MethodConfig, PlanRequest, RopeLength};

    const LLAMA_8B: ModelShape = ModelShape {
        layers: 32,
        query_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        hidden: 4096,
        intermediate: 14336,
        vocab: 128_256,
        kv_bytes_per_element: 2,
        kept_row_bytes: 0,
        rope: RopeLength::Any,
        windowed_layers: 0,
        window: 0,
    };

    fn cost(method: &str, hosts: usize) -> Cost {
        let context: Vec<u32> = (0..131_072).map(|token| token * 7919 % 100_003).collect();
        let request = PlanRequest {
            context: &context,
            query: &[1; 64],
            hosts,
            one_device: false,
            shape: &LLAMA_8B,
            speeds: None,
        };
        let method: MethodConfig = serde_json::from_str(method).unwrap();
        Cost::of(&method.plan(&request).unwrap(), &LLAMA_8B)
    }

    /// The critical host as the methods' authors count it, the last layer included.
    fn line(method: &str, hosts: usize) -> String {
        let cost = cost(method, hosts);
        let host = cost.hosts.iter().max_by_key(|host| (host.flops, host.layer_exchange_bytes)).unwrap();
        let attention = 32 * host.layer_pairs * LLAMA_8B.attention_flops_per_pair();
        let linear = host.linear_tokens * LLAMA_8B.linear_flops_per_token();
        let received = cost.hosts.iter().map(|host| host.layer_exchange_bytes).max().unwrap();
        format!(
            "{:>6} tokens {:.2e} pairs {:.2e} + {:.2e} = {:.2e} flops, {:>3.0} MB a layer  {method} on {hosts}\n",
            host.linear_tokens,
            host.layer_pairs as f64 / 32.0,
            attention as f64,
            linear as f64,
            (attention + linear) as f64,
            received as f64 / 1e6,
        )
    }

    #[test]
    fn llama_8b_at_128k() {
        let lines: String = [
            (r#"{"dense": {}}"#, 1),
            (r#"{"ring": {"layout": "contiguous"}}"#, 8),
            (r#"{"ring": {"layout": "zigzag"}}"#, 8),
            (r#"{"ulysses": {}}"#, 8),
            (r#"{"star": {}}"#, 8),
            (r#"{"star": {"anchor_tokens": 4096}}"#, 8),
            (r#"{"star": {"shared_prefix": true}}"#, 8),
            (r#"{"pulsar": {"heuristic": "max-idf"}}"#, 8),
            (r#"{"pulsar": {"heuristic": "max-idf", "shared_prefix": true}}"#, 8),
            (r#"{"apb": {"anchor_tokens": 4096, "passing_tokens": 2048}}"#, 8),
            (r#"{"ring": {"layout": "zigzag"}}"#, 4),
            (r#"{"star": {}}"#, 4),
        ]
        .map(|(method, hosts)| line(method, hosts))
        .concat();
        // The published sizes of each method; 64 query tokens, of which none counts.
        insta::assert_snapshot!(lines, @r#"
        131072 tokens 8.59e9 pairs 4.50e15 + 1.83e15 = 6.33e15 flops,   0 MB a layer  {"dense": {}} on 1
         16384 tokens 2.01e9 pairs 1.06e15 + 2.29e14 = 1.28e15 flops, 470 MB a layer  {"ring": {"layout": "contiguous"}} on 8
         16384 tokens 1.07e9 pairs 5.63e14 + 2.29e14 = 7.92e14 flops, 470 MB a layer  {"ring": {"layout": "zigzag"}} on 8
         16384 tokens 1.07e9 pairs 5.63e14 + 2.29e14 = 7.92e14 flops, 294 MB a layer  {"ulysses": {}} on 8
         32768 tokens 5.37e8 pairs 2.81e14 + 4.57e14 = 7.39e14 flops,   0 MB a layer  {"star": {}} on 8
         20480 tokens 2.10e8 pairs 1.10e14 + 2.86e14 = 3.96e14 flops,   0 MB a layer  {"star": {"anchor_tokens": 4096}} on 8
         16384 tokens 4.03e8 pairs 2.11e14 + 2.29e14 = 4.40e14 flops,  67 MB a layer  {"star": {"shared_prefix": true}} on 8
         30784 tokens 4.74e8 pairs 2.48e14 + 4.30e14 = 6.78e14 flops,   0 MB a layer  {"pulsar": {"heuristic": "max-idf"}} on 8
         18432 tokens 3.64e8 pairs 1.91e14 + 2.57e14 = 4.48e14 flops,  59 MB a layer  {"pulsar": {"heuristic": "max-idf", "shared_prefix": true}} on 8
         20480 tokens 4.45e8 pairs 2.33e14 + 2.86e14 = 5.19e14 flops,  59 MB a layer  {"apb": {"anchor_tokens": 4096, "passing_tokens": 2048}} on 8
         32768 tokens 2.15e9 pairs 1.13e15 + 4.57e14 = 1.58e15 flops, 403 MB a layer  {"ring": {"layout": "zigzag"}} on 4
         65536 tokens 2.15e9 pairs 1.13e15 + 9.15e14 = 2.04e15 flops,   0 MB a layer  {"star": {}} on 4
        "#);
    }

    #[test]
    fn what_cannot_be_carried_is_refused() {
        let context: Vec<u32> = (0..300_000).collect();
        let refusal = |method: &str, most: Carried| {
            let shape = &LLAMA_8B;
            let request =
                PlanRequest { context: &context, query: &[], hosts: 2, one_device: true, shape, speeds: None };
            let method: MethodConfig = serde_json::from_str(method).unwrap();
            let checked = most.check(&method.plan(&request).unwrap(), shape);
            checked.err().map(|error| format!("{}: {error}", error.code()))
        };
        let most = Carried { parcel_bytes: 256 << 20, order_spans: 1000 };
        let ring = r#"{"ring": {"layout": "contiguous"}}"#;
        insta::assert_snapshot!(refusal(ring, most).unwrap(), @"plan_too_large: what a shard passes others in a layer of this plan has 614400000 bytes, expected at most 268435456; use more hosts or smaller blocks, or another method");
        assert_eq!(refusal(ring, Carried { parcel_bytes: 4 << 30, ..most }), None);
        assert_eq!(refusal(r#"{"star": {"anchor_tokens": 64}}"#, most), None);
        let few = Carried { order_spans: 100, ..most };
        let pulsar = refusal(r#"{"pulsar": {"heuristic": "max-idf", "ties": "strided"}}"#, few).unwrap();
        assert!(pulsar.starts_with("plan_too_large: an order"), "{pulsar}");
    }

    #[test]
    fn the_last_layer_is_projected_only() {
        let dense = cost(r#"{"dense": {}}"#, 8);
        assert_eq!(dense.sparsity(), 0.0);
        let host = &dense.hosts[0];
        assert_eq!(host.attention_pairs, 31 * 32 * causal_pairs(131_072));
        assert_eq!(dense.prefill_pairs, 32 * 32 * causal_pairs(131_072));
        let linear = 31 * LLAMA_8B.linear_flops_per_token() / 32 + 2 * 4096 * 6144;
        assert_eq!(host.flops, 131_072 * linear + host.attention_pairs * 4 * 128);
    }

    #[test]
    fn a_step_sends_a_query_and_brings_partials() {
        assert_eq!(LLAMA_8B.kv_bytes_per_token(), 128 * 1024);
        let star = cost(r#"{"star": {}}"#, 8);
        let critical = star.critical_host().unwrap();
        assert_eq!(critical.kv_bytes, 16_384 * 128 * 1024);
        // Per layer: a query of 8 KiB in, an f32 output of 16 KiB and 32 log-sum-exps back.
        assert_eq!(critical.step_bytes_per_token, 32 * (8192 + 16_384 + 128));
        let small = cost(r#"{"star": {"block_tokens": 1024, "anchor_tokens": 64}}"#, 8);
        assert_eq!(small.critical_host().unwrap().shards, 16);
        assert_eq!(small.critical_host().unwrap().step_bytes_per_token, critical.step_bytes_per_token);
    }
}
