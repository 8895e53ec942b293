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
    /// Tokens of the context whose keys its rows see beside those of its pass, as the shards before it keep them: none, or all
    /// that stand before the block. Such a shard is one of a chain: blocks of one size, and a last one that may be shorter.
    #[serde(default, skip_serializing_if = "is_none")]
    pub behind: usize,
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

    /// The tokens of which its keys and values are made: those of its pass, and those that stand behind it in a chain.
    pub fn sources(&self) -> impl Iterator<Item = Span> {
        (self.behind > 0).then(|| Span::in_place(0..self.behind)).into_iter().chain(self.spans())
    }

    /// Ids and positions of what its pass reads, and ids of what stands behind it, given those of the context.
    ///
    /// # Errors
    /// The first span of which ids are not known.
    pub fn input(&self, known: &(impl TokenIds + ?Sized)) -> Result<Input, Span> {
        let mut input = Input::of(self.spans(), known)?;
        if self.behind > 0 {
            let behind = Span::in_place(0..self.behind);
            input.behind = known.ids(behind.start, behind.tokens).ok_or(behind)?.to_vec();
        }
        Ok(input)
    }

    /// The shards of a chain before this one, in order.
    pub fn earlier(&self) -> impl Iterator<Item = Self> {
        let size = self.behind.checked_div(self.block).unwrap_or(0);
        let blocks = if self.behind > 0 { self.block } else { 0 };
        let shard = self.clone();
        (0..blocks).map(move |block| Self {
            block,
            own: Span::in_place(block * size..(block + 1) * size),
            behind: block * size,
            ..shard.clone()
        })
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

    /// What stands behind it is all that stands before it: blocks of one size, no smaller than its own.
    fn check_chained(&self, block: usize) -> Result<(), PlanError> {
        let broken = |what, expected, got| Err(PlanError::Broken { what, block, expected, got });
        let size = self.behind.checked_div(block).unwrap_or(0);
        if self.behind != self.own.start as usize || size * block != self.behind {
            return broken("number of tokens behind it", size * block, self.behind);
        }
        if self.block_tokens() > size {
            return broken("number of block tokens", size, self.block_tokens());
        }
        let plain =
            self.prefix.is_empty() && self.own == Span::in_place(self.behind..self.behind + self.block_tokens());
        if !plain || self.attention != LocalAttention::Causal {
            return broken("number of tokens in a prefix, or out of place", 0, self.prefix_rows().max(1));
        }
        Ok(())
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
        if self.behind > 0 {
            self.check_chained(block)?;
        }
        self.attention.check()
    }
}
