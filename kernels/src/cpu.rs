//! The CPU backend on candle-core tensors in main memory, with its own kernels and threads. Reads no file and no configuration.

mod aligned;
pub mod amx;
mod attention;
mod cache;
mod choice;
mod compute;
mod elementwise;
mod gemm;
mod kv;
mod lanes;
mod linear;
mod many;
mod merge;
mod moves;
mod pool;
mod scores;
mod sparse;
mod tensor;
mod tile;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use half::bf16;

use crate::backend::BUILD;
use crate::packed::check_parts;
use crate::{
    Ask, Backend, DType, FlexRule, Heads, HostTensor, KernelError, KeySets, Mask, Partial, Rotary, Sparse, StripeRule,
    VerticalSlashRule,
};
pub use choice::KernelChoice;
use choice::KernelSet;
use compute::Compute;
use elementwise::Angles;
pub use kv::Kv;
pub use linear::Linear;
use pool::Pool;
pub use pool::ThreadLimit;
use tensor::{check_host, convert_host, cube, elements, matrix, tensor};

/// How a [`Cpu`] computes.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Compute type: `F32` or `Bf16`.
    pub dtype: DType,
    /// Threads that compute, the calling one included; `None` takes every core.
    pub threads: Option<usize>,
    /// Which instructions to use.
    pub kernels: KernelChoice,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { dtype: DType::F32, threads: None, kernels: KernelChoice::Auto }
    }
}

/// The processor as a backend.
pub struct Cpu {
    dtype: DType,
    compute: Compute,
    /// The last call's rotations: every layer of a pass asks for the same.
    angles: Mutex<Option<Arc<Angles>>>,
}

/// Evaluates an expression with `$e` as the backend's compute type.
macro_rules! in_compute_type {
    ($cpu:ident, $e:ident => $result:expr) => {
        match $cpu.dtype {
            DType::F32 => {
                type $e = f32;
                $result
            }
            _ => {
                type $e = bf16;
                $result
            }
        }
    };
}

impl Cpu {
    /// Chooses the kernels and starts the compute threads.
    ///
    /// # Errors
    /// [`KernelError::DType`] for a type that is not computed in, [`KernelError::Unsupported`] for kernels this machine
    /// cannot run, [`KernelError::Threads`] when the threads do not start.
    pub fn new(options: CpuOptions) -> Result<Self, KernelError> {
        if options.dtype == DType::F16 {
            return Err(KernelError::DType { operation: "cpu", got: options.dtype });
        }
        let set = KernelSet::resolve(options.kernels, options.dtype)?;
        let compute = Compute { set, pool: Pool::new(options.threads)? };
        Ok(Self { dtype: options.dtype, compute, angles: Mutex::new(None) })
    }

    /// The kernels in use: what `Auto` came to.
    pub fn kernels(&self) -> KernelChoice {
        self.compute.set.choice()
    }

    /// Threads that compute, the calling one included.
    pub fn threads(&self) -> usize {
        self.compute.pool.threads()
    }

    /// Where that is changed.
    pub fn thread_limit(&self) -> ThreadLimit {
        self.compute.pool.limit().clone()
    }

    /// Gives freed memory back to the system, which the allocator keeps otherwise.
    pub fn trim_memory(&self) {
        #[cfg(target_env = "gnu")]
        // SAFETY: takes no pointer, and the allocator locks its own state.
        unsafe {
            libc::malloc_trim(0);
        }
    }

    fn angles(&self, positions: &[u32], rotary: Rotary<'_>) -> Arc<Angles> {
        let mut last = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(angles) if angles.fit(positions, rotary) => angles.clone(),
            _ => last.insert(Arc::new(Angles::new(positions, rotary, &self.compute))).clone(),
        }
    }
}

