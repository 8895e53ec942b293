//! Attention, cache and merge of every backend against the slow reference. The checks are generic over the backend; a new
//! one joins `backends`.

mod common;
#[path = "attention/eight.rs"]
mod eight;
#[path = "attention/laid.rs"]
mod laid;
#[path = "attention/packed.rs"]
mod packed;

use std::sync::OnceLock;

use asterism_kernels::prelude::*;
use asterism_kernels::reference::{self, AttentionShape};
use asterism_kernels::{Cpu, CpuOptions, DType, Heads, KernelChoice, KvFormat, Mask, Partial};
use common::{assert_close, numbers, on_every_thread_count, rounded};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

/// One attention call with its operands.
#[derive(Clone, Debug)]
struct Case {
    shape: AttentionShape,
    seed: u64,
    /// Factor on the queries: large ones put the scores hundreds apart.
    sharpness: f32,
}

impl Case {
    fn operands<B: Backend>(&self, backend: &B) -> [Vec<f32>; 3] {
        let AttentionShape { heads: Heads { query, kv, dim }, queries, keys, .. } = self.shape;
        let draw = |n: usize, salt: u64, scale: f32| {
            let values = numbers(n, self.seed.wrapping_add(salt)).into_iter().map(|x| x * scale);
            rounded(backend.dtype(), values.collect())
        };
        [draw(query * queries * dim, 0, self.sharpness), draw(kv * keys * dim, 1, 1.0), draw(kv * keys * dim, 2, 1.0)]
    }
}

fn case() -> impl Strategy<Value = Case> {
    let heads = (1usize..=4, 1usize..=3, prop::sample::select(vec![16usize, 32, 48, 64, 128]));
    let lengths =
        (prop_oneof![Just(1usize), 1usize..20, 90usize..220], prop_oneof![Just(0usize), 1usize..20, 100usize..420]);
    let rest = (mask(), any::<u64>(), prop::sample::select(vec![0.1f32, 3.0, 30.0]));
    (heads, lengths, rest).prop_map(|((group, kv, dim), (queries, keys), (mask, seed, sharpness))| {
        let heads = Heads { query: group * kv, kv, dim };
        Case { shape: AttentionShape { heads, queries, keys, mask }, seed, sharpness }
    })
}

fn mask() -> impl Strategy<Value = Mask> {
    let streaming = (0usize..40, 0usize..300, 0usize..500, 0usize..60);
    prop_oneof![
        Just(Mask::None),
        Just(Mask::Causal),
        (0usize..120).prop_map(|row| Mask::From { row }),
        streaming.prop_map(|(sink, window, first_row, first_key)| {
            Mask::Streaming { sink, window, first_row, first_key }
        }),
    ]
}

/// The mask of row `row` alone, of `queries`.
fn mask_of_row(shape: AttentionShape, row: usize) -> Mask {
    match shape.mask {
        Mask::None => Mask::None,
        // The keys that come after the row are cut off.
        Mask::Causal => Mask::None,
        Mask::From { row: first } => Mask::From { row: first.saturating_sub(row) },
        Mask::Streaming { sink, window, first_row, first_key } => {
            Mask::Streaming { sink, window, first_row: first_row + row, first_key }
        }
    }
}

fn tensor<B: Backend>(backend: &B, shape: &[usize], values: &[f32]) -> B::Tensor {
    backend.cast(&backend.upload(shape, values).unwrap()).unwrap()
}

fn cache<B: Backend>(backend: &B, shape: AttentionShape, k: &[f32], v: &[f32]) -> B::Kv {
    let dims = [shape.heads.kv, shape.keys, shape.heads.dim];
    backend.kv_kept(&tensor(backend, &dims, k), &tensor(backend, &dims, v)).unwrap()
}

/// Whether it is a GPU.
fn is_gpu<B: Backend>(backend: &B) -> bool {
    backend.numerics().starts_with("cuda")
}

/// The numbers that attention to a cache of these reads. In 8 bits they have more digits than bf16 has, but where a GPU has no kernels for
/// codes: it widens them to compute type first.
fn held<B: Backend>(backend: &B, shape: AttentionShape, k: &[f32], v: &[f32]) -> [Vec<f32>; 2] {
    static WIDE: OnceLock<Cpu> = OnceLock::new();
    if backend.kv_type().is_computed() {
        return [k.to_vec(), v.to_vec()];
    }
    if is_gpu(backend) && !matches!(shape.heads.dim, 64 | 128) {
        let held = backend.kv_tensors(&cache(backend, shape, k, v)).unwrap();
        return held.map(|held| backend.download(&held).unwrap());
    }
    let options = CpuOptions { kept: KvFormat::Q8, kernels: KernelChoice::Portable, ..CpuOptions::default() };
    let wide = WIDE.get_or_init(|| Cpu::new(options).unwrap());
    wide.kv_tensors(&cache(wide, shape, k, v)).unwrap().map(|held| wide.download(&held).unwrap())
}

