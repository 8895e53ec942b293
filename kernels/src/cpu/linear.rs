//! A linear layer on the CPU, packed for whichever kernels run it. Multiplies nothing itself.

use half::bf16;
use half::vec::HalfBitsVecExt;

use super::amx;
use super::choice::KernelSet;
use super::compute::Compute;
use super::gemm::{self, GemmWeight, Packed};
use super::lanes::Element;
use super::pool::Tasks;
use super::tensor::{BlockPanels, CpuTensor, convert_host, elements, matrix, tensor};
use crate::{DType, HostTensor, KernelError};

/// The weights and bias of `y = x W^T + b`.
pub struct CpuLinear {
    weights: Weights,
    bias: Option<Vec<f32>>,
    n: usize,
    k: usize,
    /// Outputs are not rounded to compute type.
    in_f32: bool,
}

enum Weights {
    F32(GemmWeight<f32>),
    Bf16(GemmWeight<bf16>),
    /// With the bias.
    Tiles(amx::AmxWeights),
}

impl CpuLinear {
    /// As `LinearOps::linear_weight`.
    pub(super) fn pack(
        parts: &[HostTensor<'_>],
        biases: &[HostTensor<'_>],
        dtype: DType,
        compute: &Compute,
    ) -> Result<Self, KernelError> {
        let k = parts.first().and_then(|p| p.shape.get(1)).copied().unwrap_or(0);
        for part in parts.iter().chain(biases) {
            part.check("linear_weight")?;
        }
        if let Some(part) = parts.iter().find(|p| p.shape.len() != 2 || p.shape[1] != k) {
            return Err(KernelError::shape("linear_weight", format!("parts (n, {k})"), &[part.shape]));
        }
        let fits = |(part, bias): (&HostTensor<'_>, &HostTensor<'_>)| bias.shape == &part.shape[..1];
        if !biases.is_empty() && (biases.len() != parts.len() || !parts.iter().zip(biases).all(fits)) {
            let got: Vec<_> = biases.iter().map(|b| b.shape).collect();
            return Err(KernelError::shape("linear_weight", "a bias (n) for each part (n, k)", &got));
        }
        let n = parts.iter().map(|part| part.shape[0]).sum();
        let mut bias = Vec::with_capacity(n);
        for part in biases {
            let start = bias.len();
            bias.resize(start + part.shape[0], 0.0);
            convert_host(part, 0, &mut bias[start..]);
        }
        let packed = BlockPanels::pack(parts, &compute.pool);
        let weights = match (dtype, packed) {
            (DType::F32, Some(blocks)) => Weights::F32(GemmWeight::Blocks(blocks)),
            (DType::F32, None) => Weights::F32(panels(parts, n, k, compute)),
            (_, blocks) if compute.set == KernelSet::Amx && k > 0 => {
                let weights = blocks.map_or_else(|| tiles(parts, [n, k], compute), amx::AmxWeights::in_blocks);
                Weights::Tiles(if bias.is_empty() { weights } else { weights.with_bias(&bias) })
            }
            (_, Some(blocks)) => Weights::Bf16(GemmWeight::Blocks(blocks)),
            (_, None) => Weights::Bf16(panels(parts, n, k, compute)),
        };
        Ok(Self { weights, bias: (!biases.is_empty()).then_some(bias), n, k, in_f32: false })
    }

    /// The same layer, whose outputs are f32 whatever it computes in: sums are.
    pub(super) fn with_f32_outputs(self) -> Self {
        Self { in_f32: true, ..self }
    }

    /// `x (t, k) -> (t, n)`, plus `residual (t, n)` if any.
    pub(super) fn run(
        &self,
        x: &CpuTensor,
        residual: Option<&CpuTensor>,
        compute: &Compute,
    ) -> Result<CpuTensor, KernelError> {
        let (rows, k) = matrix("linear", x)?;
        if k != self.k {
            return Err(KernelError::shape("linear", format!("x (t, {})", self.k), &[x.dims()]));
        }
        if let Some(residual) = residual.filter(|r| r.dims() != [rows, self.n]) {
            return Err(KernelError::shape("linear_add", format!("residual ({rows}, {})", self.n), &[residual.dims()]));
        }
        match &self.weights {
            Weights::F32(packed) => self.run_packed(packed, x, residual, compute),
            Weights::Bf16(packed) => self.run_packed(packed, x, residual, compute),
            Weights::Tiles(weights) if self.in_f32 && residual.is_none() => run_tiles_in_f32(weights, x, compute),
            Weights::Tiles(weights) => run_tiles(weights, x, residual, compute),
        }
    }

    fn run_packed<E: Element>(
        &self,
        weight: &GemmWeight<E>,
        x: &CpuTensor,
        residual: Option<&CpuTensor>,
        compute: &Compute,
    ) -> Result<CpuTensor, KernelError> {
        let rows = x.dims()[0];
        let x = elements::<E>("linear", x)?;
        let residual = residual.map(|residual| elements::<E>("linear_add", residual)).transpose()?;
        let call = gemm::GemmCall { x, rows, weight, bias: self.bias.as_deref(), residual };
        match self.in_f32 {
            true => tensor(&[rows, self.n], call.run::<f32>(compute)),
            false => tensor(&[rows, self.n], call.run::<E>(compute)),
        }
    }
}

fn panels<E: Element>(parts: &[HostTensor<'_>], n: usize, k: usize, compute: &Compute) -> GemmWeight<E> {
    let packed = Packed::new(n, k, compute, |row, to| {
        let mut row = row;
        for part in parts {
            if row < part.shape[0] {
                return convert_host(part, row * k, to);
            }
            row -= part.shape[0];
        }
    });
    GemmWeight::Packed(packed)
}

fn tiles(parts: &[HostTensor<'_>], [n, k]: [usize; 2], compute: &Compute) -> amx::AmxWeights {
    let mut rows = vec![0u16; n * k].reinterpret_into::<bf16>();
    let mut start = 0;
    for part in parts {
        let end = start + part.shape[0] * k;
        convert_host(part, 0, &mut rows[start..end]);
        start = end;
    }
    let run = |count: usize, work: &(dyn Fn(usize) + Sync)| compute.pool.each(Tasks { count, cost: n * k }, work);
    amx::AmxWeights::pack(&rows, n, k, &run)
}

fn run_tiles(
    weights: &amx::AmxWeights,
    x: &CpuTensor,
    residual: Option<&CpuTensor>,
    compute: &Compute,
) -> Result<CpuTensor, KernelError> {
    let (rows, n) = (x.dims()[0], weights.outputs());
    let x = elements::<bf16>("linear", x)?;
    let mut y = vec![0u16; rows * n].reinterpret_into::<bf16>();
    let residual = residual.map(|residual| elements::<bf16>("linear_add", residual)).transpose()?;
    let output = match &residual {
        Some(residual) => amx::GemmOutput::SumBf16(&mut y, residual),
        None => amx::GemmOutput::Bf16(&mut y),
    };
    multiply_tiles(weights, (x, rows), output, compute);
    tensor(&[rows, n], y)
}

fn run_tiles_in_f32(weights: &amx::AmxWeights, x: &CpuTensor, compute: &Compute) -> Result<CpuTensor, KernelError> {
    let (rows, n) = (x.dims()[0], weights.outputs());
    let mut y = vec![0.0; rows * n];
    multiply_tiles(weights, (elements::<bf16>("linear", x)?, rows), amx::GemmOutput::F32(&mut y), compute);
    tensor(&[rows, n], y)
}

fn multiply_tiles(
    weights: &amx::AmxWeights,
    (x, rows): (&[bf16], usize),
    output: amx::GemmOutput<'_>,
    compute: &Compute,
) {
    // Few rows wait for the weights to arrive; many run some ten times as fast as what costs are counted in.
    let cost = rows.div_ceil(10) * weights.outputs() * weights.inputs();
    let run = |count: usize, work: &(dyn Fn(usize) + Sync)| compute.pool.each(Tasks { count, cost }, work);
    amx::gemm(x, weights, output, &run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::pool::ThreadPool;

    /// The tile kernels run anywhere, slowly; so what joins them to tensors is tested anywhere.
    #[test]
    fn tiles_give_what_panels_give() {
        let compute = Compute { set: KernelSet::Portable, pool: ThreadPool::new(Some(2)).unwrap() };
        let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0;
        let bytes = |n: usize| (0..n).flat_map(|i| value(i).to_le_bytes()).collect::<Vec<u8>>();
        let (first, second, bias) = (bytes(5 * 48), bytes(35 * 48), bytes(40));
        let host = |shape, bytes| HostTensor { stored: DType::F32.into(), shape, bytes };
        let parts = [host(&[5, 48], first.as_slice()), host(&[35, 48], second.as_slice())];
        let biases = [host(&[5], &bias[..20]), host(&[35], &bias[20..])];
        let panels = CpuLinear::pack(&parts, &biases, DType::Bf16, &compute).unwrap();
        let weights = tiles(&parts, [40, 48], &compute).with_bias(panels.bias.as_deref().unwrap());
        let draw =
            |shape: &[usize]| tensor(shape, (0..shape[0] * shape[1]).map(|i| bf16::from_f32(value(i))).collect());
        let (x, residual) = (draw(&[7, 48]).unwrap(), draw(&[7, 40]).unwrap());
        let whole = run_tiles_in_f32(&weights, &x, &compute).unwrap();
        let rounded = run_tiles(&weights, &x, None, &compute).unwrap();
        let (whole, rounded) = (elements::<f32>("test", &whole).unwrap(), elements::<bf16>("test", &rounded).unwrap());
        assert!(whole.iter().zip(rounded).all(|(whole, rounded)| bf16::from_f32(*whole) == *rounded));
        assert!(whole.iter().any(|whole| bf16::from_f32(*whole).to_f32() != *whole));
        for residual in [None, Some(&residual)] {
            let a = panels.run(&x, residual, &compute).unwrap();
            let b = run_tiles(&weights, &x, residual, &compute).unwrap();
            let (a, b) = (elements::<bf16>("test", &a).unwrap(), elements::<bf16>("test", &b).unwrap());
            assert!(
                a.iter().zip(b.iter()).all(|(a, b)| (a.to_f32() - b.to_f32()).abs() <= 1e-2 + 1e-2 * a.to_f32().abs())
            );
        }
    }
}
