//! The sizes of a decoder that the cost of a plan depends on, and what a token costs of it. Knows no plan.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{RopeLength, attention::causal_pairs};

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
    /// Bytes of an element of a query, key or value as it is computed, and on the wire.
    pub kv_bytes_per_element: usize,
    /// Bytes of a kept key, or value, of one token of a head; 0 where its elements are kept as they are computed.
    #[serde(default, skip_serializing_if = "is_none")]
    pub kept_row_bytes: usize,
    /// How its rotary frequencies depend on the length of the sequence.
    #[serde(default, skip_serializing_if = "RopeLength::is_fixed")]
    pub rope: RopeLength,
    /// Layers whose rows see the latest tokens alone.
    #[serde(default, skip_serializing_if = "is_none")]
    pub windowed_layers: usize,
    /// How many these are, their own included; 0 where there is no such layer.
    #[serde(default, skip_serializing_if = "is_none")]
    pub window: usize,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The heads that one host attends with when heads are split over hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadShare {
    /// Query heads.
    pub query: Range<usize>,
    /// The KV heads they read.
    pub kv: Range<usize>,
}

impl ModelShape {
    /// A shape for tests and examples: sizes of no real model.
    pub const TINY: Self = Self {
        layers: 4,
        query_heads: 8,
        kv_heads: 2,
        head_dim: 16,
        hidden: 128,
        intermediate: 256,
        vocab: 512,
        kv_bytes_per_element: 4,
        kept_row_bytes: 0,
        rope: RopeLength::Any,
        windowed_layers: 0,
        window: 0,
    };

    /// Whether rows of some layers see the latest tokens alone.
    pub fn has_windows(&self) -> bool {
        self.windowed_layers > 0
    }

    /// Bytes of KV that one token keeps over all layers.
    pub fn kv_bytes_per_token(&self) -> u64 {
        match self.kept_row_bytes {
            0 => self.layers as u64 * self.layer_kv_bytes(),
            row => (2 * self.layers * self.kv_heads * row) as u64,
        }
    }

    /// Bytes of one token's keys and values in one layer, as shards pass them to each other.
    pub fn layer_kv_bytes(&self) -> u64 {
        (2 * self.kv_heads * self.head_dim * self.kv_bytes_per_element) as u64
    }

    /// Floating-point operations of one token through the linear parts of all layers: projections and MLP.
    pub fn linear_flops_per_token(&self) -> u64 {
        let (query, kv) = (self.query_heads * self.head_dim, self.kv_heads * self.head_dim);
        let weights = self.hidden * (query + 2 * kv) + query * self.hidden + 3 * self.hidden * self.intermediate;
        (2 * self.layers * weights) as u64
    }

    /// Floating-point operations of one token's query, key and value projections in one layer.
    pub fn projection_flops_per_token(&self) -> u64 {
        (2 * self.hidden * (self.query_heads + 2 * self.kv_heads) * self.head_dim) as u64
    }

    /// Bytes of one token's queries in one layer.
    pub fn layer_query_bytes(&self) -> u64 {
        (self.query_heads * self.head_dim * self.kv_bytes_per_element) as u64
    }

    /// Consecutive query heads of each of `shares` hosts, and the KV heads they read, replicated when there are fewer.
    pub fn head_shares(&self, shares: usize) -> Vec<HeadShare> {
        let (each, group) = (self.query_heads / shares, self.query_heads / self.kv_heads);
        let share = |share: usize| {
            let query = share * each..(share + 1) * each;
            HeadShare { kv: query.start / group..(query.end - 1) / group + 1, query }
        };
        (0..shares).map(share).collect()
    }

    /// Pairs that dense attention over `tokens` computes in phase 1, over all query heads and all layers but the last, whose
    /// rows feed nothing.
    pub fn computed_dense_pairs(&self, tokens: usize) -> u64 {
        causal_pairs(tokens).saturating_mul((self.query_heads * (self.layers - 1)) as u64)
    }

    /// Floating-point operations of `tokens` through all layers with `pairs` (row, key) pairs a head.
    pub fn flops(&self, tokens: usize, pairs: u64) -> u64 {
        let pairs = pairs.saturating_mul((self.layers * self.query_heads) as u64);
        let linear = self.linear_flops_per_token().saturating_mul(tokens as u64);
        linear.saturating_add(pairs.saturating_mul(self.attention_flops_per_pair()))
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
