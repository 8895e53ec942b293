//! Attention on the GPU by each kernel: prefill, and few rows on many keys.

use asterism_kernels::cuda::CudaAttentionCall;
use asterism_kernels::prelude::*;
use asterism_kernels::reference::{self, AttentionShape};
use asterism_kernels::{Cuda, CudaOptions, DType, Heads, Mask};

use super::common::rounded;
use super::{distance, draw, gpu};

/// Which kernel attends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kernel {
    Chosen,
    Own,
    Pieces,
}

/// Attention of token-major bf16 against the reference.
fn attends(gpu: &Cuda, shape: AttentionShape, kernel: Kernel, out: DType) {
    let AttentionShape { heads: Heads { query, kv, dim }, queries, keys, mask } = shape;
    let seed = (queries * 31 + keys) as u64;
    let (q_values, q) = draw(gpu, &[queries, query * dim], seed);
    let (k_values, k) = draw(gpu, &[keys, kv * dim], seed + 1);
    let (v_values, v) = draw(gpu, &[keys, kv * dim], seed + 2);
    let output = gpu.device().tensor(&[queries, query * dim], &vec![f32::NAN; queries * query * dim], out).unwrap();
    let lse = gpu.device().tensor(&[query, queries], &vec![f32::NAN; query * queries], DType::F32).unwrap();
    let call = CudaAttentionCall {
        q: q.token_major(query).unwrap(),
        k: k.token_major(kv).unwrap(),
        v: v.token_major(kv).unwrap(),
        mask,
        out: output.token_major(query).unwrap(),
        lse: &lse,
    };
    match kernel {
        Kernel::Chosen => gpu.attender().attend(gpu.device(), call).unwrap(),
        Kernel::Own => gpu.device().attend_own(call).unwrap(),
        Kernel::Pieces => gpu.device().attend_few(call).unwrap(),
    }
    let heads_first = |x: &[f32], heads: usize, rows: usize| -> Vec<f32> {
        let of = |at: usize| x[(at / dim % rows * heads + at / dim / rows) * dim + at % dim];
        (0..x.len()).map(of).collect()
    };
    let [q, k, v] = [(&q_values, query, queries), (&k_values, kv, keys), (&v_values, kv, keys)]
        .map(|(x, heads, rows)| heads_first(x, heads, rows));
    let (expected, expected_lse) = reference::attention(&q, &k, &v, shape);
    let got = heads_first(&gpu.device().download(&output).unwrap(), query, queries);
    let (apart, got_lse) = (distance(&got, &expected), gpu.device().download(&lse).unwrap());
    assert!(apart < 1e-2, "{shape:?} by {kernel:?}: {apart}");
    for (got, expected) in got_lse.iter().zip(&expected_lse) {
        assert!(got == expected || (got - expected).abs() < 2e-3, "{shape:?} by {kernel:?}: lse {got}, not {expected}");
    }
}

#[test]
fn prefill_attention_agrees_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    println!("cuDNN: {}", gpu.attender().has_library());
    let masks = [
        Mask::None,
        Mask::Causal,
        Mask::From { row: 200 },
        Mask::Streaming { sink: 70, window: 300, first_row: 100, first_key: 0 },
    ];
    for (dim, group) in [(128, 4), (64, 3), (128, 1)] {
        let heads = Heads { query: 2 * group, kv: 2, dim };
        for (queries, keys) in [(512, 512), (600, 600), (1024, 1500), (777, 1300), (1100, 1659), (700, 500)] {
            for mask in masks {
                let shape = AttentionShape { heads, queries, keys, mask };
                attends(gpu, shape, Kernel::Own, DType::F32);
                attends(gpu, shape, Kernel::Chosen, DType::Bf16);
            }
        }
    }
}

