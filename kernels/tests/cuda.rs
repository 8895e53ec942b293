//! The GPU's operations where they go beyond the backend: products whose rows stand alone, attention by each kernel,
//! selection on the device. Skipped, loudly, where there is no GPU.
#![cfg(feature = "cuda")]

#[path = "cuda/attends.rs"]
mod attends;
#[path = "common/blocks.rs"]
mod blocks;
#[path = "cuda/chosen.rs"]
mod chosen;
#[allow(dead_code, reason = "the processor's backends are tested elsewhere")]
mod common;
#[path = "cuda/lent.rs"]
mod lent;
#[path = "cuda/sampling.rs"]
mod sampling;
#[path = "cuda/shared.rs"]
mod shared;
#[path = "cuda/stored.rs"]
mod stored;

use std::cell::RefCell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use asterism_kernels::cuda::{CudaKv, CudaLinear, Tensor};
use asterism_kernels::prelude::*;
use asterism_kernels::reference;
use asterism_kernels::{Cuda, CudaOptions, DType, Heads, Partial, Rank, Rotary, top_k};
use common::{devices, numbers, rounded};

/// Whether a test has the GPU alone. Where kernels of one GPU wait for each other, a call of another thread that waits for all of the GPU
/// could keep the second from being queued.
static COMPANY: RwLock<()> = RwLock::new(());

thread_local! {
    /// Held until the test's thread ends.
    static WITH_OTHERS: RefCell<Option<RwLockReadGuard<'static, ()>>> = const { RefCell::new(None) };
    static ALONE: RefCell<Option<RwLockWriteGuard<'static, ()>>> = const { RefCell::new(None) };
}

/// The GPU computing in bf16, for this test among others.
fn gpu() -> Option<&'static Cuda> {
    WITH_OTHERS.with_borrow_mut(|held| {
        held.get_or_insert_with(|| COMPANY.read().unwrap_or_else(PoisonError::into_inner));
    });
    devices().last()
}

/// The same for this test alone.
fn alone_on_gpu() -> Option<&'static Cuda> {
    ALONE.with_borrow_mut(|held| {
        held.get_or_insert_with(|| COMPANY.write().unwrap_or_else(PoisonError::into_inner));
    });
    devices().last()
}

fn draw(gpu: &Cuda, shape: &[usize], seed: u64) -> (Vec<f32>, Tensor) {
    let values = rounded(DType::Bf16, numbers(shape.iter().product(), seed));
    let tensor = gpu.device().tensor(shape, &values, DType::Bf16).unwrap();
    (values, tensor)
}

/// ||got - expected|| / ||expected||.
fn distance(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |x: f64| x * x;
    let apart: f64 = got.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = expected.iter().map(|x| square(f64::from(*x))).sum();
    (apart / size.max(1e-30)).sqrt()
}

#[test]
fn a_row_of_a_product_does_not_depend_on_its_company() {
    let Some(gpu) = gpu() else { return };
    for (n, k, biased) in [(6144, 4096, false), (4096, 14336, false), (4608, 3584, true), (512, 256, false)] {
        let (x, w) = (draw(gpu, &[4096, k], 1).1, draw(gpu, &[n, k], 2).1);
        let bias = biased.then(|| draw(gpu, &[n], 3).1);
        let linear = CudaLinear::of(w, bias).unwrap();
        let product = |start: usize, end: usize, residual: Option<Tensor>| {
            let y = gpu.products().linear(gpu.device(), &x.rows(start, end).unwrap(), &linear, residual).unwrap();
            gpu.device().download(&y).unwrap()
        };
        let residual = draw(gpu, &[4096, n], 4).1;
        let [plain, added] = [product(0, 4096, None), product(0, 4096, Some(residual.clone()))];
        let step = if n == 512 { 7 } else { 397 };
        let counts = [
            1, 2, 3, 5, 8, 15, 16, 17, 32, 33, 50, 64, 65, 96, 127, 128, 129, 255, 256, 257, 512, 1000, 1024, 1025,
            2048, 4095,
        ];
        for rows in counts.into_iter().chain((1..4096).step_by(step)) {
            let start = rows * 31 % (4097 - rows);
            let range = start * n..(start + rows) * n;
            let differ = |got: &[f32], all: &[f32]| got.iter().zip(&all[range.clone()]).filter(|(a, b)| a != b).count();
            let got = product(start, start + rows, None);
            assert_eq!(differ(&got, &plain), 0, "({n}, {k}): {rows} rows from {start}");
            let got = product(start, start + rows, Some(residual.rows(start, start + rows).unwrap()));
            assert_eq!(differ(&got, &added), 0, "({n}, {k}): {rows} rows from {start}, added");
            let owned = gpu.device().narrow(&residual, 0, start, start + rows).unwrap();
            let got = product(start, start + rows, Some(owned));
            assert_eq!(
                differ(&got, &added),
                0,
                "({n}, {k}): {rows} rows from {start}, added to rows that nobody else has"
            );
        }
    }
    gpu.products().choices().iter().for_each(|choice| println!("{choice:?}"));
}

