//! The processor as a backend: every capability by the kernels beside this file.

use half::bf16;

use super::kv::CpuKv;
use super::linear::CpuLinear;
use super::processor::Cpu;
use super::tensor::moves;
use super::tensor::{CpuTensor, StoredRows, convert_host, cube, elements, matrix, tensor};
use super::{attention, elementwise, kv};
use crate::backend::{
    AttentionOps, BatchAttention, Collectives, ComputeDevice, ElementwiseOps, HeadOps, HostTensor, KvOps, LinearOps,
    Partial, RawBytes, Rotary, SelectionOps, Sparse, StepLayers, TensorOps, WireOps, WorkQueue, batch,
};
use crate::operands::packed::check_parts;
use crate::{
    Activation, Ask, DType, Extra, Heads, KernelError, KeySets, KvFormat, KvType, Mask, Merging, Selector,
    StepSequence, Stored,
};

/// The build of the kernels: sources, compiler and target, as eight hexadecimal digits.
const CPU_BUILD: &str = env!("ASTERISM_KERNELS_BUILD");

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

impl ComputeDevice for Cpu {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn numerics(&self) -> String {
        // Codes are multiplied as integers where the processor does that: to other bits.
        let products = if self.compute.set.multiplies_codes() { " vnni" } else { "" };
        let kept = self.kv_type().kept.name().map(|kept| format!(" keys {kept}{products}")).unwrap_or_default();
        format!("cpu {} {}{kept} {CPU_BUILD}", self.kernels(), self.dtype.name())
    }
}

impl WorkQueue for Cpu {}

impl TensorOps for Cpu {
    type Tensor = CpuTensor;

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<CpuTensor, KernelError> {
        if shape.iter().product::<usize>() != values.len() {
            return Err(KernelError::shape("upload", format!("{} values", values.len()), &[shape]));
        }
        tensor(shape, values.to_vec())
    }

    fn download(&self, tensor: &CpuTensor) -> Result<Vec<f32>, KernelError> {
        Ok(match tensor.dtype() {
            DType::Bf16 => elementwise::cast(elements::<bf16>("download", tensor)?, &self.compute),
            _ => elements::<f32>("download", tensor)?.to_vec(),
        })
    }

    fn shape(&self, tensor: &CpuTensor) -> Vec<usize> {
        tensor.dims().to_vec()
    }

    fn cast(&self, x: &CpuTensor) -> Result<CpuTensor, KernelError> {
        match (x.dtype(), self.dtype) {
            (DType::F32, DType::Bf16) => {
                let y: Vec<bf16> = elementwise::cast(elements::<f32>("cast", x)?, &self.compute);
                tensor(x.dims(), y)
            }
            (DType::Bf16, DType::F32) => tensor(x.dims(), self.download(x)?),
            _ => Ok(x.clone()),
        }
    }

    fn rows(&self, x: &CpuTensor, start: usize, end: usize) -> Result<CpuTensor, KernelError> {
        let (t, _) = matrix("rows", x)?;
        if start > end || end > t {
            return Err(KernelError::shape("rows", format!("a range within {t} rows"), &[&[start, end]]));
        }
        Ok(x.rows(start, end))
    }

    fn narrow(&self, x: &CpuTensor, axis: usize, start: usize, end: usize) -> Result<CpuTensor, KernelError> {
        match x.dtype() {
            DType::Bf16 => moves::narrow::<bf16>(x, axis, start..end),
            _ => moves::narrow::<f32>(x, axis, start..end),
        }
    }

    fn concat(&self, parts: &[CpuTensor], axis: usize) -> Result<CpuTensor, KernelError> {
        match parts.first().map(CpuTensor::dtype) {
            Some(DType::Bf16) => moves::concat::<bf16>(parts, axis),
            _ => moves::concat::<f32>(parts, axis),
        }
    }

    fn gather(&self, x: &CpuTensor, rows: &[Vec<u32>]) -> Result<CpuTensor, KernelError> {
        match x.dtype() {
            DType::Bf16 => moves::gather::<bf16>(x, rows),
            _ => moves::gather::<f32>(x, rows),
        }
    }
}

