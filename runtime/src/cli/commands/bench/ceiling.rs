//! What this machine gives at most: the speed of a large product and of a copy, measured in the run whose figures stand beside
//! them. The best of some repetitions: whatever else the machine does only adds time.

use asterism_kernels::{Backend, DType, HostTensor, KernelError};
use serde::Serialize;

use super::machine::{BenchBackend, random, seconds};
use crate::globals::Globals;

/// The first product tried has so many rows, inputs and outputs; the next twice as many.
const FIRST: usize = 512;
const LAST: usize = 8192;
/// A product that takes so long is large enough.
const LONG_ENOUGH_S: f64 = 0.05;
const REPEAT: u16 = 5;

/// Of one device.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ceiling {
    /// Rows, inputs and outputs of the product.
    pub product_size: usize,
    /// Operations of the product, a multiply-add as two.
    pub product_flops_per_s: f64,
    /// Bytes that a copy reads and writes.
    pub copy_bytes_per_s: f64,
}

/// Measures, and says what came out. Where that fails there is none, and the run goes on.
pub fn measure<B: BenchBackend>(globals: &Globals, backend: &B) -> Option<Ceiling> {
    match of(backend) {
        Ok(ceiling) => {
            let Ceiling { product_size, product_flops_per_s, copy_bytes_per_s } = ceiling;
            globals.note(format_args!(
                "ceiling of a device: {:.3} TFLOP/s in a product of {product_size} x {product_size} x {product_size}, {:.3} TB/s in a copy",
                product_flops_per_s / 1e12,
                copy_bytes_per_s / 1e12,
            ));
            Some(ceiling)
        }
        Err(error) => {
            globals.note(format_args!("no ceiling: {error}"));
            None
        }
    }
}

fn of<B: BenchBackend>(backend: &B) -> Result<Ceiling, KernelError> {
    let mut product_size = FIRST;
    let product_flops_per_s = loop {
        let best_s = product(backend, product_size)?;
        if best_s >= LONG_ENOUGH_S || product_size == LAST {
            break 2.0 * (product_size as f64).powi(3) / best_s;
        }
        product_size *= 2;
    };
    let copy_bytes_per_s = backend.copy_bytes_per_s()?;
    backend.finish()?;
    Ok(Ceiling { product_size, product_flops_per_s, copy_bytes_per_s })
}

/// Least seconds of a linear layer of `size` rows, inputs and outputs, in the type that the model's are in.
fn product<B: Backend>(backend: &B, size: usize) -> Result<f64, KernelError> {
    let shape = [size, size];
    let bytes: Vec<u8> = random(1, size * size).into_iter().flat_map(f32::to_le_bytes).collect();
    let weight =
        backend.linear_weight(&[HostTensor { stored: DType::F32.into(), shape: &shape, bytes: &bytes }], &[])?;
    let x = backend.cast(&backend.upload(&shape, &random(2, size * size))?)?;
    Ok(seconds(backend, REPEAT, || backend.linear(&x, &weight).map(drop))?.best_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_of_a_product_that_takes_long_enough() {
        let cpu = crate::processes::checkpoint::cpu(
            (crate::cluster::file::DType::F32, Default::default()),
            1,
            Default::default(),
        )
        .unwrap();
        let ceiling = of(&cpu).unwrap();
        let seconds = 2.0 * (ceiling.product_size as f64).powi(3) / ceiling.product_flops_per_s;
        assert!(seconds >= LONG_ENOUGH_S || ceiling.product_size == LAST, "{ceiling:?}");
        assert!(ceiling.copy_bytes_per_s > 1e8, "{ceiling:?}");
    }
}