impl Backend for Cpu {
    type Tensor = Tensor;
    type Linear = Linear;
    type Kv = Kv;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn numerics(&self) -> String {
        format!("cpu {} {} {BUILD}", self.kernels(), self.dtype.name())
    }

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor, KernelError> {
        if shape.iter().product::<usize>() != values.len() {
            return Err(KernelError::shape("upload", format!("{} values", values.len()), &[shape]));
        }
        tensor(shape, values.to_vec())
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, KernelError> {
        Ok(match tensor::dtype(tensor) {
            DType::Bf16 => elementwise::cast(&elements::<bf16>("download", tensor)?, &self.compute),
            _ => elements::<f32>("download", tensor)?.to_vec(),
        })
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.dims().to_vec()
    }

    fn cast(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        match (tensor::dtype(x), self.dtype) {
            (DType::F32, DType::Bf16) => {
                let y: Vec<bf16> = elementwise::cast(&elements::<f32>("cast", x)?, &self.compute);
                tensor(x.dims(), y)
            }
            (DType::Bf16, DType::F32) => tensor(x.dims(), self.download(x)?),
            _ => Ok(x.clone()),
        }
    }

    fn weight(&self, host: HostTensor<'_>) -> Result<Tensor, KernelError> {
        check_host("weight", &host)?;
        in_compute_type!(self, E => {
            let mut values = vec![E::default(); host.shape.iter().product()];
            convert_host(&host, 0, &mut values);
            tensor(host.shape, values)
        })
    }

    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Result<Linear, KernelError> {
        Linear::pack(parts, biases, self.dtype, &self.compute)
    }

    fn embed(&self, table: &Tensor, ids: &[u32]) -> Result<Tensor, KernelError> {
        let (vocab, e) = matrix("embed", table)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            let (expected, got) = (format!("token ids below {vocab}"), id.to_string());
            return Err(KernelError::Shape { operation: "embed", expected, got });
        }
        in_compute_type!(self, E => tensor(&[ids.len(), e], elementwise::embed(&elements::<E>("embed", table)?, e, ids)))
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, KernelError> {
        let e = x.dims().last().copied().unwrap_or(0);
        if weight.dims() != [e] {
            return Err(KernelError::shape("rms_norm", format!("weight ({e})"), &[weight.dims()]));
        }
        in_compute_type!(self, E => {
            let (values, weight) = (elements::<E>("rms_norm", x)?, elements::<E>("rms_norm", weight)?);
            tensor(x.dims(), elementwise::rms_norm(&values, &weight, eps, &self.compute))
        })
    }

    fn linear(&self, x: &Tensor, weight: &Linear) -> Result<Tensor, KernelError> {
        weight.run(x, None, &self.compute)
    }

    fn linear_add(&self, x: &Tensor, weight: &Linear, residual: Tensor) -> Result<Tensor, KernelError> {
        weight.run(x, Some(&residual), &self.compute)
    }

    fn gated_silu(&self, gate_up: &Tensor) -> Result<Tensor, KernelError> {
        let (t, both) = matrix("gated_silu", gate_up)?;
        let f = both / 2;
        if both % 2 != 0 {
            return Err(KernelError::shape("gated_silu", "an even number of columns", &[gate_up.dims()]));
        }
        in_compute_type!(self, E => {
            tensor(&[t, f], elementwise::gated_silu(&elements::<E>("gated_silu", gate_up)?, f, &self.compute))
        })
    }

    fn silu(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        match tensor::dtype(x) {
            DType::Bf16 => tensor(x.dims(), elementwise::silu(&elements::<bf16>("silu", x)?, &self.compute)),
            _ => tensor(x.dims(), elementwise::silu(&elements::<f32>("silu", x)?, &self.compute)),
        }
    }

    fn rows(&self, x: &Tensor, start: usize, end: usize) -> Result<Tensor, KernelError> {
        let (t, _) = matrix("rows", x)?;
        if start > end || end > t {
            return Err(KernelError::shape("rows", format!("a range within {t} rows"), &[&[start, end]]));
        }
        Ok(x.narrow(0, start, end - start)?)
    }

    fn narrow(&self, x: &Tensor, axis: usize, start: usize, end: usize) -> Result<Tensor, KernelError> {
        match tensor::dtype(x) {
            DType::Bf16 => moves::narrow::<bf16>(x, axis, start..end),
            _ => moves::narrow::<f32>(x, axis, start..end),
        }
    }

    fn concat(&self, parts: &[Tensor], axis: usize) -> Result<Tensor, KernelError> {
        match parts.first().map(tensor::dtype) {
            Some(DType::Bf16) => moves::concat::<bf16>(parts, axis),
            _ => moves::concat::<f32>(parts, axis),
        }
    }

    fn gather(&self, x: &Tensor, rows: &[Vec<u32>]) -> Result<Tensor, KernelError> {
        match tensor::dtype(x) {
            DType::Bf16 => moves::gather::<bf16>(x, rows),
            _ => moves::gather::<f32>(x, rows),
        }
    }

    fn split_rotate(
        &self,
        qkv: &Tensor,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Result<(Tensor, Tensor, Tensor), KernelError> {
        let (t, n) = matrix("split_rotate", qkv)?;
        let Heads { query, kv, dim } = heads;
        if n != (query + 2 * kv) * dim || positions.len() != t || 2 * rotary.inv_freq.len() != dim {
            let expected = format!("qkv (t, {}), t positions, {} frequencies", (query + 2 * kv) * dim, dim / 2);
            let got: [&[usize]; 3] = [qkv.dims(), &[positions.len()], &[rotary.inv_freq.len()]];
            return Err(KernelError::shape("split_rotate", expected, &got));
        }
        let angles = self.angles(positions, rotary);
        in_compute_type!(self, E => {
            let qkv = elements::<E>("split_rotate", qkv)?;
            let (q, k, v) = elementwise::split_rotate(&qkv, heads, &angles, &self.compute);
            Ok((tensor(&[query, t, dim], q)?, tensor(&[kv, t, dim], k)?, tensor(&[kv, t, dim], v)?))
        })
    }

    fn kv(&self, k: &Tensor, v: &Tensor) -> Result<Kv, KernelError> {
        Kv::new(k, v, self.dtype, &self.compute)
    }

    fn kv_append(&self, kv: &mut Kv, k: &Tensor, v: &Tensor) -> Result<(), KernelError> {
        kv.append(k, v, &self.compute)
    }

    fn kv_rows(&self, kv: &Kv, start: usize, end: usize) -> Result<Kv, KernelError> {
        kv.rows(start, end)
    }

    fn kv_len(&self, kv: &Kv) -> usize {
        kv.len()
    }

    fn kv_bytes(&self, kv: &Kv) -> usize {
        kv.bytes()
    }

    fn attention(&self, q: &Tensor, kv: &Kv, mask: Mask) -> Result<Partial<Tensor>, KernelError> {
        kv.attend(q, mask, &self.compute)
    }

    fn key_scores(&self, q: &Tensor, k: &Tensor) -> Result<Vec<f32>, KernelError> {
        in_compute_type!(self, E => scores::key_scores::<E>(q, k, &self.compute))
    }

    fn attention_selected(&self, q: &Tensor, kv: &Kv, keys: &KeySets) -> Result<Partial<Tensor>, KernelError> {
        sparse::attention_selected(q, kv, keys, &self.compute)
    }

    fn stripe_attention(&self, q: &Tensor, kv: &Kv, rule: StripeRule) -> Sparse<'_, Self> {
        sparse::stripe_attention(q, kv, rule, &self.compute)
    }

    fn vertical_slash(&self, q: &Tensor, kv: &Kv, rule: VerticalSlashRule) -> Sparse<'_, Self> {
        sparse::vertical_slash(q, kv, rule, &self.compute)
    }

