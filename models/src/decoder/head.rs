//! A decoder's head: none, there from the start, or loaded when logits are first asked for. Multiplies nothing.

use std::sync::{Arc, OnceLock};

use asterism_kernels::Backend;

use super::weights::{Head, SharedWeights};
use crate::{Checkpoint, ModelError};

/// What a decoder has of its head.
pub(super) enum HeadOf<B: Backend> {
    None,
    Loaded(Arc<Head<B>>),
    Late(Arc<LateHead<B>>),
}

/// A head that few hosts ever need: those that take over a query host's work.
pub(super) struct LateHead<B: Backend> {
    loaded: OnceLock<Arc<Head<B>>>,
    checkpoint: Arc<Checkpoint>,
    weights: Arc<SharedWeights<B>>,
}

impl<B: Backend> Clone for HeadOf<B> {
    fn clone(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Loaded(head) => Self::Loaded(head.clone()),
            Self::Late(late) => Self::Late(late.clone()),
        }
    }
}

impl<B: Backend> HeadOf<B> {
    pub(super) fn late(checkpoint: Arc<Checkpoint>, weights: Arc<SharedWeights<B>>) -> Self {
        Self::Late(Arc::new(LateHead { loaded: OnceLock::new(), checkpoint, weights }))
    }

    /// Whether it is in memory.
    pub(super) fn is_loaded(&self) -> bool {
        match self {
            Self::None => false,
            Self::Loaded(_) => true,
            Self::Late(late) => late.loaded.get().is_some(),
        }
    }

    /// The head, loaded by whoever asks first.
    pub(super) fn get(&self, backend: &B) -> Result<&Head<B>, ModelError> {
        match self {
            Self::None => Err(ModelError::NoHead),
            Self::Loaded(head) => Ok(head),
            Self::Late(late) => match late.loaded.get() {
                Some(head) => Ok(head),
                None => {
                    let head = late.weights.loading().head(backend, &late.checkpoint)?;
                    Ok(late.loaded.get_or_init(|| head))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use asterism_kernels::{Cpu, CpuOptions};

    use super::*;
    use crate::{Decoder, DecoderParts};

    #[test]
    fn a_late_head_is_loaded_for_the_first_logits_and_once_for_all() {
        let checkpoint = Arc::new(Checkpoint::embedded().unwrap());
        let cpu = || Arc::new(Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap());
        let weights = Arc::new(SharedWeights::default());
        let late = || {
            let decoder = weights.loading().decoder(cpu(), &checkpoint, DecoderParts::Context).unwrap();
            decoder.with_late_head(checkpoint.clone(), weights.clone()).unwrap()
        };
        let (first, second) = (late(), late());
        assert_eq!(weights.loading().loaded(), Some(DecoderParts::Context));
        let logits = |decoder: &Decoder<Cpu>| decoder.logits(&decoder.embed(&[1, 2, 3]).unwrap()).unwrap();
        let whole = Decoder::load(cpu(), &checkpoint, DecoderParts::All).unwrap();
        assert_eq!(logits(&first), logits(&whole));
        assert_eq!(weights.loading().loaded(), Some(DecoderParts::All));
        let head = |decoder: &Decoder<Cpu>| decoder.head.get(decoder.backend()).map(std::ptr::from_ref).unwrap();
        assert_eq!(head(&first), head(&second));
    }
}
