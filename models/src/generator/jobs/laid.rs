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
    // Layers with windows of their own are not alike, and caches that cap scores are made by the decoder.
    let alike = config.score_cap.is_none() && (0..config.layers).all(|layer| config.window(layer).is_none());
    if !alike || !backend.lays_steps(step.ids.len()) {
        return Ok(None);
    }
    let (mut answered, mut next) = (Vec::with_capacity(step.parts.len()), 0);
    let mut layers = Vec::with_capacity(step.parts.len());
    for ask in &step.parts {
        let Some(shards) = here.whole(ask.part) else { return Ok(None) };
        let (mut answers, mut of_part) = (Vec::new(), Vec::new());
        for (shard, keys) in shards {
            answers.push((vec![(shard.block, keys)], next));
            of_part.push((shard.layers.iter().collect(), ask.mask.beginning_at(shard.position as usize)));
            next += 1;
        }
        layers.push(of_part);
        let Ok(reviewed) = jobs.parts[ask.part].generator.review(0, answers) else { return Ok(None) };
        answered.push(reviewed);
    }
    let merged: Vec<(&Answered, usize)> = answered.iter().zip(next..).collect();
    let merging = Answered::merging(&merged, next + answered.len());
    let (mut asks, mut layers) = (step.parts.iter().peekable(), layers.into_iter());
    let sequences = jobs.parts.iter_mut().enumerate().filter_map(|(part, job)| {
        let ask = asks.next_if(|ask| ask.part == part)?;
        let own = job.generator.own(decoder).map(|(own, own_keys)| (own.iter_mut().collect(), own_keys));
        let shards = layers.next()?;
        let of_part =
            |(own, own_keys)| StepSequence { rows: ask.rows.clone(), shards, own, own_keys, own_mask: ask.own_mask };
        Some(own.map(of_part))
    });
    let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
    let laid = backend.lay_step(config.heads, config.layers, sequences, &merging)?;
    Ok(laid.map(Laid))
}
