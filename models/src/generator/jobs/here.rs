//! A step whose context is all on its device: what its layers have in common is laid out once, where the device gains by it.

use asterism_kernels::{Backend, StepLayers, StepSequence};

use super::{
    super::{
        batch::BatchStep,
        layer::{Attention, LayerAttention},
        local::LocalContext,
        merging::Answered,
    },
    Jobs,
};
use crate::{Decoder, ModelError};

/// Attention of a step that is laid out.
pub struct Laid<'a, B: Backend>(Box<dyn StepLayers<B> + 'a>);

impl<B: Backend> Attention<B> for Laid<'_, B> {
    fn attend(
        &mut self,
        _: &BatchStep,
        layer: usize,
        qkv: [&B::Tensor; 3],
    ) -> Result<LayerAttention<'_, B>, ModelError> {
        Ok(LayerAttention::Merged(self.0.attend(layer, qkv)?))
    }
}

/// Lays a step out; nothing where the device does not, or where a part has to leave: whoever goes layer by layer says why.
pub fn lay<'a, B: Backend>(
    decoder: &'a Decoder<B>,
    step: &BatchStep,
    jobs: &'a mut Jobs<'_, '_, B>,
    here: &'a LocalContext<'a, B>,
) -> Result<Option<Laid<'a, B>>, ModelError> {
    let (backend, config) = (decoder.backend(), decoder.config());
    if !backend.lays_steps(step.ids.len()) {
        return Ok(None);
    }
    let (mut answered, mut next) = (Vec::with_capacity(step.parts.len()), 0);
    let mut layers = Vec::with_capacity(step.parts.len());
    for ask in &step.parts {
        let Some(shards) = here.whole(ask.part) else { return Ok(None) };
        let (shards, of_part): (Vec<_>, Vec<_>) = shards.unzip();
        layers.push(of_part);
        let answers = shards.into_iter().map(|shard| {
            next += 1;
            (vec![shard], next - 1)
        });
        let Ok(reviewed) = jobs.parts[ask.part].generator.review(0, answers.collect()) else { return Ok(None) };
        answered.push(reviewed);
    }
    let merged: Vec<(&Answered, usize)> = answered.iter().zip(next..).collect();
    let merging = Answered::merging(&merged, next + answered.len());
    let (mut asks, mut layers) = (step.parts.iter().peekable(), layers.into_iter());
    let sequences = jobs.parts.iter_mut().enumerate().filter_map(|(part, job)| {
        let ask = asks.next_if(|ask| ask.part == part)?;
        let (own, own_keys) = job.generator.own();
        let shards = layers.next()?;
        Some(StepSequence { rows: ask.rows.clone(), shards, mask: ask.mask, own, own_keys, own_mask: ask.own_mask })
    });
    let laid = backend.lay_step(config.heads, config.layers, sequences.collect(), &merging)?;
    Ok(laid.map(Laid))
}
