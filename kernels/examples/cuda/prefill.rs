//! All layers of an 8B model with random weights: dense prefill, prefill in small blocks behind one short prefix, a step of one row.

use anyhow::Result;
use asterism_kernels::cuda::{CudaAttentionCall, CudaKv, CudaLinear, Positions, Tensor, View};
use asterism_kernels::prelude::*;
use asterism_kernels::{DType, Heads, Mask, Rotary};

use crate::Bench;

const HIDDEN: usize = 4096;
const INNER: usize = 14336;
const HEADS: Heads = Heads { query: 32, kv: 8, dim: 128 };
const LAYERS: usize = 32;
const VOCABULARY: usize = 128_256;
/// Rows that go through the linear layers together, unless told otherwise.
const CHUNK: usize = 8192;
const EPS: f32 = 1e-5;
/// Tokens of a block, where there are blocks.
const BLOCK: usize = 2048;

/// Tokens, and rows of a chunk.
#[derive(Clone, Copy)]
pub struct Size {
    tokens: usize,
    chunk: usize,
}

impl Size {
    /// `32` or `32x4`, in thousands.
    pub fn parse(text: &str) -> Option<Self> {
        let (tokens, chunk) = text.split_once('x').map_or((text, None), |(tokens, chunk)| (tokens, Some(chunk)));
        let thousands = |text: &str| text.parse::<usize>().ok().map(|k| k * 1024);
        Some(Self { tokens: thousands(tokens)?, chunk: chunk.map_or(Some(CHUNK), thousands)? })
    }
}

struct Layer {
    norms: [Tensor; 2],
    qkv: CudaLinear,
    out: CudaLinear,
    gate_up: CudaLinear,
    down: CudaLinear,
}

impl Layer {
    fn random(bench: &Bench, seed: u32) -> Result<Self> {
        let linear =
            |n, k, salt| Ok::<_, anyhow::Error>(CudaLinear::of(bench.random(&[n, k], seed * 8 + salt, 0.03)?, None)?);
        Ok(Self {
            norms: [bench.random(&[HIDDEN], seed * 8, 1.0)?, bench.random(&[HIDDEN], seed * 8 + 1, 1.0)?],
            qkv: linear((HEADS.query + 2 * HEADS.kv) * HEADS.dim, HIDDEN, 2)?,
            out: linear(HIDDEN, HIDDEN, 3)?,
            gate_up: linear(2 * INNER, HIDDEN, 4)?,
            down: linear(HIDDEN, INNER, 5)?,
        })
    }
}

fn inv_freq() -> Vec<f32> {
    (0..HEADS.dim / 2).map(|j| 500_000f32.powf(-2.0 * j as f32 / HEADS.dim as f32)).collect()
}

/// How a layer's new rows attend.
#[derive(Clone, Copy)]
enum Local {
    /// To all before them.
    Dense,
    /// To their block and to a share of the first tokens.
    Blocks { prefix: usize },
}

