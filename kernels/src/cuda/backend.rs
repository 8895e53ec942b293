//! A GPU as a backend: every capability by the operations beside this file.

mod gathering;
mod placing;
mod sparse;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::attention::{CudaAttentionCall, LaidStep};
use super::device::SPLIT_KEY_ROWS;
use super::gpu::{Cuda, CudaOptions};
use super::kv::CudaKv;
use super::linear::{self, CudaLinear};
use super::tensor::Tensor;
use super::{exchange, survey};
use crate::backend::{
    AllGather, AttentionOps, BatchAttention, Collectives, ComputeDevice, ElementwiseOps, Exported, HeadOps, HostTensor,
    KvOps, LinearOps, Mark, Partial, RawBytes, Rotary, SelectionOps, Sparse, StepLayers, TensorOps, WireOps, WorkQueue,
    batch,
};
use crate::{
    Ask, DType, DeviceGroup, Heads, KernelError, KeySets, KvFormat, KvType, Mask, Merging, PriorityGuard, Rank,
    RowChoice, RowToken, Selector, StepSequence,
};

/// Products of fewer rows leave processors idle at their end; more are no faster. Above 8192, so that four blocks of 2k stack with
/// the summaries before them.
const LINEAR_ROWS: usize = 8704;

/// Number of the build of the kernels, of sources and compiler.
const CUDA_BUILD: &str = env!("ASTERISM_CUDA_BUILD");

/// As `ComputeDevice::numerics`.
fn numerics(gpu: &Cuda) -> String {
    // Libraries choose by the model of the GPU, not by its architecture alone.
    let name = gpu.device.name().unwrap_or_else(|_| "GPU".to_string());
    let libraries = survey::libraries().into_iter().filter_map(|library| Some((library.name, library.version?)));
    let libraries: Vec<String> = libraries.map(|(name, version)| format!("{name} {version} ")).collect();
    let linear = if gpu.eight_bits { "linear e4m3 " } else { "" };
    let kept = gpu.kept.name().map(|kept| format!("keys {kept} ")).unwrap_or_default();
    let attention = if gpu.float8_attention { "attention e4m3 " } else { "" };
    format!("cuda {name} {} {kept}{linear}{attention}{}{CUDA_BUILD}", gpu.dtype.name(), libraries.concat())
}

impl ComputeDevice for Cuda {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn numerics(&self) -> String {
        numerics(self)
    }

    fn health(&self) -> Result<(), KernelError> {
        self.device.health()
    }

    fn is_beside(&self, other: &Self) -> bool {
        self.index == other.index
    }

    fn another(&self) -> Result<Option<Self>, KernelError> {
        let &Self { index: device, dtype, eight_bits, float8_attention, kept, .. } = self;
        Self::new(CudaOptions { device, dtype, eight_bits, float8_attention, kept }).map(Some)
    }
}

impl WorkQueue for Cuda {
    fn queues(&self) -> bool {
        true
    }

    fn finish(&self) -> Result<(), KernelError> {
        self.device.rest()
    }

    fn mark(&self) -> Result<Mark, KernelError> {
        self.device.mark()
    }

    fn priority(&self, rank: Rank) -> PriorityGuard {
        self.device.priority(rank)
    }

    fn await_turn(&self, interval: Duration) {
        self.device.await_turn(interval);
    }
}

impl TensorOps for Cuda {
    type Tensor = Tensor;

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor, KernelError> {
        self.device.tensor(shape, values, DType::F32)
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, KernelError> {
        self.device.download(tensor)
    }

    fn shape(&self, tensor: &Tensor) -> Vec<usize> {
        tensor.shape().to_vec()
    }

    fn cast(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        self.device.cast(x, self.dtype)
    }

    fn rows(&self, x: &Tensor, start: usize, end: usize) -> Result<Tensor, KernelError> {
        x.rows(start, end)
    }

    fn narrow(&self, x: &Tensor, axis: usize, start: usize, end: usize) -> Result<Tensor, KernelError> {
        self.device.narrow(x, axis, start, end)
    }

    fn concat(&self, parts: &[Tensor], axis: usize) -> Result<Tensor, KernelError> {
        self.device.concat(parts, axis)
    }

    fn extended(&self, pairs: [[&Tensor; 2]; 2]) -> Result<[Tensor; 2], KernelError> {
        self.device.extended(pairs)
    }

    fn gather(&self, x: &Tensor, rows: &[Vec<u32>]) -> Result<Tensor, KernelError> {
        self.device.gather_listed(x, rows)
    }
}

impl ElementwiseOps for Cuda {
    fn embed(&self, table: &Tensor, ids: &[u32]) -> Result<Tensor, KernelError> {
        self.device.embed(table, ids)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, KernelError> {
        self.device.rms_norm(x, None, weight, eps)
    }

    fn gated_silu(&self, gate_up: &Tensor) -> Result<Tensor, KernelError> {
        self.device.gated_silu(gate_up)
    }

    fn silu(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        self.device.silu(x)
    }

    fn choose_tokens(&self, logits: &Tensor, choices: &[RowChoice]) -> Result<Vec<RowToken>, KernelError> {
        self.device.choose_tokens(logits, choices)
    }
}

impl LinearOps for Cuda {
    type Linear = CudaLinear;