/// Attention in 8-bit floats is as close to the reference as their few bits let it, whatever keys have in common, and the same again.
#[test]
fn attention_in_8_bit_floats_is_close_to_the_reference() {
    let Some(gpu) = gpu() else { return };
    let options = CudaOptions { float8_attention: true, ..CudaOptions::plain(0, DType::Bf16) };
    let is_able = || gpu.device().is_hopper() && gpu.device().multiplies_eight_bits().unwrap();
    let Ok(gpu) = Cuda::new(options).inspect_err(|_| assert!(!is_able())) else { return };
    let gpu = &gpu;
    for (query, kv) in [(8, 2), (3, 3)] {
        let heads = Heads { query, kv, dim: 128 };
        let calls = [(513, 1), (513, 127), (513, 513), (600, 1000), (1100, 1659), (777, 4096)];
        // Keys that are cut into runs.
        let in_runs = (query == kv).then_some((520, 16_500));
        for (queries, keys) in calls.into_iter().chain(in_runs) {
            for mask in [Mask::None, Mask::Causal].into_iter().take(1 + usize::from(keys >= queries)) {
                let shape = AttentionShape { heads, queries, keys, mask };
                let seed = (queries * 31 + keys) as u64;
                let (q_values, q) = draw(gpu, &[query, queries, 128], seed);
                let (mut k_values, _) = draw(gpu, &[kv, keys, 128], seed + 1);
                // Some elements of keys are large, and of all keys alike.
                k_values.iter_mut().enumerate().filter(|(at, _)| at % 128 % 50 == 7).for_each(|(_, k)| *k += 60.0);
                let k_values = rounded(DType::Bf16, k_values);
                let k = gpu.device().tensor(&[kv, keys, 128], &k_values, DType::Bf16).unwrap();
                let (v_values, v) = draw(gpu, &[kv, keys, 128], seed + 2);
                let made = || {
                    let output =
                        gpu.device().tensor(&[query, queries, 128], &vec![f32::NAN; q_values.len()], DType::Bf16);
                    let lse = gpu.device().tensor(&[query, queries], &vec![f32::NAN; query * queries], DType::F32);
                    let (output, lse) = (output.unwrap(), lse.unwrap());
                    let [q, k, v, out] = [&q, &k, &v, &output].map(|x| x.heads_first().unwrap());
                    let call = CudaAttentionCall { q, k, v, mask, out, lse: &lse };
                    gpu.attender().attend(gpu.device(), call).unwrap();
                    [output, lse].map(|x| gpu.device().download(&x).unwrap())
                };
                let [got, got_lse] = made();
                let (expected, expected_lse) = reference::attention(&q_values, &k_values, &v_values, shape);
                let apart = distance(&got, &expected);
                assert!(apart < 0.06, "{shape:?}: {apart}");
                for (got, expected) in got_lse.iter().zip(&expected_lse) {
                    assert!((got - expected).abs() < 0.3, "{shape:?}: lse {got}, not {expected}");
                }
                assert!(made() == [got, got_lse], "{shape:?}: other bits the second time");
            }
        }
    }
}

/// Keys that follow others in a cache find the codes of these, and give the bits of a cache that has all of them at once.
#[test]
fn a_cache_that_grows_keeps_its_codes_in_8_bit_floats() {
    let Some(_shared) = gpu() else { return };
    let options = CudaOptions { float8_attention: true, ..CudaOptions::plain(0, DType::Bf16) };
    let Ok(gpu) = Cuda::new(options) else { return };
    let (query, kv) = (4, 2);
    let cache = |keys: usize, seed| {
        let [k, v] = [0, 1].map(|i: u32| gpu.device().random(&[kv, keys, 128], DType::Bf16, seed + i, 1.0).unwrap());
        gpu.kv(&k, &v).unwrap()
    };
    for (first, then) in [(1024, [600, 1000]), (900, [513, 700]), (2048, [1024, 200])] {
        let first = cache(first, 1);
        let (mut grown, mut all) = (gpu.kv_joined(&first, &[], 3000).unwrap(), first);
        let bits = |kv: &_, rows, seed| {
            let q = gpu.device().random(&[query, rows, 128], DType::Bf16, seed, 1.0).unwrap();
            let partial = gpu.attention_together(&q, kv, Mask::Causal).unwrap();
            [partial.output, partial.lse].map(|x| gpu.device().download(&x).unwrap())
        };
        for (at, rows) in then.into_iter().enumerate() {
            let more = cache(rows, 10 + at as u32);
            gpu.kv_extend(&mut grown, &more).unwrap();
            gpu.kv_extend(&mut all, &more).unwrap();
            assert!(bits(&grown, rows, 20) == bits(&all, rows, 20), "{rows} rows behind those of before");
        }
        // Others in the place of the last ones, which end within a block.
        let len = gpu.kv_len(&all) - 100;
        for kv in [&mut grown, &mut all] {
            gpu.kv_truncate(kv, len).unwrap();
            gpu.kv_extend(kv, &cache(600, 30)).unwrap();
        }
        assert!(bits(&grown, 600, 21) == bits(&all, 600, 21), "behind what was taken back");
    }
}

