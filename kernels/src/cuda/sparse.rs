//! Attention over keys that are chosen on the device.

use super::attention::{Attention, Lists};
use super::gpu::Cuda;
use super::kv::Kv;
use super::tensor::Tensor;
use crate::backend::{AttentionOps, Partial, Sparse};
use crate::sparse::vertical_slash::SLASH;
use crate::{DType, FlexRule, KernelError, KeySets, Mask, Selection, Selector, StripeRule, VerticalSlashRule};

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

    /// As `SelectionOps::attention_by`.
    pub(super) fn by_selector(&self, q: &Tensor, kv: &Kv, selector: Selector) -> Sparse<'_, Self> {
        match selector {
            Selector::Stripes(rule) => self.striped(q, kv, rule),
            Selector::VerticalSlash(rule) => self.slashed(q, kv, rule),
            Selector::Flex(rule) => self.flexed(q, kv, rule),
        }
    }

    /// Attention over the anchor region, by which stripes are found, and over these.
    fn striped(&self, q: &Tensor, kv: &Kv, rule: StripeRule) -> Sparse<'_, Self> {
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

    fn slashed(&self, q: &Tensor, kv: &Kv, rule: VerticalSlashRule) -> Sparse<'_, Self> {
        let (heads, tokens) = self.causal("vertical_slash", q, kv)?;
        let lists = match tokens {
            0 => self.device.listed(&KeySets::new(heads, SLASH, &[])?, 0)?,
            _ => self.device.vertical_slash(q.heads_first()?, kv, rule)?,
        };
        self.attended(q, kv, lists)
    }

    fn flexed(&self, q: &Tensor, kv: &Kv, rule: FlexRule) -> Sparse<'_, Self> {
        let (heads, tokens) = self.causal("flex_prefill", q, kv)?;
        if rule.is_dense(tokens) {
            let keys = rule.dense(heads, tokens)?;
            return Ok((self.attention(q, kv, Mask::Causal)?, Selection::of(keys, tokens)));
        }
        let lists = self.device.flex(q.heads_first()?, kv, rule)?;
        self.attended(q, kv, lists)
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
}

/// Pairs of a row and a key that does not come after it.
fn dense_pairs(heads: usize, tokens: usize) -> u64 {
    heads as u64 * (tokens as u64 * (tokens as u64 + 1) / 2)
}