fn attend<B: Backend>(backend: &B, shape: AttentionShape, q: &[f32], kv: &B::Kv) -> Partial<B::Tensor> {
    let q = tensor(backend, &[shape.heads.query, shape.queries, shape.heads.dim], q);
    backend.attention(&q, kv, shape.mask).unwrap()
}

fn download<B: Backend>(backend: &B, partial: &Partial<B::Tensor>) -> (Vec<f32>, Vec<f32>) {
    (backend.download(&partial.output).unwrap(), backend.download(&partial.lse).unwrap())
}

fn agrees_with_the_reference<B: Backend>(backend: &B, case: &Case) -> Result<(), TestCaseError> {
    let [q, k, v] = case.operands(backend);
    let got = attend(backend, case.shape, &q, &cache(backend, case.shape, &k, &v));
    let Heads { query, dim, .. } = case.shape.heads;
    prop_assert_eq!(backend.shape(&got.output), [query, case.shape.queries, dim]);
    prop_assert_eq!(backend.shape(&got.lse), [query, case.shape.queries]);
    let [k, v] = held(backend, case.shape, &k, &v);
    let (output, lse) = reference::attention(&q, &k, &v, case.shape);
    let (got_output, got_lse) = download(backend, &got);
    // Products with 8 bits are of f32; on GPUs weights are of compute type.
    let exact = if backend.kv_type().is_computed() || is_gpu(backend) { backend.dtype() } else { DType::F32 };
    assert_close(exact, &got_output, &output)?;
    assert_close(exact, &got_lse, &lse)
}

/// Attention over parts of the keys, merged, is attention over all of them; parts may be empty.
fn merges_to_the_whole<B: Backend>(backend: &B, case: &Case, cuts: &[usize]) -> Result<(), TestCaseError> {
    let shape = AttentionShape { mask: Mask::None, ..case.shape };
    let [q, k, v] = case.operands(backend);
    let kv = cache(backend, shape, &k, &v);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (shape.keys + 1)).chain([0, shape.keys]).collect();
    cuts.sort_unstable();
    let mut partials = Vec::new();
    for cut in cuts.windows(2) {
        let part = backend.kv_rows(&kv, cut[0], cut[1]).unwrap();
        prop_assert_eq!(backend.kv_len(&part), cut[1] - cut[0]);
        partials.push(attend(backend, AttentionShape { keys: cut[1] - cut[0], ..shape }, &q, &part));
    }
    let merged = download(backend, &backend.merge(&partials).unwrap());
    let whole = download(backend, &attend(backend, shape, &q, &kv));
    // What a cache holds may travel, and has the same bits where it is cached again.
    let bytes = backend.kept_raw(&kv).unwrap().whole().unwrap();
    let (k, v) = bytes.split_at(bytes.len() / 2);
    let moved = backend.upload_kept([shape.heads.kv, shape.keys, shape.heads.dim], [&[k], &[v]]).unwrap();
    prop_assert_eq!(&download(backend, &attend(backend, shape, &q, &moved)), &whole);
    assert_close(backend.dtype(), &merged.0, &whole.0)?;
    assert_close(backend.dtype(), &merged.1, &whole.1)
}