    fn linear_rows(&self) -> usize {
        LINEAR_ROWS
    }

    fn weight(&self, host: HostTensor<'_>) -> Result<Tensor, KernelError> {
        self.device.weights("weight", &[host], host.shape, self.dtype)
    }

    fn linear_weight(&self, parts: &[HostTensor<'_>], biases: &[HostTensor<'_>]) -> Result<CudaLinear, KernelError> {
        match self.eight_bits {
            true => CudaLinear::pack(&self.device, parts, biases, self.dtype)?.in_eight_bits(&self.device),
            false => CudaLinear::as_stored(&self.device, parts, biases, self.dtype),
        }
    }

    fn head_weight(&self, weight: HostTensor<'_>) -> Result<CudaLinear, KernelError> {
        CudaLinear::as_stored(&self.device, &[weight], &[], self.dtype)
    }

    fn linear(&self, x: &Tensor, weight: &CudaLinear) -> Result<Tensor, KernelError> {
        self.products.linear(&self.device, x, weight, None)
    }

    fn linear_add(&self, x: &Tensor, weight: &CudaLinear, residual: Tensor) -> Result<Tensor, KernelError> {
        self.products.linear(&self.device, x, weight, Some(residual))
    }

    fn norm_linear(&self, x: &Tensor, norm: (&Tensor, f32), weight: &CudaLinear) -> Result<Tensor, KernelError> {
        self.products.norm_linear(&self.device, x, norm, weight)
    }

    fn norm_mlp(
        &self,
        x: &Tensor,
        norm: (&Tensor, f32),
        [gate_up, down]: [&CudaLinear; 2],
    ) -> Result<Tensor, KernelError> {
        let few = self.products.norm_gated(&self.device, x, norm, gate_up, 0..gate_up.shape().0 / 2)?;
        let Some(gated) = few else {
            return self.products.gated_linear(&self.device, &self.norm_linear(x, norm, gate_up)?, down, x.clone());
        };
        self.linear_add(&gated, down, x.clone())
    }

    fn norm_gated(&self, x: &Tensor, norm: (&Tensor, f32), gate_up: &CudaLinear) -> Result<Tensor, KernelError> {
        match self.products.norm_gated(&self.device, x, norm, gate_up, 0..gate_up.shape().0 / 2)? {
            Some(gated) => Ok(gated),
            None => self.gated_silu(&self.norm_linear(x, norm, gate_up)?),
        }
    }

    fn linear_add_part(
        &self,
        x: &Tensor,
        (weight, residual): (&CudaLinear, &Tensor),
        outputs: Range<usize>,
    ) -> Result<Tensor, KernelError> {
        match self.products.linear_part(&self.device, x, (weight, residual), outputs.clone())? {
            Some(part) => Ok(part),
            None => self.narrow(&self.linear_add(x, weight, residual.clone())?, 1, outputs.start, outputs.end),
        }
    }

    fn norm_gated_part(
        &self,
        x: &Tensor,
        norm: (&Tensor, f32),
        gate_up: &CudaLinear,
        outputs: Range<usize>,
    ) -> Result<Tensor, KernelError> {
        if let Some(part) = self.products.norm_gated(&self.device, x, norm, gate_up, outputs.clone())? {
            return Ok(part);
        }
        let gated = self.gated_silu(&self.norm_linear(x, norm, gate_up)?)?;
        self.narrow(&gated, 1, outputs.start, outputs.end)
    }
}

impl HeadOps for Cuda {
    fn split_rotate(
        &self,
        qkv: &Tensor,
        heads: Heads,
        positions: &[u32],
        rotary: Rotary<'_>,
    ) -> Result<(Tensor, Tensor, Tensor), KernelError> {
        self.computed("split_rotate", qkv)?;
        let (t, Heads { query, kv, dim }) = (qkv.matrix("split_rotate")?.0, heads);
        // Keys and values of many rows become a cache as they lie.
        let keys = || match self.kept == KvFormat::Computed && t > SPLIT_KEY_ROWS {
            true => self.device.empty_lasting([kv, t, dim], self.dtype),
            false => self.device.empty_by_rows([kv, t, dim], self.dtype),
        };
        let (q, k, v) = (self.device.empty_by_rows([query, t, dim], self.dtype)?, keys()?, keys()?);
        let positions = self.positions.find(&self.device, positions, rotary)?;
        let to = [k.heads_first()?, v.heads_first()?];
        self.device.split_rotate(qkv, &positions, q.heads_first()?, to)?;
        Ok((q, k, v))
    }