/// Few rows go through gates within the product, many behind it: the same bits.
#[test]
fn gates_within_a_product_are_those_behind_it() {
    let Some(gpu) = gpu() else { return };
    let host = |x: &Tensor| gpu.device().download(x).unwrap();
    for (k, f) in [(256, 416), (4096, 1040)] {
        let linear = |n: usize, k: usize, seed: u64| {
            let weight = draw(gpu, &[n, k], seed).1;
            let bias = draw(gpu, &[n], seed + 1).1;
            CudaLinear::of(weight, Some(bias)).unwrap()
        };
        let (gate_up, down) = (linear(2 * f, k, 5), linear(k, f, 7));
        let (_, norm) = draw(gpu, &[k], 9);
        for rows in [1, 3, 8, 9, 16, 17] {
            let (_, x) = draw(gpu, &[rows, k], rows as u64);
            let within = gpu.norm_mlp(&x, (&norm, 1e-5), [&gate_up, &down]).unwrap();
            let gates = gpu.norm_linear(&x, (&norm, 1e-5), &gate_up).unwrap();
            let behind = gpu.linear_add(&gpu.gated_silu(&gates).unwrap(), &down, x.clone()).unwrap();
            assert!(host(&within) == host(&behind), "{rows} rows of {k}");
        }
    }
}

#[test]
fn products_are_within_rounding_of_double_precision() {
    let Some(gpu) = gpu() else { return };
    for (rows, n, k) in [(5, 264, 4096), (130, 136, 1000), (3, 33, 77)] {
        let ((x_values, x), (w_values, w)) = (draw(gpu, &[rows, k], 5), draw(gpu, &[n, k], 6));
        let linear = CudaLinear::of(w, None).unwrap();
        let got = gpu.device().download(&gpu.products().linear(gpu.device(), &x, &linear, None).unwrap()).unwrap();
        let of = |at: usize| {
            let (x, w) = (&x_values[at / n * k..][..k], &w_values[at % n * k..][..k]);
            x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() as f32
        };
        let expected: Vec<f32> = (0..rows * n).map(of).collect();
        let distance = distance(&got, &expected);
        assert!(distance < 4e-3, "({rows}, {n}, {k}): {distance}");
    }
}

