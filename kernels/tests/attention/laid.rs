//! A step that is laid out once: every layer has the bits of attention that is asked for layer by layer, whoever is beside a sequence.

use std::ops::Range;
use std::sync::Arc;

use asterism_kernels::prelude::*;
use asterism_kernels::{Ask, Cpu, CpuOptions, DeviceGroup, Heads, Mask, Merging, Rotary, StepSequence};

use crate::common::{numbers, rounded};
use crate::on_every_cache;

const LAYERS: usize = 2;

/// A sequence: its rows of a step, keys of its shards, and its own before the step.
#[derive(Clone)]
struct Sequence {
    rows: usize,
    shards: Vec<usize>,
    own: usize,
    mask: Mask,
}

/// Keys and values of a sequence's shards and its own, by layer.
struct Held<B: Backend> {
    shards: Vec<Vec<B::Kv>>,
    own: Vec<B::Kv>,
}

fn draw<B: Backend>(backend: &B, shape: &[usize], seed: u64) -> B::Tensor {
    let values = rounded(backend.dtype(), numbers(shape.iter().product(), seed));
    backend.cast(&backend.upload(shape, &values).unwrap()).unwrap()
}

/// As projections give them: queries `(t, query heads dim)`, keys and values `(kv, t, dim)`.
fn projected<B: Backend>(backend: &B, heads: Heads, t: usize, seed: u64) -> [B::Tensor; 3] {
    let qkv = draw(backend, &[t, (heads.query + 2 * heads.kv) * heads.dim], seed);
    let still = vec![0.0; heads.dim / 2];
    let (q, k, v) = backend.split_rotate(&qkv, heads, &vec![0; t], Rotary::plain(&still)).unwrap();
    [backend.row_major(&q).unwrap(), k, v]
}

fn held<B: Backend>(backend: &B, heads: Heads, sequence: &Sequence, seed: u64) -> Held<B> {
    let keys = |count: usize, salt: u64| -> Vec<B::Kv> {
        let of_layer = |layer: u64| {
            let [_, k, v] = projected(backend, heads, count, seed + 100 * salt + layer);
            backend.kv_kept(&k, &v).unwrap()
        };
        (0..LAYERS as u64).map(of_layer).collect()
    };
    let shards = sequence.shards.iter().zip(1..).map(|(count, salt)| keys(*count, salt)).collect();
    let none = || (0..LAYERS).map(|_| backend.kv_none(heads).unwrap()).collect();
    Held { shards, own: if sequence.own == 0 { none() } else { keys(sequence.own, 0) } }
}

/// Shards of each sequence first, then its own; the first two shards of whoever has three are merged before.
fn merging(sequences: &[Sequence]) -> Merging {
    let shards: usize = sequences.iter().map(|sequence| sequence.shards.len()).sum();
    let (mut first, mut level, mut tops) = (0, Vec::new(), Vec::new());
    for (own, sequence) in sequences.iter().enumerate() {
        let mut inputs: Vec<usize> = (first..first + sequence.shards.len()).collect();
        first += inputs.len();
        if inputs.len() > 2 {
            let merged: Vec<usize> = inputs.drain(..2).collect();
            inputs.insert(0, shards + sequences.len() + level.len());
            level.push(merged);
        }
        inputs.push(shards + own);
        tops.push(inputs);
    }
    Merging { levels: vec![level], tops }
}

fn own_mask(sequence: &Sequence) -> Mask {
    match sequence.mask {
        Mask::Streaming { sink, window, first_row, .. } => {
            let first_key = sequence.shards.iter().sum();
            Mask::Streaming { sink, window, first_row, first_key }
        }
        _ => Mask::Causal,
    }
}

/// Sequences, their keys, and what each layer projects of a step's rows.
type Given<'a, B> = (&'a [Sequence], &'a mut [Held<B>], &'a [[<B as TensorOps>::Tensor; 3]]);

