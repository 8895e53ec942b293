//! A linear layer on the CPU, packed for whichever kernels run it. Multiplies nothing itself.

use candle_core::Tensor;
use half::bf16;

use super::compute::Compute;
use super::gemm::{self, Packed};
use super::lanes::Element;
use super::tensor::{check_host, convert_host, elements, matrix, tensor};
use crate::{DType, HostTensor, KernelError};

/// The weights and bias of `y = x W^T + b`.
pub struct Linear {
    weights: Weights,
    bias: Option<Vec<f32>>,
    n: usize,
    k: usize,
}

enum Weights {
    F32(Packed<f32>),
    Bf16(Packed<bf16>),
}

impl Linear {
    /// As `Backend::linear_weight`.
    pub(super) fn pack(
        parts: &[HostTensor<'_>],
        biases: &[HostTensor<'_>],
        dtype: DType,
        compute: &Compute,
    ) -> Result<Self, KernelError> {
        let k = parts.first().and_then(|p| p.shape.get(1)).copied().unwrap_or(0);
        for part in parts.iter().chain(biases) {
            check_host("linear_weight", part)?;
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
        let weights = match dtype {
            DType::F32 => Weights::F32(panels(parts, n, k, compute)),
            _ => Weights::Bf16(panels(parts, n, k, compute)),
        };
        Ok(Self { weights, bias: (!biases.is_empty()).then_some(bias), n, k })
    }

    /// `x (t, k) -> (t, n)`, plus `residual (t, n)` if any.
    pub(super) fn run(&self, x: &Tensor, residual: Option<&Tensor>, compute: &Compute) -> Result<Tensor, KernelError> {
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
        }
    }

    fn run_packed<E: Element>(
        &self,
        weight: &Packed<E>,
        x: &Tensor,
        residual: Option<&Tensor>,
        compute: &Compute,
    ) -> Result<Tensor, KernelError> {
        let rows = x.dims()[0];
        let x = elements::<E>("linear", x)?;
        let residual = residual.map(|residual| elements::<E>("linear_add", residual)).transpose()?;
        let call = gemm::Linear { x: &x, rows, weight, bias: self.bias.as_deref(), residual: residual.as_deref() };
        tensor(&[rows, self.n], call.run(compute))
    }
}

fn panels<E: Element>(parts: &[HostTensor<'_>], n: usize, k: usize, compute: &Compute) -> Packed<E> {
    Packed::new(n, k, &compute.pool, |row, to| {
        let mut row = row;
        for part in parts {
            if row < part.shape[0] {
                return convert_host(part, row * k, to);
            }
            row -= part.shape[0];
        }
    })
}