    fn join_heads(&self, output: &Tensor) -> Result<Tensor, KernelError> {
        self.device.join_heads(output, self.dtype)
    }

    fn row_major(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        self.device.join_heads(x, x.dtype())
    }
}

impl KvOps for Cuda {
    type Kv = CudaKv;

    fn kv(&self, k: &Tensor, v: &Tensor) -> Result<CudaKv, KernelError> {
        if let Some(kv) = CudaKv::lying(&self.device, k, v).filter(|_| k.dtype() == self.dtype) {
            return Ok(kv);
        }
        self.held(k, v, self.dtype.into())
    }

    fn kv_type(&self) -> KvType {
        KvType { computed: self.dtype, kept: self.kept }
    }

    fn kv_kept(&self, k: &Tensor, v: &Tensor) -> Result<CudaKv, KernelError> {
        match self.kept {
            KvFormat::Computed => self.kv(k, v),
            KvFormat::Q8 => self.held(k, v, self.kv_type()),
        }
    }

    fn kv_widened(&self, kv: &CudaKv) -> Result<CudaKv, KernelError> {
        kv.widened(&self.device)
    }

    fn kv_append(&self, kv: &mut CudaKv, k: &Tensor, v: &Tensor) -> Result<(), KernelError> {
        kv.append(&self.device, k, v)
    }

    fn kv_append_each(
        &self,
        caches: Vec<(&mut CudaKv, Range<usize>)>,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<(), KernelError> {
        CudaKv::append_each(&self.device, caches, k, v)
    }

    fn kv_extend(&self, kv: &mut CudaKv, more: &CudaKv) -> Result<(), KernelError> {
        kv.append_cache(&self.device, more)
    }

    fn kv_joined(&self, first: &CudaKv, others: &[&CudaKv], more: usize) -> Result<CudaKv, KernelError> {
        CudaKv::joined(&self.device, first, others, more)
    }

    fn kv_truncate(&self, kv: &mut CudaKv, len: usize) -> Result<(), KernelError> {
        if len > kv.len() {
            return Err(KernelError::shape("kv_truncate", format!("at most {} rows", kv.len()), &[&[len]]));
        }
        kv.truncate(len);
        Ok(())
    }

    fn kv_rows(&self, kv: &CudaKv, start: usize, end: usize) -> Result<CudaKv, KernelError> {
        kv.rows(&self.device, start, end)
    }

    fn kv_tensors(&self, kv: &CudaKv) -> Result<[Tensor; 2], KernelError> {
        Ok(kv.widened(&self.device)?.tensors())
    }

    fn kv_len(&self, kv: &CudaKv) -> usize {
        kv.len()
    }

    fn kv_bytes(&self, kv: &CudaKv) -> usize {
        kv.bytes()
    }
}

impl Cuda {
    /// Attention of which `few` rows at most go by what attends to few.
    fn attended(&self, q: &Tensor, kv: &CudaKv, mask: Mask, few: usize) -> Result<Partial<Tensor>, KernelError> {
        self.computed("attention", q)?;
        if !kv.of().1.is_computed() {
            return match self.device.attend_codes(q, kv, mask)? {
                Some(partial) => Ok(partial),
                None => self.attended(q, &kv.widened(&self.device)?, mask, few),
            };
        }
        // cuDNN and the kernel of 8-bit floats write bf16 only; many rows of it go that way, and stay so: whoever reads them rounds them to that.
        let many = q.dtype() == DType::Bf16 && q.shape()[1] > few && matches!(q.shape()[2], 64 | 128);
        let rounded = many && self.attender.rounds() && matches!(mask, Mask::None | Mask::Causal);
        let partial = self.partial(q, if rounded { DType::Bf16 } else { DType::F32 })?;
        let [k, v] = kv.view(0, kv.len());
        let out = partial.output.heads_first()?;
        let call = CudaAttentionCall { q: q.heads_first()?, k, v, mask, out, lse: &partial.lse };
        self.attender.attend_but_few(&self.device, call, few)?;
        Ok(partial)
    }
}

impl AttentionOps for Cuda {
    fn independent_rows(&self) -> usize {
        if self.dtype == DType::F32 { 0 } else { SPLIT_KEY_ROWS }
    }

