//! Linear layers, norm, rotation, activation and moves of every backend against the obvious arithmetic. The checks are
//! generic over the backend; a new one joins `backends`.

mod common;
#[path = "operations/extras.rs"]
mod extras;
#[path = "operations/witness.rs"]
mod witness;

use asterism_kernels::prelude::*;
use asterism_kernels::{
    Cpu, CpuOptions, DType, Heads, HostTensor, KernelChoice, KernelError, Rotary, RowChoice, TokenChoice,
};
use common::{assert_close, numbers, on_every_thread_count, rounded};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

fn tensor<B: Backend>(backend: &B, shape: &[usize], values: &[f32]) -> B::Tensor {
    backend.cast(&backend.upload(shape, values).unwrap()).unwrap()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn draw<B: Backend>(backend: &B, n: usize, seed: u64) -> Vec<f32> {
    rounded(backend.dtype(), numbers(n, seed))
}

/// Two parts side by side with biases, and a residual.
fn linear<B: Backend>(backend: &B, (rows, k): (usize, usize), n: [usize; 2], seed: u64) -> Result<(), TestCaseError> {
    let (x, residual) = (draw(backend, rows * k, seed), draw(backend, rows * (n[0] + n[1]), seed + 1));
    let w = n.map(|n| draw(backend, n * k, seed + 2));
    let b = n.map(|n| draw(backend, n, seed + 3));
    let (w_bytes, b_bytes) = (w.each_ref().map(|w| bytes(w)), b.each_ref().map(|b| bytes(b)));
    let (w_shapes, b_shapes) = (n.map(|n| [n, k]), n.map(|n| [n]));
    let parts = [0, 1].map(|i| HostTensor { stored: DType::F32.into(), shape: &w_shapes[i], bytes: &w_bytes[i] });
    let biases = [0, 1].map(|i| HostTensor { stored: DType::F32.into(), shape: &b_shapes[i], bytes: &b_bytes[i] });
    let weight = backend.linear_weight(&parts, &biases).unwrap();
    let x_tensor = tensor(backend, &[rows, k], &x);
    let width = n[0] + n[1];
    let expected: Vec<f32> = (0..rows * width)
        .map(|at| {
            let (i, j) = (at / width, at % width);
            let (w, b, j) = if j < n[0] { (&w[0], &b[0], j) } else { (&w[1], &b[1], j - n[0]) };
            x[i * k..][..k].iter().zip(&w[j * k..]).map(|(x, w)| x * w).sum::<f32>() + b[j]
        })
        .collect();
    let y = backend.linear(&x_tensor, &weight).unwrap();
    prop_assert_eq!(backend.shape(&y), [rows, width]);
    assert_close(backend.dtype(), &backend.download(&y).unwrap(), &expected)?;
    let added: Vec<f32> = expected.iter().zip(&residual).map(|(y, r)| y + r).collect();
    let y = backend.linear_add(&x_tensor, &weight, tensor(backend, &[rows, width], &residual)).unwrap();
    assert_close(backend.dtype(), &backend.download(&y).unwrap(), &added)
}

fn norm<B: Backend>(backend: &B, rows: usize, e: usize, seed: u64) -> Result<(), TestCaseError> {
    let (x, weight) = (draw(backend, rows * e, seed), draw(backend, e, seed + 1));
    let expected: Vec<f32> = x
        .chunks_exact(e)
        .flat_map(|row| {
            let mean = row.iter().map(|x| x * x).sum::<f32>() / e as f32;
            row.iter().zip(&weight).map(move |(x, w)| x / (mean + 1e-5).sqrt() * w)
        })
        .collect();
    let weight = backend.weight(HostTensor { stored: DType::F32.into(), shape: &[e], bytes: &bytes(&weight) }).unwrap();
    let y = backend.rms_norm(&tensor(backend, &[rows, e], &x), &weight, 1e-5).unwrap();
    // Heads of rows, each normed: the same rows, however many axes they have.
    let heads = backend.rms_norm(&tensor(backend, &[1, rows, e], &x), &weight, 1e-5).unwrap();
    prop_assert_eq!(backend.shape(&heads), [1, rows, e]);
    prop_assert_eq!(backend.download(&heads).unwrap(), backend.download(&y).unwrap());
    assert_close(backend.dtype(), &backend.download(&y).unwrap(), &expected)
}

fn activation<B: Backend>(backend: &B, rows: usize, f: usize, seed: u64) -> Result<(), TestCaseError> {
    let values = numbers(rows * 2 * f, seed).into_iter().map(|x| x * 20.0).collect();
    let mut gate_up = rounded(backend.dtype(), values);
    gate_up[0] = -100.0;
    let expected: Vec<f32> = gate_up
        .chunks_exact(2 * f)
        .flat_map(|row| row[..f].iter().zip(&row[f..]).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up))
        .collect();
    let y = backend.gated_silu(&tensor(backend, &[rows, 2 * f], &gate_up)).unwrap();
    prop_assert_eq!(backend.shape(&y), [rows, f]);
    assert_close(backend.dtype(), &backend.download(&y).unwrap(), &expected)
}

