//! One phase-1 forward pass of a plan: what it reads, and what is kept of it. Computes nothing.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use rkyv::Archive;
use serde::{Deserialize, Serialize};

use crate::{Input, LocalAttention, PlanError, RopeLength, Span, TokenIds, span::rows};

/// One phase-1 forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Shard {
    /// Index of the block in the context; also the shard's place in the merge.
    pub block: usize,
    /// Logical context host, `0..plan.hosts`.
    pub host: usize,
    /// What stands before the block: an anchor, or sink and summaries.
    pub prefix: Vec<Span>,
    /// The block.
    pub own: Span,
    /// Whether the prefix keeps its KV too; the block always does.
    pub keeps_prefix: bool,
    /// Rows at the beginning that other shards of a shared prefix compute in passes of their own: their attention is computed
    /// apart from the others' here too, where a row's bits depend on how many are computed with it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub apart_rows: usize,
    /// Which keys a row of this pass sees.
    pub attention: LocalAttention,
    /// The length of the sequence that its rotary embedding is of, as [`RopeLength::stands_for`] says.
    #[serde(default, skip_serializing_if = "RopeLength::is_any")]
    pub rope_length: u32,
}

fn is_none(rows: &usize) -> bool {
    *rows == 0
}

impl Shard {
    /// What its pass reads: the prefix, then the block.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.prefix.iter().copied().chain([self.own])
    }

    /// Ids and positions of what its pass reads, given those of the context.
    ///
    /// # Errors
    /// The first span of which ids are not known.
    pub fn input(&self, known: &(impl TokenIds + ?Sized)) -> Result<Input, Span> {
        Input::of(self.spans(), known)
    }

    /// Rows of its pass.
    pub fn rows(&self) -> usize {
        self.prefix_rows() + self.block_tokens()
    }

    /// Leading rows that are prefix; the others are the block.
    pub fn prefix_rows(&self) -> usize {
        rows(&self.prefix)
    }

    /// Tokens of the block.
    pub fn block_tokens(&self) -> usize {
        self.own.tokens as usize
    }

    /// The first row that keeps its KV; all later ones do.
    pub fn keep_from(&self) -> usize {
        if self.keeps_prefix { 0 } else { self.prefix_rows() }
    }

    /// Position of the first token whose KV is kept.
    pub fn keep_position(&self) -> u32 {
        self.prefix.first().filter(|_| self.keeps_prefix).unwrap_or(&self.own).position
    }

    /// Tokens whose KV is kept.
    pub fn kept_tokens(&self) -> usize {
        self.block_tokens() + if self.keeps_prefix { self.prefix_rows() } else { 0 }
    }

    pub(super) fn check(&self, block: usize, hosts: usize) -> Result<(), PlanError> {
        let broken = |what, expected, got| Err(PlanError::Broken { what, block, expected, got });
        if self.block != block {
            return broken("block number", block, self.block);
        }
        if self.host >= hosts {
            return broken("host number", hosts.saturating_sub(1), self.host);
        }
        if self.spans().any(|span| span.tokens == 0) {
            return broken("number of tokens of a span", 1, 0);
        }
        self.attention.check()
    }
}
