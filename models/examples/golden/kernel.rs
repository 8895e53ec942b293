//! Kernel cases: one operation on given tensors.

use std::path::Path;

use anyhow::{Result, ensure};
use asterism_kernels::{Backend, DType, Heads, HostTensor, Mask, Partial, Rotary, Selector, StripeRule, top_k};
use asterism_models::{ModelConfig, RetainingHeads, Tokenizer, max_pool};
use asterism_plan::{BudgetSpread, SummaryBudget, SummaryRule, TieBreak, split_blocks, summarize};
use serde_json::{Value, json};

use crate::case::Case;

pub fn partial_attention<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<Value> {
    let (q, kv) = operands(backend, case, folder)?;
    let mask = if case.parameter("causal")? { Mask::Causal } else { Mask::None };
    let partial = backend.attention(&q, &kv, mask)?;
    written(backend, case, &partial)
}

pub fn merge_partials<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<Value> {
    let inputs = case.tensors(folder)?;
    let ((shape, outputs), (_, lses)) = (inputs.f32("outs")?, inputs.f32("lses")?);
    ensure!(shape.len() == 4, "outs: expected 4 dimensions, got {shape:?}");
    let (heads, t, dim) = (shape[1], shape[2], shape[3]);
    let partials = outputs
        .chunks_exact(heads * t * dim)
        .zip(lses.chunks_exact(heads * t))
        .map(|(output, lse)| {
            Ok(Partial { output: backend.upload(&shape[1..], output)?, lse: backend.upload(&[heads, t], lse)? })
        })
        .collect::<Result<Vec<_>>>()?;
    written(backend, case, &backend.merge(&partials)?)
}

pub fn streaming_attention<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<Value> {
    let (q, kv) = operands(backend, case, folder)?;
    let (sink, window) = (case.parameter("sink")?, case.parameter("window")?);
    let mask = Mask::Streaming { sink, window, first_row: 0, first_key: 0 };
    written(backend, case, &backend.attention(&q, &kv, mask)?)
}

pub fn anchor_attention<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<Value> {
    let (q, kv) = operands(backend, case, folder)?;
    let rule = StripeRule {
        theta: case.parameter("theta")?,
        step: case.parameter("step")?,
        block_q: case.parameter("block_q")?,
        block_kv: case.parameter("block_kv")?,
    };
    let rows = backend.kv_len(&kv);
    let (partial, keys) = backend.attention_by(&q, &kv, Selector::Stripes(rule))?;
    let keys = keys.lists()?;
    let group = |head| (0..keys.groups()).map(move |group| (head, group));
    let stripes: Vec<Vec<Vec<u32>>> = (0..keys.heads())
        .map(|head| group(head).map(|(head, group)| keys.keys(head, group).collect()).collect())
        .collect();
    let pairs = keys.heads() as u64 * rule.anchor_pairs(rows) + keys.pairs(rows);
    let mut result = written(backend, case, &partial)?;
    result["tensors"].as_object_mut().expect("it was written as an object").remove("lse");
    result["values"] = json!({ "stripes": stripes, "pairs": pairs });
    Ok(result)
}

pub fn retaining_scores<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<Value> {
    let inputs = case.tensors(folder)?;
    let weight = |name: &str| -> Result<B::Linear> {
        let (shape, values) = inputs.f32(name)?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(backend.linear_weight(&[HostTensor { stored: DType::F32.into(), shape: &shape, bytes: &bytes }], &[])?)
    };
    let (shape, raw) = inputs.f32("raw")?;
    let heads = RetainingHeads::of(vec![(weight("fc1")?, weight("fc2")?)]);
    let (pool, k) = (case.parameter("pool")?, case.parameter("k")?);
    let scores = heads.scores(backend, 0, &backend.upload(&shape, &raw)?)?;
    let scores: Vec<Vec<f32>> = scores.iter().map(|head| max_pool(head, pool)).collect();
    let best: Vec<_> = scores.iter().map(|head| top_k(head, k)).collect();
    Ok(json!({ "id": case.id, "tensors": { "scores": scores }, "values": { "top_k": best } }))
}

pub fn chunk_scores(case: &Case, folder: &Path) -> Result<Value> {
    let ids: Vec<u32> = case.tensors(folder)?.i32("ids")?.into_iter().map(u32::try_from).collect::<Result<_, _>>()?;
    let rule = SummaryRule {
        heuristic: case.parameter("heuristic")?,
        ties: TieBreak::LowIndex,
        chunk_tokens: case.parameter("chunk")?,
        budget: SummaryBudget::Tokens(case.parameter("summary_tokens")?),
        spread: BudgetSpread::PerBlock,
    };
    let blocks = split_blocks(ids.len(), case.parameter("block_size")?);
    let scores = asterism_plan::chunk_scores(&ids, &[], &blocks, &rule);
    let chosen: Vec<_> = summarize(&ids, &[], &blocks, &rule).into_iter().map(|summary| summary.chunks).collect();
    let counts: Vec<_> = scores.iter().map(Vec::len).collect();
    Ok(json!({
        "id": case.id,
        "tensors": { "scores": scores.concat() },
        "values": { "selected_chunks": chosen, "chunks_per_block": counts },
    }))
}

/// Queries, and keys with values.
fn operands<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<(B::Tensor, B::Kv)> {
    let inputs = case.tensors(folder)?;
    let upload = |name| -> Result<B::Tensor> {
        let (shape, values) = inputs.f32(name)?;
        Ok(backend.upload(&shape, &values)?)
    };
    Ok((upload("q")?, backend.kv(&upload("k")?, &upload("v")?)?))
}

/// Rotates `x (heads, t, dim)` as queries; keys and values are zeros.
pub fn rope<B: Backend>(backend: &B, case: &Case, folder: &Path, config: &ModelConfig) -> Result<Value> {
    let inputs = case.tensors(folder)?;
    let (shape, x) = inputs.f32("x")?;
    let [heads, t, dim] = shape[..] else { anyhow::bail!("x: expected 3 dimensions, got {shape:?}") };
    let positions: Vec<u32> = inputs.i32("positions")?.into_iter().map(u32::try_from).collect::<Result<_, _>>()?;
    let width = (heads + 2) * dim;
    let mut qkv = vec![0.0; t * width];
    for (row, values) in x.chunks_exact(dim).enumerate() {
        let (head, token) = (row / t, row % t);
        qkv[token * width + head * dim..][..dim].copy_from_slice(values);
    }
    let inv_freq = config.inv_freq(0);
    let qkv = backend.upload(&[t, width], &qkv)?;
    let (q, _, _) =
        backend.split_rotate(&qkv, Heads { query: heads, kv: 1, dim }, &positions, Rotary::plain(&inv_freq))?;
    Ok(json!({ "id": case.id, "tensors": { "rotated": backend.download(&q)?, "inv_freq": inv_freq } }))
}

pub fn tokenize(case: &Case, tokenizer: &Tokenizer) -> Result<Value> {
    let texts: Vec<String> = case.parameter("texts")?;
    let ids = texts.iter().map(|text| tokenizer.encode(text)).collect::<Result<Vec<_>, _>>()?;
    let decoded = ids.iter().map(|ids| tokenizer.decode(ids)).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "id": case.id, "values": { "ids": ids, "decoded": decoded } }))
}

fn written<B: Backend>(backend: &B, case: &Case, partial: &Partial<B::Tensor>) -> Result<Value> {
    let (out, lse) = (backend.download(&partial.output)?, backend.download(&partial.lse)?);
    Ok(json!({ "id": case.id, "tensors": { "out": out, "lse": lse } }))
}