/// Rows about every size of a tile, with outputs that end within one and inputs that end within a stage.
#[test]
fn few_rows_have_the_bits_of_many_beside_every_end_of_a_tile() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device();
    let eight_bits = device.multiplies_eight_bits().unwrap();
    let shapes = [
        (1008, 192, false),
        (1040, 2048, true),
        (5120, 320, true),
        (4304, 1024, false),
        (14_320, 256, true),
        (28_672, 640, false),
    ];
    for (n, k, biased) in shapes {
        let (x, w) = (draw(gpu, &[300, k], 1).1, draw(gpu, &[n, k], 2).1);
        let linear = || CudaLinear::of(w.clone(), biased.then(|| draw(gpu, &[n], 3).1)).unwrap();
        let residual = draw(gpu, &[300, n], 4).1;
        let mut linears = vec![linear()];
        if eight_bits {
            linears.push(linear().in_eight_bits(device).unwrap());
        }
        for (by, added) in linears.iter().flat_map(|by| [(by, false), (by, true)]) {
            let product = |start: usize, end: usize| {
                let (x, residual) = (x.rows(start, end).unwrap(), residual.rows(start, end).unwrap());
                device.download(&gpu.products().linear(device, &x, by, added.then_some(residual)).unwrap()).unwrap()
            };
            let all = product(0, 300);
            for rows in [1, 7, 8, 9, 15, 16, 17, 18, 31, 32, 33, 47, 48, 49, 63, 64, 65] {
                let start = rows * 31 % (301 - rows);
                let differ = |got: &f32, all: &f32| got.to_bits() != all.to_bits();
                let got = product(start, start + rows);
                let different =
                    got.iter().zip(&all[start * n..(start + rows) * n]).filter(|(got, all)| differ(got, all)).count();
                assert_eq!(different, 0, "({n}, {k}), 8 bits {}: {rows} rows, added {added}", by.is_in_eight_bits());
            }
        }
    }
    gpu.products().choices().iter().for_each(|choice| println!("{choice:?}"));
}

#[test]
fn products_of_eight_bits_are_close_to_those_of_sixteen_and_their_rows_stand_alone() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device();
    if !device.multiplies_eight_bits().unwrap() {
        return;
    }
    for (n, k, biased) in [(6144, 4096, false), (4096, 14336, false), (4608, 3584, true), (512, 256, false)] {
        let (x, w) = (draw(gpu, &[1100, k], 1).1, draw(gpu, &[n, k], 2).1);
        let linear = || CudaLinear::of(w.clone(), biased.then(|| draw(gpu, &[n], 3).1)).unwrap();
        let (sixteen, eight) = (linear(), linear().in_eight_bits(device).unwrap());
        assert!(eight.is_in_eight_bits());
        let residual = draw(gpu, &[1100, n], 4).1;
        let product = |start: usize, end: usize, by: &CudaLinear, added: bool| {
            let (x, residual) = (x.rows(start, end).unwrap(), residual.rows(start, end).unwrap());
            device.download(&gpu.products().linear(device, &x, by, added.then_some(residual)).unwrap()).unwrap()
        };
        for added in [false, true] {
            let all = product(0, 1100, &eight, added);
            let apart = distance(&all, &product(0, 1100, &sixteen, added));
            println!("({n}, {k}): {apart}");
            assert!(apart < 0.06, "({n}, {k}): {apart}");
            for rows in [1, 2, 7, 16, 17, 32, 33, 64, 65, 100, 128, 129, 256, 257, 500, 1024, 1025] {
                let start = rows * 31 % (1101 - rows);
                let got = product(start, start + rows, &eight, added);
                let differ = got.iter().zip(&all[start * n..(start + rows) * n]).filter(|(a, b)| a != b).count();
                assert_eq!(differ, 0, "({n}, {k}): {rows} rows from {start}");
            }
        }
        let (products, host) = (gpu.products(), |x: Tensor| device.download(&x).unwrap());
        let norm = draw(gpu, &[k], 7).1;
        let normed = device.rms_norm(&x, None, &norm, 1e-5).unwrap();
        let fused = products.norm_linear(device, &x, (&norm, 1e-5), &eight).unwrap();
        assert!(host(fused) == host(products.linear(device, &normed, &eight, None).unwrap()), "({n}, {k}), normed");
        let (gate_up, residual) = (draw(gpu, &[100, 2 * k], 8).1, residual.rows(0, 100).unwrap());
        let gated = device.gated_silu(&gate_up).unwrap();
        let fused = products.gated_linear(device, &gate_up, &eight, residual.clone()).unwrap();
        let apart = products.linear(device, &gated, &eight, Some(residual)).unwrap();
        assert!(host(fused) == host(apart), "({n}, {k}), gated");
    }
    gpu.products().choices().iter().for_each(|choice| println!("{choice:?}"));
}

