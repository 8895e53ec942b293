//! Attention over selected keys, and the estimates that select them, as the backend offers them.

use half::bf16;

use super::super::amx;
use super::super::attention::{CausalSequence, SelectedOutput, TiledSequence, merge, stripes};
use super::super::compute::Compute;
use super::super::tensor::{CpuTensor, elements, tensor};
use super::estimate;
use super::store::{CpuKv, Panels};
use crate::{Heads, KernelError, KeySets, Partial, Selection, Selector, StripeRule};

/// Evaluates an expression over the operands as one causal [`CausalSequence`].
macro_rules! over_sequence {
    ($operation:literal, $q:ident, $kv:ident, $compute:ident, $sequence:ident => $result:expr) => {{
        let (heads, tokens) = causal($operation, $q, $kv)?;
        match $kv.panels($compute) {
            Panels::F32(cache) => {
                let $sequence = CausalSequence { q: elements::<f32>($operation, $q)?, cache: &cache, heads, tokens };
                $result
            }
            Panels::Bf16(cache) => {
                let $sequence = CausalSequence { q: elements::<bf16>($operation, $q)?, cache: &cache, heads, tokens };
                $result
            }
        }
    }};
}

/// As `SelectionOps::attention_selected`.
pub(in super::super) fn attention_selected(
    q: &CpuTensor,
    kv: &CpuKv,
    keys: &KeySets,
    compute: &Compute,
) -> Result<Partial<CpuTensor>, KernelError> {
    let (Heads { query, .. }, tokens) = causal("attention_selected", q, kv)?;
    let groups = tokens.div_ceil(keys.rows());
    if keys.heads() != query || keys.groups() != groups || keys.end() > tokens {
        let expected = format!("{query} heads of {groups} groups, keys below {tokens}");
        let got = format!("{} heads of {} groups, keys below {}", keys.heads(), keys.groups(), keys.end());
        return Err(KernelError::Shape { operation: "attention_selected", expected, got });
    }
    let selected = match kv.tiles() {
        Some(tiles) => attend_tiles(q, kv, tiles, keys, compute)?,
        None => over_sequence!("attention_selected", q, kv, compute, sequence => sequence.attend(keys, compute)),
    };
    Ok(Partial { output: tensor(q.dims(), selected.output)?, lse: tensor(&[query, tokens], selected.lse)? })
}

/// Checks that there is a key for every query: heads and tokens.
fn causal(operation: &'static str, q: &CpuTensor, kv: &CpuKv) -> Result<(Heads, usize), KernelError> {
    let (heads, tokens) = kv.check(operation, q)?;
    if tokens != kv.len() {
        let expected = format!("as many queries as there are keys ({})", kv.len());
        return Err(KernelError::shape(operation, expected, &[q.dims()]));
    }
    Ok((heads, tokens))
}

fn attend_tiles(
    q: &CpuTensor,
    kv: &CpuKv,
    cache: &amx::AmxCache,
    keys: &KeySets,
    compute: &Compute,
) -> Result<SelectedOutput, KernelError> {
    let (heads, tokens) = causal("attention_selected", q, kv)?;
    let q = elements::<bf16>("attention_selected", q)?;
    Ok(TiledSequence { q, cache, heads, tokens }.attend(keys, compute))
}

/// As `SelectionOps::attention_by`.
pub(in super::super) fn attention_by(
    q: &CpuTensor,
    kv: &CpuKv,
    selector: Selector,
    compute: &Compute,
) -> Result<(Partial<CpuTensor>, Selection<'static>), KernelError> {
    let keys = match selector {
        Selector::Stripes(rule) => return stripe_attention(q, kv, rule, compute),
        Selector::VerticalSlash(rule) => over_sequence!("vertical_slash", q, kv, compute, sequence => {
            estimate::vertical_slash(&sequence, rule, compute)
        }),
        Selector::Flex(rule) => over_sequence!("flex_prefill", q, kv, compute, sequence => {
            estimate::flex_prefill(&sequence, rule, compute)
        }),
    }?;
    Ok((attention_selected(q, kv, &keys, compute)?, Selection::of(keys, kv.len())))
}

/// Attention over the anchor region, by which stripes are found, and over these.
fn stripe_attention(
    q: &CpuTensor,
    kv: &CpuKv,
    rule: StripeRule,
    compute: &Compute,
) -> Result<(Partial<CpuTensor>, Selection<'static>), KernelError> {
    rule.check()?;
    let (heads, tokens) = causal("stripe_attention", q, kv)?;
    let attend = |keys: &KeySets| match kv.tiles() {
        Some(tiles) => attend_tiles(q, kv, tiles, keys, compute),
        None => Ok(over_sequence!("stripe_attention", q, kv, compute, sequence => sequence.attend(keys, compute))),
    };
    let anchor = attend(&rule.anchor(heads.query, tokens)?)?;
    let keys = over_sequence!("stripe_attention", q, kv, compute, sequence => {
        stripes(&sequence, &anchor.maxima, rule, compute)
    })?;
    let stripes = attend(&keys)?;
    let partials: [(&[f32], &[f32]); 2] = [(&anchor.output, &anchor.lse), (&stripes.output, &stripes.lse)];
    let (output, lse) = merge(&partials, heads.dim, compute);
    let lse = tensor(&[heads.query, tokens], lse)?;
    Ok((Partial { output: tensor(q.dims(), output)?, lse }, Selection::of(keys, tokens)))
}
