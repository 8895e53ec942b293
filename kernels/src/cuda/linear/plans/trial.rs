//! Operands on which algorithms of a product are compared: the halves of each sum cancel, so that nothing but what was rounded away
//! on the way is left of it. Who adds in another order leaves something else, in nearly every output.

use super::super::super::device::Device;
use super::super::super::tensor::Tensor;
use super::super::eight::Fp8Rows;
use super::super::product::{Key, Operands};
use crate::{DType, KernelError};

/// Rows at a time of what others are compared with.
const TRIAL: usize = 128;
/// Size of what is added to such a sum, about that of what is left of it.
const ADDED: f32 = 1.0 / 4096.0;

/// Operands.
pub(super) struct Trial {
    key: Key,
    x: Tensor,
    weight: Tensor,
    /// The same in 8 bits, where that is asked for.
    eight: Option<[Fp8Rows; 2]>,
    bias: Tensor,
    residual: Tensor,
    out: Tensor,
    /// What the algorithm that gives the bits makes of the rows, [`TRIAL`] at a time.
    expected: Tensor,
}

impl Trial {
    /// Of up to so many rows, whose bits are what `first` gives them, which multiplies so many.
    pub fn new(
        device: &Device,
        (key, rows): (Key, usize),
        first: impl Fn(usize, Operands) -> Result<(), KernelError>,
    ) -> Result<Self, KernelError> {
        let rows = rows.max(TRIAL);
        let (x, weight) =
            (device.cancelling([rows, key.k], 1, [1.0; 2])?, device.cancelling([key.n, key.k], 2, [1.0, -1.0])?);
        let empty = || device.empty(&[rows, key.n], DType::Bf16);
        let trial = Self {
            key,
            eight: if key.eight { Some([device.quantize(&x)?, device.quantize(&weight)?]) } else { None },
            x,
            weight,
            bias: device.cancelling([1, key.n], 3, [ADDED; 2])?,
            residual: device.cancelling([rows, key.n], 4, [ADDED; 2])?,
            out: empty()?,
            expected: empty()?,
        };
        for start in (0..rows).step_by(TRIAL) {
            let some = TRIAL.min(rows - start);
            first(some, trial.operands(start, &trial.expected))?;
        }
        Ok(trial)
    }

    /// Rows of the operands from `start` on, which come to their places in `out`.
    fn operands(&self, start: usize, out: &Tensor) -> Operands {
        let Key { n, k, .. } = self.key;
        let at = |pointer: u64, bytes: usize| pointer + (start * bytes) as u64;
        let (x, weight, scales) = match &self.eight {
            Some([x, weight]) => {
                let scales = [at(x.scales.pointer(), 4), weight.scales.pointer()];
                (at(x.values.pointer, k), weight.values.pointer, scales)
            }
            None => (at(self.x.pointer(), 2 * k), self.weight.pointer(), [0; 2]),
        };
        Operands {
            x,
            weight,
            scales,
            bias: self.bias.pointer(),
            residual: if self.key.residual { at(self.residual.pointer(), 2 * n) } else { 0 },
            out: at(out.pointer(), 2 * n),
            pitch: 0,
        }
    }

    /// Whether so many rows at a time have the bits that they have [`TRIAL`] at a time. One that the library does not run here
    /// has not.
    pub fn agrees(
        &self,
        device: &Device,
        rows: usize,
        run: impl Fn(usize, Operands) -> Result<(), KernelError>,
    ) -> Result<bool, KernelError> {
        match run(rows, self.operands(0, &self.out)) {
            Err(KernelError::Device { operation: "linear", .. }) => return Ok(false),
            ran => ran?,
        }
        device.equal(&self.out, &self.expected, rows * self.key.n * 2)
    }
}
