//! Linear layers: cublasLt for bf16 with algorithms that are chosen once, an own kernel for f32 and for shapes that are not
//! aligned. A row's bits do not depend on how many rows there are.

mod block_weights;
mod eight;
mod few;
mod few_hopper;
mod plans;
mod product;

use std::ops::Range;
use std::sync::Mutex;

use block_weights::{BlockRows, FEW_BLOCK_ROWS};
use eight::Fp8Rows;
pub(super) use few::FEW_PRODUCT_ROWS;
use plans::Plans;
pub use plans::ProductChoice;
use product::{Key, Operands};

use super::device::{Device, LaunchShape, device_error, launch, typed};
use super::tensor::Tensor;
use crate::{DType, HostTensor, KernelError};

/// The weights of `y = x W^T + b` in device memory.
pub struct CudaLinear {
    weight: Weight,
    /// `(n)`.
    bias: Option<Tensor>,
}

/// `(n, k)`.
enum Weight {
    Plain(Tensor),
    Eight(Fp8Rows),
    Blocks(BlockRows),
}

/// Rows as the product of a layer takes them.
pub(super) enum ProductRows {
    Computed(Tensor),
    Eight(Fp8Rows),
}

impl ProductRows {
    /// Of a layer's kind, unset: for a kernel to write.
    pub fn empty(device: &Device, [rows, columns]: [usize; 2], linear: &CudaLinear) -> Result<Self, KernelError> {
        match linear.weight {
            Weight::Eight(_) => Ok(Self::Eight(Fp8Rows::empty(device, (rows, columns))?)),
            _ => Ok(Self::Computed(device.empty(&[rows, columns], DType::Bf16)?)),
        }
    }

    /// Where rows lie, and their scales, or 0.
    pub fn places(&self) -> (u64, u64) {
        match self {
            Self::Computed(x) => (x.pointer(), 0),
            Self::Eight(x) => (x.values.pointer, x.scales.pointer()),
        }
    }
}

/// What multiplies: the library's plans where the library is there.
pub struct Products {
    plans: Option<Mutex<Plans>>,
}

impl CudaLinear {
    /// Weights `(n, k)` and biases `(n)` that are on the device already.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when they do not fit each other.
    pub fn of(weight: Tensor, bias: Option<Tensor>) -> Result<Self, KernelError> {
        let (n, _) = weight.matrix("linear_weight")?;
        if let Some(bias) = bias.as_ref().filter(|bias| bias.shape != [n] || bias.dtype != weight.dtype) {
            return Err(KernelError::shape("linear_weight", format!("a bias ({n})"), &[&bias.shape]));
        }
        Ok(Self { weight: Weight::Plain(weight), bias })
    }

    /// The same with weights in 8 bits, where they are bf16 and their sizes allow it.
    ///
    /// # Errors
    /// What the device reports.
    pub fn in_eight_bits(self, device: &Device) -> Result<Self, KernelError> {
        let (n, k) = self.shape();
        match &self.weight {
            Weight::Plain(weight)
                if weight.dtype == DType::Bf16 && n % eight::MULTIPLE == 0 && k % eight::MULTIPLE == 0 =>
            {
                Ok(Self { weight: Weight::Eight(device.quantize(weight)?), bias: self.bias })
            }
            _ => Ok(self),
        }
    }

    /// Whether the weights take as many bits as their checkpoint has.
    pub fn is_in_blocks(&self) -> bool {
        matches!(self.weight, Weight::Blocks(_))
    }

    /// Whether the weights are 8-bit floats.
    pub fn is_in_eight_bits(&self) -> bool {
        matches!(self.weight, Weight::Eight(_))
    }

    fn dtype(&self) -> DType {
        match &self.weight {
            Weight::Plain(weight) => weight.dtype,
            Weight::Eight(_) | Weight::Blocks(_) => DType::Bf16,
        }
    }