/// Outputs of every layer, layer by layer or laid out.
fn outputs<B: Backend>(backend: &B, heads: Heads, (sequences, held, steps): Given<'_, B>, laid: bool) -> Vec<Vec<f32>> {
    let mut start = 0;
    let range = |sequence: &Sequence| {
        start += sequence.rows;
        start - sequence.rows..start
    };
    let ranges: Vec<Range<usize>> = sequences.iter().map(range).collect();
    let merging = merging(sequences);
    let host = |x: B::Tensor| backend.download(&x).unwrap();
    if laid {
        let parts = sequences.iter().zip(held).zip(&ranges).map(|((sequence, held), rows)| StepSequence {
            rows: rows.clone(),
            shards: held.shards.iter().map(|layers| (layers.iter().collect(), sequence.mask)).collect(),
            own: held.own.iter_mut().collect(),
            own_keys: sequence.own,
            own_mask: own_mask(sequence),
        });
        let mut step = backend.lay_step(heads, LAYERS, parts.collect(), &merging).unwrap().expect("it is laid out");
        let of_layer = |(layer, [q, k, v]): (usize, &[B::Tensor; 3])| host(step.attend(layer, [q, k, v]).unwrap());
        return steps.iter().enumerate().map(of_layer).collect();
    }
    let mut outputs = Vec::new();
    for (layer, [q, k, v]) in steps.iter().enumerate() {
        for (held, rows) in held.iter_mut().zip(&ranges) {
            let [k, v] = [k, v].map(|x| backend.narrow(x, 1, rows.start, rows.end).unwrap());
            backend.kv_append(&mut held.own[layer], &k, &v).unwrap();
        }
        let mut asks = Vec::new();
        for ((sequence, held), rows) in sequences.iter().zip(&*held).zip(&ranges) {
            let ask = |kv| Ask { kv, rows: rows.clone(), mask: sequence.mask, holes: &[] };
            asks.extend(held.shards.iter().map(|layers| ask(&layers[layer])));
        }
        for ((sequence, held), rows) in sequences.iter().zip(&*held).zip(&ranges) {
            asks.push(Ask { kv: &held.own[layer], rows: rows.clone(), mask: own_mask(sequence), holes: &[] });
        }
        outputs.push(host(backend.attend_tree(heads, q, (&asks, &[]), &merging).unwrap()));
    }
    outputs
}

/// Laid out, layer by layer, and each sequence alone.
fn laid_steps_are_their_layers<B: Backend>(backend: &B, heads: Heads, extra: usize) {
    let window = Mask::Streaming { sink: 4, window: 700, first_row: 2500, first_key: 0 };
    let sequence = |(rows, shards, own): (usize, &[usize], usize), mask| {
        let shards = shards.to_vec();
        Sequence { rows, shards, own, mask }
    };
    let mut sequences = vec![
        sequence((1, &[2048], 0), Mask::None),
        sequence((1, &[1000, 3000, 70], 1), window),
        sequence((16, &[513], 40), Mask::None),
        sequence((1, &[], 64), Mask::None),
        sequence((1, &[0, 5000], 63), Mask::None),
        sequence((70, &[100, 200], 0), Mask::None),
        sequence((1, &[1, 64, 65, 4097], 200), Mask::None),
    ];
    sequences.extend(vec![sequence((1, &[300], 3), Mask::None); extra]);
    let all = || -> Vec<Held<B>> {
        (0..).zip(&sequences).map(|(seed, sequence)| held(backend, heads, sequence, 10_000 * seed)).collect()
    };
    let rows = sequences.iter().map(|sequence| sequence.rows).sum();
    let steps: Vec<[B::Tensor; 3]> =
        (0..LAYERS as u64).map(|layer| projected(backend, heads, rows, 31 + layer)).collect();
    let apart = outputs(backend, heads, (&sequences, &mut all(), &steps), false);
    let together = outputs(backend, heads, (&sequences, &mut all(), &steps), true);
    assert!(apart == together, "{heads:?}: layer by layer and laid out");
    let (mut held, mut start, width) = (all(), 0, heads.query * heads.dim);
    for (at, sequence) in sequences.iter().enumerate() {
        let end = start + sequence.rows;
        let of_layer = |[q, k, v]: &[B::Tensor; 3]| {
            let [k, v] = [k, v].map(|x| backend.narrow(x, 1, start, end).unwrap());
            [backend.rows(q, start, end).unwrap(), k, v]
        };
        let own: Vec<[B::Tensor; 3]> = steps.iter().map(of_layer).collect();
        let alone = outputs(backend, heads, (&sequences[at..=at], &mut held[at..=at], &own), true);
        for (alone, together) in alone.iter().zip(&together) {
            assert!(alone == &together[start * width..end * width], "{heads:?}: sequence {at} alone");
        }
        start = end;
    }
}

