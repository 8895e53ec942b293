//! Attention of an 8B model's heads: prefill, and few rows on many keys.

use anyhow::Result;
use asterism_kernels::cuda::{CudaAttentionCall, CudaKv, Tensor};
use asterism_kernels::prelude::*;
use asterism_kernels::{DType, KvFormat, KvType, Mask};

use crate::Bench;

const QUERY: usize = 32;
const KV: usize = 8;

/// Operands and results of one call, token-major.
struct Operands {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
}

impl Operands {
    fn new(bench: &Bench, rows: usize, keys: usize, dim: usize) -> Result<Self> {
        Ok(Self {
            q: bench.random(&[rows, QUERY * dim], 1, 1.0)?,
            k: bench.random(&[keys, KV * dim], 2, 1.0)?,
            v: bench.random(&[keys, KV * dim], 3, 1.0)?,
            out: bench.random(&[rows, QUERY * dim], 4, 1.0)?,
            lse: bench.device().empty(&[QUERY, rows], DType::F32)?,
        })
    }

    fn call<'a>(&'a self, out: &'a Tensor, lse: &'a Tensor, mask: Mask) -> Result<CudaAttentionCall<'a>> {
        let (k, v) = (self.k.token_major(KV)?, self.v.token_major(KV)?);
        Ok(CudaAttentionCall { q: self.q.token_major(QUERY)?, k, v, mask, out: out.token_major(QUERY)?, lse })
    }
}

pub fn prefill(bench: &Bench) -> Result<()> {
    let cases = [
        (128, 8, 8, Mask::Causal),
        (128, 32, 32, Mask::Causal),
        (128, 128, 128, Mask::Causal),
        (128, 8, 128, Mask::Causal),
        (128, 32, 128, Mask::Causal),
        (128, 2, 2, Mask::Causal),
        (128, 8, 8, Mask::None),
        (128, 16, 4, Mask::None),
        (128, 32, 32, Mask::None),
        (64, 32, 32, Mask::Causal),
    ];
    for (dim, rows, keys, mask) in cases {
        let (rows, keys) = (rows * 1024, keys * 1024);
        let operands = Operands::new(bench, rows, keys, dim)?;
        let (out, lse) =
            (bench.random(&[rows, QUERY * dim], 5, 1.0)?, bench.device().empty(&[QUERY, rows], DType::F32)?);
        let chosen = operands.call(&operands.out, &operands.lse, mask)?;
        let own = operands.call(&out, &lse, mask)?;
        bench.gpu.attender().attend(bench.device(), chosen)?;
        bench.device().attend_own(own)?;
        let last = |x: &Tensor| x.rows(rows - 2048, rows);
        bench.agree(&last(&operands.out)?, &last(&out)?)?;
        bench.agree(&operands.lse, &lse)?;
        let hidden = if mask == Mask::Causal { (rows - 1) as f64 / 2.0 } else { 0.0 };
        let flops = 4.0 * (QUERY * dim) as f64 * rows as f64 * (keys as f64 - hidden);
        let reps = ((2e13 / flops) as usize).clamp(1, 20);
        let case = format!("{rows} on {keys}, d {dim}, {mask:?}");
        let seconds = bench.time(reps, |_| Ok(bench.gpu.attender().attend(bench.device(), chosen)?))?;
        let figure = format!("{:.0} TFLOP/s", flops / seconds / 1e12);
        bench.say("attention", &case, seconds, &figure)?;
        if rows.max(keys) <= 32768 {
            let seconds = bench.time(reps.min(4), |_| Ok(bench.device().attend_own(own)?))?;
            bench.say("own", &case, seconds, &format!("{:.0} TFLOP/s", flops / seconds / 1e12))?;
        }
    }
    Ok(())
}