fn silu<B: Backend>(backend: &B, n: usize, seed: u64) -> Result<(), TestCaseError> {
    let values = numbers(n, seed).into_iter().map(|x| x * 100.0).collect();
    let x = rounded(backend.dtype(), values);
    let expected: Vec<f32> = x.iter().map(|x| x / (1.0 + (-x).exp())).collect();
    let y = backend.silu(&tensor(backend, &[1, n], &x)).unwrap();
    prop_assert_eq!(backend.shape(&y), [1, n]);
    assert_close(backend.dtype(), &backend.download(&y).unwrap(), &expected)
}

/// Cutting a tensor along any axis and joining the parts gives it back, in compute type and in f32.
fn moves<B: Backend>(backend: &B, shape: [usize; 3], cut: usize, seed: u64) -> Result<(), TestCaseError> {
    let values = draw(backend, shape.iter().product(), seed);
    for x in [tensor(backend, &shape, &values), backend.upload(&shape, &values).unwrap()] {
        for axis in 0..3 {
            let cut = cut % (shape[axis] + 1);
            let parts =
                [(0, cut), (cut, shape[axis])].map(|(start, end)| backend.narrow(&x, axis, start, end).unwrap());
            let mut dims = shape;
            dims[axis] = cut;
            prop_assert_eq!(backend.shape(&parts[0]), dims);
            let index = |at: usize| [at / shape[1] / shape[2], at / shape[2] % shape[1], at % shape[2]][axis];
            let first = (0..values.len()).filter(|at| index(*at) < cut).map(|at| values[at]).collect::<Vec<_>>();
            prop_assert_eq!(backend.download(&parts[0]).unwrap(), first);
            let whole = backend.concat(&parts, axis).unwrap();
            prop_assert_eq!(backend.shape(&whole), shape);
            prop_assert_eq!(&backend.download(&whole).unwrap(), &values);
        }
        let [heads, t, dim] = shape;
        let count = if t == 0 { 0 } else { cut % 5 };
        let row = |head: usize, i: usize| (head * 7 + i * 3 + cut) % t;
        let rows: Vec<Vec<u32>> = (0..heads).map(|head| (0..count).map(|i| row(head, i) as u32).collect()).collect();
        let picked = (0..heads).flat_map(|head| (0..count).map(move |i| (head, i)));
        let expected: Vec<f32> =
            picked.flat_map(|(head, i)| values[(head * t + row(head, i)) * dim..][..dim].to_vec()).collect();
        let gathered = backend.gather(&x, &rows).unwrap();
        prop_assert_eq!(backend.shape(&gathered), [heads, count, dim]);
        prop_assert_eq!(backend.download(&gathered).unwrap(), expected);
    }
    Ok(())
}