/// What a step left that did not come to its end changes nothing.
fn a_step_is_taken_again<B: Backend>(backend: &B) {
    let heads = Heads { query: 8, kv: 2, dim: 64 };
    let sequences = [Sequence { rows: 1, shards: vec![300], own: 5, mask: Mask::None }];
    let steps: Vec<[B::Tensor; 3]> = (0..LAYERS as u64).map(|layer| projected(backend, heads, 1, 31 + layer)).collect();
    let mut whole = [held(backend, heads, &sequences[0], 7)];
    let once = outputs(backend, heads, (&sequences, &mut whole, &steps), true);
    let mut again = [held(backend, heads, &sequences[0], 7)];
    outputs(backend, heads, (&sequences, &mut again, &steps[..1]), true);
    assert!(outputs(backend, heads, (&sequences, &mut again, &steps), true) == once);
    assert!(again[0].own.iter().all(|kv| backend.kv_len(kv) == 6));
}

/// Steps that follow each other, of the same sequences, of some of them, and with one that was broken off.
fn steps_follow_each_other<B: Backend>(backend: &B, heads: Heads) {
    let sequence = |own, shards: &[usize]| Sequence { rows: 1, shards: shards.to_vec(), own, mask: Mask::None };
    let mut sequences =
        [sequence(62, &[300]), sequence(0, &[70, 1000]), sequence(127, &[2]), sequence(5, &[]), sequence(63, &[513])];
    let all = |sequences: &[Sequence]| -> Vec<Held<B>> {
        (0..).zip(sequences).map(|(seed, sequence)| held(backend, heads, sequence, 10_000 * seed)).collect()
    };
    let (mut apart, mut laid) = (all(&sequences), all(&sequences));
    for (step, count) in [5, 5, 5, 4, 4, 5, 5].into_iter().enumerate() {
        let of_layer = |layer| projected(backend, heads, count, 31 + 7 * step as u64 + layer);
        let steps: Vec<[B::Tensor; 3]> = (0..LAYERS as u64).map(of_layer).collect();
        if step == 4 {
            outputs(backend, heads, (&sequences[..count], &mut laid[..count], &steps[..1]), true);
        }
        let [one, other] = [(&mut apart, false), (&mut laid, true)]
            .map(|(held, laid)| outputs(backend, heads, (&sequences[..count], &mut held[..count], &steps), laid));
        assert!(one == other, "{heads:?}: step {step}");
        sequences[..count].iter_mut().for_each(|sequence| sequence.own += 1);
    }
}

#[test]
fn steps_that_follow_each_other_have_the_bits_of_their_layers() {
    on_every_cache!(backend => {
        if backend.lays_steps(1) {
            steps_follow_each_other(backend, Heads { query: 8, kv: 2, dim: 64 });
        }
    });
}

