//! Linear layers: cublasLt for bf16 with algorithms that are chosen once, an own kernel for f32 and for shapes that are not
//! aligned. A row's bits do not depend on how many rows there are.

mod plans;

use std::sync::Mutex;

pub use plans::Choice;
use plans::{Key, Plans};

use super::device::{Device, Spread, launch, typed};
use super::tensor::Tensor;
use crate::{DType, HostTensor, KernelError};

/// The weights of `y = x W^T + b` in device memory.
pub struct Linear {
    /// `(n, k)`.
    weight: Tensor,
    /// `(n)`.
    bias: Option<Tensor>,
}

/// What multiplies: the library's plans where the library is there.
pub struct Products {
    plans: Option<Mutex<Plans>>,
}

impl Linear {
    /// Weights `(n, k)` and biases `(n)` that are on the device already.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when they do not fit each other.
    pub fn of(weight: Tensor, bias: Option<Tensor>) -> Result<Self, KernelError> {
        let (n, _) = weight.matrix("linear_weight")?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.shape != [n] || bias.dtype != weight.dtype) {
            return Err(KernelError::shape("linear_weight", format!("a bias ({n})"), &[&bias.shape]));
        }
        Ok(Self { weight, bias })
    }

    /// A checkpoint's parts side by side.
    pub(super) fn pack(
        device: &Device,
        parts: &[HostTensor<'_>],
        biases: &[HostTensor<'_>],
        dtype: DType,
    ) -> Result<Self, KernelError> {
        let k = parts.first().and_then(|part| part.shape.get(1)).copied().unwrap_or(0);
        let of_part = |part: &HostTensor<'_>| part.shape.len() == 2 && part.shape[1] == k;
        let beside = |(bias, part): (&HostTensor<'_>, &HostTensor<'_>)| bias.shape == [part.shape[0]];
        let biased = biases.is_empty() || biases.len() == parts.len() && biases.iter().zip(parts).all(beside);
        if k == 0 || !parts.iter().all(of_part) || !biased {
            let shapes: Vec<&[usize]> = parts.iter().chain(biases).map(|part| part.shape).collect();
            return Err(KernelError::shape("linear_weight", "parts (n_i, k) and no biases or one (n_i) each", &shapes));
        }
        let n = parts.iter().map(|part| part.shape[0]).sum();
        let weight = device.weights("linear_weight", parts, &[n, k], dtype)?;
        let bias = match biases {
            [] => None,
            biases => Some(device.weights("linear_weight", biases, &[n], dtype)?),
        };
        Self::of(weight, bias)
    }

    /// Outputs and inputs: `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        (self.weight.shape[0], self.weight.shape[1])
    }
}

impl Products {
    /// Opens the library; without it every product is the own kernel's.
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        Ok(Self { plans: Plans::open(device)?.map(Mutex::new) })
    }

    /// Whether cublasLt was found.
    pub fn has_library(&self) -> bool {
        self.plans.is_some()
    }

    /// The algorithms chosen so far.
    pub fn choices(&self) -> Vec<Choice> {
        self.plans.as_ref().map_or_else(Vec::new, |plans| plans.lock().expect("no panic holds it").choices())
    }

    /// `x (t, k) W^T + b`, plus `residual (t, n)`, whose storage is reused where nobody shares it.
    pub fn linear(
        &self,
        device: &Device,
        x: &Tensor,
        linear: &Linear,
        residual: Option<Tensor>,
    ) -> Result<Tensor, KernelError> {
        let ((rows, columns), (n, k)) = (x.matrix("linear")?, linear.shape());
        if columns != k || residual.as_ref().is_some_and(|residual| residual.shape != [rows, n]) {
            let mut got = vec![x.shape.as_slice()];
            got.extend(residual.as_ref().map(|residual| residual.shape.as_slice()));
            return Err(KernelError::shape("linear", format!("x (t, {k}), residual (t, {n})"), &got));
        }
        let types = residual.iter().map(|residual| residual.dtype).chain([x.dtype]);
        if let Some(got) = types.into_iter().find(|dtype| *dtype != linear.weight.dtype) {
            return Err(KernelError::DType { operation: "linear", got });
        }
        let out = match &residual {
            Some(residual) if std::sync::Arc::strong_count(&residual.buffer) == 1 => residual.clone(),
            _ => device.empty(&[rows, n], x.dtype)?,
        };
        if rows == 0 {
            return Ok(out);
        }
        let aligned = n % 8 == 0 && k % 8 == 0 && [x, &out].iter().all(|x| x.pointer().is_multiple_of(16));
        match &self.plans {
            Some(plans) if x.dtype == DType::Bf16 && aligned => {
                let key = Key { n, k, bias: linear.bias.is_some(), residual: residual.is_some() };
                let operands = plans::Operands {
                    x: x.pointer(),
                    weight: linear.weight.pointer(),
                    bias: linear.bias.as_ref().map_or(0, Tensor::pointer),
                    residual: residual.as_ref().map_or(0, Tensor::pointer),
                    out: out.pointer(),
                };
                plans.lock().expect("no panic holds it").run(device, key, rows, operands)?;
            }
            _ => own(device, x, linear, residual.as_ref(), &out)?,
        }
        Ok(out)
    }
}

fn own(
    device: &Device,
    x: &Tensor,
    linear: &Linear,
    residual: Option<&Tensor>,
    out: &Tensor,
) -> Result<(), KernelError> {
    let (rows, (n, k)) = (x.shape[0], linear.shape());
    let (from, weight, to) = (x.pointer(), linear.weight.pointer(), out.pointer());
    let (bias, add) = (linear.bias.as_ref().map_or(0, Tensor::pointer), residual.map_or(0, Tensor::pointer));
    let spread = Spread { blocks: (n.div_ceil(64), rows.div_ceil(64)), threads: 256, shared: 0 };
    let (rows, n, k) = (rows as i32, n as i32, k as i32);
    launch!(device, &typed("linear", x.dtype), spread, from, weight, bias, add, to, rows, n, k)
}
