//! Kernel cases: one operation on given tensors.

use std::path::Path;

use anyhow::{Result, ensure};
use asterism_kernels::{Backend, Heads, Mask, Partial};
use asterism_models::{ModelConfig, Tokenizer};
use serde_json::{Value, json};

use crate::case::Case;

pub fn partial_attention<B: Backend>(backend: &B, case: &Case, folder: &Path) -> Result<Value> {
    let inputs = case.tensors(folder)?;
    let upload = |name| -> Result<B::Tensor> {
        let (shape, values) = inputs.f32(name)?;
        Ok(backend.upload(&shape, &values)?)
    };
    let mask = if case.parameter("causal")? { Mask::Causal } else { Mask::None };
    let kv = backend.kv(&upload("k")?, &upload("v")?)?;
    let partial = backend.attention(&upload("q")?, &kv, mask)?;
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
    let inv_freq = config.inv_freq();
    let qkv = backend.upload(&[t, width], &qkv)?;
    let (q, _, _) = backend.split_rotate(&qkv, Heads { query: heads, kv: 1, dim }, &positions, &inv_freq)?;
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
