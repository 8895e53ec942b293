//! Few rows on their way to a product: put together, normed and made 8-bit floats by one kernel, so that nothing stops between. Chooses no
//! product.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::super::device::{LaunchShape, launch};
use super::super::super::gpu::Cuda;
use super::super::super::linear::{CudaLinear, ProductRows};
use super::super::super::tensor::Tensor;
use super::{Gathering, Inboxes, Layout};
use crate::backend::{ElementwiseOps, GatheredLayer};
use crate::{AllGather, DType, KernelError};

/// Most rows: a block of threads has a row, and more rows come sooner to blocks that each take some of all.
const GATHERED_ROWS: usize = 4;
/// Threads of a block, where their sums are added up as those of `rms_norm`, and elsewhere.
const NORM_THREADS: u32 = 256;
const CAST_THREADS: u32 = 1024;

/// As `exchange.cu` declares it.
#[repr(C)]
struct GatheredRows {
    parts: Gathering,
    norm: u64,
    out: u64,
    scales: u64,
    eps: f32,
    unused: u32,
}

impl GatheredLayer<'_, Cuda> {
    fn norm(&self) -> Option<(&Tensor, f32)> {
        match self {
            Self::NormLinear(norm, _) | Self::NormGated(norm, _) => Some(*norm),
            Self::LinearAdd(..) => None,
        }
    }

    fn weight(&self) -> &CudaLinear {
        match self {
            Self::NormLinear(_, weight) | Self::NormGated(_, weight) | Self::LinearAdd(weight, _) => weight,
        }
    }

    /// Bytes of a row, and of the weights of its norm.
    fn shared(&self, columns: usize) -> usize {
        if self.norm().is_some() { 4 * columns } else { 2 * columns }
    }

    /// Whether the kernel gives what the layer multiplies: rows that nothing is done to it leaves to others.
    fn takes(&self, gpu: &Cuda, columns: usize) -> bool {
        let normed = self.norm().is_some_and(|(norm, _)| {
            norm.shape == [columns] && norm.dtype() == DType::Bf16 && norm.pointer().is_multiple_of(16)
        });
        let eight = self.weight().is_in_eight_bits() && self.norm().is_none();
        // What the kernel has beside takes less than this.
        let room = gpu.device.shared_limit().saturating_sub(1 << 10);
        (normed || eight) && self.weight().shape().1 == columns && self.shared(columns) <= room
    }

    /// What it makes of the rows.
    fn multiply(&self, gpu: &Cuda, rows: &ProductRows) -> Result<Tensor, KernelError> {
        let product = |residual| gpu.products.of_rows(&gpu.device, rows, self.weight(), residual);
        match (self, rows) {
            (Self::NormLinear(..), _) => product(None),
            (Self::LinearAdd(_, residual), _) => product(Some(residual.clone())),
            (Self::NormGated(_, weight), ProductRows::Computed(x)) => {
                let outputs = 0..weight.shape().0 / 2;
                match gpu.products.gated(&gpu.device, x, || Ok(x.clone()), weight, outputs)? {
                    Some(gated) => Ok(gated),
                    None => gpu.gated_silu(&product(None)?),
                }
            }
            (Self::NormGated(..), ProductRows::Eight(_)) => gpu.gated_silu(&product(None)?),
        }
    }
}

impl Inboxes {
    /// Whether the kernel takes such parts on their way to these layers.
    fn takes_rows(&self, parts: &[Tensor], layout: &Layout, layers: &[GatheredLayer<'_, Cuda>]) -> bool {
        // Packs of two payloads lie within a part.
        let even = |(part, width): (&Tensor, &usize)| {
            part.dtype() == DType::Bf16 && part.pointer().is_multiple_of(16) && width.is_multiple_of(2)
        };
        let takes = |(layer, gpu): (&GatheredLayer<'_, Cuda>, _)| layer.takes(gpu, layout.shape[1]);
        layout.rows <= GATHERED_ROWS
            && parts.iter().zip(&layout.widths).all(even)
            && layers.iter().zip(self.members.iter().map(AsRef::as_ref)).all(takes)
    }

    pub(super) fn rows_multiplied(
        &self,
        parts: &[Tensor],
        sizes: &[usize],
        layers: &[GatheredLayer<'_, Cuda>],
    ) -> Result<Option<Vec<Tensor>>, KernelError> {
        let layout = Layout::of(&parts[0], sizes, 1).filter(|layout| self.takes_rows(parts, layout, layers));
        let Some(layout) = layout else { return Ok(None) };
        if self.abandoned.flag().load(Ordering::Acquire) {
            return Err(KernelError::Abandoned);
        }
        let room = |(gpu, layer): (&Arc<Cuda>, &GatheredLayer<'_, Cuda>)| {
            ProductRows::empty(&gpu.device, layout.shape, layer.weight())
        };
        // What may fail for want of memory comes before the first of them waits for the others.
        let rows = self.members.iter().zip(layers).map(room).collect::<Result<Vec<_>, _>>()?;
        let queue = |member: usize| self.queue_rows(member, (&parts[member], &rows[member]), &layers[member], &layout);
        (0..self.members.len()).try_for_each(queue).inspect_err(|_| self.abandon())?;
        let made = self.members.iter().zip(layers).zip(&rows);
        made.map(|((gpu, layer), rows)| layer.multiply(gpu, rows)).collect::<Result<_, _>>().map(Some)
    }

    fn queue_rows(
        &self,
        member: usize,
        (part, rows): (&Tensor, &ProductRows),
        layer: &GatheredLayer<'_, Cuda>,
        layout: &Layout,
    ) -> Result<(), KernelError> {
        let device = &self.members[member].device;
        let (norm, (out, scales)) = (layer.norm(), rows.places());
        let gathered = GatheredRows {
            parts: self.gathering((member, self.next(member)), (part.pointer(), out), layout),
            norm: norm.map_or(0, |(norm, _)| norm.pointer()),
            out,
            scales,
            eps: norm.map_or(0.0, |(_, eps)| eps),
            unused: 0,
        };
        let name = match (self.companies.are_alone(), scales != 0) {
            (false, false) => "all_gather_rows",
            (false, true) => "all_gather_rows_eight",
            (true, false) => "all_gather_early_rows",
            (true, true) => "all_gather_early_rows_eight",
        };
        let threads = if norm.is_some() { NORM_THREADS } else { CAST_THREADS };
        let spread = LaunchShape { blocks: (layout.rows, 1), threads, shared: layer.shared(layout.shape[1]) };
        launch!(device, name, spread, gathered)
    }
}