fn rotation<B: Backend>(backend: &B, heads: Heads, positions: &[u32], seed: u64) -> Result<(), TestCaseError> {
    let (t, Heads { query, kv, dim }) = (positions.len(), heads);
    let width = (query + 2 * kv) * dim;
    let qkv = draw(backend, t * width, seed);
    let inv_freq: Vec<f32> = (0..dim / 2).map(|j| 10_000f32.powf(-2.0 * j as f32 / dim as f32)).collect();
    let rotary = Rotary { inv_freq: &inv_freq, factor: 1.25 };
    let (q, k, v) = backend.split_rotate(&tensor(backend, &[t, width], &qkv), heads, positions, rotary).unwrap();
    prop_assert_eq!((backend.shape(&q), backend.shape(&v)), (vec![query, t, dim], vec![kv, t, dim]));
    let got: Vec<f32> = [&q, &k, &v].into_iter().flat_map(|x| backend.download(x).unwrap()).collect();
    let mut expected = Vec::new();
    for head in 0..query + 2 * kv {
        for (i, position) in positions.iter().enumerate() {
            let x = &qkv[i * width + head * dim..][..dim];
            expected.extend((0..dim).map(|d| {
                let (sin, cos) = (*position as f32 * inv_freq[d % (dim / 2)]).sin_cos();
                let (sin, cos) = (sin * rotary.factor, cos * rotary.factor);
                match () {
                    () if head >= query + kv => x[d],
                    () if d < dim / 2 => x[d] * cos - x[d + dim / 2] * sin,
                    () => x[d] * cos + x[d - dim / 2] * sin,
                }
            }));
        }
    }
    assert_close(backend.dtype(), &got, &expected)?;
    // Heads side by side again: what was split comes back.
    let joined = backend.join_heads(&backend.upload(&[kv, t, dim], &backend.download(&v).unwrap()).unwrap()).unwrap();
    let values: Vec<f32> = qkv.chunks_exact(width).flat_map(|row| row[(query + kv) * dim..].to_vec()).collect();
    prop_assert_eq!(&backend.download(&joined).unwrap(), &values);
    // What travelled is in compute type already.
    prop_assert_eq!(backend.download(&backend.join_heads(&v).unwrap()).unwrap(), values);
    Ok(())
}

fn rows_and_embedding<B: Backend>(backend: &B) {
    let table = draw(backend, 5 * 3, 1);
    let weight =
        backend.weight(HostTensor { stored: DType::F32.into(), shape: &[5, 3], bytes: &bytes(&table) }).unwrap();
    let x = backend.embed(&weight, &[4, 0, 4]).unwrap();
    let expected = [&table[12..], &table[..3], &table[12..]].concat();
    assert_eq!(backend.download(&x).unwrap(), expected);
    let part = backend.rows(&x, 1, 3).unwrap();
    assert_eq!((backend.shape(&part), backend.download(&part).unwrap()), (vec![2, 3], expected[3..].to_vec()));
    assert!(backend.embed(&weight, &[5]).is_err());
    assert!(backend.rows(&x, 2, 4).is_err());
    assert!(backend.upload(&[2, 2], &[0.0; 3]).is_err());
    let choice = RowChoice { token: TokenChoice::Known(2), shape: None, top: 0 };
    let chosen = backend.choose_tokens(&x, &[choice.clone(), choice.clone(), choice.clone()]).unwrap();
    assert_eq!(chosen.len(), 3);
    assert!(backend.choose_tokens(&x, &[choice.clone(), choice]).is_err(), "two choices of three rows");
}