impl ElementwiseOps for Cpu {
    fn embed(&self, table: &CpuTensor, ids: &[u32]) -> Result<CpuTensor, KernelError> {
        let (vocab, e) = matrix("embed", table)?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            let (expected, got) = (format!("token ids below {vocab}"), id.to_string());
            return Err(KernelError::Shape { operation: "embed", expected, got });
        }
        if let Some(rows) = StoredRows::of(table) {
            return in_compute_type!(self, E => {
                let mut wide = vec![E::default(); ids.len() * e];
                wide.chunks_exact_mut(e).zip(ids).for_each(|(to, id)| rows.widen(*id as usize, to));
                tensor(&[ids.len(), e], wide)
            });
        }
        in_compute_type!(self, E => tensor(&[ids.len(), e], elementwise::embed(elements::<E>("embed", table)?, e, ids)))
    }

    fn rms_norm(&self, x: &CpuTensor, weight: &CpuTensor, eps: f32) -> Result<CpuTensor, KernelError> {
        let e = x.dims().last().copied().unwrap_or(0);
        if weight.dims() != [e] {
            return Err(KernelError::shape("rms_norm", format!("weight ({e})"), &[weight.dims()]));
        }
        in_compute_type!(self, E => {
            let (values, weight) = (elements::<E>("rms_norm", x)?, elements::<E>("rms_norm", weight)?);
            tensor(x.dims(), elementwise::rms_norm(values, weight, eps, &self.compute))
        })
    }

    fn gated_silu(&self, gate_up: &CpuTensor) -> Result<CpuTensor, KernelError> {
        let (t, both) = matrix("gated_silu", gate_up)?;
        let f = both / 2;
        if both % 2 != 0 {
            return Err(KernelError::shape("gated_silu", "an even number of columns", &[gate_up.dims()]));
        }
        in_compute_type!(self, E => {
            tensor(&[t, f], elementwise::gated_silu(elements::<E>("gated_silu", gate_up)?, f, &self.compute))
        })
    }

    fn has(&self, _: Extra) -> bool {
        true
    }

    fn gated(&self, gate_up: &CpuTensor, activation: Activation) -> Result<CpuTensor, KernelError> {
        let (t, both) = matrix("gated", gate_up)?;
        if activation == Activation::Silu || both % 2 != 0 {
            return self.gated_silu(gate_up);
        }
        in_compute_type!(self, E => {
            let values = elements::<E>("gated", gate_up)?;
            tensor(&[t, both / 2], elementwise::gated(values, both / 2, activation, &self.compute))
        })
    }

    fn sum(&self, x: &CpuTensor, y: &CpuTensor) -> Result<CpuTensor, KernelError> {
        if x.dims() != y.dims() {
            return Err(KernelError::shape("sum", "tensors of one shape", &[x.dims(), y.dims()]));
        }
        in_compute_type!(self, E => {
            tensor(x.dims(), elementwise::sum(elements::<E>("sum", x)?, elements::<E>("sum", y)?, &self.compute))
        })
    }

    fn multiple(&self, x: &CpuTensor, factor: f32) -> Result<CpuTensor, KernelError> {
        in_compute_type!(self, E => {
            tensor(x.dims(), elementwise::multiple(elements::<E>("multiple", x)?, factor, &self.compute))
        })
    }

    fn add_rows(
        &self,
        x: &CpuTensor,
        (rows, weights): (&[u32], &[f32]),
        y: &CpuTensor,
    ) -> Result<CpuTensor, KernelError> {
        let (t, e) = matrix("add_rows", x)?;
        let within = rows.iter().all(|row| (*row as usize) < t);
        if y.dims() != [rows.len(), e] || weights.len() != rows.len() || !within {
            let expected = format!("a row ({e}) and a weight for each of {} rows below {t}", rows.len());
            return Err(KernelError::shape("add_rows", expected, &[y.dims(), &[weights.len()]]));
        }
        in_compute_type!(self, E => {
            let (x, y) = (elements::<E>("add_rows", x)?, elements::<E>("add_rows", y)?);
            tensor(&[t, e], elementwise::add_rows(x, (rows, weights), y, e))
        })
    }

    fn silu(&self, x: &CpuTensor) -> Result<CpuTensor, KernelError> {
        match x.dtype() {
            DType::Bf16 => tensor(x.dims(), elementwise::silu(elements::<bf16>("silu", x)?, &self.compute)),
            _ => tensor(x.dims(), elementwise::silu(elements::<f32>("silu", x)?, &self.compute)),
        }
    }
}

impl LinearOps for Cpu {
    type Linear = CpuLinear;

