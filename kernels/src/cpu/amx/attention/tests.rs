//! Tile attention against double precision, on every engine this machine runs.

use half::bf16;

use super::super::engine::Engine;
use super::super::portable::PortableEngine;
use super::super::samples::{alone, numbers, relative, threads};
use super::{AmxAttentionPlan, AmxCache, Parallel, Query, attention, attention_with};
use crate::reference::AttentionShape;
use crate::{Heads, Mask};

#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: Heads,
    queries: usize,
    keys: usize,
    mask: Mask,
}

const fn shape(heads: (usize, usize, usize), queries: usize, keys: usize, mask: Mask) -> Shape {
    Shape { heads: Heads { query: heads.0, kv: heads.1, dim: heads.2 }, queries, keys, mask }
}

const fn streaming(sink: usize, window: usize, first_row: usize, first_key: usize) -> Mask {
    Mask::Streaming { sink, window, first_row, first_key }
}

/// Prefill, decode, a query on earlier keys, rows that see nothing, tiles across heads, several tiles a task, and each head size in use.
const SHAPES: [Shape; 25] = [
    shape((4, 2, 64), 300, 300, Mask::Causal),
    shape((4, 2, 64), 1, 515, Mask::Causal),
    shape((4, 2, 64), 1, 1, Mask::None),
    shape((9, 3, 64), 70, 333, Mask::Causal),
    shape((4, 2, 64), 65, 515, Mask::None),
    shape((2, 2, 64), 256, 256, Mask::Causal),
    shape((4, 2, 64), 40, 9, Mask::Causal),
    shape((2, 1, 64), 200, 70, Mask::Causal),
    shape((8, 1, 64), 5, 130, Mask::None),
    shape((2, 1, 16), 90, 150, Mask::Causal),
    shape((4, 4, 16), 17, 64, Mask::None),
    shape((2, 1, 48), 33, 100, Mask::Causal),
    shape((2, 1, 128), 140, 140, Mask::Causal),
    shape((4, 2, 128), 3, 200, Mask::Causal),
    shape((3, 1, 112), 10, 65, Mask::None),
    shape((1, 1, 32), 150, 2100, Mask::Causal),
    shape((1, 1, 16), 2, 1030, Mask::None),
    shape((8, 2, 16), 300, 1100, Mask::Causal),
    shape((4, 2, 64), 70, 90, Mask::From { row: 40 }),
    shape((4, 2, 32), 300, 300, streaming(4, 50, 0, 0)),
    shape((4, 2, 64), 1, 2500, streaming(40, 100, 2499, 0)),
    shape((2, 1, 16), 90, 2100, streaming(70, 33, 2050, 30)),
    shape((4, 1, 64), 9, 1500, streaming(0, 40, 1491, 0)),
    shape((2, 2, 16), 100, 100, streaming(10, 0, 0, 0)),
    shape((2, 1, 32), 60, 200, streaming(5, 64, 0, 20)),
];

struct Case {
    shape: Shape,
    query: Vec<bf16>,
    keys: Vec<bf16>,
    values: Vec<bf16>,
}

/// Scores of a wide range, so that references move.
fn case(shape: Shape) -> Case {
    let Heads { query, kv, dim } = shape.heads;
    let wide = |x: bf16| bf16::from_f32(x.to_f32() * 3.0);
    let query = numbers(1, query * shape.queries * dim).into_iter().map(wide).collect();
    Case { shape, query, keys: numbers(2, kv * shape.keys * dim), values: numbers(3, kv * shape.keys * dim) }
}

impl Case {
    fn run<E: Engine>(&self, parallel: Parallel<'_>) -> (Vec<f32>, Vec<f32>) {
        let Shape { heads, queries, mask, .. } = self.shape;
        let (mut output, mut lse) = (vec![f32::NAN; self.query.len()], vec![f32::NAN; heads.query * queries]);
        let query = Query { rows: &self.query, heads: heads.query, tokens: queries, mask, holes: &[] };
        let mut cache = AmxCache::new(heads.kv, heads.dim);
        cache.append(&self.keys, &self.values, parallel);
        let plan = AmxAttentionPlan::new(&query, &cache, &mut output, &mut lse);
        // SAFETY: the callers name an engine that suits the machine.
        unsafe { attention_with::<E>(plan, parallel) };
        (output, lse)
    }

