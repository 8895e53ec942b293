//! What GPUs that share linear layers do: some columns of a product, and parts put together on all of them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use asterism_kernels::cuda::{CudaKv, CudaLinear, Tensor};
use asterism_kernels::prelude::*;
use asterism_kernels::{
    AllGather, Cuda, CudaOptions, DType, DeviceGroup, GatheredLayer, Heads, HostTensor, KernelError, Mask, Rotary,
};

use super::{alone_on_gpu, draw, gpu, numbers};

fn host(gpu: &Cuda, x: &Tensor) -> Vec<f32> {
    gpu.download(x).unwrap()
}

#[test]
fn parts_of_a_product_are_columns_of_the_whole() {
    let Some(gpu) = gpu() else { return };
    for (k, f, biased) in [(512, 1408, false), (3584, 2368, true), (4096, 14336, false)] {
        let linear = |n: usize, k: usize, seed| {
            let bias = biased.then(|| draw(gpu, &[n], seed + 1).1);
            CudaLinear::of(draw(gpu, &[n, k], seed).1, bias).unwrap()
        };
        let (gate_up, down, norm) = (linear(2 * f, k, 5), linear(k, f, 7), draw(gpu, &[k], 9).1);
        // The last of each is no whole block of threads, and is taken from the whole.
        for rows in [1, 3, 8, 9, 16, 17] {
            let (x, residual) = (draw(gpu, &[rows, k], rows as u64).1, draw(gpu, &[rows, k], 20).1);
            let gated = gpu.gated_silu(&gpu.norm_linear(&x, (&norm, 1e-5), &gate_up).unwrap()).unwrap();
            let columns = |x: &Tensor, (start, end)| host(gpu, &gpu.narrow(x, 1, start, end).unwrap());
            for (start, end) in [(0, f / 2), (f / 2, f), (16, 24), (3, 20)] {
                let part = gpu.norm_gated_part(&x, (&norm, 1e-5), &gate_up, start..end).unwrap();
                assert!(host(gpu, &part) == columns(&gated, (start, end)), "{rows} rows, gated {start}..{end} of {f}");
            }
            let added = gpu.linear_add(&gated, &down, residual.clone()).unwrap();
            for (start, end) in [(0, k / 2), (k / 2, k), (16, 48), (5, 37)] {
                let part = gpu.linear_add_part(&gated, (&down, &residual), start..end).unwrap();
                assert!(host(gpu, &part) == columns(&added, (start, end)), "{rows} rows, added {start}..{end} of {k}");
            }
        }
    }
}

/// Parts drawn on each, and what all of them have.
fn gathered(members: &[Arc<Cuda>; 2], gather: &dyn AllGather<Cuda>, sizes: [[usize; 2]; 2], axis: usize, seed: u64) {
    let (of_each, parts): (Vec<_>, Vec<_>) =
        members.iter().zip(sizes).zip(seed..).map(|((gpu, shape), seed)| draw(gpu, &shape, seed)).unzip();
    let along = sizes.map(|shape| shape[axis]);
    let take = |at: usize, part: &Tensor| gather.gather(at, part, &along, axis).unwrap();
    let whole: Vec<Tensor> = thread::scope(|scope| {
        let others: Vec<_> = parts.iter().enumerate().map(|(at, part)| scope.spawn(move || take(at, part))).collect();
        others.into_iter().map(|other| other.join().unwrap()).collect()
    });
    drop(parts);
    // Memory of the parts is drawn upon again at once.
    let _over: Vec<_> = members.iter().zip(sizes).map(|(gpu, shape)| draw(gpu, &shape, 1000 + seed)).collect();
    let expected: Vec<f32> = match axis {
        0 => of_each.concat(),
        _ => (0..sizes[0][0])
            .flat_map(|row| {
                let columns = of_each.iter().zip(sizes);
                columns.flat_map(|(part, [_, n])| part[row * n..][..n].to_vec()).collect::<Vec<_>>()
            })
            .collect(),
    };
    for (at, (gpu, whole)) in members.iter().zip(&whole).enumerate() {
        assert!(host(gpu, whole) == expected, "{sizes:?} along {axis} on {at}, round {seed}");
    }
}

/// Two GPUs, or two queues of one, which this thread has alone.
fn two() -> Option<[Arc<Cuda>; 2]> {
    alone_on_gpu()?;
    let open = |device| Cuda::new(CudaOptions::plain(device, DType::Bf16));
    let other = open(1).or_else(|_| open(0)).unwrap();
    Some([Arc::new(open(0).unwrap()), Arc::new(other)])
}

