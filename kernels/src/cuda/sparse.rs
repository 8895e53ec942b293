//! Attention over keys that are chosen on the device. FlexPrefill's choice among blocks is the host's, by sums from the device.

use std::iter;

use super::attention::{Grouped, Lists};
use super::{Attention, Cuda, Kv, Tensor};
use crate::cpu::{Pool, Shared, Tasks};
use crate::sparse::choice::{Blocks, FLEX, SLASH};
use crate::{
    Backend, DType, FlexRule, KernelError, KeySets, Mask, Partial, Selection, Sparse, StripeRule, VerticalSlashRule,
};

/// Bytes of what means attend to that are there at a time.
const MEANS: usize = 256 << 20;

impl Cuda {
    /// As `Backend::attention_selected`.
    pub(super) fn selected(&self, q: &Tensor, kv: &Kv, keys: &KeySets) -> Result<Partial<Tensor>, KernelError> {
        let (heads, tokens) = self.causal("attention_selected", q, kv)?;
        let groups = tokens.div_ceil(keys.rows());
        if keys.heads() != heads || keys.groups() != groups || keys.end() > tokens {
            let expected = format!("{heads} heads of {groups} groups, lists below {tokens}");
            let got = format!("{} heads of {} groups, keys below {}", keys.heads(), keys.groups(), keys.end());
            return Err(KernelError::Shape { operation: "attention_selected", expected, got });
        }
        self.over(q, kv, &self.device.listed(keys, tokens)?, None)
    }