#[test]
fn the_largest_scores_are_found_and_gathered_on_the_device() {
    let Some(gpu) = gpu() else { return };
    for (n, k) in [(1, 1), (5, 9), (1000, 1), (3000, 1024), (70_000, 4096)] {
        let lists = 3;
        let mut scores = numbers(lists * n, n as u64);
        // Ties, zeros of both signs and infinities.
        scores.iter_mut().step_by(3).for_each(|score| *score = (*score * 8.0).round() / 8.0);
        scores[0] = f32::NEG_INFINITY;
        scores[n / 2] = f32::INFINITY;
        let device = gpu.device();
        let chosen = device.top_k(&device.tensor(&[lists, n], &scores, DType::F32).unwrap(), k).unwrap();
        let expected: Vec<u32> =
            scores.chunks_exact(n).flat_map(|list| top_k(list, k)).map(|index| index as u32).collect();
        assert_eq!(device.download_words(&chosen).unwrap(), expected, "{k} of {n}");
        let (values, x) = draw(gpu, &[lists, n, 16], 8);
        let gathered = device.download(&device.gather(&x, &chosen).unwrap()).unwrap();
        let row = |(at, index): (usize, &u32)| (at / k.min(n) * n + *index as usize) * 16;
        let rows: Vec<f32> = expected.iter().enumerate().flat_map(|at| values[row(at)..][..16].to_vec()).collect();
        assert_eq!(gathered, rows);
    }
}

#[test]
fn a_residual_is_added_before_the_norm_and_partials_merge_in_bf16() {
    let Some(gpu) = gpu() else { return };
    let device = gpu.device();
    for e in [4096, 100] {
        let ((x_values, x), (r_values, r), (w_values, w)) =
            (draw(gpu, &[3, e], 1), draw(gpu, &[3, e], 2), draw(gpu, &[e], 3));
        let got = device.download(&device.rms_norm(&x, Some(&r), &w, 1e-5).unwrap()).unwrap();
        let sums = rounded(DType::Bf16, x_values.iter().zip(&r_values).map(|(x, r)| x + r).collect());
        assert_eq!(device.download(&x).unwrap(), sums);
        let normed = sums.chunks_exact(e).flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f32>() / e as f32;
            row.iter().zip(&w_values).map(move |(x, w)| x / (mean + 1e-5).sqrt() * w)
        });
        assert!(distance(&got, &normed.collect::<Vec<_>>()) < 4e-3);
    }
    for dim in [64, 36] {
        let parts = [1, 2, 3].map(|seed| {
            let (values, output) = draw(gpu, &[2, 5, dim], seed);
            let lse_values = numbers(10, seed + 9);
            let lse = device.tensor(&[2, 5], &lse_values, DType::F32).unwrap();
            (values, lse_values, Partial { output, lse })
        });
        let merged = device.merge(&parts.each_ref().map(|part| part.2.clone())).unwrap();
        let slices = parts.each_ref().map(|(output, lse, _)| (output.as_slice(), lse.as_slice()));
        let (output, lse) = reference::merge(&slices, dim);
        assert!(distance(&device.download(&merged.output).unwrap(), &output) < 4e-3);
        assert!(distance(&device.download(&merged.lse).unwrap(), &lse) < 1e-5);
        let [(_, _, first), (_, _, second), _] = &parts;
        let pair = device.merge(&[first.clone(), second.clone()]).unwrap();
        let to = (first.output.heads_first().unwrap().part(1, 5), &first.lse, 1);
        device.merge_into(to, (second.output.heads_first().unwrap().part(1, 5), &second.lse, 1)).unwrap();
        let last = |x: &Tensor| device.download(&device.narrow(x, 1, 1, 5).unwrap()).unwrap();
        assert!(distance(&last(&first.output), &last(&pair.output)) < 4e-3);
        assert!(distance(&last(&first.lse), &last(&pair.lse)) < 1e-5);
    }
}