#[test]
fn parts_are_put_together_on_every_gpu() {
    let Some(members) = two() else { return };
    // By lending where they are streams of one GPU, and by the kernel that waits.
    for gather in [Cuda::all_gather(&members).unwrap(), Cuda::all_gather_at_once(&members).unwrap()] {
        let gathered = |sizes, axis, seed| gathered(&members, &*gather, sizes, axis, seed);
        for (seed, rows) in (0..60).zip([1, 2, 16, 7].into_iter().cycle()) {
            gathered([[rows, 7168]; 2], 1, seed);
            gathered([[rows, 64], [rows, 4]], 1, seed);
            gathered([[3 * rows, 4128], [rows, 4128]], 0, seed);
        }
        // An odd width, a part that is empty, and more than goes at once.
        gathered([[3, 6], [3, 5]], 1, 100);
        gathered([[0, 32], [2, 32]], 0, 101);
        gathered([[1100, 4096], [5, 4096]], 0, 102);
        gathered([[2, 32], [2, 32]], 0, 103);
    }
}

/// What layers make of rows that come to them by one kernel, where it takes them.
#[test]
fn rows_on_their_way_to_a_layer_have_the_bits_of_one_step_after_the_other() {
    let Some(members) = two() else { return };
    let may = members[0].device().multiplies_eight_bits().unwrap() && members[0].products().has_library();
    let gather = Cuda::all_gather_at_once(&members).unwrap();
    for (eight, k) in [false, true].into_iter().flat_map(|eight| [(eight, 512), (eight, 8192), (eight, 28_672)]) {
        if eight && !may {
            continue;
        }
        let of_each = |shape: &[usize], seed| members.each_ref().map(|gpu| draw(gpu, shape, seed).1);
        let layer = |n: usize, seed| {
            let linear = |(gpu, weight): (&Arc<Cuda>, Tensor)| {
                let linear = CudaLinear::of(weight, None).unwrap();
                if eight { linear.in_eight_bits(gpu.device()).unwrap() } else { linear }
            };
            members.iter().zip(of_each(&[n, k], seed)).map(linear).collect::<Vec<_>>()
        };
        let (weights, norms) = (layer(256, 3), of_each(&[k], 4));
        for (rows, first, seed) in [(1, k / 2, 10), (2, 64, 20), (3, k / 2, 30), (4, k - 64, 40), (5, k / 2, 50)] {
            let (sizes, residuals) = ([first, k - first], of_each(&[rows, 256], 60));
            let parts: Vec<Tensor> =
                (0..2).map(|at| draw(&members[at], &[rows, sizes[at]], seed + at as u64).1).collect();
            let whole = gather.gather_all(&parts, &sizes, 1).unwrap();
            let norm = |at: usize| (&norms[at], 1e-5);
            for kind in 0..3 {
                let layers = [0, 1].map(|at: usize| match kind {
                    0 => GatheredLayer::NormLinear(norm(at), &weights[at]),
                    1 => GatheredLayer::NormGated(norm(at), &weights[at]),
                    _ => GatheredLayer::LinearAdd(&weights[at], residuals[at].clone()),
                });
                let made = gather.gather_linear(&parts, &sizes, &layers).unwrap();
                assert_eq!(made.is_some(), rows <= 4 && (eight || kind < 2), "{rows} rows of {k}, layer {kind}");
                for (at, made) in made.iter().flatten().enumerate() {
                    let (gpu, x, weight) = (&members[at], &whole[at], &weights[at]);
                    let expected = match kind {
                        0 => gpu.norm_linear(x, norm(at), weight),
                        1 => gpu.norm_gated(x, norm(at), weight),
                        _ => gpu.linear_add(x, weight, residuals[at].clone()),
                    };
                    assert!(
                        host(gpu, made) == host(gpu, &expected.unwrap()),
                        "{rows} rows of {k}, layer {kind} on {at}, 8 bits: {eight}"
                    );
                }
            }
        }
    }
}

/// Of a model that two GPUs share.
const HEADS: Heads = Heads { query: 4, kv: 2, dim: 128 };

/// A GPU, and it and another that compute as one, where there are two; this thread has them alone.
fn one_and_two() -> Option<(Cuda, DeviceGroup<Cuda>)> {
    alone_on_gpu()?;
    let open = |device| Cuda::new(CudaOptions::plain(device, DType::Bf16));
    let (Ok(one), Ok(other)) = (open(0), open(1)) else { return None };
    Some((open(0).unwrap(), Cuda::group(vec![one, other], HEADS).unwrap()))
}

