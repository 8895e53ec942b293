//! Tokens chosen of rows of logits on the device, by the reference on the host.

use asterism_kernels::prelude::*;
use asterism_kernels::{Cuda, DType, LogitChange, NucleusCut, RowChoice, RowShape, RowToken, TokenChoice};

use super::{draw, gpu};

/// That the device told what the reference does.
fn agree(got: &[RowToken], choices: &[RowChoice], rows: &[&[f32]]) {
    assert_eq!((got.len(), rows.len()), (choices.len(), choices.len()));
    for ((got, choice), row) in got.iter().zip(choices).zip(rows) {
        let expected = choice.of(row);
        assert_eq!(
            (got.token, got.logit, got.largest),
            (expected.token, expected.logit, expected.largest),
            "{choice:?}"
        );
        assert_eq!((&got.top, got.is_finite), (&expected.top, true), "{choice:?}");
        assert!((got.sum / expected.sum - 1.0).abs() < 1e-6, "{got:?}, not {expected:?}");
    }
}

/// That the device chooses as the reference does of drawn logits, so far apart, and a row has the bits that it has alone.
fn chooses(gpu: &Cuda, choices: &[RowChoice], (vocab, spread, dtype): (usize, f32, DType), seed: u64) {
    let (values, _) = draw(gpu, &[choices.len(), vocab], seed);
    let values: Vec<f32> = values.iter().map(|value| value * spread).collect();
    let logits = gpu.device().tensor(&[choices.len(), vocab], &values, dtype).unwrap();
    let values = gpu.download(&logits).unwrap();
    let got = gpu.choose_tokens(&logits, choices).unwrap();
    agree(&got, choices, &values.chunks_exact(vocab).collect::<Vec<_>>());
    for at in [0, choices.len() / 2, choices.len() - 1] {
        let alone = gpu.choose_tokens(&gpu.rows(&logits, at, at + 1).unwrap(), &choices[at..=at]).unwrap();
        assert_eq!((alone[0].token, alone[0].sum.to_bits()), (got[at].token, got[at].sum.to_bits()));
    }
}

/// Parts of what may be drawn, from the first to the last.
fn parts(count: usize) -> impl Iterator<Item = f64> {
    (0..count).map(move |at| if at == 0 { 0.0 } else { (at as f64 * 0.618_033_988_749_895).fract() })
}

#[test]
fn the_likeliest_token_is_found_on_the_device() {
    let Some(gpu) = gpu() else { return };
    for (rows, vocab) in [(1, 7), (3, 128_256), (256, 1000)] {
        let (mut values, _) = draw(gpu, &[rows, vocab], 3);
        // Ties: the lowest id is taken.
        values[vocab / 2] = 4.0;
        values[vocab - 1] = 4.0;
        let choices = vec![RowChoice::likeliest(); rows];
        let logits = gpu.device().tensor(&[rows, vocab], &values, DType::Bf16).unwrap();
        let got = gpu.choose_tokens(&logits, &choices).unwrap();
        agree(&got, &choices, &values.chunks_exact(vocab).collect::<Vec<_>>());
        values[vocab / 3] = f32::NAN;
        let logits = gpu.device().tensor(&[rows, vocab], &values, DType::Bf16).unwrap();
        let got = gpu.choose_tokens(&logits, &choices).unwrap();
        assert!(!got[0].is_finite && got[1..].iter().all(|row| row.is_finite));
    }
}

