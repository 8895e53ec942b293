//! Keys and values in 8 bits: what is kept of them, and how it moves.

use super::*;
use asterism_kernels::{DType, KvFormat, KvType};
#[cfg(feature = "cuda")]
use asterism_kernels::{Selector, StripeRule};
use common::eight_bit_backends;

use crate::on_every_eight;

/// The largest of a row.
fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0.0, |largest, x| x.abs().max(largest))
}

/// Values are off by half a step at most, and by what compute type takes where a device reads them in it. Keys are, too, once they are turned: so their error is that of all elements together.
fn kept_within_a_step<B: Backend>(backend: &B, case: &Case) -> Result<(), TestCaseError> {
    let AttentionShape { heads: Heads { dim, .. }, .. } = case.shape;
    let [_, k, v] = case.operands(backend);
    let kv = cache(backend, case.shape, &k, &v);
    let [kept_k, kept_v] = held(backend, case.shape, &k, &v);
    let read = if backend.queues() && backend.dtype() == DType::Bf16 { 1.0 / 256.0 } else { 0.0 };
    for (row, kept) in v.chunks_exact(dim).zip(kept_v.chunks_exact(dim)) {
        let most = 0.501 * largest(row) / 127.0 * (1.0 + 1.0 / 127.0);
        let off = |(x, y): (&f32, &f32)| (x - y).abs() <= most + read * y.abs();
        prop_assert!(row.iter().zip(kept).all(off), "{row:?} became {kept:?}");
    }
    let norm = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (row, kept) in k.chunks_exact(dim).zip(kept_k.chunks_exact(dim)) {
        let error: Vec<f32> = row.iter().zip(kept).map(|(x, y)| x - y).collect();
        // A turned element is at most the norm of its block times the root of the block's size, which the way back divides by.
        prop_assert!(norm(&error) <= 0.51 / 127.0 * (dim as f32).sqrt() * norm(row), "{row:?} became {kept:?}");
    }
    // What moves has the same bits, cut anywhere, and takes the bytes that are counted.
    let raw = backend.kept_raw(&kv).unwrap().whole().unwrap();
    let AttentionShape { heads: Heads { kv: heads, .. }, keys, .. } = case.shape;
    prop_assert_eq!(raw.len(), 2 * heads * keys * backend.kv_type().row_bytes(dim));
    let (keys_raw, values_raw) = raw.split_at(raw.len() / 2);
    let (one, other) = keys_raw.split_at(keys_raw.len() / 3);
    let moved = backend.upload_kept([heads, keys, dim], [&[one, other], &[values_raw]]).unwrap();
    let q = &case.operands(backend)[0];
    let [stayed, moved] = [&kv, &moved].map(|kv| download(backend, &attend(backend, case.shape, q, kv)));
    prop_assert_eq!(stayed, moved);
    if raw.len() > 2 {
        prop_assert!(backend.upload_kept([heads, keys, dim], [&[keys_raw], &[&values_raw[1..]]]).is_err());
    }
    Ok(())
}