/// Every stored type becomes the same numbers.
fn stored_types<B: Backend>(backend: &B) {
    let values = [0.0f32, -1.5, 0.25, 1024.0, -0.0078125];
    let stored = [
        (DType::F32, bytes(&values)),
        (DType::Bf16, values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()),
        (DType::F16, values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect()),
    ];
    for (dtype, bytes) in &stored {
        let weight = backend.weight(HostTensor { stored: (*dtype).into(), shape: &[5], bytes }).unwrap();
        assert_eq!(backend.download(&weight).unwrap(), values);
        let short = HostTensor { stored: (*dtype).into(), shape: &[5], bytes: &bytes[1..] };
        assert!(matches!(backend.weight(short), Err(KernelError::Shape { .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_agrees(
        rows in prop_oneof![1usize..9, 90usize..110],
        k in prop_oneof![1usize..40, 250usize..300],
        n in [1usize..70, 1usize..70],
        seed in any::<u32>(),
    ) {
        on_every_backend!(backend => {
            linear(backend, (rows, k), n, seed.into())?;
        });
    }

    #[test]
    fn norm_and_activation_agree(rows in 1usize..50, width in 1usize..300, seed in any::<u32>()) {
        on_every_backend!(backend => {
            norm(backend, rows, width, seed.into())?;
            activation(backend, rows, width, seed.into())?;
        });
    }

    #[test]
    fn parts_join_and_rows_gather(shape in [1usize..4, 0usize..9, 1usize..20], cut in 0usize..40, seed in any::<u64>()) {
        on_every_backend!(backend => {
            moves(backend, shape, cut, seed)?;
            silu(backend, shape[2] * 37, seed)?;
        });
    }

    #[test]
    fn rotation_agrees(
        (group, kv, half) in (1usize..5, 1usize..4, 1usize..40),
        positions in prop::collection::vec(0u32..20_000, 1..40),
        seed in any::<u32>(),
    ) {
        on_every_backend!(backend => {
            rotation(backend, Heads { query: group * kv, kv, dim: 2 * half }, &positions, seed.into())?;
        });
    }

    #[test]
    fn threads_change_no_bit(rows in 1usize..150, k in 1usize..300, n in 1usize..300, seed in any::<u32>()) {
        on_every_thread_count(|backend| {
            let (x, w) = (draw(backend, rows * k, seed.into()), bytes(&draw(backend, n * k, seed.into())));
            let part = HostTensor { stored: DType::F32.into(), shape: &[n, k], bytes: &w };
            let weight = backend.linear_weight(&[part], &[]).unwrap();
            let y = backend.linear(&tensor(backend, &[rows, k], &x), &weight).unwrap();
            backend.download(&backend.rms_norm(&y, &tensor(backend, &[n], &vec![1.0; n]), 1e-6).unwrap()).unwrap()
        })?;
    }
}

#[test]
fn rows_embedding_and_stored_types() {
    on_every_backend!(backend => {
        rows_and_embedding(backend);
        stored_types(backend);
    });
}

#[test]
fn parts_that_are_not_there_are_refused() {
    on_every_backend!(backend => {
        let x = tensor(backend, &[2, 3, 4], &[0.0; 24]);
        let flat = tensor(backend, &[2, 4], &[0.0; 8]);
        assert!(backend.narrow(&x, 1, 2, 4).is_err() && backend.narrow(&x, 3, 0, 0).is_err());
        assert!(backend.concat(&[], 0).is_err() && backend.concat(&[x.clone(), flat], 0).is_err());
        assert!(backend.gather(&x, &[vec![0]]).is_err() && backend.gather(&x, &[vec![0], vec![3]]).is_err());
        assert!(backend.gather(&x, &[vec![0], vec![]]).is_err());
    });
}

#[test]
fn kernels_are_named_and_refused_by_name() {
    for name in ["auto", "portable", "avx2", "avx512", "avx512-bf16", "amx"] {
        assert_eq!(name.parse::<KernelChoice>().unwrap().to_string(), name);
    }
    assert_eq!("sse".parse::<KernelChoice>().unwrap_err().code(), "kernel_unknown");
    let new = |kernels, dtype| Cpu::new(CpuOptions { dtype, threads: Some(1), kernels, ..CpuOptions::default() });
    assert_eq!(new(KernelChoice::Auto, DType::F16).err().unwrap().code(), "kernel_dtype");
    let refused = new(KernelChoice::Amx, DType::F32).err().unwrap();
    assert_eq!(refused.code(), "kernel_unsupported");
    let message = refused.to_string();
    assert!(message.starts_with("the amx kernels need AMX-BF16 and compute type bf16"), "{message}");
    let refused = new(KernelChoice::Avx512Bf16, DType::F32).err().unwrap().to_string();
    let needs = "the avx512-bf16 kernels need AVX512-BF16, AVX-512BW and compute type bf16";
    assert!(refused.starts_with(needs), "{refused}");
}

/// Hosts that name the same numerics count as equal, so sets whose bits differ must not.
#[test]
fn numerics_name_the_kernels() {
    let named: Vec<String> = common::backends().iter().map(|cpu| cpu.numerics()).collect();
    assert!((1..named.len()).all(|at| !named[..at].contains(&named[at])), "{named:?}");
}