    fn attention(&self, q: &Tensor, kv: &CudaKv, mask: Mask) -> Result<Partial<Tensor>, KernelError> {
        self.attended(q, kv, mask, SPLIT_KEY_ROWS)
    }

    fn attention_together(&self, q: &Tensor, kv: &CudaKv, mask: Mask) -> Result<Partial<Tensor>, KernelError> {
        self.attended(q, kv, mask, self.attender.few_together())
    }

    fn attention_each(&self, calls: &[(Tensor, CudaKv, Mask)]) -> Result<Vec<Tensor>, KernelError> {
        match self.device.attend_few_each(calls)? {
            Some(outputs) => Ok(outputs),
            None => calls.iter().map(|(q, kv, mask)| Ok(self.attention(q, kv, *mask)?.output)).collect(),
        }
    }

    fn merge(&self, partials: &[Partial<Tensor>]) -> Result<Partial<Tensor>, KernelError> {
        let wide = |partial: &Partial<Tensor>| -> Result<Partial<Tensor>, KernelError> {
            let output = self.device.by_heads(&self.device.cast(&partial.output, DType::F32)?)?;
            Ok(Partial { output, lse: partial.lse.clone() })
        };
        self.device.merge(&partials.iter().map(wide).collect::<Result<Vec<_>, _>>()?)
    }
}

impl SelectionOps for Cuda {
    fn key_scores(&self, q: &Tensor, k: &Tensor) -> Result<Vec<f32>, KernelError> {
        self.computed("key_scores", q)?;
        self.device.download(&self.device.key_scores(&self.device.by_heads(q)?, &self.device.by_heads(k)?)?)
    }

    fn attention_selected(&self, q: &Tensor, kv: &CudaKv, keys: &KeySets) -> Result<Partial<Tensor>, KernelError> {
        sparse::selected(self, q, &kv.widened(&self.device)?, keys)
    }

    fn attention_by(&self, q: &Tensor, kv: &CudaKv, selector: Selector) -> Sparse<'_, Self> {
        sparse::by_selector(self, q, &kv.widened(&self.device)?, selector)
    }
}

impl BatchAttention for Cuda {
    fn attend_many(
        &self,
        heads: Heads,
        q: &Tensor,
        asks: &[Ask<'_, CudaKv>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        match self.device.attend_many(heads, q, asks, packed)? {
            true => Ok(()),
            false => batch::attend_each(self, heads, q, asks, packed),
        }
    }

    fn attend_rows(
        &self,
        heads: Heads,
        q: &Tensor,
        asks: (&[Ask<'_, CudaKv>], &[usize]),
    ) -> Result<Tensor, KernelError> {
        match self.device.attend_groups(heads, q, asks)? {
            Some(rows) => Ok(rows),
            None => batch::attend_rows(self, heads, q, asks),
        }
    }

    fn attend_tree(
        &self,
        heads: Heads,
        q: &Tensor,
        asks: (&[Ask<'_, CudaKv>], &[Tensor]),
        merging: &Merging,
    ) -> Result<Tensor, KernelError> {
        match self.device.attend_tree(heads, q, asks, (merging, self.dtype))? {
            Some(outputs) => Ok(outputs),
            None => batch::attend_tree(self, heads, q, asks, merging),
        }
    }

    fn lays_steps(&self, rows: usize) -> bool {
        rows > 0 && self.dtype == DType::Bf16 && self.device.is_hopper()
    }

    fn lay_step<'a>(
        &'a self,
        heads: Heads,
        layers: usize,
        sequences: Vec<StepSequence<'a, CudaKv>>,
        merging: &Merging,
    ) -> Result<Option<Box<dyn StepLayers<Self> + 'a>>, KernelError> {
        let laid = self.device.lay_step(&self.ahead, (heads, layers), sequences, merging)?;
        Ok(laid.map(|laid| -> Box<dyn StepLayers<Self> + 'a> { Box::new(laid) }))
    }

    fn merge_packed(&self, heads: Heads, parts: &[Vec<&[f32]>]) -> Result<Tensor, KernelError> {
        self.device.merge_packed(heads, parts, self.dtype)
    }

    fn merge_rows(&self, heads: Heads, parts: &[Vec<&[f32]>], packed: &mut Vec<f32>) -> Result<(), KernelError> {
        self.device.merge_rows(heads, parts, packed)
    }
}

impl StepLayers<Cuda> for LaidStep<'_> {
    fn attend(&mut self, layer: usize, qkv: [&Tensor; 3]) -> Result<Tensor, KernelError> {
        LaidStep::attend(self, layer, qkv)
    }
}

impl WireOps for Cuda {
    fn raw(&self, tensors: &[Tensor]) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        Ok(Box::new(self.device.raw(tensors, self.dtype)?))
    }

    fn upload_raw(&self, shape: &[usize], pieces: &[&[u8]]) -> Result<Tensor, KernelError> {
        self.device.upload_raw(shape, pieces, self.dtype)
    }

    fn kept_raw(&self, kv: &CudaKv) -> Result<Box<dyn RawBytes + '_>, KernelError> {
        match kv.raw(&self.device)? {
            Some(raw) => Ok(Box::new(raw)),
            None => self.raw(&self.kv_tensors(kv)?),
        }
    }

    fn upload_kept(&self, shape: [usize; 3], raw @ [keys, values]: [&[&[u8]]; 2]) -> Result<CudaKv, KernelError> {
        match self.kept {
            KvFormat::Computed => self.kv(&self.upload_raw(&shape, keys)?, &self.upload_raw(&shape, values)?),
            KvFormat::Q8 => CudaKv::of_raw(&self.device, shape, raw, self.dtype),
        }
    }
}

impl Collectives for Cuda {
    fn shared_rows(&self) -> usize {
        let own = self.dtype == DType::Bf16 && !self.eight_bits && self.products.has_library();
        if own { linear::FEW_PRODUCT_ROWS } else { 0 }
    }

