//! Operations that not every decoder needs and not every device has, against the obvious arithmetic.

use asterism_kernels::prelude::*;
use asterism_kernels::{Activation, Extra, Mask};
use proptest::prelude::*;

use super::common::{assert_close, backends};
use super::{draw, tensor};

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn bent(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::Silu => gate * sigmoid(gate) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::ClampedSilu { limit, alpha } => {
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * sigmoid(alpha * gate) * (up + 1.0)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn activations_and_sums_agree(rows in 1usize..20, width in 1usize..70, seed in any::<u32>()) {
        for backend in backends() {
            assert!([Extra::Activations, Extra::Sums, Extra::ScoreCap].into_iter().all(|extra| backend.has(extra)));
            let dtype = backend.dtype();
            let both = draw(backend, 2 * rows * width, seed.into()).into_iter().map(|x| 8.0 * x).collect::<Vec<_>>();
            let both_tensor = tensor(backend, &[rows, 2 * width], &both);
            for activation in
                [Activation::Silu, Activation::GeluTanh, Activation::ClampedSilu { limit: 3.0, alpha: 1.702 }]
            {
                let halves = both.chunks_exact(2 * width).map(|row| row.split_at(width));
                let expected: Vec<f32> = halves
                    .flat_map(|(gates, ups)| gates.iter().zip(ups).map(|(gate, up)| bent(activation, *gate, *up)))
                    .collect();
                let got = backend.gated(&both_tensor, activation).unwrap();
                assert_close(dtype, &backend.download(&got).unwrap(), &expected)?;
            }
            let (x, y) = (draw(backend, rows * width, seed.into()), draw(backend, rows * width, u64::from(seed) + 1));
            let [x_tensor, y_tensor] = [&x, &y].map(|values| tensor(backend, &[rows, width], values));
            let sum: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            assert_close(dtype, &backend.download(&backend.sum(&x_tensor, &y_tensor).unwrap()).unwrap(), &sum)?;
            let multiple: Vec<f32> = x.iter().map(|x| 5.5 * x).collect();
            assert_close(dtype, &backend.download(&backend.multiple(&x_tensor, 5.5).unwrap()).unwrap(), &multiple)?;
            let places: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
            let weights: Vec<f32> = (0..places.len()).map(|at| 0.25 * (at + 1) as f32).collect();
            let few = backend.rows(&y_tensor, 0, places.len()).unwrap();
            let mut added = x.clone();
            for (at, place) in places.iter().enumerate() {
                for column in 0..width {
                    added[*place as usize * width + column] += weights[at] * y[at * width + column];
                }
            }
            let got = backend.add_rows(&x_tensor, (&places, &weights), &few).unwrap();
            assert_close(dtype, &backend.download(&got).unwrap(), &added)?;
            assert!(backend.add_rows(&x_tensor, (&[rows as u32], &[1.0]), &few).is_err());
        }
    }

    /// Of one query head over one KV head, row by row.
    #[test]
    fn capped_scores_agree(queries in 1usize..9, more in 0usize..300, half in 1usize..20, seed in any::<u32>()) {
        let (keys, dim, cap) = (queries + more, 2 * half, 1.5f32);
        for backend in backends() {
            let values = |n: usize, salt: u64| -> Vec<f32> {
                draw(backend, n * dim, u64::from(seed) + salt).into_iter().map(|x| 2.0 * x).collect()
            };
            let (q, k, v) = (values(queries, 0), values(keys, 1), values(keys, 2));
            let cube = |values: &[f32], rows: usize| tensor(backend, &[1, rows, dim], values);
            let kv = backend.kv(&cube(&k, keys), &cube(&v, keys)).unwrap();
            let kv = backend.kv_capped(kv, cap).unwrap();
            let got = backend.attention(&cube(&q, queries), &kv, Mask::Causal).unwrap();
            let (mut output, mut lse) = (Vec::new(), Vec::new());
            for row in 0..queries {
                let q = &q[row * dim..][..dim];
                let score = |key: usize| -> f32 {
                    let product: f32 = q.iter().zip(&k[key * dim..]).map(|(q, k)| q * k).sum();
                    cap * (product / (dim as f32).sqrt() / cap).tanh()
                };
                let weights: Vec<f32> = (0..=row + more).map(|key| score(key).exp()).collect();
                let sum: f32 = weights.iter().sum();
                lse.push(sum.ln());
                output.extend((0..dim).map(|d| weights.iter().enumerate().map(|(key, w)| w * v[key * dim + d]).sum::<f32>() / sum));
            }
            assert_close(backend.dtype(), &backend.download(&got.output).unwrap(), &output)?;
            assert_close(backend.dtype(), &backend.download(&got.lse).unwrap(), &lse)?;
        }
    }
}