#[test]
fn tokens_are_drawn_on_the_device_as_on_the_host() {
    let Some(gpu) = gpu() else { return };
    let cut = |temperature, top_k, top_p, min_p| NucleusCut { temperature, top_k, top_p, min_p };
    let cuts = [
        cut(1.0, 0, 1.0, 0.0),
        cut(0.8, 0, 0.95, 0.0),
        cut(0.7, 40, 1.0, 0.0),
        cut(1.3, 1, 0.5, 0.0),
        cut(1.0, 900, 0.9, 0.01),
        cut(100.0, 0, 0.3, 0.0),
        cut(0.01, 0, 1.0, 0.5),
    ];
    for (vocab, spread, dtype) in [
        (7, 1.0, DType::F32),
        (128_256, 2.5, DType::Bf16),
        (32_000, 4.0, DType::F32),
        (5000, 0.0, DType::Bf16),
        (128_256, 0.2, DType::Bf16),
    ] {
        let choices: Vec<RowChoice> = cuts
            .iter()
            .flat_map(|cut| parts(40).map(|part| TokenChoice::Drawn(*cut, part)))
            .chain([TokenChoice::Likeliest, TokenChoice::Known(3), TokenChoice::Known(vocab as u32 - 1)])
            .enumerate()
            .map(|(at, token)| RowChoice { token, shape: None, top: [0, 1, 5, 20][at % 4] })
            .collect();
        chooses(gpu, &choices, (vocab, spread, dtype), 5);
    }
}

/// What changes a row: every fifth token, and some are not to come.
fn changes(vocab: usize) -> Vec<LogitChange> {
    let change = |token: usize| LogitChange {
        token: token as u32,
        bias: [0.0, 1.5, -0.3][token % 3],
        repetition: [1.0, 1.3][token % 2],
        presence: if token.is_multiple_of(35) { f32::INFINITY } else { 0.4 },
        frequency: 0.2 * (token % 4) as f32,
    };
    // The last is none of the tokens.
    (0..vocab).step_by(5).chain([vocab + 3]).map(change).collect()
}

/// The bits of tokens of which one of so many may come, from one on.
fn every(count: usize, first: usize, vocab: usize) -> Vec<u32> {
    let bit = |id: usize| u32::from(id % count == first % count) << (id % 32);
    (0..vocab.div_ceil(32)).map(|word| (32 * word..32 * word + 32).fold(0, |bits, id| bits | bit(id))).collect()
}

#[test]
fn tokens_are_chosen_of_changed_rows_on_the_device_as_on_the_host() {
    let Some(gpu) = gpu() else { return };
    let cuts = [(0, 1.0, 0.0), (40, 1.0, 0.0), (0, 0.9, 0.0), (900, 0.8, 0.02)];
    for (vocab, spread, dtype) in
        [(7, 1.0, DType::F32), (128_256, 2.5, DType::Bf16), (32_000, 4.0, DType::F32), (5000, 0.0, DType::Bf16)]
    {
        let shapes = [
            RowShape { changes: changes(vocab), allowed: None },
            RowShape { changes: Vec::new(), allowed: Some(every(2, 1, vocab)) },
            RowShape { changes: changes(vocab), allowed: Some(every(3, 2, vocab)) },
            RowShape { changes: changes(vocab), allowed: Some(every(vocab, vocab - 1, vocab)) },
            // Fewer words than tokens, and nothing that may come.
            RowShape { changes: Vec::new(), allowed: Some(vec![1 << 3]) },
            RowShape {
                changes: vec![LogitChange { presence: f32::INFINITY, ..LogitChange::none(3) }],
                allowed: Some(vec![1 << 3]),
            },
        ];
        let drawn = |(at, part): (usize, f64)| {
            let (top_k, top_p, min_p) = cuts[at % cuts.len()];
            TokenChoice::Drawn(NucleusCut { temperature: 0.9, top_k, top_p, min_p }, part)
        };
        let tokens: Vec<TokenChoice> = parts(25)
            .enumerate()
            .map(drawn)
            .chain([TokenChoice::Likeliest, TokenChoice::Known(vocab as u32 - 1)])
            .collect();
        let mut choices: Vec<RowChoice> = Vec::new();
        for (at, shape) in shapes.iter().enumerate() {
            let of_shape =
                |token: &TokenChoice| RowChoice { token: *token, shape: Some(shape.clone()), top: [0, 5][at % 2] };
            choices.extend(tokens.iter().map(of_shape));
            choices.extend([RowChoice::likeliest(), RowChoice { token: tokens[1], shape: None, top: 3 }]);
        }
        chooses(gpu, &choices, (vocab, spread, dtype), 7);
    }
}