/// One layer over the residual stream, in chunks of rows.
fn forward(
    bench: &Bench,
    layer: &Layer,
    cache: &mut CudaKv,
    stream: &mut [Tensor],
    (positions, local): (&Positions, Local),
) -> Result<()> {
    let (device, products, t) = (bench.device(), bench.gpu.products(), positions.len());
    let width = HEADS.query * HEADS.dim;
    let (q, out) = (device.empty(&[t, width], DType::Bf16)?, device.empty(&[t, width], DType::Bf16)?);
    let [k, v] = cache.extend(device, t)?;
    let chunk = stream[0].shape()[0];
    for (at, x) in stream.iter().enumerate() {
        let (start, end) = (at * chunk, at * chunk + x.shape()[0]);
        let qkv = products.linear(device, &device.rms_norm(x, None, &layer.norms[0], EPS)?, &layer.qkv, None)?;
        let to = [k.part(start, end), v.part(start, end)];
        device.split_rotate(&qkv, &positions.part(start, end), q.token_major(HEADS.query)?.part(start, end), to)?;
    }
    let (from, to, keys) = (q.token_major(HEADS.query)?, out.token_major(HEADS.query)?, cache.view(0, cache.len()));
    match local {
        Local::Dense => attend(bench, from, keys, Mask::Causal, to).map(drop)?,
        Local::Blocks { prefix } => in_blocks(bench, from, keys, prefix, to)?,
    }
    drop(q);
    for (at, x) in stream.iter_mut().enumerate() {
        let attended = out.rows(at * chunk, at * chunk + x.shape()[0])?;
        let moved = std::mem::replace(x, attended.clone());
        let y = products.linear(device, &attended, &layer.out, Some(moved))?;
        let inner = device.rms_norm(&y, None, &layer.norms[1], EPS)?;
        let inner = device.gated_silu(&products.linear(device, &inner, &layer.gate_up, None)?)?;
        *x = products.linear(device, &inner, &layer.down, Some(y))?;
    }
    Ok(())
}

/// Log-sum-exp of attention that is written to `out`.
fn attend(bench: &Bench, q: View<'_>, [k, v]: [View<'_>; 2], mask: Mask, out: View<'_>) -> Result<Tensor> {
    let lse = bench.device().empty(&[HEADS.query, rows(q)], DType::F32)?;
    bench.gpu.attender().attend(bench.device(), CudaAttentionCall { q, k, v, mask, out, lse: &lse })?;
    Ok(lse)
}

fn rows(view: View<'_>) -> usize {
    view.shape()[1]
}

/// The first `prefix` rows among themselves, every other block on its own keys and on those of the prefix that come before its
/// group's share: what the query-aware plan costs.
fn in_blocks(bench: &Bench, q: View<'_>, [k, v]: [View<'_>; 2], prefix: usize, out: View<'_>) -> Result<()> {
    let device = bench.device();
    let keys = |start, end| [k.part(start, end), v.part(start, end)];
    attend(bench, q.part(0, prefix), keys(0, prefix), Mask::Causal, out.part(0, prefix))?;
    let n = rows(q) - prefix;
    let group = BLOCK.max(n / 8);
    let behind = device.empty(&[group, HEADS.query * HEADS.dim], DType::Bf16)?;
    let behind_heads = behind.token_major(HEADS.query)?;
    for first in (prefix..prefix + n).step_by(group) {
        let seen = (prefix * (first - prefix + group) / n).max(64);
        let lse = attend(bench, q.part(first, first + group), keys(0, seen), Mask::None, behind_heads)?;
        for start in (first..first + group).step_by(BLOCK) {
            let own = out.part(start, start + BLOCK);
            let own_lse = attend(bench, q.part(start, start + BLOCK), keys(start, start + BLOCK), Mask::Causal, own)?;
            let at = start - first;
            device.merge_into((own, &own_lse, 0), (behind_heads.part(at, at + BLOCK), &lse, at))?;
        }
    }
    Ok(())
}

/// One layer by the backend's operations.
fn check(bench: &Bench, layer: &Layer) -> Result<()> {
    let (gpu, t) = (&bench.gpu, 1536);
    let ids: Vec<u32> = (0..t as u32).collect();
    let x = bench.random(&[t, HIDDEN], 77, 1.0)?;
    let (q, k, v) = gpu.split_rotate(
        &gpu.linear(&gpu.rms_norm(&x, &layer.norms[0], EPS)?, &layer.qkv)?,
        HEADS,
        &ids,
        Rotary::plain(&inv_freq()),
    )?;
    let partial = gpu.attention(&q, &gpu.kv(&k, &v)?, Mask::Causal)?;
    let y = gpu.linear_add(&gpu.join_heads(&partial.output)?, &layer.out, x.clone())?;
    let inner = gpu.gated_silu(&gpu.linear(&gpu.rms_norm(&y, &layer.norms[1], EPS)?, &layer.gate_up)?)?;
    let expected = gpu.linear_add(&inner, &layer.down, y)?;
    let mut stream = [x];
    let mut cache = CudaKv::new(bench.device(), HEADS.kv, HEADS.dim, DType::Bf16, t)?;
    let positions = bench.device().positions(&ids, Rotary::plain(&inv_freq()))?;
    forward(bench, layer, &mut cache, &mut stream, (&positions, Local::Dense))?;
    bench.agree(&stream[0], &expected)
}

