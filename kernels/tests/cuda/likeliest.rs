//! The likeliest token of each row of logits, found on the device.

use asterism_kernels::prelude::*;
use asterism_kernels::{DType, Likeliest};

use super::{draw, gpu};

#[test]
fn the_likeliest_token_is_found_on_the_device() {
    let Some(gpu) = gpu() else { return };
    for (rows, vocab) in [(1, 7), (3, 128_256), (256, 1000)] {
        let (mut values, _) = draw(gpu, &[rows, vocab], 3);
        // Ties: the lowest id is taken.
        values[vocab / 2] = 4.0;
        values[vocab - 1] = 4.0;
        let logits = gpu.device().tensor(&[rows, vocab], &values, DType::Bf16).unwrap();
        let got = gpu.likeliest(&logits).unwrap();
        for (got, row) in got.iter().zip(values.chunks_exact(vocab)) {
            let expected = Likeliest::of(row);
            assert_eq!((got.token, got.logit, got.is_finite), (expected.token, expected.logit, true));
            assert!((got.log_sum - expected.log_sum).abs() < 1e-4, "{got:?}, not {expected:?}");
        }
        values[vocab / 3] = f32::NAN;
        let logits = gpu.device().tensor(&[rows, vocab], &values, DType::Bf16).unwrap();
        let got = gpu.likeliest(&logits).unwrap();
        assert!(!got[0].is_finite && got[1..].iter().all(|row| row.is_finite));
    }
}
