//! Keys and values in 8 bits: what is kept of them, and how it moves.

use super::*;
use asterism_kernels::{DType, KvFormat, KvType};
use common::eight_bit_backends;

/// The largest of a row.
fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0.0, |largest, x| x.abs().max(largest))
}

/// Values are off by half a step at most. Keys are, too, once they are turned: so their error is that of all elements together.
fn kept_within_a_step<B: Backend>(backend: &B, case: &Case) -> Result<(), TestCaseError> {
    let AttentionShape { heads: Heads { dim, .. }, .. } = case.shape;
    let [_, k, v] = case.operands(backend);
    let kv = cache(backend, case.shape, &k, &v);
    let [kept_k, kept_v] = held(backend, case.shape, &k, &v);
    for (row, kept) in v.chunks_exact(dim).zip(kept_v.chunks_exact(dim)) {
        let most = 0.501 * largest(row) / 127.0 * (1.0 + 1.0 / 127.0);
        prop_assert!(row.iter().zip(kept).all(|(x, y)| (x - y).abs() <= most), "{row:?} became {kept:?}");
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
        for backend in eight_bit_backends() {
            kept_within_a_step(backend, &case)?;
        }
    }

    #[test]
    fn what_is_kept_widens(case in case()) {
        for backend in eight_bit_backends() {
            widens(backend, &case)?;
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
    for backend in eight_bit_backends() {
        let [kept, _] = held(backend, shape, &k, &v);
        let worst = k.iter().zip(&kept).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        // By one scale for all it would be half of 300 / 127.
        assert!(worst < 0.4, "{worst}");
    }
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
        for backend in eight_bit_backends().iter().filter(|backend| backend.dtype() == DType::Bf16) {
            let shape =
                AttentionShape { heads: Heads { query: 1, kv: 1, dim }, queries: 1, keys: 4096, mask: Mask::None };
            let values = numbers(4096 * dim, 1);
            let taken = backend.kv_bytes(&cache(backend, shape, &values, &values)) as f32;
            assert_eq!(taken, 2.0 * 4096.0 * bytes(KvFormat::Q8));
        }
    }
}