#[test]
fn rotated_keys_go_straight_into_the_cache() {
    let Some(gpu) = gpu() else { return };
    let (device, dim, t) = (gpu.device(), 128, 37);
    let (_, qkv) = draw(gpu, &[t, (4 + 2 * 2) * dim], 1);
    let inv_freq: Vec<f32> = (0..dim / 2).map(|j| 5e5f32.powf(-2.0 * j as f32 / dim as f32)).collect();
    let ids: Vec<u32> = (0..t as u32).map(|i| i * 3571).collect();
    let positions = device.positions(&ids, Rotary::plain(&inv_freq)).unwrap();
    let [q, k, v] = [4, 2, 2].map(|heads| device.empty(&[heads, t, dim], DType::Bf16).unwrap());
    let to = [k.heads_first().unwrap(), v.heads_first().unwrap()];
    device.split_rotate(&qkv, &positions, q.heads_first().unwrap(), to).unwrap();
    let mut cache = CudaKv::new(device, 2, dim, DType::Bf16, 8).unwrap();
    let token_major = device.empty(&[t, 4 * dim], DType::Bf16).unwrap();
    for (start, end) in [(0, 5), (5, 6), (6, t)] {
        let to = cache.extend(device, end - start).unwrap();
        let q = token_major.token_major(4).unwrap().part(start, end);
        device.split_rotate(&qkv.rows(start, end).unwrap(), &positions.part(start, end), q, to).unwrap();
    }
    let heads_first = |view| {
        let copy = device.empty(&[2, t, dim], DType::Bf16).unwrap();
        device.copy_heads(view, copy.heads_first().unwrap()).unwrap();
        device.download(&copy).unwrap()
    };
    let [cached_k, cached_v] = cache.view(0, t);
    assert_eq!(
        (heads_first(cached_k), heads_first(cached_v)),
        (device.download(&k).unwrap(), device.download(&v).unwrap())
    );
    let joined = device.empty(&[4, t, dim], DType::Bf16).unwrap();
    device.copy_heads(token_major.token_major(4).unwrap(), joined.heads_first().unwrap()).unwrap();
    assert_eq!(device.download(&joined).unwrap(), device.download(&q).unwrap());
}

/// Rows are written behind others only while nobody else did so.
#[test]
fn what_is_extended_keeps_its_rows() {
    let Some(gpu) = gpu() else { return };
    let heads = Heads { query: 2, kv: 2, dim: 64 };
    let (_, qkv) = draw(gpu, &[40, 6 * 64], 1);
    let (_, k, _) = gpu.split_rotate(&qkv, heads, &(0..40).collect::<Vec<_>>(), Rotary::plain(&[0.5; 32])).unwrap();
    let cut = |start: usize, end: usize| gpu.narrow(&k, 1, start, end).unwrap();
    let host = |x: &Tensor| gpu.device().download(x).unwrap();
    let joined = |ranges: &[(usize, usize)]| {
        let parts: Vec<Tensor> = ranges.iter().map(|(start, end)| cut(*start, *end)).collect();
        host(&gpu.concat(&parts, 1).unwrap())
    };
    // The second of a pair is other rows, and lies elsewhere.
    let extended = |x: [&Tensor; 2], (start, end): (usize, usize)| {
        let more = [cut(start, end), cut(39 - start, 40)];
        gpu.extended([[x[0], &more[0]], [x[1], &more[1]]]).unwrap()
    };
    let same = |x: &[Tensor; 2], ranges: &[(usize, usize)]| {
        let others: Vec<_> = ranges.iter().map(|(start, _)| (39 - start, 40)).collect();
        assert_eq!(x.each_ref().map(host), [joined(ranges), joined(&others)], "{ranges:?}");
    };
    let first = extended([&cut(0, 3), &cut(39, 40)], (3, 10));
    let one = extended(first.each_ref(), (10, 20));
    let other = extended(first.each_ref(), (20, 40));
    same(&first, &[(0, 3), (3, 10)]);
    same(&one, &[(0, 3), (3, 10), (10, 20)]);
    same(&other, &[(0, 3), (3, 10), (20, 40)]);
    let mut cached = gpu.kv(&one[0], &one[0]).unwrap();
    drop(one);
    let more = extended(first.each_ref(), (30, 35));
    assert_eq!(cached.len(), 20);
    same(&more, &[(0, 3), (3, 10), (30, 35)]);
    drop(more);
    gpu.kv_append(&mut cached, &cut(5, 6), &cut(5, 6)).unwrap();
    drop(cached);
    let again = extended(extended(first.each_ref(), (39, 40)).each_ref(), (0, 2));
    same(&again, &[(0, 3), (3, 10), (39, 40), (0, 2)]);
    same(&first, &[(0, 3), (3, 10)]);
}