#[test]
fn a_laid_step_has_the_bits_of_its_layers_and_of_each_sequence_alone() {
    let heads = Heads { query: 4, kv: 2, dim: 32 };
    for backend in crate::common::backends() {
        laid_steps_are_their_layers(backend, heads, 3);
    }
    let cpu = || Arc::new(Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap());
    laid_steps_are_their_layers(&DeviceGroup::new(vec![cpu(), cpu()], heads).unwrap(), heads, 3);
    #[cfg(feature = "cuda")]
    let (computed, eight) = (crate::common::devices().iter(), crate::common::eight_bit_devices().iter());
    #[cfg(feature = "cuda")]
    for backend in computed.chain(eight).filter(|gpu| gpu.lays_steps(1)) {
        laid_steps_are_their_layers(backend, Heads { query: 32, kv: 8, dim: 128 }, 200);
        laid_steps_are_their_layers(backend, Heads { query: 6, kv: 2, dim: 64 }, 20);
    }
}

#[test]
fn a_step_that_does_not_come_to_its_end_is_taken_again() {
    on_every_cache!(backend => {
        if backend.lays_steps(1) {
            a_step_is_taken_again(backend);
        }
    });
}

/// Caches that are joined are those that are appended one by one, and go on so.
fn joined_caches_are_extended_ones<B: Backend>(backend: &B, heads: Heads) {
    let kept = |count, seed| {
        let [_, k, v] = projected(backend, heads, count, seed);
        backend.kv_kept(&k, &v).unwrap()
    };
    let (first, others, last) = (kept(5, 1), [kept(70, 2), kept(0, 3), kept(33, 4)], kept(9, 5));
    let mut joined = backend.kv_joined(&first, &others.each_ref(), 9).unwrap();
    let mut extended = backend.kv_widened(&first).unwrap();
    others.iter().for_each(|kv| backend.kv_extend(&mut extended, kv).unwrap());
    let q = draw(backend, &[heads.query, 1, heads.dim], 6);
    for more in [None, Some(&last)] {
        for to in more.map(|kv| [(&mut joined, kv), (&mut extended, kv)]).into_iter().flatten() {
            backend.kv_extend(to.0, to.1).unwrap();
        }
        let [one, other] = [&joined, &extended]
            .map(|kv| backend.download(&backend.attention(&q, kv, Mask::None).unwrap().output).unwrap());
        assert_eq!(backend.kv_len(&joined), backend.kv_len(&extended));
        assert_eq!(one, other);
    }
}

#[test]
fn caches_join() {
    on_every_cache!(backend => {
        joined_caches_are_extended_ones(backend, Heads { query: 4, kv: 2, dim: 32 });
    });
    let (heads, cpu) = (Heads { query: 4, kv: 2, dim: 32 }, || Arc::new(Cpu::new(CpuOptions::default()).unwrap()));
    joined_caches_are_extended_ones(&DeviceGroup::new(vec![cpu(), cpu()], heads).unwrap(), heads);
}

/// Rows appended to many caches at once are those appended one by one.
#[test]
fn rows_go_to_each_cache() {
    on_every_cache!(backend => {
        let heads = Heads { query: 2, kv: 2, dim: 16 };
        let [_, k, v] = projected(backend, heads, 9, 3);
        let empty = |seed| {
            let [_, k, v] = projected(backend, heads, 4, seed);
            backend.kv_kept(&k, &v).unwrap()
        };
        let (mut at_once, mut each) = ([empty(1), empty(2)], [empty(1), empty(2)]);
        let rows = [2..3, 5..9];
        backend.kv_append_each(at_once.iter_mut().zip(rows.clone()).collect(), &k, &v).unwrap();
        for (kv, rows) in each.iter_mut().zip(&rows) {
            let [k, v] = [&k, &v].map(|x| backend.narrow(x, 1, rows.start, rows.end).unwrap());
            backend.kv_append(kv, &k, &v).unwrap();
        }
        let q = draw(backend, &[2, 1, 16], 5);
        for (one, other) in at_once.iter().zip(&each) {
            let attend = |kv| backend.download(&backend.attention(&q, kv, Mask::None).unwrap().output).unwrap();
            assert_eq!(backend.kv_len(one), backend.kv_len(other));
            assert_eq!(attend(one), attend(other));
        }
    });
}