/// Rows that GPUs exchange piece by piece, which write their columns to where they belong, are those that one GPU makes.
#[test]
fn many_rows_of_a_group_are_those_of_one_gpu() {
    let Some((alone, group)) = one_and_two() else { return };
    let (e, f) = (512, 1408);
    let bytes = |count: usize, seed: u64| -> Vec<u8> {
        numbers(count, seed).into_iter().flat_map(|value| (value / 16.0).to_le_bytes()).collect()
    };
    let [gate, up, down, norm] = [f * e, f * e, e * f, e].map(|count| bytes(count, count as u64));
    fn host<'a>(shape: &'a [usize], bytes: &'a [u8]) -> HostTensor<'a> {
        HostTensor { stored: DType::F32.into(), shape, bytes }
    }
    fn made<B: Backend>(gpu: &B, weights: [HostTensor<'_>; 4], (rows, e): (usize, usize)) -> [Vec<f32>; 2] {
        let [gate, up, down, norm] = weights;
        let (gate_up, down) = (gpu.linear_weight(&[gate, up], &[]).unwrap(), gpu.linear_weight(&[down], &[]).unwrap());
        let norm = gpu.weight(norm).unwrap();
        let x = gpu.cast(&gpu.upload(&[rows, e], &numbers(rows * e, 7)).unwrap()).unwrap();
        let gated = gpu.norm_gated(&x, (&norm, 1e-5), &gate_up).unwrap();
        let added = gpu.linear_add(&gated, &down, x.clone()).unwrap();
        [gpu.norm_mlp(&x, (&norm, 1e-5), [&gate_up, &down]).unwrap(), added].map(|x| gpu.download(&x).unwrap())
    }
    for rows in [8192, 8200, 13_001] {
        let (wide, narrow) = ([f, e], [e, f]);
        let weights = [host(&wide, &gate), host(&wide, &up), host(&narrow, &down), host(&narrow[..1], &norm)];
        assert!(made(&group, weights, (rows, e)) == made(&alone, weights, (rows, e)), "{rows} rows");
    }
}

/// Rows of several inputs come together beside other work: read whole, in part, by a product that adds, or by nobody.
#[test]
fn rows_that_are_on_their_way_are_waited_for() {
    let Some((alone, group)) = one_and_two() else { return };
    fn made<B: Backend>(gpu: &B, heads: Heads, rows: [usize; 3]) -> Vec<Vec<f32>> {
        let (e, inv_freq) = (heads.query * heads.dim, vec![0.5; heads.dim / 2]);
        let bytes: Vec<u8> = numbers(e * e, 3).into_iter().flat_map(|value| (value / 16.0).to_le_bytes()).collect();
        let weight = HostTensor { stored: DType::F32.into(), shape: &[e, e], bytes: &bytes };
        let (weight, all) = (gpu.linear_weight(&[weight], &[]).unwrap(), rows.iter().sum());
        let residual = gpu.cast(&gpu.upload(&[all, e], &numbers(all * e, 5)).unwrap()).unwrap();
        let of_heads = |(count, seed): (usize, u64)| {
            let wide = (heads.query + 2 * heads.kv) * heads.dim;
            let qkv = gpu.cast(&gpu.upload(&[count, wide], &numbers(count * wide, seed)).unwrap()).unwrap();
            let positions: Vec<u32> = (0..count as u32).collect();
            let (q, _, _) = gpu.split_rotate(&qkv, heads, &positions, Rotary::plain(&inv_freq)).unwrap();
            gpu.join_heads(&q).unwrap()
        };
        let parts: Vec<_> = rows.into_iter().zip(10..).map(of_heads).collect();
        let on_their_way = || gpu.put_together(&parts).unwrap();
        let (whole, unread, added) = (on_their_way(), on_their_way(), on_their_way());
        drop(unread);
        let sum = gpu.linear_add(&added, &weight, residual).unwrap();
        let first = gpu.rows(&sum, 0, 100).unwrap();
        let again = gpu.linear_add(&sum, &weight, sum.clone()).unwrap();
        let last = gpu.rows(&on_their_way(), all - 7, all).unwrap();
        [whole, sum, first, again, last].map(|x| gpu.download(&x).unwrap()).into()
    }
    for rows in [[3000, 5000, 200], [8192, 1, 4096], [100, 20, 3]] {
        assert!(made(&group, HEADS, rows) == made(&alone, HEADS, rows), "{rows:?} rows");
    }
}

/// A kernel that waits for a part that never comes ends, and later exchanges are refused.
#[test]
fn whoever_leaves_an_exchange_keeps_no_gpu_waiting() {
    let Some(members) = two() else { return };
    for gather in [Cuda::all_gather(&members).unwrap(), Cuda::all_gather_at_once(&members).unwrap()] {
        let part = draw(&members[0], &[2, 64], 7).1;
        thread::scope(|scope| {
            let waits = scope.spawn(|| gather.gather(0, &part, &[64, 64], 1).map(drop));
            thread::sleep(Duration::from_millis(50));
            gather.abandon();
            let waited = waits.join().unwrap();
            assert!(matches!(waited, Ok(()) | Err(KernelError::Abandoned)), "{waited:?}");
        });
        members[0].finish().unwrap();
        let later = gather.gather(1, &draw(&members[1], &[2, 64], 8).1, &[64, 64], 1).map(drop);
        assert!(matches!(later, Err(KernelError::Abandoned)), "{later:?}");
    }
}

/// Keys are on their way to few rows before what was queued before is done, but not before they are there.
#[test]
fn keys_that_were_just_written_are_waited_for() {
    let Some(gpu) = gpu() else { return };
    let (device, heads, t) = (gpu.device(), Heads { query: 8, kv: 8, dim: 128 }, 1500);
    let inv_freq = vec![0.5; 64];
    let positions = device.positions(&(0..t as u32).collect::<Vec<_>>(), Rotary::plain(&inv_freq)).unwrap();
    let mut cache = CudaKv::new(device, heads.kv, heads.dim, DType::Bf16, 40 * t).unwrap();
    let (_, q) = draw(gpu, &[heads.query, 1, heads.dim], 1);
    let few = draw(gpu, &[heads.kv, 5, heads.dim], 2).1;
    // What lets others start long before it is done.
    let large = device.random(&[1 << 27], DType::Bf16, 3, 1.0).unwrap();
    let busy = || device.cast(&large, DType::F32).unwrap();
    for round in 0..30 {
        // Those of a former round lie there.
        cache.truncate(round % 3 * 700);
        let (_, qkv) = draw(gpu, &[t, 3 * heads.kv * heads.dim], 10 + round as u64);
        let rotated = device.empty(&[heads.query, t, heads.dim], DType::Bf16).unwrap();
        busy();
        let to = cache.extend(device, t).unwrap();
        // Others queue theirs between.
        (0..3).for_each(|_| drop(busy()));
        device.split_rotate(&qkv, &positions, rotated.heads_first().unwrap(), to).unwrap();
        let at_once = gpu.attention(&q, &cache, Mask::None).unwrap();
        busy();
        gpu.kv_append(&mut cache, &few, &few).unwrap();
        let appended = gpu.attention(&q, &cache, Mask::None).unwrap();
        device.synchronize().unwrap();
        let later = gpu.attention(&q, &cache, Mask::None).unwrap();
        assert!(host(gpu, &appended.output) == host(gpu, &later.output), "appended, round {round}");
        cache.truncate(cache.len() - 5);
        let later = gpu.attention(&q, &cache, Mask::None).unwrap();
        assert!(host(gpu, &at_once.output) == host(gpu, &later.output), "rotated, round {round}");
    }
}

/// Tokens that one thread appends while another queues its own work are waited for.
#[test]
fn keys_appended_beside_another_thread_are_waited_for() {
    let Some(gpu) = gpu() else { return };
    let heads = Heads { query: 8, kv: 8, dim: 128 };
    let (_, q) = draw(gpu, &[heads.query, 1, heads.dim], 1);
    let large = gpu.device().random(&[1 << 22], DType::Bf16, 3, 1.0).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                (0..16).for_each(|_| drop(gpu.device().cast(&large, DType::F32).unwrap()));
                gpu.device().synchronize().unwrap();
            }
        });
        let mut cache = CudaKv::new(gpu.device(), heads.kv, heads.dim, DType::Bf16, 1 << 14).unwrap();
        let rows = draw(gpu, &[heads.kv, 1024, heads.dim], 2).1;
        gpu.kv_append(&mut cache, &rows, &rows).unwrap();
        for round in 0..200 {
            let few = draw(gpu, &[heads.kv, 3, heads.dim], 100 + round).1;
            // Those of a former round lie there.
            cache.truncate(1024);
            gpu.kv_append(&mut cache, &few, &few).unwrap();
            let at_once = gpu.attention(&q, &cache, Mask::None).unwrap();
            gpu.device().synchronize().unwrap();
            let later = gpu.attention(&q, &cache, Mask::None).unwrap();
            let equal = host(gpu, &at_once.output) == host(gpu, &later.output);
            done.store(!equal || round == 199, std::sync::atomic::Ordering::Relaxed);
            assert!(equal, "round {round}");
        }
    });
}