    fn weight(&self, host: HostTensor<'_>) -> Result<CpuTensor, KernelError> {
        host.check("weight")?;
        if let (Stored::Blocks(_), [_, _]) = (host.stored, host.shape) {
            return Ok(StoredRows::table(&host, self.dtype));
        }
        in_compute_type!(self, E => {
            let mut values = vec![E::default(); host.shape.iter().product()];
            convert_host(&host, 0, &mut values);
            tensor(host.shape, values)
        })
    }

    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Result<CpuLinear, KernelError> {
        CpuLinear::pack(parts, biases, self.dtype, &self.compute)
    }

    fn head_weight(&self, weight: HostTensor<'_>) -> Result<CpuLinear, KernelError> {
        Ok(CpuLinear::pack(&[weight], &[], self.dtype, &self.compute)?.with_f32_outputs())
    }

    fn linear(&self, x: &CpuTensor, weight: &CpuLinear) -> Result<CpuTensor, KernelError> {
        weight.run(x, None, &self.compute)
    }

    fn linear_add(&self, x: &CpuTensor, weight: &CpuLinear, residual: CpuTensor) -> Result<CpuTensor, KernelError> {
        weight.run(x, Some(&residual), &self.compute)
    }
}

impl HeadOps for Cpu {
    fn split_rotate(
        &self,
        qkv: &CpuTensor,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Result<(CpuTensor, CpuTensor, CpuTensor), KernelError> {
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
            let (q, k, v) = elementwise::split_rotate(qkv, heads, &angles, &self.compute);
            Ok((tensor(&[query, t, dim], q)?, tensor(&[kv, t, dim], k)?, tensor(&[kv, t, dim], v)?))
        })
    }

    fn join_heads(&self, output: &CpuTensor) -> Result<CpuTensor, KernelError> {
        let (heads, t, dim) = cube("join_heads", output)?;
        if output.dtype() == DType::Bf16 {
            return self.cast(&self.row_major(output)?);
        }
        let x = elements::<f32>("join_heads", output)?;
        in_compute_type!(self, E => {
            tensor(&[t, heads * dim], elementwise::join_heads::<E>(x, heads, dim, &self.compute))
        })
    }

    fn row_major(&self, x: &CpuTensor) -> Result<CpuTensor, KernelError> {
        match x.dtype() {
            DType::Bf16 => moves::row_major::<bf16>(x),
            _ => moves::row_major::<f32>(x),
        }
    }
}

impl KvOps for Cpu {
    type Kv = CpuKv;

    fn kv(&self, k: &CpuTensor, v: &CpuTensor) -> Result<CpuKv, KernelError> {
        CpuKv::new(k, v, self.dtype, &self.compute)
    }

    fn kv_type(&self) -> KvType {
        KvType { computed: self.dtype, kept: self.kept }
    }

    fn kv_kept(&self, k: &CpuTensor, v: &CpuTensor) -> Result<CpuKv, KernelError> {
        CpuKv::kept(k, v, self.kv_type(), &self.compute)
    }

    fn kv_widened(&self, kv: &CpuKv) -> Result<CpuKv, KernelError> {
        kv.widened(&self.compute)
    }

    fn kv_capped(&self, kv: CpuKv, cap: f32) -> Result<CpuKv, KernelError> {
        Ok(kv.capped(cap, &self.compute))
    }

    fn kv_append(&self, kv: &mut CpuKv, k: &CpuTensor, v: &CpuTensor) -> Result<(), KernelError> {
        kv.append(k, v, &self.compute)
    }

    fn kv_extend(&self, kv: &mut CpuKv, more: &CpuKv) -> Result<(), KernelError> {
        kv.extend(more, &self.compute)
    }

    fn kv_truncate(&self, kv: &mut CpuKv, len: usize) -> Result<(), KernelError> {
        kv.truncate(len)
    }

    fn kv_rows(&self, kv: &CpuKv, start: usize, end: usize) -> Result<CpuKv, KernelError> {
        kv.rows(start, end)
    }

    fn kv_tensors(&self, kv: &CpuKv) -> Result<[CpuTensor; 2], KernelError> {
        kv.tensors(&self.compute)
    }

    fn kv_len(&self, kv: &CpuKv) -> usize {
        kv.len()
    }

    fn kv_bytes(&self, kv: &CpuKv) -> usize {
        kv.bytes()
    }
}

impl AttentionOps for Cpu {
    fn attention(&self, q: &CpuTensor, kv: &CpuKv, mask: Mask) -> Result<Partial<CpuTensor>, KernelError> {
        kv.attend(q, mask, &self.compute)
    }