    fn flex_prefill(&self, q: &Tensor, kv: &Kv, rule: FlexRule) -> Sparse<'_, Self> {
        sparse::flex_prefill(q, kv, rule, &self.compute)
    }

    fn merge(&self, partials: &[Partial<Tensor>]) -> Result<Partial<Tensor>, KernelError> {
        let Some(Partial { output, lse }) = partials.first() else {
            return Err(KernelError::Shape { operation: "merge", expected: "a partial".into(), got: "none".into() });
        };
        let (heads, t, dim) = cube("merge", output)?;
        let fits = |p: &&Partial<Tensor>| p.output.dims() == output.dims() && p.lse.dims() == [heads, t];
        if let Some(p) = partials.iter().find(|p| !fits(p)) {
            let expected = format!("outputs ({heads}, {t}, {dim}), lse ({heads}, {t})");
            return Err(KernelError::shape("merge", expected, &[p.output.dims(), p.lse.dims()]));
        }
        let mut parts = Vec::with_capacity(partials.len());
        for p in partials {
            parts.push((elements::<f32>("merge", &p.output)?, elements::<f32>("merge", &p.lse)?));
        }
        let slices: Vec<(&[f32], &[f32])> = parts.iter().map(|(output, lse)| (&**output, &**lse)).collect();
        let (merged, merged_lse) = merge::merge(&slices, dim, &self.compute);
        Ok(Partial { output: tensor(output.dims(), merged)?, lse: tensor(lse.dims(), merged_lse)? })
    }

    fn row_major(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        match tensor::dtype(x) {
            DType::Bf16 => moves::row_major::<bf16>(x),
            _ => moves::row_major::<f32>(x),
        }
    }

    fn attend_many(
        &self,
        heads: Heads,
        q: &Tensor,
        asks: &[Ask<'_, Kv>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        in_compute_type!(self, E => many::attend_many::<E>(heads, q, asks, packed, &self.compute))
    }

    fn merge_packed(&self, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<Tensor, KernelError> {
        check_parts(heads, parts)?;
        let rows: usize = parts.iter().map(|part| part[0].len() / heads.packed_row()).sum();
        let width = heads.query * heads.dim;
        in_compute_type!(self, E => tensor(&[rows, width], merge::merge_packed::<E>(heads, parts, &self.compute)))
    }

    fn merge_rows(&self, heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
        check_parts(heads, parts)?;
        merge::merge_rows(heads, parts, &self.compute, packed);
        Ok(())
    }

    fn join_heads(&self, output: &Tensor) -> Result<Tensor, KernelError> {
        let (heads, t, dim) = cube("join_heads", output)?;
        if tensor::dtype(output) == DType::Bf16 {
            return self.cast(&self.row_major(output)?);
        }
        let x = elements::<f32>("join_heads", output)?;
        in_compute_type!(self, E => {
            tensor(&[t, heads * dim], elementwise::join_heads::<E>(&x, heads, dim, &self.compute))
        })
    }
}