pub fn few_rows(bench: &Bench) -> Result<()> {
    for (dim, keys) in [(128, 32 << 10), (128, 128 << 10), (128, 1 << 20), (64, 128 << 10)] {
        for rows in [1, 2, 4, 8, 16, 32, 64] {
            let operands = Operands::new(bench, rows, keys, dim)?;
            let (out, lse) =
                (bench.random(&[rows, QUERY * dim], 5, 1.0)?, bench.device().empty(&[QUERY, rows], DType::F32)?);
            // As a context has them.
            let draw = |seed| bench.random(&[KV, keys, dim], seed, 1.0);
            let cached = bench.gpu.kv(&draw(2)?, &draw(3)?)?;
            let [k, v] = cached.view(0, keys);
            let few = CudaAttentionCall { k, v, ..operands.call(&operands.out, &operands.lse, Mask::None)? };
            bench.device().attend_few(few)?;
            bench.device().attend_own(CudaAttentionCall { k, v, ..operands.call(&out, &lse, Mask::None)? })?;
            bench.agree(&operands.out, &out)?;
            bench.agree(&operands.lse, &lse)?;
            let seconds = bench.time(40, |_| Ok(bench.device().attend_few(few)?))?;
            let bytes = (2 * keys * KV * dim * 2) as f64;
            let flops = 4.0 * (QUERY * dim * rows * keys) as f64;
            let figure =
                format!("{:.2} TB/s of keys and values, {:.0} TFLOP/s", bytes / seconds / 1e12, flops / seconds / 1e12);
            bench.say("rows", &format!("{rows} on {keys}, d {dim}"), seconds, &figure)?;
        }
    }
    Ok(())
}

/// Few rows on keys in 8 bits, beside the same keys in bf16.
pub fn codes(bench: &Bench) -> Result<()> {
    let (gpu, device) = (&bench.gpu, bench.device());
    for (dim, keys) in [(128, 32 << 10), (128, 128 << 10), (128, 1 << 20), (64, 128 << 10)] {
        let [k, v] = [2, 3].map(|seed| bench.random(&[KV, keys, dim], seed, 1.0));
        let (k, v) = (k?, v?);
        let mut kept = CudaKv::new(device, KV, dim, KvType { computed: DType::Bf16, kept: KvFormat::Q8 }, keys)?;
        kept.append(device, &k, &v)?;
        let (computed, wide) = (gpu.kv(&k, &v)?, kept.widened(device)?);
        for rows in [1, 2, 4, 8, 16, 32, 64] {
            let q = bench.random(&[QUERY, rows, dim], 1, 1.0)?;
            let [got, expected] = [&kept, &wide].map(|kv| gpu.attention(&q, kv, Mask::None));
            let (got, expected) = (got?, expected?);
            bench.agree(&got.output, &expected.output)?;
            bench.agree(&got.lse, &expected.lse)?;
            let time =
                |kv: &CudaKv| bench.time(40, |_| gpu.attention(&q, kv, Mask::None).map(drop).map_err(Into::into));
            let (seconds, of_computed) = (time(&kept)?, time(&computed)?);
            let bytes = (2 * keys * KV * (dim + 2)) as f64;
            let figure = format!(
                "{:.2} TB/s of keys and values, {:.2} of bf16's {:.3} ms",
                bytes / seconds / 1e12,
                seconds / of_computed,
                of_computed * 1e3
            );
            bench.say("codes", &format!("{rows} on {keys}, d {dim}"), seconds, &figure)?;
        }
    }
    Ok(())
}

/// The shards of a long context as one cache, as they are kept in bf16 and in 8 bits: what each layer of a turn begins with.
pub fn joined(bench: &Bench) -> Result<()> {
    let (gpu, device) = (&bench.gpu, bench.device());
    for (dim, shards, keys) in [(128, 140, 1024), (128, 16, 8192), (64, 140, 1024)] {
        for kept in [KvFormat::Computed, KvFormat::Q8] {
            let shard = |at: usize| -> Result<CudaKv> {
                let [k, v] = [0, 1].map(|which| bench.random(&[KV, keys, dim], 2 * at as u32 + which, 1.0));
                let mut kv = CudaKv::new(device, KV, dim, KvType { computed: DType::Bf16, kept }, keys)?;
                kv.append(device, &k?, &v?)?;
                Ok(kv)
            };
            let all = (0..shards).map(shard).collect::<Result<Vec<_>>>()?;
            let others: Vec<&CudaKv> = all[1..].iter().collect();
            let mut expected = all[0].widened(device)?;
            others.iter().try_for_each(|kv| expected.append_cache(device, kv))?;
            let got = gpu.kv_joined(&all[0], &others, 0)?.tensors();
            got.iter().zip(&expected.tensors()).try_for_each(|(got, expected)| bench.agree(got, expected))?;
            let seconds = bench.time(10, |_| Ok(gpu.kv_joined(&all[0], &others, 0).map(drop)?))?;
            let row = KvType { computed: DType::Bf16, kept }.row_bytes(dim) + 2 * dim;
            let figure = format!("{:.2} TB/s read and written", (2 * shards * keys * KV * row) as f64 / seconds / 1e12);
            let case = format!("{shards} of {keys}, d {dim}, {}", kept.name().unwrap_or("bf16"));
            bench.say("joined", &case, seconds, &figure)?;
        }
    }
    Ok(())
}
