//! The backends under test and their tolerances, and numbers drawn from a seed.

mod numbers;

use std::{io::Write as _, sync::OnceLock};

use asterism_kernels::{Cpu, CpuOptions, DType, KernelChoice, KvFormat};
#[cfg(feature = "cuda")]
use asterism_kernels::{Cuda, CudaOptions};
use proptest::test_runner::TestCaseError;

pub use numbers::numbers;

const KERNELS: [KernelChoice; 5] =
    [KernelChoice::Portable, KernelChoice::Avx2, KernelChoice::Avx512, KernelChoice::Avx512Bf16, KernelChoice::Amx];

/// Every set of kernels that this machine runs, in both compute types, on two threads.
pub fn backends() -> &'static [Cpu] {
    static BACKENDS: OnceLock<Vec<Cpu>> = OnceLock::new();
    BACKENDS.get_or_init(|| with_threads(2, KvFormat::Computed))
}

/// The same that keep keys and values in 8 bits.
pub fn eight_bit_backends() -> &'static [Cpu] {
    static BACKENDS: OnceLock<Vec<Cpu>> = OnceLock::new();
    BACKENDS.get_or_init(|| with_threads(2, KvFormat::Q8))
}

/// The GPU in both compute types; none, said aloud, where there is none. `ASTERISM_REQUIRE_GPU` makes that a failure.
#[cfg(feature = "cuda")]
pub fn devices() -> &'static [Cuda] {
    static DEVICES: OnceLock<Vec<Cuda>> = OnceLock::new();
    DEVICES.get_or_init(|| opened(KvFormat::Computed))
}

/// The same that keep keys and values in 8 bits.
#[cfg(feature = "cuda")]
#[allow(dead_code, reason = "not every test has keys that are kept")]
pub fn eight_bit_devices() -> &'static [Cuda] {
    static DEVICES: OnceLock<Vec<Cuda>> = OnceLock::new();
    DEVICES.get_or_init(|| opened(KvFormat::Q8))
}

#[cfg(feature = "cuda")]
fn opened(kept: KvFormat) -> Vec<Cuda> {
    let open = |dtype| Cuda::new(CudaOptions { kept, ..CudaOptions::plain(0, dtype) });
    match [DType::F32, DType::Bf16].into_iter().map(open).collect() {
        Ok(devices) => devices,
        Err(error) if std::env::var_os("ASTERISM_REQUIRE_GPU").is_some() => panic!("{error}"),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "NOT TESTED on a GPU: {error}");
            Vec::new()
        }
    }
}

/// Runs a block for every backend there is: the processor's kernels and, built with them, the GPU's.
#[macro_export]
macro_rules! on_every_backend {
    ($backend:ident => $check:block) => {
        for $backend in $crate::common::backends() $check
        #[cfg(feature = "cuda")]
        for $backend in $crate::common::devices() $check
    };
}

/// The same, and those that keep keys and values in 8 bits.
#[macro_export]
macro_rules! on_every_cache {
    ($backend:ident => $check:block) => {
        $crate::on_every_backend!($backend => $check);
        $crate::on_every_eight!($backend => $check);
    };
}

/// Those that keep keys and values in 8 bits alone.
#[macro_export]
macro_rules! on_every_eight {
    ($backend:ident => $check:block) => {
        for $backend in $crate::common::eight_bit_backends() $check
        #[cfg(feature = "cuda")]
        for $backend in $crate::common::eight_bit_devices() $check
    };
}

/// Checks that `result` has the same bits on one, two and five threads.
pub fn on_every_thread_count(result: impl Fn(&Cpu) -> Vec<f32>) -> Result<(), TestCaseError> {
    static BACKENDS: OnceLock<[Vec<Cpu>; 2]> = OnceLock::new();
    let all =
        |threads| [KvFormat::Computed, KvFormat::Q8].into_iter().flat_map(|kept| with_threads(threads, kept)).collect();
    let [one, five] = BACKENDS.get_or_init(|| [all(1), all(5)]);
    for ((one, two), five) in one.iter().zip(backends().iter().chain(eight_bit_backends())).zip(five) {
        let bits = |cpu: &Cpu| result(cpu).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let expected = bits(one);
        proptest::prop_assert_eq!(&bits(two), &expected, "{} kernels, two threads", two.kernels());
        proptest::prop_assert_eq!(&bits(five), &expected, "{} kernels, five threads", five.kernels());
    }
    Ok(())
}

fn with_threads(threads: usize, kept: KvFormat) -> Vec<Cpu> {
    let options =
        |kernels| [DType::F32, DType::Bf16].map(|dtype| CpuOptions { dtype, kept, threads: Some(threads), kernels });
    let open = |options: CpuOptions| match Cpu::new(options) {
        Ok(cpu) => Some(cpu),
        // These have no f32 anywhere.
        Err(_)
            if matches!(options.kernels, KernelChoice::Avx512Bf16 | KernelChoice::Amx)
                && options.dtype == DType::F32 =>
        {
            None
        }
        Err(error) => {
            // Past the harness, which keeps what passing tests print to itself.
            let _ = writeln!(std::io::stderr(), "NOT TESTED: {error}");
            None
        }
    };
    let backends: Vec<Cpu> = KERNELS.into_iter().flat_map(options).filter_map(open).collect();
    assert!(backends.iter().any(|cpu| cpu.kernels() == KernelChoice::Portable));
    backends
}

/// The values as compute type stores them, so that the reference starts from the same.
pub fn rounded(dtype: DType, values: Vec<f32>) -> Vec<f32> {
    match dtype {
        DType::Bf16 => values.into_iter().map(|x| half::bf16::from_f32(x).to_f32()).collect(),
        _ => values,
    }
}

/// Equal to 1e-4 + 1e-5 |a| in f32; in bf16, whose results are rounded to 8 bits, to 1e-2 + 1e-2 |a|.
pub fn assert_close(dtype: DType, got: &[f32], expected: &[f32]) -> Result<(), TestCaseError> {
    let (absolute, relative) = if dtype == DType::F32 { (1e-4, 1e-5) } else { (1e-2, 1e-2) };
    proptest::prop_assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let close = (got - expected).abs() <= absolute + relative * expected.abs();
        proptest::prop_assert!(close || got == expected, "element {}: got {}, expected {}", i, got, expected);
    }
    Ok(())
}