/// A row's bits are the same alone and among others, and whether its keys came at once or bit by bit.
fn rows_stand_alone<B: Backend>(backend: &B, case: &Case, pieces: usize) -> Result<(), TestCaseError> {
    let AttentionShape { heads: Heads { query, kv, dim }, queries, keys, .. } = case.shape;
    let [q, k, v] = case.operands(backend);
    let together = attend(backend, case.shape, &q, &cache(backend, case.shape, &k, &v));
    let (output, lse) = download(backend, &together);
    let part = |x: &[f32], from: usize, to: usize| -> B::Tensor {
        let rows: Vec<f32> = (0..kv).flat_map(|h| x[(h * keys + from) * dim..(h * keys + to) * dim].to_vec()).collect();
        tensor(backend, &[kv, to - from, dim], &rows)
    };
    for row in [0, queries / 2, queries - 1] {
        let visible = case.shape.visible(row);
        let cut = visible / pieces;
        let mut cache = backend.kv_kept(&part(&k, 0, cut), &part(&v, 0, cut)).unwrap();
        let shared = cache.clone();
        backend.kv_append(&mut cache, &part(&k, cut, visible), &part(&v, cut, visible)).unwrap();
        prop_assert_eq!((backend.kv_len(&cache), backend.kv_len(&shared)), (visible, cut));
        let of_row = |h: usize| (h * queries + row) * dim..(h * queries + row + 1) * dim;
        let alone: Vec<f32> = (0..query).flat_map(|h| q[of_row(h)].to_vec()).collect();
        let mask = mask_of_row(case.shape, row);
        let shape = AttentionShape { queries: 1, keys: visible, mask, ..case.shape };
        let (alone, alone_lse) = download(backend, &attend(backend, shape, &alone, &cache));
        for h in 0..query {
            prop_assert_eq!(&alone[h * dim..][..dim], &output[of_row(h)], "row {} of head {}", row, h);
            prop_assert_eq!(alone_lse[h].to_bits(), lse[h * queries + row].to_bits());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_agrees_with_the_reference(case in case()) {
        on_every_cache!(backend => {
            agrees_with_the_reference(backend, &case)?;
        });
    }

    #[test]
    fn partials_of_any_split_merge_to_the_whole(case in case(), cuts in prop::collection::vec(any::<usize>(), 0..5)) {
        on_every_cache!(backend => {
            merges_to_the_whole(backend, &case, &cuts)?;
        });
    }

    #[test]
    fn a_row_depends_on_itself_alone(case in case(), pieces in 1usize..4) {
        on_every_cache!(backend => {
            rows_stand_alone(backend, &case, pieces)?;
        });
    }

    #[test]
    fn threads_change_no_bit(case in case()) {
        on_every_thread_count(|backend| {
            let [q, k, v] = case.operands(backend);
            let partial = attend(backend, case.shape, &q, &cache(backend, case.shape, &k, &v));
            let (output, lse) = download(backend, &partial);
            output.into_iter().chain(lse).collect()
        })?;
    }
}

#[test]
fn partials_300_apart_and_empty_ones_merge() {
    on_every_backend!(backend => {
        let partial = |output: [f32; 2], lse: f32| Partial {
            output: backend.upload(&[1, 1, 2], &output).unwrap(),
            lse: backend.upload(&[1, 1], &[lse]).unwrap(),
        };
        let merge = |partials: &[Partial<_>]| download(backend, &backend.merge(partials).unwrap());
        let none = || partial([0.0, 0.0], f32::NEG_INFINITY);
        assert_eq!(merge(&[partial([1.0, 2.0], -150.0), partial([5.0, 6.0], 150.0)]), (vec![5.0, 6.0], vec![150.0]));
        assert_eq!(merge(&[partial([1.0, 2.0], 150.0), partial([5.0, 6.0], -150.0)]), (vec![1.0, 2.0], vec![150.0]));
        assert_eq!(merge(&[none(), partial([1.0, 2.0], -90.0), none()]), (vec![1.0, 2.0], vec![-90.0]));
        assert_eq!(merge(&[none(), none()]), (vec![0.0, 0.0], vec![f32::NEG_INFINITY]));
        let (output, lse) = merge(&[partial([1.0, 2.0], 300.0), partial([3.0, 4.0], 300.0)]);
        assert_close(asterism_kernels::DType::F32, &output, &[2.0, 3.0]).unwrap();
        assert_close(asterism_kernels::DType::F32, &lse, &[300.0 + 2f32.ln()]).unwrap();
        assert_eq!(backend.merge(&[]).err().unwrap().code(), "kernel_shape");
    });
}

#[test]
fn long_keys_are_dealt_out_and_merged() {
    let streaming = Mask::Streaming { sink: 4, window: 700, first_row: 2995, first_key: 0 };
    let masks = [(1, Mask::None), (5, Mask::Causal), (1, streaming), (5, streaming), (5, Mask::From { row: 3 })];
    for (queries, mask) in masks {
        let shape = AttentionShape { heads: Heads { query: 4, kv: 2, dim: 64 }, queries, keys: 3000, mask };
        on_every_cache!(backend => {
            let case = Case { shape, seed: 7, sharpness: 3.0 };
            agrees_with_the_reference(backend, &case).unwrap();
            rows_stand_alone(backend, &case, 2).unwrap();
        });
    }
}

/// However many are computed at a time, and by whichever kernel: on GPUs that goes by rows, keys and heads.
#[test]
fn a_row_of_a_long_question_depends_on_itself_alone() {
    for (queries, keys) in [(141, 1165), (512, 2048), (512, 5000), (200, 20_000)] {
        let shape = AttentionShape { heads: Heads { query: 8, kv: 2, dim: 128 }, queries, keys, mask: Mask::Causal };
        on_every_cache!(backend => {
            rows_stand_alone(backend, &Case { shape, seed: 11, sharpness: 3.0 }, 2).unwrap();
        });
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    on_every_cache!(backend => {
        let x = |shape: &[usize]| tensor(backend, shape, &vec![0.0; shape.iter().product()]);
        let mut kv = backend.kv_kept(&x(&[2, 3, 16]), &x(&[2, 3, 16])).unwrap();
        assert!(backend.kv_kept(&x(&[2, 3, 16]), &x(&[2, 4, 16])).is_err());
        assert!(backend.kv_append(&mut kv, &x(&[1, 3, 16]), &x(&[1, 3, 16])).is_err());
        assert!(backend.kv_rows(&kv, 2, 4).is_err());
        assert!(backend.attention(&x(&[3, 1, 16]), &kv, Mask::None).is_err());
        assert!(backend.attention(&x(&[2, 1, 32]), &kv, Mask::None).is_err());
        assert!(backend.attention(&x(&[4, 1, 16]), &kv, Mask::None).is_ok());
    });
}
