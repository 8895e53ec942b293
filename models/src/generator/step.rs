//! A batch step: rows of several jobs through the layers, together. Chooses no token.

use std::sync::Arc;

use asterism_kernels::Backend;

use super::{
    answers::StepError,
    context::ContextAttention,
    job::{Generator, StepPart},
    jobs::{Jobs, JobsAttention, StepEnds, laid::lay},
    layer::{DeviceStep, Projection},
    local::LocalContext,
    tensor_parallel::together,
};
use crate::{Decoder, ModelError};

/// Takes the rows of every part through every layer, together.
///
/// A part whose context does not answer, or not for all of its keys ([`ModelError::KeyCount`]: a step is refused, never
/// renormalised), leaves the step; the others go on. It may be taken again from the start: keys and values that it left are
/// the same to the last bit, and stay.
///
/// # Errors
/// What ends the step for all parts: a kernel that fails, a context that is no more.
pub fn step<B: Backend>(
    decoder: &Decoder<B>,
    parts: &mut [StepPart<'_, B>],
    context: &mut dyn ContextAttention<B>,
) -> Result<StepEnds<B>, ModelError> {
    let (mut jobs, step) = Jobs::new(decoder, parts);
    if let Some(team) = context.team(&step.parts) {
        let x = together(&team, &step, &mut jobs)?;
        return jobs.end(decoder.backend(), step, x);
    }
    let mut device = DeviceStep { decoder, step, share: None };
    let mut begun = device.begin()?;
    let laid = match context.here() {
        Some(here) => through_laid(&mut device, &mut begun, &mut jobs, here)?,
        None => None,
    };
    let x = match laid {
        Some(x) => Some(x),
        None => {
            let attention = &mut JobsAttention { decoder, jobs: &mut jobs, context, packed: Arc::default() };
            device.through(begun, attention)?
        }
    };
    jobs.end(decoder.backend(), device.step, x)
}

/// All layers of a step that is laid out; nothing where it is not, and then it has begun as before.
fn through_laid<B: Backend>(
    device: &mut DeviceStep<'_, B>,
    begun: &mut Option<Projection<B>>,
    jobs: &mut Jobs<'_, '_, B>,
    here: &LocalContext<'_, B>,
) -> Result<Option<B::Tensor>, ModelError> {
    match lay(device.decoder, &device.step, jobs, here)? {
        Some(mut laid) => device.through(begun.take(), &mut laid),
        None => Ok(None),
    }
}

impl<B: Backend> Generator<B> {
    /// A step of this job alone.
    ///
    /// # Errors
    /// As [`step`]; a part that was to be taken again is [`ModelError::Cancelled`].
    pub fn step(
        &mut self,
        decoder: &Decoder<B>,
        ids: &[u32],
        context: &mut dyn ContextAttention<B>,
    ) -> Result<B::Tensor, ModelError> {
        let ends = step(decoder, &mut [StepPart { generator: self, ids }], context)?;
        ends.into_iter().next().expect("an end for the part").map_err(|error| match error {
            StepError::Failed(error) => error,
            StepError::Later => ModelError::Cancelled,
        })
    }
}