    fn exact(&self) -> (Vec<f64>, Vec<f64>) {
        let Shape { heads: Heads { query, kv, dim }, queries, keys, mask } = self.shape;
        let (mut output, mut lse) = (vec![0.0; self.query.len()], vec![f64::NEG_INFINITY; query * queries]);
        for row in 0..query * queries {
            let base = row / queries / (query / kv) * keys * dim;
            let shape = AttentionShape { heads: self.shape.heads, queries, keys, mask };
            let seen: Vec<usize> = (0..keys).filter(|key| shape.sees(row % queries, *key)).collect();
            let scores: Vec<f64> = seen
                .iter()
                .map(|key| {
                    let pairs = self.query[row * dim..][..dim].iter().zip(&self.keys[base + key * dim..][..dim]);
                    pairs.map(|(q, k)| q.to_f64() * k.to_f64()).sum::<f64>() / (dim as f64).sqrt()
                })
                .collect();
            let peak = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - peak).exp()).sum();
            if !seen.is_empty() {
                lse[row] = peak + sum.ln();
            }
            for (key, score) in seen.iter().zip(&scores) {
                for element in 0..dim {
                    let value = self.values[base + key * dim + element].to_f64();
                    output[row * dim + element] += (score - peak).exp() / sum * value;
                }
            }
        }
        (output, lse)
    }
}

fn agrees<E: Engine>() {
    for shape in SHAPES {
        let case = case(shape);
        let ((output, lse), (exact, exact_lse)) = (case.run::<E>(&threads), case.exact());
        let error = relative(&output, &exact);
        assert!(error < 2.5e-3, "{shape:?}: {error}");
        for (row, (&got, wanted)) in lse.iter().zip(exact_lse).enumerate() {
            if wanted == f64::NEG_INFINITY {
                assert_eq!(got, f32::NEG_INFINITY, "{shape:?}: row {row} sees nothing");
                assert!(output[row * shape.heads.dim..][..shape.heads.dim].iter().all(|&x| x == 0.0));
            } else {
                let error = (f64::from(got) - wanted).abs();
                assert!(error < 2e-4, "{shape:?}: log-sum-exp of row {row} off by {error}");
            }
        }
    }
}

/// The mask of the rows from `row` on.
fn from_row(mask: Mask, row: usize) -> Mask {
    match mask {
        Mask::From { row: first } => Mask::From { row: first.saturating_sub(row) },
        Mask::Streaming { sink, window, first_row, first_key } => streaming(sink, window, first_row + row, first_key),
        same => same,
    }
}

/// A query of the last `rows` tokens gives the bits that those rows have in the whole.
fn rows_stand_alone<E: Engine>() {
    for shape in SHAPES {
        let whole = case(shape);
        let (output, lse) = whole.run::<E>(&alone);
        assert_eq!(whole.run::<E>(&threads), (output.clone(), lse.clone()), "{shape:?} depends on threads");
        let dim = shape.heads.dim;
        for rows in [1, 20, 100] {
            let rows = rows.min(shape.queries);
            let tail = |head: usize| (head + 1) * shape.queries - rows..(head + 1) * shape.queries;
            let heads = 0..shape.heads.query;
            let query = heads.clone().flat_map(|h| &whole.query[tail(h).start * dim..tail(h).end * dim]).copied();
            let part = Case {
                shape: Shape { queries: rows, mask: from_row(shape.mask, shape.queries - rows), ..shape },
                query: query.collect(),
                keys: whole.keys.clone(),
                values: whole.values.clone(),
            };
            let (part_output, part_lse) = part.run::<E>(&alone);
            for head in heads {
                let (range, part) = (tail(head), head * rows..(head + 1) * rows);
                assert_eq!(part_lse[part.clone()], lse[range.clone()], "{shape:?}: {rows} rows of head {head}");
                let (range, part) = (range.start * dim..range.end * dim, part.start * dim..part.end * dim);
                assert_eq!(part_output[part], output[range], "{shape:?}: {rows} rows of head {head}");
            }
        }
    }
}

#[test]
fn scalar_engine_agrees_with_f64() {
    agrees::<PortableEngine>();
}

#[test]
fn rows_stand_alone_on_the_scalar_engine() {
    rows_stand_alone::<PortableEngine>();
}

#[test]
fn rows_without_keys_are_zero_and_weigh_nothing() {
    let rows = numbers(1, 2 * 3 * 32);
    let (mut output, mut lse) = (vec![f32::NAN; 192], vec![f32::NAN; 6]);
    let query = Query { rows: &rows, heads: 2, tokens: 3, mask: Mask::Causal, holes: &[] };
    attention(&query, &AmxCache::new(1, 32), &mut output, &mut lse, &alone);
    assert!(output.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod on_the_tile_unit {
    use super::super::super::native::Amx;
    use super::super::super::samples::without_unit;
    use super::*;

    #[test]
    fn tile_unit_agrees_with_f64() {
        if without_unit() {
            return;
        }
        agrees::<Amx>();
        rows_stand_alone::<Amx>();
    }
}