    /// As `Backend::stripe_attention`.
    pub(super) fn striped(&self, q: &Tensor, kv: &Kv, rule: StripeRule) -> Sparse<'_, Self> {
        rule.check()?;
        let (heads, tokens) = self.causal("stripe_attention", q, kv)?;
        let maxima = self.device.empty(&[heads, tokens], DType::F32)?;
        let region = self.device.listed(&rule.anchor(heads, tokens)?, tokens)?;
        let anchor = self.over(q, kv, &region, Some(&maxima))?;
        let [k, _] = kv.view(0, kv.len());
        let stripes = self.device.stripes(q.heads_first()?, k, &maxima, rule)?;
        let partial = match region.pairs + stripes.pairs == dense_pairs(heads, tokens) {
            true => self.attention(q, kv, Mask::Causal)?,
            false => self.merge(&[anchor, self.over(q, kv, &stripes, None)?])?,
        };
        Ok((partial, self.selection(stripes)))
    }

    /// As `Backend::vertical_slash`.
    pub(super) fn slashed(&self, q: &Tensor, kv: &Kv, rule: VerticalSlashRule) -> Sparse<'_, Self> {
        let (heads, tokens) = self.causal("vertical_slash", q, kv)?;
        let lists = match tokens {
            0 => self.device.listed(&KeySets::new(heads, SLASH, &[])?, 0)?,
            _ => self.device.vertical_slash(q.heads_first()?, kv, rule)?,
        };
        self.attended(q, kv, lists)
    }

    /// As `Backend::flex_prefill`.
    pub(super) fn flexed(&self, q: &Tensor, kv: &Kv, rule: FlexRule) -> Sparse<'_, Self> {
        let (heads, tokens) = self.causal("flex_prefill", q, kv)?;
        if rule.is_dense(tokens) {
            let groups = tokens.div_ceil(FLEX);
            let end = |list: usize| tokens.min((list % groups + 1) * FLEX) as u32;
            let all: Vec<Vec<_>> = (0..heads * groups).map(|list| iter::once(0..end(list)).collect()).collect();
            let keys = KeySets::new(heads, FLEX, &all)?;
            return Ok((self.attention(q, kv, Mask::Causal)?, Selection::of(keys, tokens)));
        }
        let (words, bits) = self.kept_blocks(q, kv, rule)?;
        let of = Grouped { heads, rows: FLEX, tokens };
        let lists = self.device.lists_of_bits(of, &self.device.upload_bytes(&bits)?, (words, FLEX))?;
        self.attended(q, kv, lists)
    }

    /// For each head and block of rows a bit for each block of keys, in so many words of four bytes.
    fn kept_blocks(&self, q: &Tensor, kv: &Kv, rule: FlexRule) -> Result<(usize, Vec<u8>), KernelError> {
        let (device, rows) = (&self.device, q.heads_first()?);
        let (heads, tokens, [k, _]) = (rows.heads, rows.rows, kv.view(0, kv.len()));
        let blocks = tokens.div_ceil(FLEX);
        let [queries, keys] = [device.block_means(rows, FLEX)?, device.block_means(k, FLEX)?];
        let last = device.block_means(rows.part(tokens - FLEX, tokens), FLEX)?;
        let masses = device.masses(rows, kv, FLEX, [0; 2])?;
        let all: Vec<u32> = (0..heads as u32).collect();
        let last = device.attend_means([&last, &keys], &all, true)?;
        let masses = device.download(&masses)?;
        let (columns, offsets) = masses.split_at(heads * tokens);
        let words = blocks.div_ceil(32);
        let mut bits = vec![0u8; 4 * heads * blocks * words];
        let to = Shared::new(&mut bits);
        let write = |head: usize, kept: &[bool]| {
            let size = 4 * blocks * words;
            // SAFETY: these bytes are this head's, and each head is written by one task.
            let bits = unsafe { std::slice::from_raw_parts_mut(to.at(head * size), size) };
            for (row, kept) in kept.chunks_exact(blocks).enumerate() {
                for key in (0..=row).filter(|key| kept[*key]) {
                    bits[4 * row * words + key / 8] |= 1 << (key % 8);
                }
            }
        };
        let mut aware: Vec<Option<Blocks<'_>>> = (0..heads).map(|_| None).collect();
        let places = Shared::new(&mut aware);
        let cost = 32 * tokens + 16 * blocks * blocks;
        self.pool()?.each(Tasks { count: heads, cost: heads * cost }, |head| {
            let masses = [columns, offsets].map(|masses| &masses[head * tokens..][..tokens]);
            let chosen = Blocks::new(rule, masses, &last[head * blocks..][..blocks]);
            match chosen.query_aware() {
                // SAFETY: each task has its own head's place.
                true => unsafe { *places.at(head) = Some(chosen) },
                false => write(head, &chosen.kept(&[])),
            }
        });
        let aware: Vec<(u32, Blocks<'_>)> =
            iter::zip(all, aware).filter_map(|(head, blocks)| Some((head, blocks?))).collect();
        let each = blocks * (blocks + 1) / 2;
        for some in aware.chunks((MEANS / (4 * each)).max(1)) {
            let heads: Vec<u32> = some.iter().map(|(head, _)| *head).collect();
            let weights = device.attend_means([&queries, &keys], &heads, false)?;
            self.pool()?.each(Tasks { count: some.len(), cost: some.len() * cost }, |at| {
                let (head, chosen) = &some[at];
                write(*head as usize, &chosen.kept(&weights[at * each..][..each]));
            });
        }
        Ok((words, bits))
    }

    fn attended(&self, q: &Tensor, kv: &Kv, lists: Lists) -> Sparse<'_, Self> {
        let partial = match lists.pairs == dense_pairs(lists.of.heads, lists.of.tokens) {
            true => self.attention(q, kv, Mask::Causal)?,
            false => self.over(q, kv, &lists, None)?,
        };
        Ok((partial, self.selection(lists)))
    }

    fn selection(&self, lists: Lists) -> Selection<'_> {
        Selection::new(lists.pairs, move || self.device.key_sets(&lists))
    }

    /// Attention over listed keys, and each row's highest score where that is wanted.
    fn over(&self, q: &Tensor, kv: &Kv, keys: &Lists, maxima: Option<&Tensor>) -> Result<Partial<Tensor>, KernelError> {
        let partial = self.partial(q, DType::F32)?;
        let [k, v] = kv.view(0, kv.len());
        let (q, out) = (q.heads_first()?, partial.output.heads_first()?);
        let call = Attention { q, k, v, mask: Mask::Causal, out, lse: &partial.lse };
        self.device.attend_selected(call, keys, maxima)?;
        self.device.queued(call.q.rows, 4.0 * call.q.dim as f64 * keys.pairs as f64)?;
        Ok(partial)
    }

    /// Checks that there is a key for every query: heads and tokens.
    fn causal(&self, operation: &'static str, q: &Tensor, kv: &Kv) -> Result<(usize, usize), KernelError> {
        self.computed(operation, q)?;
        let ((heads, tokens, dim), [k, _]) = (q.cube(operation)?, kv.view(0, kv.len()));
        if tokens != k.rows || dim != k.dim || k.heads == 0 || !heads.is_multiple_of(k.heads) {
            let expected = format!("a multiple of {} heads, {} queries of {} elements", k.heads, k.rows, k.dim);
            return Err(KernelError::shape(operation, expected, &[q.shape()]));
        }
        Ok((heads, tokens))
    }

    /// The host's threads, started where they are first wanted.
    fn pool(&self) -> Result<&Pool, KernelError> {
        match self.host.get() {
            Some(pool) => Ok(pool),
            None => {
                let pool = Pool::new(None)?;
                Ok(self.host.get_or_init(|| pool))
            }
        }
    }
}

/// Pairs of a row and a key that does not come after it.
fn dense_pairs(heads: usize, tokens: usize) -> u64 {
    heads as u64 * (tokens as u64 * (tokens as u64 + 1) / 2)
}