/// More parts than go by one launch, of both types, whole and odd ones.
#[test]
fn rows_of_attention_go_one_behind_the_other() {
    let Some(gpu) = gpu() else { return };
    for (kv, dim) in [(2, 64), (1, 6)] {
        let heads = Heads { query: kv, kv, dim };
        let (_, qkv) = draw(gpu, &[100, 3 * kv * dim], 1);
        let positions: Vec<u32> = (0..100).collect();
        let (q, ..) = gpu.split_rotate(&qkv, heads, &positions, Rotary::plain(&vec![0.5; dim / 2])).unwrap();
        let mut parts: Vec<Tensor> = (0..40).map(|at| gpu.narrow(&q, 1, at, 2 * at + 1).unwrap()).collect();
        let rounded: Vec<f32> = parts.iter().flat_map(|part| rows_of(gpu, part)).collect();
        for wide in parts.iter_mut().step_by(3) {
            *wide = gpu.device().cast(wide, DType::F32).unwrap();
        }
        let all = gpu.concat(&parts, 1).unwrap();
        assert_eq!((all.dtype(), all.shape()), (DType::Bf16, &[kv, 820, dim][..]));
        assert!(rows_of(gpu, &all) == rounded, "{kv} heads of {dim}");
    }
}

/// Row by row, heads side by side.
fn rows_of(gpu: &Cuda, x: &Tensor) -> Vec<f32> {
    let [heads, rows, dim] = x.shape()[..] else { unreachable!("heads, rows and elements") };
    let by_heads = gpu.device().download(x).unwrap();
    let at = |at: usize| by_heads[(at / dim % heads * rows + at / dim / heads) * dim + at % dim];
    (0..by_heads.len()).map(at).collect()
}

#[test]
fn what_is_not_there_is_refused() {
    let refused = Cuda::new(CudaOptions::plain(99, DType::Bf16)).err().unwrap();
    assert_eq!(refused.code(), "kernel_no_device");
    println!("{refused}");
    assert_eq!(Cuda::new(CudaOptions::plain(0, DType::F16)).err().unwrap().code(), "kernel_dtype");
    let Some(gpu) = gpu() else { return };
    let full = gpu.device().empty(&[1 << 42], DType::Bf16).err().unwrap();
    assert_eq!(full.code(), "kernel_device_memory");
    println!("{full}");
    // The device goes on after it.
    assert_eq!(gpu.device().download(&gpu.device().tensor(&[1], &[2.0], DType::F32).unwrap()).unwrap(), [2.0]);
}

#[test]
fn long_work_waits_between_stretches_while_a_step_is_under_way() {
    let Some(gpu) = gpu() else { return };
    let (x, w) = (draw(gpu, &[8192, 4096], 1).1, draw(gpu, &[4096, 4096], 2).1);
    let linear = CudaLinear::of(w, None).unwrap();
    // Some four quanta of operations.
    let queue = || (0..220).for_each(|_| drop(gpu.linear(&x, &linear).unwrap()));
    queue();
    gpu.finish().unwrap();
    let (step, began) =
        std::thread::scope(|scope| scope.spawn(|| (gpu.priority(Rank::Token), Instant::now())).join().unwrap());
    queue();
    // Nobody heard of its end.
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    drop(step);
    gpu.finish().unwrap();
}