#[test]
fn few_rows_on_keys_in_pieces_agree_with_the_reference() {
    let Some(gpu) = gpu() else { return };
    for (dim, group) in [(128, 4), (64, 1), (64, 7)] {
        let heads = Heads { query: 2 * group, kv: 2, dim };
        for (queries, keys) in [(1, 1), (1, 31), (4, 2047), (5, 2049), (16, 6000), (64, 4097), (70, 2100), (3, 0)] {
            for mask in
                [Mask::None, Mask::Causal, Mask::Streaming { sink: 4, window: 900, first_row: 3000, first_key: 0 }]
            {
                let shape = AttentionShape { heads, queries, keys, mask };
                attends(gpu, shape, Kernel::Pieces, DType::F32);
                attends(gpu, shape, Kernel::Pieces, DType::Bf16);
            }
        }
    }
}

/// Whatever the tile that a row falls in, and whichever kernel takes the call.
#[test]
fn a_row_of_few_does_not_depend_on_its_company() {
    let Some(gpu) = gpu() else { return };
    for (dim, group, keys) in [(128, 4, 5000), (64, 3, 2048), (128, 7, 1025)] {
        let (query, kv) = (2 * group, 2);
        let (q, k) = (draw(gpu, &[64, query * dim], 1).1, draw(gpu, &[keys, kv * dim], 2).1);
        let v = draw(gpu, &[keys, kv * dim], 3).1;
        let attended = |start: usize, end: usize| -> [Vec<f32>; 2] {
            let out = gpu.device().empty(&[end - start, query * dim], DType::F32).unwrap();
            let lse = gpu.device().empty(&[query, end - start], DType::F32).unwrap();
            let rows = q.rows(start, end).unwrap();
            let [k, v] = [&k, &v].map(|x| x.token_major(kv).unwrap());
            let (q, out_view) = (rows.token_major(query).unwrap(), out.token_major(query).unwrap());
            let call = CudaAttentionCall { q, k, v, mask: Mask::None, out: out_view, lse: &lse };
            gpu.device().attend_few(call).unwrap();
            [out, lse].map(|x| gpu.device().download(&x).unwrap())
        };
        let [all, all_lse] = attended(0, 64);
        for (start, end) in [(0, 1), (3, 4), (5, 8), (0, 16), (16, 32), (7, 24), (33, 64), (2, 63)] {
            let [got, lse] = attended(start, end);
            assert!(got == all[start * query * dim..end * query * dim], "rows {start}..{end}, d {dim}, group {group}");
            for head in 0..query {
                let (rows, of_all) = (end - start, &all_lse[head * 64..][start..end]);
                assert!(lse[head * rows..][..rows] == *of_all, "rows {start}..{end}, d {dim}, group {group}: lse");
            }
        }
    }
}

/// Cut by KV heads, and by rows; the own kernel, which is never cut, is what the reference checks above.
#[test]
fn long_calls_are_those_of_their_parts() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device();
    let dim = 128;
    for (query, kv, rows, keys, mask) in [
        (16, 4, 40_000, 100_000, Mask::Causal),
        (8, 1, 31_000, 300_000, Mask::Causal),
        (8, 1, 31_000, 300_000, Mask::None),
        (8, 2, 160_000, 160_000, Mask::Streaming { sink: 4, window: 2000, first_row: 0, first_key: 0 }),
    ] {
        let draw =
            |rows: usize, heads: usize, seed| device.random(&[rows, heads * dim], DType::Bf16, seed, 1.0).unwrap();
        let (q, k, v) = (draw(rows, query, 1), draw(keys, kv, 2), draw(keys, kv, 3));
        let results =
            [4, 5].map(|seed| (draw(rows, query, seed), device.random(&[query, rows], DType::F32, seed, 1.0).unwrap()));
        let calls = results.each_ref().map(|(out, lse)| {
            let [k, v] = [&k, &v].map(|x| x.token_major(kv).unwrap());
            CudaAttentionCall {
                q: q.token_major(query).unwrap(),
                k,
                v,
                mask,
                out: out.token_major(query).unwrap(),
                lse,
            }
        });
        gpu.attender().attend(device, calls[0]).unwrap();
        device.attend_own(calls[1]).unwrap();
        let [cut, own] = results.each_ref().map(|(out, lse)| [out, lse].map(|x| device.download(x).unwrap()));
        let apart = [0, 1].map(|at| distance(&cut[at], &own[at]));
        assert!(apart[0] < 1e-2 && apart[1] < 1e-4, "{rows} on {keys}, {mask:?}: {apart:?}");
    }
}