    /// The library chooses by how many outputs there are.
    fn parts_keep_bits(&self) -> bool {
        false
    }

    fn export(&self, tensors: Vec<Tensor>) -> Result<Exported<Self>, KernelError> {
        let lending = exchange::Lending::of(tensors, &self.device, &self.signals)?;
        Ok(Box::new(move |to: &Self| lending.fetch(&to.device, &to.signals)))
    }

    fn adds_into(&self, weight: &CudaLinear) -> bool {
        self.dtype == DType::Bf16 && self.products.writes_into(weight)
    }

    fn unfilled(&self, rows: usize, columns: usize) -> Result<Tensor, KernelError> {
        self.device.empty(&[rows, columns], self.dtype)
    }

    fn linear_add_into(
        &self,
        x: &Tensor,
        weight: &CudaLinear,
        columns: [&Tensor; 2],
        first: usize,
    ) -> Result<(), KernelError> {
        self.products.linear_into(&self.device, x, weight, columns, first)
    }

    fn gated_silu_into(&self, gate_up: &Tensor, to: &Tensor, first: usize) -> Result<(), KernelError> {
        self.device.gated_silu_into(gate_up, to, first)
    }

    fn rows_into(&self, parts: &[Tensor], to: &Tensor, first: usize) -> Result<(), KernelError> {
        self.device.rows_into(parts, to, first)
    }

    fn all_gather(members: &[Arc<Self>]) -> Result<Box<dyn AllGather<Self>>, KernelError> {
        gathering::all_gather(members)
    }
}

impl Cuda {
    /// A cache of `k, v (kv heads, t, dim)` that is kept so.
    fn held(&self, k: &Tensor, v: &Tensor, of: KvType) -> Result<CudaKv, KernelError> {
        let (heads, t, dim) = k.cube("kv")?;
        let mut kv = CudaKv::new(&self.device, heads, dim, of, t)?;
        kv.append(&self.device, k, v)?;
        Ok(kv)
    }

    /// GPUs that compute as one, for a model of such heads.
    ///
    /// # Errors
    /// [`KernelError::UnlikeDevices`] where they are not of one model, or do not reach each other's memory; [`KernelError::NoKernel`] where
    /// one keeps keys otherwise than it computes them; as [`DeviceGroup::new`].
    pub fn group(gpus: Vec<Self>, heads: Heads) -> Result<DeviceGroup<Self>, KernelError> {
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.kept != KvFormat::Computed) {
            return Err(KernelError::NoKernel { operation: "8-bit keys on several devices", device: gpu.numerics() });
        }
        gathering::check_alike(&gpus)?;
        DeviceGroup::new(gpus.into_iter().map(Arc::new).collect(), heads)
    }

    /// As `Collectives::all_gather`, by the kernel that waits for the others' even where all are on one GPU: for whoever runs nothing
    /// else there that could keep them from running at the same time.
    ///
    /// # Errors
    /// What the devices report.
    pub fn all_gather_at_once(members: &[Arc<Self>]) -> Result<Box<dyn AllGather<Self>>, KernelError> {
        gathering::at_once(members)
    }
}
