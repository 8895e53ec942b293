//! Attention over keys that are chosen on the device.

use super::super::attention::{CudaAttentionCall, Lists};
use super::super::gpu::Cuda;
use super::super::kv::CudaKv;
use super::super::tensor::Tensor;
use crate::backend::{AttentionOps, Partial, Sparse};
use crate::sparse::vertical_slash::SLASH;
use crate::{DType, FlexRule, KernelError, KeySets, Mask, Selection, Selector, StripeRule, VerticalSlashRule};

/// As `SelectionOps::attention_selected`.
pub(super) fn selected(gpu: &Cuda, q: &Tensor, kv: &CudaKv, keys: &KeySets) -> Result<Partial<Tensor>, KernelError> {
    let (heads, tokens) = causal(gpu, "attention_selected", q, kv)?;
    let groups = tokens.div_ceil(keys.rows());
    if keys.heads() != heads || keys.groups() != groups || keys.end() > tokens {
        let expected = format!("{heads} heads of {groups} groups, lists below {tokens}");
        let got = format!("{} heads of {} groups, keys below {}", keys.heads(), keys.groups(), keys.end());
        return Err(KernelError::Shape { operation: "attention_selected", expected, got });
    }
    over(gpu, q, kv, &gpu.device.listed(keys, tokens)?, None)
}

/// As `SelectionOps::attention_by`.
pub(super) fn by_selector<'a>(gpu: &'a Cuda, q: &Tensor, kv: &CudaKv, selector: Selector) -> Sparse<'a, Cuda> {
    match selector {
        Selector::Stripes(rule) => striped(gpu, q, kv, rule),
        Selector::VerticalSlash(rule) => slashed(gpu, q, kv, rule),
        Selector::Flex(rule) => flexed(gpu, q, kv, rule),
    }
}

/// Attention over the anchor region, by which stripes are found, and over these.
fn striped<'a>(gpu: &'a Cuda, q: &Tensor, kv: &CudaKv, rule: StripeRule) -> Sparse<'a, Cuda> {
    rule.check()?;
    let (heads, tokens) = causal(gpu, "stripe_attention", q, kv)?;
    let maxima = gpu.device.empty(&[heads, tokens], DType::F32)?;
    let region = gpu.device.listed(&rule.anchor(heads, tokens)?, tokens)?;
    let anchor = over(gpu, q, kv, &region, Some(&maxima))?;
    let [k, _] = kv.view(0, kv.len());
    let stripes = gpu.device.stripes(q.heads_first()?, k, &maxima, rule)?;
    let partial = match region.pairs + stripes.pairs == dense_pairs(heads, tokens) {
        true => gpu.attention(q, kv, Mask::Causal)?,
        false => gpu.merge(&[anchor, over(gpu, q, kv, &stripes, None)?])?,
    };
    Ok((partial, selection(gpu, stripes)))
}

fn slashed<'a>(gpu: &'a Cuda, q: &Tensor, kv: &CudaKv, rule: VerticalSlashRule) -> Sparse<'a, Cuda> {
    let (heads, tokens) = causal(gpu, "vertical_slash", q, kv)?;
    let lists = match tokens {
        0 => gpu.device.listed(&KeySets::new(heads, SLASH, &[])?, 0)?,
        _ => gpu.device.vertical_slash(q.heads_first()?, kv, rule)?,
    };
    attended(gpu, q, kv, lists)
}

fn flexed<'a>(gpu: &'a Cuda, q: &Tensor, kv: &CudaKv, rule: FlexRule) -> Sparse<'a, Cuda> {
    let (heads, tokens) = causal(gpu, "flex_prefill", q, kv)?;
    if rule.is_dense(tokens) {
        let keys = rule.dense(heads, tokens)?;
        return Ok((gpu.attention(q, kv, Mask::Causal)?, Selection::of(keys, tokens)));
    }
    let lists = gpu.device.flex(q.heads_first()?, kv, rule)?;
    attended(gpu, q, kv, lists)
}

fn attended<'a>(gpu: &'a Cuda, q: &Tensor, kv: &CudaKv, lists: Lists) -> Sparse<'a, Cuda> {
    let partial = match lists.pairs == dense_pairs(lists.of.heads, lists.of.tokens) {
        true => gpu.attention(q, kv, Mask::Causal)?,
        false => over(gpu, q, kv, &lists, None)?,
    };
    Ok((partial, selection(gpu, lists)))
}

fn selection(gpu: &Cuda, lists: Lists) -> Selection<'_> {
    Selection::new(lists.pairs, move || gpu.device.key_sets(&lists))
}

/// Attention over listed keys, and each row's highest score where that is wanted.
fn over(
    gpu: &Cuda,
    q: &Tensor,
    kv: &CudaKv,
    keys: &Lists,
    maxima: Option<&Tensor>,
) -> Result<Partial<Tensor>, KernelError> {
    let partial = gpu.partial(q, DType::F32)?;
    let [k, v] = kv.view(0, kv.len());
    let (q, out) = (q.heads_first()?, partial.output.heads_first()?);
    let call = CudaAttentionCall { q, k, v, mask: Mask::Causal, out, lse: &partial.lse };
    gpu.device.attend_selected(call, keys, maxima)?;
    gpu.device.queued(call.q.rows, 4.0 * call.q.dim as f64 * keys.pairs as f64)?;
    Ok(partial)
}

/// Checks that there is a key for every query: heads and tokens.
fn causal(gpu: &Cuda, operation: &'static str, q: &Tensor, kv: &CudaKv) -> Result<(usize, usize), KernelError> {
    gpu.computed(operation, q)?;
    let ((heads, tokens, dim), [k, _]) = (q.cube(operation)?, kv.view(0, kv.len()));
    if tokens != k.rows || dim != k.dim || k.heads == 0 || !heads.is_multiple_of(k.heads) {
        let expected = format!("a multiple of {} heads, {} queries of {} elements", k.heads, k.rows, k.dim);
        return Err(KernelError::shape(operation, expected, &[q.shape()]));
    }
    Ok((heads, tokens))
}

/// Pairs of a row and a key that does not come after it.
fn dense_pairs(heads: usize, tokens: usize) -> u64 {
    heads as u64 * (tokens as u64 * (tokens as u64 + 1) / 2)
}