/// A cache in compute type that grows by what is kept in 8 bits reads what that reads.
fn widens<B: Backend>(backend: &B, case: &Case) -> Result<(), TestCaseError> {
    let shape = AttentionShape { mask: Mask::None, ..case.shape };
    let [q, k, v] = case.operands(backend);
    let kv = cache(backend, shape, &k, &v);
    let mut wide = backend.kv_widened(&kv).unwrap();
    let [tensors, wide_tensors] = [&kv, &wide].map(|kv| backend.kv_tensors(kv).unwrap());
    for (one, other) in tensors.iter().zip(&wide_tensors) {
        prop_assert_eq!(backend.download(one).unwrap(), backend.download(other).unwrap());
    }
    backend.kv_extend(&mut wide, &kv).unwrap();
    let mut twice = kv.clone();
    backend.kv_extend(&mut twice, &kv).unwrap();
    prop_assert_eq!((backend.kv_len(&wide), backend.kv_len(&twice)), (2 * shape.keys, 2 * shape.keys));
    prop_assert!(shape.keys == 0 || backend.kv_extend(&mut twice, &wide).is_err(), "in 8 bits there is no going back");
    let both = AttentionShape { keys: 2 * shape.keys, ..shape };
    if backend.dtype() == DType::F32 {
        let [one, other] = [&wide, &twice].map(|kv| download(backend, &attend(backend, both, &q, kv)));
        assert_close(DType::F32, &one.0, &other.0)?;
        assert_close(DType::F32, &one.1, &other.1)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_is_off_by_half_a_step_and_moves_as_it_lies(case in case()) {
        on_every_eight!(backend => {
            kept_within_a_step(backend, &case)?;
        });
    }

    #[test]
    fn what_is_kept_widens(case in case()) {
        on_every_eight!(backend => {
            widens(backend, &case)?;
        });
    }
}

/// Caches of any length, some as they were computed, become one: the bits of each widened and appended, and room behind them.
fn many_join<B: Backend>(backend: &B, heads: Heads) {
    let Heads { kv, dim, .. } = heads;
    let drawn = |count: usize, seed: u64| {
        [0, 1].map(|which| tensor(backend, &[kv, count, dim], &numbers(kv * count * dim, 2 * seed + which)))
    };
    let cache = |at: usize| {
        let [k, v] = drawn(if at == 40 { 2500 } else { at * 7 % 31 }, at as u64);
        if at % 5 == 4 { backend.kv(&k, &v) } else { backend.kv_kept(&k, &v) }.unwrap()
    };
    for first in [0, 1, 4] {
        let caches: Vec<B::Kv> = (first..70).map(cache).collect();
        let mut joined = backend.kv_joined(&caches[0], &caches[1..].iter().collect::<Vec<_>>(), 9).unwrap();
        let mut extended = backend.kv_widened(&caches[0]).unwrap();
        for kv in &caches[1..] {
            backend.kv_extend(&mut extended, &backend.kv_widened(kv).unwrap()).unwrap();
        }
        let bytes = backend.kv_bytes(&joined);
        for more in [0, 9] {
            let [k, v] = drawn(more, 99);
            let [one, other] = [&mut joined, &mut extended].map(|all| {
                backend.kv_append(all, &k, &v).unwrap();
                backend.kv_tensors(all).unwrap().map(|x| backend.download(&x).unwrap())
            });
            let bits =
                |held: [Vec<f32>; 2]| held.map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            assert!(bits(one) == bits(other), "{heads:?}, from cache {first} on, and {more} more");
            assert_eq!(backend.kv_len(&joined), caches.iter().map(|kv| backend.kv_len(kv)).sum::<usize>() + more);
        }
        assert!(!backend.queues() || backend.kv_bytes(&joined) == bytes, "there was no room");
        let row = tensor(backend, &[kv + 1, 1, dim], &numbers((kv + 1) * dim, 1));
        let unlike = backend.kv_kept(&row, &row).unwrap();
        assert!(backend.kv_joined(&caches[0], &[&caches[1], &unlike], 0).is_err());
    }
}

#[test]
fn caches_join_to_what_their_codes_stand_for() {
    for (kv, dim) in [(1, 20), (2, 48), (2, 64), (3, 128)] {
        on_every_eight!(backend => {
            many_join(backend, Heads { query: kv, kv, dim });
        });
    }
}

/// Whatever device keeps a row, and widens it, has the bits of the processor.
#[cfg(feature = "cuda")]
fn codes_are_the_processors(case: &Case, factor: f32) -> Result<(), TestCaseError> {
    let AttentionShape { heads: Heads { kv: heads, dim, .. }, keys, .. } = case.shape;
    for gpu in common::eight_bit_devices() {
        let like = |cpu: &&Cpu| cpu.dtype() == gpu.dtype();
        let cpu = eight_bit_backends().iter().find(like).expect("there is one of each type");
        let [k, v] =
            [1, 2].map(|which: usize| case.operands(cpu)[which].iter().map(|x| x * factor).collect::<Vec<f32>>());
        let (on_gpu, on_cpu) = (cache(gpu, case.shape, &k, &v), cache(cpu, case.shape, &k, &v));
        let raw = [gpu.kept_raw(&on_gpu).unwrap().whole().unwrap(), cpu.kept_raw(&on_cpu).unwrap().whole().unwrap()];
        prop_assert!(raw[0] == raw[1], "codes of {:?}", case);
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let (wide, expected) = (gpu.kv_tensors(&on_gpu).unwrap(), cpu.kv_tensors(&on_cpu).unwrap());
        for (wide, expected) in wide.iter().zip(&expected) {
            prop_assert!(bits(gpu.download(wide).unwrap()) == bits(cpu.download(expected).unwrap()), "{:?}", case);
        }
        // As it lies, from one kind of device to the other and back.
        let (keys_raw, values_raw) = raw[1].split_at(raw[1].len() / 2);
        let moved = gpu.upload_kept([heads, keys, dim], [&[keys_raw], &[values_raw]]).unwrap();
        prop_assert!(gpu.kept_raw(&moved).unwrap().whole().unwrap() == raw[1], "moved: {:?}", case);
    }
    Ok(())
}

#[cfg(feature = "cuda")]
proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_gpu_keeps_the_codes_of_the_processor(case in case(), power in -30i32..30) {
        codes_are_the_processors(&case, (power as f32).exp2())?;
    }
}