pub fn run(bench: &Bench, Size { tokens, chunk }: Size) -> Result<()> {
    let layers = (0..LAYERS).map(|seed| Layer::random(bench, seed as u32 + 1)).collect::<Result<Vec<_>>>()?;
    check(bench, &layers[0])?;
    let cache = |capacity| CudaKv::new(bench.device(), HEADS.kv, HEADS.dim, DType::Bf16, capacity);
    let prefill = |tokens: usize, local: Local, caches: &mut Vec<CudaKv>| -> Result<f64> {
        caches.clear();
        for _ in 0..LAYERS {
            caches.push(cache(tokens + 512)?);
        }
        let rows = |start: usize| bench.random(&[chunk.min(tokens - start), HIDDEN], start as u32, 1.0);
        let mut stream = (0..tokens).step_by(chunk).map(rows).collect::<Result<Vec<_>>>()?;
        let positions =
            bench.device().positions(&(0..tokens as u32).collect::<Vec<_>>(), Rotary::plain(&inv_freq()))?;
        bench.device().synchronize()?;
        let start = std::time::Instant::now();
        for (layer, cache) in layers.iter().zip(caches) {
            forward(bench, layer, cache, &mut stream, (&positions, local))?;
        }
        bench.device().synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let mut caches = Vec::new();
    let prefix = (tokens / 32).max(1152);
    for (name, rows, local) in [("blocks", prefix + tokens, Local::Blocks { prefix }), ("dense", tokens, Local::Dense)]
    {
        let mut times = (0..3).map(|_| prefill(rows, local, &mut caches)).collect::<Result<Vec<_>>>()?;
        // The first builds plans and touches memory.
        let first = times.remove(0);
        times.sort_by(f64::total_cmp);
        let (free, all) = bench.device().memory()?;
        let figure = format!("first {first:.3} s, {:.1} GB in use", (all - free) as f64 / 1e9);
        bench.say("layers", &format!("{name}, {tokens} tokens, chunks of {chunk}"), times[0], &figure)?;
    }
    step(bench, &layers, caches)
}

/// One row behind what is cached, as decoding does it, with the output head.
fn step(bench: &Bench, layers: &[Layer], caches: Vec<CudaKv>) -> Result<()> {
    let head = CudaLinear::of(bench.random(&[VOCABULARY, HIDDEN], 3, 0.02)?, None)?;
    let tokens = caches.first().map_or(0, CudaKv::len);
    for rows in [1, 16] {
        let ids: Vec<u32> = (tokens as u32..).take(rows).collect();
        let positions = bench.device().positions(&ids, Rotary::plain(&inv_freq()))?;
        let caches = std::cell::RefCell::new(caches.clone());
        let work = |_| {
            let mut stream = [bench.random(&[rows, HIDDEN], 5, 1.0)?];
            for (layer, cache) in layers.iter().zip(caches.borrow_mut().iter_mut()) {
                cache.truncate(tokens);
                forward(bench, layer, cache, &mut stream, (&positions, Local::Dense))?;
            }
            bench.gpu.products().linear(bench.device(), &stream[0], &head, None)?;
            Ok(())
        };
        let seconds = bench.time(10, work)?;
        bench.say(
            "step",
            &format!("{rows} rows on {tokens} keys, {LAYERS} layers"),
            seconds,
            "queued kernel by kernel",
        )?;
    }
    Ok(())
}