    /// A checkpoint's parts side by side, in as many bits as they have there where these can be multiplied.
    pub(super) fn as_stored(
        device: &Device,
        parts: &[HostTensor<'_>],
        biases: &[HostTensor<'_>],
        dtype: DType,
    ) -> Result<Self, KernelError> {
        let kept = dtype == DType::Bf16 && are_beside(biases, parts);
        let blocks = if kept { BlockRows::pack(device, parts)? } else { None };
        let Some(blocks) = blocks else { return Self::pack(device, parts, biases, dtype) };
        let bias = Self::bias(device, biases, blocks.shape.0, dtype)?;
        Ok(Self { weight: Weight::Blocks(blocks), bias })
    }

    fn bias(device: &Device, biases: &[HostTensor<'_>], n: usize, dtype: DType) -> Result<Option<Tensor>, KernelError> {
        let bias = || device.weights("linear_weight", biases, &[n], dtype);
        if biases.is_empty() { Ok(None) } else { bias().map(Some) }
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
        if k == 0 || !parts.iter().all(of_part) || !are_beside(biases, parts) {
            let shapes: Vec<&[usize]> = parts.iter().chain(biases).map(|part| part.shape).collect();
            return Err(KernelError::shape("linear_weight", "parts (n_i, k) and no biases or one (n_i) each", &shapes));
        }
        let n = parts.iter().map(|part| part.shape[0]).sum();
        Self::of(device.weights("linear_weight", parts, &[n, k], dtype)?, Self::bias(device, biases, n, dtype)?)
    }

    /// Outputs and inputs: `(n, k)`.
    pub fn shape(&self) -> (usize, usize) {
        match &self.weight {
            Weight::Plain(weight) => (weight.shape[0], weight.shape[1]),
            Weight::Eight(weight) => weight.shape,
            Weight::Blocks(weight) => weight.shape,
        }
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
    pub fn choices(&self) -> Vec<ProductChoice> {
        self.plans.as_ref().map_or_else(Vec::new, |plans| plans.lock().expect("no panic holds it").choices())
    }

    /// `x (t, k) W^T + b`, plus `residual (t, n)`.
    pub fn linear(
        &self,
        device: &Device,
        x: &Tensor,
        linear: &CudaLinear,
        residual: Option<Tensor>,
    ) -> Result<Tensor, KernelError> {
        let ((rows, columns), (n, k)) = (x.matrix("linear")?, linear.shape());
        if columns != k || residual.as_ref().is_some_and(|residual| residual.shape != [rows, n]) {
            let mut got = vec![x.shape.as_slice()];
            got.extend(residual.as_ref().map(|residual| residual.shape.as_slice()));
            return Err(KernelError::shape("linear", format!("x (t, {k}), residual (t, {n})"), &got));
        }
        let types = residual.iter().map(|residual| residual.dtype).chain([x.dtype]);
        if let Some(got) = types.into_iter().find(|dtype| *dtype != linear.dtype()) {
            return Err(KernelError::DType { operation: "linear", got });
        }
        if rows == 0 {
            return device.empty(&[0, n], x.dtype);
        }
        let widened;
        let weight = match &linear.weight {
            Weight::Plain(weight) => weight,
            Weight::Eight(weight) => {
                let x = device.quantize(x)?;
                return self.in_eight_bits(device, (&x, weight), linear.bias.as_ref(), residual);
            }
            Weight::Blocks(blocks) => {
                let whole = (blocks, 0..n);
                if let Some(out) = self.by_blocks(device, x, whole, (linear.bias.as_ref(), residual.as_ref()))? {
                    return Ok(out);
                }
                widened = blocks.widened(device)?;
                &widened
            }
        };
        // Never in the residual's place: there the library gives other bits.
        let out = device.empty(&[rows, n], x.dtype)?;
        let aligned = n % 8 == 0 && k % 8 == 0 && [x, &out].iter().all(|x| x.pointer().is_multiple_of(16));
        match &self.plans {
            Some(plans) if x.dtype == DType::Bf16 && aligned => {
                let key = Key { n, k, bias: linear.bias.is_some(), residual: residual.is_some(), eight: false };
                let operands = Operands {
                    x: x.pointer(),
                    weight: weight.pointer(),
                    scales: [0; 2],
                    bias: linear.bias.as_ref().map_or(0, Tensor::pointer),
                    residual: residual.as_ref().map_or(0, Tensor::pointer),
                    out: out.pointer(),
                    pitch: 0,
                };
                plans.lock().expect("no panic holds it").run(device, key, rows, operands)?;
            }
            _ => own(device, (x, weight), linear.bias.as_ref(), residual.as_ref(), &out)?,
        }
        device.queued(rows, operations(rows, (n, k)))?;
        Ok(out)
    }

    /// Whether [`Products::linear_into`] takes such weights.
    pub fn writes_into(&self, linear: &CudaLinear) -> bool {
        let (n, k) = linear.shape();
        let plain = matches!(linear.weight, Weight::Plain(_)) && linear.dtype() == DType::Bf16;
        self.plans.is_some() && plain && linear.bias.is_none() && n.is_multiple_of(8) && k.is_multiple_of(8)
    }

    /// [`Products::linear`] of many rows, whose residual and outputs are columns from `first` on of wider matrices `(t, N)`; the same bits.
    pub fn linear_into(
        &self,
        device: &Device,
        x: &Tensor,
        linear: &CudaLinear,
        [residual, to]: [&Tensor; 2],
        first: usize,
    ) -> Result<(), KernelError> {
        let ((rows, columns), (n, k), (_, pitch)) =
            (x.matrix("linear_into")?, linear.shape(), to.matrix("linear_into")?);
        let fits = columns == k && residual.shape == to.shape && to.shape[0] == rows && first + n <= pitch;
        let (Some(plans), Weight::Plain(weight), true) =
            (&self.plans, &linear.weight, fits && rows > few_hopper::MOST_ROWS)
        else {
            let expected = format!("x (t, {k}) of many rows, matrices (t, {} or more)", first + n);
            return Err(KernelError::shape("linear_into", expected, &[&x.shape, &residual.shape, &to.shape]));
        };
        let at = (first * to.dtype.size()) as u64;
        let key = Key { n, k, bias: false, residual: true, eight: false };
        let operands = Operands {
            x: x.pointer(),
            weight: weight.pointer(),
            scales: [0; 2],
            bias: 0,
            residual: residual.pointer() + at,
            out: to.pointer() + at,
            pitch,
        };
        plans.lock().expect("no panic holds it").run(device, key, rows, operands)?;
        device.queued(rows, operations(rows, (n, k)))
    }

    /// [`Products::linear`] of rows that are as the layer's product takes them.
    pub(super) fn of_rows(
        &self,
        device: &Device,
        rows: &ProductRows,
        linear: &CudaLinear,
        residual: Option<Tensor>,
    ) -> Result<Tensor, KernelError> {
        match (rows, &linear.weight) {
            (ProductRows::Computed(x), _) => self.linear(device, x, linear, residual),
            (ProductRows::Eight(x), Weight::Eight(weight)) => {
                self.in_eight_bits(device, (x, weight), linear.bias.as_ref(), residual)
            }
            (ProductRows::Eight(_), _) => Err(KernelError::DType { operation: "linear", got: linear.dtype() }),
        }
    }

    /// [`Products::linear`] of the norm of `x`: where weights are of 8 bits, its rows become so as they are normed.
    pub fn norm_linear(
        &self,
        device: &Device,
        x: &Tensor,
        (norm, eps): (&Tensor, f32),
        linear: &CudaLinear,
    ) -> Result<Tensor, KernelError> {
        match &linear.weight {
            Weight::Eight(weight) if x.shape.last() == Some(&weight.shape.1) && x.shape[0] > 0 => {
                let x = device.quantize_norm(x, norm, eps)?;
                self.in_eight_bits(device, (&x, weight), linear.bias.as_ref(), None)
            }
            _ => self.linear(device, &device.rms_norm(x, None, norm, eps)?, linear, None),
        }
    }

    /// [`Products::linear`] of what `gated_silu` makes of `gate_up`, likewise.
    pub fn gated_linear(
        &self,
        device: &Device,
        gate_up: &Tensor,
        linear: &CudaLinear,
        residual: Tensor,
    ) -> Result<Tensor, KernelError> {
        let (rows, both) = gate_up.matrix("gated_linear")?;
        if let Weight::Eight(weight) = &linear.weight
            && (both, residual.shape.as_slice()) == (2 * weight.shape.1, &[rows, weight.shape.0][..])
            && rows > 0
            && let Some(x) = device.quantize_gated(gate_up)?
        {
            return self.in_eight_bits(device, (&x, weight), linear.bias.as_ref(), Some(residual));
        }
        self.linear(device, &device.gated_silu(gate_up)?, linear, Some(residual))
    }

    /// Columns `outputs` of `gated_silu` of [`Products::norm_linear`] by one kernel, where few rows are multiplied by the own one;
    /// the same bits.
    pub fn norm_gated(
        &self,
        device: &Device,
        x: &Tensor,
        (norm, eps): (&Tensor, f32),
        linear: &CudaLinear,
        outputs: Range<usize>,
    ) -> Result<Option<Tensor>, KernelError> {
        self.gated(device, x, || device.rms_norm(x, None, norm, eps), linear, outputs)
    }

    /// The same of rows that are normed, and like `like`.
    pub(super) fn gated(
        &self,
        device: &Device,
        like: &Tensor,
        normed: impl FnOnce() -> Result<Tensor, KernelError>,
        linear: &CudaLinear,
        outputs: Range<usize>,
    ) -> Result<Option<Tensor>, KernelError> {
        let ((rows, columns), (n, k)) = (like.matrix("norm_gated")?, linear.shape());
        let (Weight::Plain(weight), Some(plans)) = (&linear.weight, &self.plans) else { return Ok(None) };
        let typed = [like.dtype, weight.dtype] == [DType::Bf16; 2] && columns == k;
        let within = outputs.start <= outputs.end && outputs.end <= n / 2;
        let even = n.is_multiple_of(16) && k.is_multiple_of(8) && within;
        if !typed || !(1..=few::FEW_PRODUCT_ROWS).contains(&rows) || !even {
            return Ok(None);
        }
        let x = normed()?;
        let out = device.empty(&[rows, outputs.len()], DType::Bf16)?;
        let key = Key { n, k, bias: linear.bias.is_some(), residual: false, eight: false };
        let operands = Operands {
            x: x.pointer(),
            weight: weight.pointer(),
            scales: [0; 2],
            bias: linear.bias.as_ref().map_or(0, Tensor::pointer),
            residual: 0,
            out: out.pointer(),
            pitch: 0,
        };
        let (mut plans, few) = (plans.lock().expect("no panic holds it"), (rows, true));
        if plans.run_few(device, key, few, operands, outputs.clone())? {
            return Ok(Some(out));
        }
        drop(plans);
        // Elsewhere the product is one by itself, of the rows as they are normed.
        let gated = device.gated_silu(&self.linear(device, &x, linear, None)?)?;
        Ok(Some(if outputs.len() == n / 2 { gated } else { device.narrow(&gated, 1, outputs.start, outputs.end)? }))
    }

    /// Columns `outputs` of [`Products::linear`], where few rows are multiplied by the own kernel; the same bits.
    pub fn linear_part(
        &self,
        device: &Device,
        x: &Tensor,
        (linear, residual): (&CudaLinear, &Tensor),
        outputs: Range<usize>,
    ) -> Result<Option<Tensor>, KernelError> {
        let ((rows, columns), (n, k)) = (x.matrix("linear_part")?, linear.shape());
        let typed = [x.dtype, linear.dtype(), residual.dtype] == [DType::Bf16; 3];
        let fits = columns == k && residual.shape == [rows, n] && outputs.start <= outputs.end && outputs.end <= n;
        let aligned = [n, k, outputs.start, outputs.end].iter().all(|count| count.is_multiple_of(8));
        if !typed || !fits || !aligned || !(1..=few::FEW_PRODUCT_ROWS).contains(&rows) {
            return Ok(None);
        }
        let weight = match &linear.weight {
            Weight::Plain(weight) => weight,
            Weight::Blocks(blocks) => {
                return self.by_blocks(device, x, (blocks, outputs), (linear.bias.as_ref(), Some(residual)));
            }
            Weight::Eight(_) => return Ok(None),
        };
        let Some(plans) = self.plans.as_ref().filter(|_| x.pointer().is_multiple_of(16)) else { return Ok(None) };
        let out = device.empty(&[rows, outputs.len()], DType::Bf16)?;
        let key = Key { n, k, bias: linear.bias.is_some(), residual: true, eight: false };
        let operands = Operands {
            x: x.pointer(),
            weight: weight.pointer(),
            scales: [0; 2],
            bias: linear.bias.as_ref().map_or(0, Tensor::pointer),
            residual: residual.pointer(),
            out: out.pointer(),
            pitch: 0,
        };
        let taken = plans.lock().expect("no panic holds it").run_few(device, key, (rows, false), operands, outputs)?;
        Ok(taken.then_some(out))
    }

    /// Columns of `x (t, k) W^T + b`, plus `residual (t, n)`, by weights as they lie, where there are few rows and the own kernel was
    /// chosen for as many products of bf16.
    fn by_blocks(
        &self,
        device: &Device,
        x: &Tensor,
        (blocks, outputs): (&BlockRows, Range<usize>),
        (bias, residual): (Option<&Tensor>, Option<&Tensor>),
    ) -> Result<Option<Tensor>, KernelError> {
        let (rows, (n, k)) = (x.shape[0], blocks.shape);
        let key = Key { n, k, bias: bias.is_some(), residual: residual.is_some(), eight: false };
        let Some(plans) = self.plans.as_ref().filter(|_| rows <= FEW_BLOCK_ROWS && x.pointer().is_multiple_of(16))
        else {
            return Ok(None);
        };
        if !plans.lock().expect("no panic holds it").takes_few(device, key)? {
            return Ok(None);
        }
        let out = device.empty(&[rows, outputs.len()], DType::Bf16)?;
        let operands = Operands {
            x: x.pointer(),
            weight: 0,
            scales: [0; 2],
            bias: bias.map_or(0, Tensor::pointer),
            residual: residual.map_or(0, Tensor::pointer),
            out: out.pointer(),
            pitch: 0,
        };
        blocks.multiply(device, key, rows, operands, outputs.clone())?;
        device.queued(rows, operations(rows, (outputs.len(), k)))?;
        Ok(Some(out))
    }

    /// The same with weights of 8 bits, and rows of them. What the library does not add is added behind it.
    fn in_eight_bits(
        &self,
        device: &Device,
        (x, weight): (&Fp8Rows, &Fp8Rows),
        bias: Option<&Tensor>,
        residual: Option<Tensor>,
    ) -> Result<Tensor, KernelError> {
        let missing = || device_error("linear", "products of 8-bit floats need cublasLt, which is not there");
        let mut plans = self.plans.as_ref().ok_or_else(missing)?.lock().expect("no panic holds it");
        let ((n, k), rows) = (weight.shape, x.shape.0);
        let whole = Key { n, k, bias: bias.is_some(), residual: residual.is_some(), eight: true };
        let taken = plans.takes(device, whole, rows)?;
        let key = if taken { whole } else { Key { bias: false, residual: false, ..whole } };
        let out = device.empty(&[rows, n], DType::Bf16)?;
        let operands = Operands {
            x: x.values.pointer,
            weight: weight.values.pointer,
            scales: [x.scales.pointer(), weight.scales.pointer()],
            bias: bias.filter(|_| taken).map_or(0, Tensor::pointer),
            residual: residual.as_ref().filter(|_| taken).map_or(0, Tensor::pointer),
            out: out.pointer(),
            pitch: 0,
        };
        plans.run(device, key, rows, operands)?;
        drop(plans);
        if !taken {
            device.add(&out, residual.as_ref(), bias)?;
        }
        device.queued(rows, operations(rows, (n, k)))?;
        Ok(out)
    }
}

/// Whether there is no bias, or one of each part's outputs.
fn are_beside(biases: &[HostTensor<'_>], parts: &[HostTensor<'_>]) -> bool {
    let beside =
        |(bias, part): (&HostTensor<'_>, &HostTensor<'_>)| bias.shape == &part.shape[..part.shape.len().min(1)];
    biases.is_empty() || biases.len() == parts.len() && biases.iter().zip(parts).all(beside)
}

/// Multiplications and additions.
fn operations(rows: usize, (n, k): (usize, usize)) -> f64 {
    2.0 * rows as f64 * n as f64 * k as f64
}

fn own(
    device: &Device,
    (x, weight): (&Tensor, &Tensor),
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    out: &Tensor,
) -> Result<(), KernelError> {
    let (rows, n, k) = (x.shape[0], weight.shape[0], weight.shape[1]);
    let (from, weight, to) = (x.pointer(), weight.pointer(), out.pointer());
    let (bias, add) = (bias.map_or(0, Tensor::pointer), residual.map_or(0, Tensor::pointer));
    let spread = LaunchShape { blocks: (n.div_ceil(64), rows.div_ceil(64)), threads: 256, shared: 0 };
    let (rows, n, k) = (rows as i32, n as i32, k as i32);
    launch!(device, &typed("linear", x.dtype), spread, from, weight, bias, add, to, rows, n, k)
}
