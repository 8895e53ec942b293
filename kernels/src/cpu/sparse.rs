//! Attention over selected keys, and the estimates that select them, as the backend offers them.

mod estimate;

use candle_core::Tensor;

use super::attention::{Sequence, stripes};
use super::compute::Compute;
use super::kv::{Kv, Panels};
use super::lanes::Element;
use super::merge::merge;
use super::tensor::{elements, tensor};
use crate::{FlexRule, KernelError, KeySets, Partial, StripeRule, VerticalSlashRule};

/// Evaluates an expression over the operands as one causal [`Sequence`].
macro_rules! over_sequence {
    ($operation:literal, $q:ident, $kv:ident, $compute:ident, $sequence:ident => $result:expr) => {{
        let (heads, tokens) = $kv.check($operation, $q)?;
        if tokens != $kv.len() {
            let expected = format!("as many queries as there are keys ({})", $kv.len());
            return Err(KernelError::shape($operation, expected, &[$q.dims()]));
        }
        match $kv.panels($compute) {
            Panels::F32(cache) => {
                let $sequence = Sequence { q: &elements::<f32>($operation, $q)?, cache: &cache, heads, tokens };
                $result
            }
            Panels::Bf16(cache) => {
                let $sequence = Sequence { q: &elements::<half::bf16>($operation, $q)?, cache: &cache, heads, tokens };
                $result
            }
        }
    }};
}

/// As `Backend::attention_selected`.
pub(super) fn attention_selected(
    q: &Tensor,
    kv: &Kv,
    keys: &KeySets,
    compute: &Compute,
) -> Result<Partial<Tensor>, KernelError> {
    over_sequence!("attention_selected", q, kv, compute, sequence => {
        let (heads, tokens, groups) = (sequence.heads.query, sequence.tokens, sequence.tokens.div_ceil(keys.rows()));
        if keys.heads() != heads || keys.groups() != groups || keys.end() > tokens {
            let expected = format!("{heads} heads of {groups} groups, keys below {tokens}");
            let got = format!("{} heads of {} groups, keys below {}", keys.heads(), keys.groups(), keys.end());
            return Err(KernelError::Shape { operation: "attention_selected", expected, got });
        }
        let selected = sequence.attend(keys, compute);
        Ok(Partial { output: tensor(q.dims(), selected.output)?, lse: tensor(&[heads, tokens], selected.lse)? })
    })
}

/// As `Backend::stripe_attention`.
pub(super) fn stripe_attention(
    q: &Tensor,
    kv: &Kv,
    rule: StripeRule,
    compute: &Compute,
) -> Result<(Partial<Tensor>, KeySets), KernelError> {
    rule.check()?;
    over_sequence!("stripe_attention", q, kv, compute, sequence => {
        let (output, lse, keys) = anchor_and_stripes(&sequence, rule, compute)?;
        let lse_shape = [sequence.heads.query, sequence.tokens];
        Ok((Partial { output: tensor(q.dims(), output)?, lse: tensor(&lse_shape, lse)? }, keys))
    })
}

fn anchor_and_stripes<E: Element>(
    sequence: &Sequence<'_, E>,
    rule: StripeRule,
    compute: &Compute,
) -> Result<(Vec<f32>, Vec<f32>, KeySets), KernelError> {
    let anchor = sequence.attend(&rule.anchor(sequence.heads.query, sequence.tokens)?, compute);
    let keys = stripes(sequence, &anchor.maxima, rule, compute)?;
    let stripes = sequence.attend(&keys, compute);
    let partials: [(&[f32], &[f32]); 2] = [(&anchor.output, &anchor.lse), (&stripes.output, &stripes.lse)];
    let (output, lse) = merge(&partials, sequence.heads.dim, compute);
    Ok((output, lse, keys))
}

/// As `Backend::vertical_slash`.
pub(super) fn vertical_slash(
    q: &Tensor,
    kv: &Kv,
    rule: VerticalSlashRule,
    compute: &Compute,
) -> Result<KeySets, KernelError> {
    over_sequence!("vertical_slash", q, kv, compute, sequence => estimate::vertical_slash(&sequence, rule, compute))
}

/// As `Backend::flex_prefill`.
pub(super) fn flex_prefill(q: &Tensor, kv: &Kv, rule: FlexRule, compute: &Compute) -> Result<KeySets, KernelError> {
    over_sequence!("flex_prefill", q, kv, compute, sequence => estimate::flex_prefill(&sequence, rule, compute))
}
