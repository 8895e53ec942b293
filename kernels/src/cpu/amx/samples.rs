//! Inputs, runners and error measures of the tests.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::io::Write as _;

use half::bf16;

/// Normal-like numbers from a linear congruential generator.
pub(super) fn numbers(seed: u64, count: usize) -> Vec<bf16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| bf16::from_f32((0..4).map(|_| uniform()).sum::<f32>() * 1.7)).collect()
}

/// All tasks on this thread, in order.
pub(super) fn alone(tasks: usize, work: &(dyn Fn(usize) + Sync)) {
    (0..tasks).for_each(work);
}

/// Three threads, each with every third task, from the last.
pub(super) fn threads(tasks: usize, work: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || (0..tasks).rev().filter(|task| task % 3 == thread).for_each(work));
        }
    });
}

/// `|got - wanted| / |wanted|` in the Euclidean norm; NaN when anything is.
pub(super) fn relative(got: &[f32], wanted: &[f64]) -> f64 {
    assert_eq!(got.len(), wanted.len());
    let (mut error, mut norm) = (0.0, 0.0);
    for (&got, &wanted) in got.iter().zip(wanted) {
        error += (f64::from(got) - wanted).powi(2);
        norm += wanted * wanted;
    }
    (error / norm).sqrt()
}

/// Says that a test runs without the tile unit, and whether it does.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn without_unit() -> bool {
    let missing = !super::available();
    if missing {
        // Past the harness, which keeps what passing tests print to itself.
        let _ = writeln!(std::io::stderr(), "NOT TESTED: no tile unit here, only the scalar engine");
    }
    missing
}
