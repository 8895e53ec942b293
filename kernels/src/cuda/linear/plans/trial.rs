//! Random operands on which algorithms of a product are compared.

use std::time::Instant;

use super::super::super::device::Device;
use super::super::super::tensor::Tensor;
use super::super::eight::Eight;
use super::{Key, Operands, Plans, TRIAL, Way};
use crate::{DType, KernelError};

/// Runs of which the fastest counts, and products of a run.
const RUNS: usize = 3;
const REPEATS: usize = 3;
/// How many times the best so far a run may take, to be repeated.
const FAR: f64 = 1.3;

/// What is written between runs of few rows, more than the cache holds: a step finds no weights there that it has not read.
const FLUSHED: usize = 128 << 20;

/// Operands.
pub(super) struct Trial {
    key: Key,
    x: Tensor,
    weight: Tensor,
    /// The same in 8 bits, where that is asked for.
    eight: Option<[Eight; 2]>,
    bias: Tensor,
    residual: Tensor,
    out: Tensor,
    /// What the algorithm that gives the bits makes of the rows, [`TRIAL`] at a time.
    expected: Tensor,
    /// Written between runs, where rows are few.
    flushed: Option<Tensor>,
}

impl Trial {
    /// Of up to so many rows, whose bits are what `first` gives them.
    pub fn new(plans: &Plans, device: &Device, (key, rows): (Key, usize), first: Way) -> Result<Self, KernelError> {
        let few = rows <= super::few::ROWS;
        let rows = rows.max(TRIAL);
        let draw = |shape: &[usize], seed| device.random(shape, DType::Bf16, seed, 1.0);
        let (x, weight) = (draw(&[rows, key.k], 1)?, draw(&[key.n, key.k], 2)?);
        let empty = || device.empty(&[rows, key.n], DType::Bf16);
        let trial = Self {
            key,
            eight: if key.eight { Some([device.quantize(&x)?, device.quantize(&weight)?]) } else { None },
            x,
            weight,
            bias: draw(&[key.n], 3)?,
            residual: draw(&[rows, key.n], 4)?,
            out: empty()?,
            expected: empty()?,
            flushed: if few { Some(device.empty(&[FLUSHED / 4], DType::F32)?) } else { None },
        };
        for start in (0..rows).step_by(TRIAL) {
            trial.run(plans, device, first, (start, TRIAL.min(rows - start)), &trial.expected)?;
        }
        Ok(trial)
    }

    /// Rows of the operands, to their places in `out`.
    fn run(
        &self,
        plans: &Plans,
        device: &Device,
        way: Way,
        (start, rows): (usize, usize),
        out: &Tensor,
    ) -> Result<(), KernelError> {
        let Key { n, k, .. } = self.key;
        let at = |pointer: u64, bytes: usize| pointer + (start * bytes) as u64;
        let (x, weight, scales) = match &self.eight {
            Some([x, weight]) => {
                let scales = [at(x.scales.pointer(), 4), weight.scales.pointer()];
                (at(x.values.pointer, k), weight.values.pointer, scales)
            }
            None => (at(self.x.pointer(), 2 * k), self.weight.pointer(), [0; 2]),
        };
        let operands = Operands {
            x,
            weight,
            scales,
            bias: self.bias.pointer(),
            residual: if self.key.residual { at(self.residual.pointer(), 2 * n) } else { 0 },
            out: at(out.pointer(), 2 * n),
        };
        plans.go(device, way, (self.key, rows), operands)
    }

    /// Whether so many rows at a time have the bits that they have [`TRIAL`] at a time.
    pub fn agrees(&self, plans: &Plans, device: &Device, way: Way, rows: usize) -> Result<bool, KernelError> {
        self.run(plans, device, way, (0, rows), &self.out)?;
        device.equal(&self.out, &self.expected, rows * self.key.n * 2)
    }

    /// Of a product, the fastest run; of one that is far from the best so far, the first.
    pub fn seconds(
        &self,
        plans: &Plans,
        device: &Device,
        way: Way,
        (rows, so_far): (usize, f64),
    ) -> Result<f64, KernelError> {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            if best.is_finite() && best > FAR * so_far {
                break;
            }
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..REPEATS {
                if let Some(flushed) = &self.flushed {
                    device.fill(flushed)?;
                }
                self.run(plans, device, way, (0, rows), &self.out)?;
            }
            device.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / REPEATS as f64);
        }
        Ok(best)
    }
}
