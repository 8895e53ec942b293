//! Tokens chosen of rows of logits on the device, by the reference on the host.

use asterism_kernels::prelude::*;
use asterism_kernels::{DType, NucleusCut, RowChoice, RowToken, TokenChoice};

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
            .map(|(at, token)| RowChoice { token, top: [0, 1, 5, 20][at % 4] })
            .collect();
        let (values, _) = draw(gpu, &[choices.len(), vocab], 5);
        let values: Vec<f32> = values.iter().map(|value| value * spread).collect();
        let logits = gpu.device().tensor(&[choices.len(), vocab], &values, dtype).unwrap();
        let values = gpu.download(&logits).unwrap();
        let rows: Vec<&[f32]> = values.chunks_exact(vocab).collect();
        let got = gpu.choose_tokens(&logits, &choices).unwrap();
        agree(&got, &choices, &rows);
        // A row has the bits that it has alone.
        for at in [0, choices.len() / 2, choices.len() - 1] {
            let alone = gpu.choose_tokens(&gpu.rows(&logits, at, at + 1).unwrap(), &choices[at..=at]).unwrap();
            assert_eq!((alone[0].token, alone[0].sum.to_bits()), (got[at].token, got[at].sum.to_bits()));
        }
    }
}
