//! Attention over selected keys, and the estimates that select them.

use candle_core::Tensor;
use half::bf16;

use super::compute::Compute;
use super::kv::Kv;
use super::tensor::{self, elements, tensor};
use crate::reference::{self, Sequence};
use crate::{DType, FlexRule, Heads, KernelError, KeySets, Partial, StripeRule, VerticalSlashRule};

/// As `Backend::attention_selected`.
pub(super) fn attention_selected(
    q: &Tensor,
    kv: &Kv,
    keys: &KeySets,
    _compute: &Compute,
) -> Result<Partial<Tensor>, KernelError> {
    let (heads, tokens) = causal("attention_selected", q, kv)?;
    let groups = tokens.div_ceil(keys.rows());
    if keys.heads() != heads.query || keys.groups() != groups || keys.end() > tokens {
        let expected = format!("{} heads of {groups} groups, keys below {tokens}", heads.query);
        let got = format!("{} heads of {} groups, keys below {}", keys.heads(), keys.groups(), keys.end());
        return Err(KernelError::Shape { operation: "attention_selected", expected, got });
    }
    let (output, lse) = with_sequence("attention_selected", q, kv, |s| reference::selected_attention(s, keys))?;
    partial(heads, tokens, output, lse)
}

/// As `Backend::stripe_attention`.
pub(super) fn stripe_attention(
    q: &Tensor,
    kv: &Kv,
    rule: StripeRule,
    _compute: &Compute,
) -> Result<(Partial<Tensor>, KeySets), KernelError> {
    rule.check()?;
    let (heads, tokens) = causal("stripe_attention", q, kv)?;
    let ((output, lse), keys) = with_sequence("stripe_attention", q, kv, |s| reference::stripe_attention(s, rule))?;
    Ok((partial(heads, tokens, output, lse)?, keys))
}

/// As `Backend::vertical_slash`.
pub(super) fn vertical_slash(
    q: &Tensor,
    kv: &Kv,
    rule: VerticalSlashRule,
    _compute: &Compute,
) -> Result<KeySets, KernelError> {
    causal("vertical_slash", q, kv)?;
    with_sequence("vertical_slash", q, kv, |s| reference::vertical_slash(s, rule).keys)
}

/// As `Backend::flex_prefill`.
pub(super) fn flex_prefill(q: &Tensor, kv: &Kv, rule: FlexRule, _compute: &Compute) -> Result<KeySets, KernelError> {
    causal("flex_prefill", q, kv)?;
    with_sequence("flex_prefill", q, kv, |s| reference::flex_prefill(s, rule).keys)
}

/// Checks that there is a key for every query: heads and tokens.
fn causal(operation: &'static str, q: &Tensor, kv: &Kv) -> Result<(Heads, usize), KernelError> {
    let (heads, queries) = kv.check(operation, q)?;
    if queries != kv.len() {
        let expected = format!("as many queries as there are keys ({})", kv.len());
        return Err(KernelError::shape(operation, expected, &[q.dims()]));
    }
    Ok((heads, queries))
}

fn partial(heads: Heads, tokens: usize, output: Vec<f32>, lse: Vec<f32>) -> Result<Partial<Tensor>, KernelError> {
    let Heads { query, dim, .. } = heads;
    Ok(Partial { output: tensor(&[query, tokens, dim], output)?, lse: tensor(&[query, tokens], lse)? })
}

fn with_sequence<T>(
    operation: &'static str,
    q: &Tensor,
    kv: &Kv,
    work: impl FnOnce(Sequence<'_>) -> T,
) -> Result<T, KernelError> {
    let (heads, tokens) = kv.check(operation, q)?;
    let q: Vec<f32> = match tensor::dtype(q) {
        DType::Bf16 => elements::<bf16>(operation, q)?.iter().map(|x| x.to_f32()).collect(),
        _ => elements::<f32>(operation, q)?.to_vec(),
    };
    let [k, v] = kv.unpack();
    Ok(work(Sequence { q: &q, k: &k, v: &v, heads, tokens }))
}