    fn merge(&self, partials: &[Partial<CpuTensor>]) -> Result<Partial<CpuTensor>, KernelError> {
        let Some(Partial { output, lse }) = partials.first() else {
            return Err(KernelError::Shape { operation: "merge", expected: "a partial".into(), got: "none".into() });
        };
        let (heads, t, dim) = cube("merge", output)?;
        let fits = |p: &&Partial<CpuTensor>| p.output.dims() == output.dims() && p.lse.dims() == [heads, t];
        if let Some(p) = partials.iter().find(|p| !fits(p)) {
            let expected = format!("outputs ({heads}, {t}, {dim}), lse ({heads}, {t})");
            return Err(KernelError::shape("merge", expected, &[p.output.dims(), p.lse.dims()]));
        }
        let mut parts = Vec::with_capacity(partials.len());
        for p in partials {
            parts.push((elements::<f32>("merge", &p.output)?, elements::<f32>("merge", &p.lse)?));
        }
        let slices: Vec<(&[f32], &[f32])> = parts.iter().map(|(output, lse)| (&**output, &**lse)).collect();
        let (merged, merged_lse) = attention::merge(&slices, dim, &self.compute);
        Ok(Partial { output: tensor(output.dims(), merged)?, lse: tensor(lse.dims(), merged_lse)? })
    }
}

impl SelectionOps for Cpu {
    fn key_scores(&self, q: &CpuTensor, k: &CpuTensor) -> Result<Vec<f32>, KernelError> {
        in_compute_type!(self, E => attention::key_scores::<E>(q, k, &self.compute))
    }

    fn attention_selected(&self, q: &CpuTensor, kv: &CpuKv, keys: &KeySets) -> Result<Partial<CpuTensor>, KernelError> {
        kv::attention_selected(q, kv, keys, &self.compute)
    }

    fn attention_by(&self, q: &CpuTensor, kv: &CpuKv, selector: Selector) -> Sparse<'_, Self> {
        kv::attention_by(q, kv, selector, &self.compute)
    }
}

impl BatchAttention for Cpu {
    fn lays_steps(&self, rows: usize) -> bool {
        rows > 0
    }

    fn lay_step<'a>(
        &'a self,
        heads: Heads,
        _: usize,
        sequences: Vec<StepSequence<'a, CpuKv>>,
        merging: &Merging,
    ) -> Result<Option<Box<dyn StepLayers<Self> + 'a>>, KernelError> {
        Ok(Some(batch::lay_by_layer(self, heads, sequences, merging)))
    }

    fn attend_many(
        &self,
        heads: Heads,
        q: &CpuTensor,
        asks: &[Ask<'_, CpuKv>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        in_compute_type!(self, E => kv::attend_many::<E>(heads, q, asks, packed, &self.compute))
    }

    fn attend_packed(
        &self,
        heads: Heads,
        q: &CpuTensor,
        asks: (&[Ask<'_, CpuKv>], &[usize]),
    ) -> Result<Vec<f32>, KernelError> {
        batch::attend_packed(self, heads, q, asks)
    }

    fn merge_packed(&self, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<CpuTensor, KernelError> {
        check_parts(heads, parts)?;
        let rows: usize = parts.iter().map(|part| part[0].len() / heads.packed_row()).sum();
        let width = heads.query * heads.dim;
        in_compute_type!(self, E => tensor(&[rows, width], attention::merge_packed::<E>(heads, parts, &self.compute)))
    }

    fn merge_rows(&self, heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
        check_parts(heads, parts)?;
        attention::merge_rows(heads, parts, &self.compute, packed);
        Ok(())
    }
}

impl WireOps for Cpu {
    fn kept_raw(&self, kv: &CpuKv) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        match kv.raw() {
            Some(raw) => Ok(Box::new(raw)),
            None => self.raw(&self.kv_tensors(kv)?),
        }
    }

    fn upload_kept(&self, shape: [usize; 3], [keys, values]: [&[&[u8]]; 2]) -> Result<CpuKv, KernelError> {
        match self.kept {
            KvFormat::Computed => self.kv(&self.upload_raw(&shape, keys)?, &self.upload_raw(&shape, values)?),
            KvFormat::Q8 => CpuKv::of_raw(shape, [keys, values], self.dtype),
        }
    }
}

impl Collectives for Cpu {}