/// What has no kernel for codes reads what they stand for.
#[cfg(feature = "cuda")]
#[test]
fn keys_are_selected_among_what_codes_stand_for() {
    let heads = Heads { query: 4, kv: 2, dim: 64 };
    let shape = AttentionShape { heads, queries: 300, keys: 300, mask: Mask::Causal };
    let case = Case { shape, seed: 5, sharpness: 3.0 };
    for gpu in common::eight_bit_devices() {
        let [q, k, v] = case.operands(gpu);
        let (q, kv) = (tensor(gpu, &[4, 300, 64], &q), cache(gpu, shape, &k, &v));
        let wide = gpu.kv_widened(&kv).unwrap();
        let selector = Selector::Stripes(StripeRule { theta: 2.0, step: 2, block_q: 16, block_kv: 16 });
        let [(codes, found), (computed, expected)] = [&kv, &wide].map(|kv| {
            let (partial, selection) = gpu.attention_by(&q, kv, selector).unwrap();
            (download(gpu, &partial), selection.lists().unwrap().pairs(300))
        });
        assert!(codes == computed && found == expected);
    }
}

/// Few rows and many, over keys that fill pieces, shares of them and blocks, or do not: against what the codes stand for, and each row
/// alone, by every kernel that reads codes.
#[cfg(feature = "cuda")]
#[test]
fn codes_are_read_to_the_same_bits_by_whatever_kernel() {
    for gpu in common::eight_bit_devices().iter().filter(|gpu| gpu.dtype() == DType::Bf16) {
        for (dim, group) in [(128, 4), (64, 7), (128, 1), (64, 3)] {
            for (queries, keys) in
                [(1, 1), (1, 15), (2, 17), (1, 255), (5, 2047), (16, 2049), (64, 4097), (70, 6000), (3, 0)]
            {
                let window = Mask::Streaming { sink: 4, window: 900, first_row: 3000, first_key: 0 };
                for mask in [Mask::None, Mask::Causal, window] {
                    let heads = Heads { query: 2 * group, kv: 2, dim };
                    let case = Case { shape: AttentionShape { heads, queries, keys, mask }, seed: 11, sharpness: 3.0 };
                    agrees_with_the_reference(gpu, &case).unwrap();
                    if keys > 0 {
                        rows_stand_alone(gpu, &case, 3).unwrap();
                    }
                }
            }
        }
    }
}

/// A key whose elements are hundreds of times apart keeps the small ones: it is turned before it is rounded.
#[test]
fn a_large_element_of_a_key_does_not_hide_the_others() {
    let shape = AttentionShape { heads: Heads { query: 1, kv: 1, dim: 64 }, queries: 1, keys: 40, mask: Mask::None };
    let mut k = numbers(40 * 64, 3);
    k.iter_mut().step_by(64).for_each(|x| *x = 300.0);
    let v = numbers(40 * 64, 4);
    on_every_eight!(backend => {
        let [kept, _] = held(backend, shape, &k, &v);
        let worst = k.iter().zip(&kept).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        // By one scale for all it would be half of 300 / 127.
        assert!(worst < 0.4, "{worst}");
    });
}

#[test]
fn what_is_no_number_stays_none() {
    for backend in eight_bit_backends() {
        for odd in [f32::NAN, f32::INFINITY] {
            let shape =
                AttentionShape { heads: Heads { query: 1, kv: 1, dim: 16 }, queries: 1, keys: 3, mask: Mask::None };
            let (mut k, v) = (numbers(48, 1), numbers(48, 2));
            k[17] = odd;
            let (output, _) = download(backend, &attend(backend, shape, &[1.0; 16], &cache(backend, shape, &k, &v)));
            assert!(output.iter().all(|x| !x.is_finite()));
        }
    }
}

/// Half of bf16's bytes and little more: what admission and `plan` count, and what the cache takes.
#[test]
fn half_the_bytes_of_bf16_are_taken() {
    for dim in [64, 128] {
        let bytes = |kept| KvType { computed: DType::Bf16, kept }.row_bytes(dim) as f32;
        let share = bytes(KvFormat::Q8) / bytes(KvFormat::Computed);
        assert!(share < 0.516, "{share}");
        on_every_eight!(backend => {
            let shape =
                AttentionShape { heads: Heads { query: 1, kv: 1, dim }, queries: 1, keys: 4096, mask: Mask::None };
            let values = numbers(4096 * dim, 1);
            let taken = backend.kv_bytes(&cache(backend, shape, &values, &values)) as f32;
            assert_eq!(taken, 2.0 * 4096.0 * bytes(KvFormat::Q8));
        });
    }
}
