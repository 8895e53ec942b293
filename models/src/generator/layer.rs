//! The one way of a step's rows through the layers, on each device that takes part in it: project, attend, merge, finish. Where
//! partials come from and which devices share the products, it is told.

use std::{borrow::Cow, ops::Range};

use asterism_kernels::{AllGather, Backend, Merging};

use super::{batch::BatchStep, partials::Partials};
use crate::{Decoder, ModelError, decoder::Projected};

/// Where a device has the partials of a layer from.
pub(super) trait Attention<B: Backend> {
    /// The partials of the step's rows in a layer, of whose rotated `q (t, query heads dim)`, `k, v (kv, t, dim)` are on this
    /// device: over the context and over the parts' own keys.
    fn attend(
        &mut self,
        step: &BatchStep,
        layer: usize,
        qkv: [&B::Tensor; 3],
    ) -> Result<LayerAttention<'_, B>, ModelError>;

    /// The partials last given are merged, or handed to the device to be.
    fn merged(&mut self) {}
}

/// What attention gives a layer.
pub(super) enum LayerAttention<'a, B: Backend> {
    /// Outputs of all rows, `(t, query heads dim)` in compute type; every part stays.
    Merged(B::Tensor),
    /// Partials, to be merged.
    Partials(LayerPartials<'a, B>),
}

/// The partials of a layer.
pub(super) struct LayerPartials<'a, B: Backend> {
    pub partials: Partials<'a, B>,
    /// How they are merged: the rows of the parts that stay, part by part.
    pub merging: Cow<'a, Merging>,
    /// Of each part of the step, whether it stays in it.
    pub stays: Vec<bool>,
}

/// A device on which a step is taken.
pub(super) struct DeviceStep<'a, B: Backend> {
    pub decoder: &'a Decoder<B>,
    /// The rows, which every device of the step has.
    pub step: BatchStep,
    /// Which columns of the widest products it makes, where devices share them.
    pub share: Option<Share<'a, B>>,
}

/// A device's share of the linear layers.
pub(super) struct Share<'a, B: Backend> {
    pub gather: &'a dyn AllGather<B>,
    /// Which of the devices it is.
    pub member: usize,
    /// Of what the MLP's second product is given.
    pub intermediate: Columns,
    /// Of the residual stream.
    pub hidden: Columns,
}

/// Columns of a product that devices share.
pub(super) struct Columns {
    /// Those of this device.
    pub own: Range<usize>,
    /// How many each device makes.
    pub of_each: Vec<usize>,
}

/// The rows at a layer: what is queued before its attention.
pub(super) struct Projection<B: Backend> {
    /// Residual stream `(t, e)`.
    x: B::Tensor,
    /// Queries by rows.
    q: B::Tensor,
    k: B::Tensor,
    v: B::Tensor,
}

impl<B: Backend> DeviceStep<'_, B> {
    /// Queues all that comes before the first layer's attention: a device has work while a step is laid out. Nothing of no rows.
    pub fn begin(&self) -> Result<Option<Projection<B>>, ModelError> {
        if self.step.ids.is_empty() {
            return Ok(None);
        }
        self.project(0, self.decoder.embed(&self.step.ids)?).map(Some)
    }

    /// Takes the rows, which have [begun](Self::begin), through all layers: `(t, e)` of the parts that stayed; nothing when none did.
    pub fn through(
        &mut self,
        begun: Option<Projection<B>>,
        attention: &mut dyn Attention<B>,
    ) -> Result<Option<B::Tensor>, ModelError> {
        let (mut next, layers) = (begun, self.decoder.config().layers);
        for layer in 0..layers {
            let Some(projection) = next else { return Ok(None) };
            let x = self.layer(layer, projection, attention)?;
            if layer + 1 == layers {
                return Ok(x);
            }
            next = x.map(|x| self.project(layer + 1, x)).transpose()?;
        }
        Ok(None)
    }

    fn project(&self, layer: usize, x: B::Tensor) -> Result<Projection<B>, ModelError> {
        let (decoder, step) = (self.decoder, &self.step);
        let qkv = decoder.project(layer, &x)?;
        let Projected { q, k, v } = decoder.rotate_stacked(layer, &qkv, &step.positions(), &step.sequences())?;
        let q = decoder.backend().row_major(&q)?;
        Ok(Projection { x, q, k, v })
    }

    fn layer(
        &mut self,
        layer: usize,
        Projection { x, q, k, v }: Projection<B>,
        attention: &mut dyn Attention<B>,
    ) -> Result<Option<B::Tensor>, ModelError> {
        let backend = self.decoder.backend();
        let LayerPartials { partials, merging, stays } = match attention.attend(&self.step, layer, [&q, &k, &v])? {
            LayerAttention::Merged(attended) => return self.finish(layer, x, &attended).map(Some),
            LayerAttention::Partials(partials) => partials,
        };
        let Some(x) = self.step.keep(backend, x, &stays)? else { return Ok(None) };
        let attended = partials.merge(backend, &q, &merging)?;
        drop(merging);
        attention.merged();
        self.finish(layer, x, &attended).map(Some)
    }

    /// The rest of the layer: every device has the rows, and what they attended to.
    fn finish(&self, layer: usize, x: B::Tensor, attended: &B::Tensor) -> Result<B::Tensor, ModelError> {
        let decoder = self.decoder;
        let Some(Share { gather, member, intermediate, hidden }) = &self.share else {
            return decoder.finish_joined(layer, x, attended);
        };
        let x = decoder.output(layer, x, attended)?;
        let gated = decoder.gated_part(layer, &x, intermediate.own.clone())?;
        let gated = gather.gather(*member, &gated, &intermediate.of_each, 1)?;
        let x = decoder.down_part(layer, &gated, &x, hidden.own.clone())?;
        Ok(gather.gather(*member, &x, &hidden.of_each, 1)?)
    }
}
