//! The rows of a batch step: of which parts, where in their sequences, and what they see. Computes nothing with them.

use std::ops::Range;

use asterism_kernels::{Backend, Mask};

use crate::ModelError;

/// Rows that go through the layers together.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchStep {
    /// Tokens of all rows.
    pub ids: Vec<u32>,
    /// Parts that are in the step, in the order of their rows.
    pub parts: Vec<PartAsk>,
}

/// The rows of one part of a step, as its context is asked.
#[derive(Clone, Debug)]
pub struct PartAsk {
    /// Which part of the step.
    pub part: usize,
    /// Its rows of the query tensor.
    pub rows: Range<usize>,
    /// Which of the context's keys they see.
    pub mask: Mask,
    /// Which of the part's own keys they see.
    pub(super) own_mask: Mask,
    /// Position of the first.
    pub(super) position: u32,
    /// Tokens of their sequence.
    pub(super) tokens: u32,
}

impl BatchStep {
    /// Positions of all rows.
    pub fn positions(&self) -> Vec<u32> {
        self.parts.iter().flat_map(|ask| (ask.position..).take(ask.rows.len())).collect()
    }

    /// The rows of each part, and the tokens of its sequence.
    pub fn sequences(&self) -> Vec<(usize, u32)> {
        self.parts.iter().map(|ask| (ask.rows.len(), ask.tokens)).collect()
    }

    /// Takes the parts out that do not stay. The rows of `x` that are left; nothing when no part is.
    pub fn keep<B: Backend>(
        &mut self,
        backend: &B,
        x: B::Tensor,
        stays: &[bool],
    ) -> Result<Option<B::Tensor>, ModelError> {
        if stays.iter().all(|stays| *stays) {
            return Ok(Some(x));
        }
        let (mut start, mut kept) = (0, Vec::new());
        let parts = std::mem::take(&mut self.parts).into_iter().zip(stays);
        for (ask, _) in parts.filter(|(_, stays)| **stays) {
            kept.push(backend.narrow(&x, 0, ask.rows.start, ask.rows.end)?);
            let rows = start..start + ask.rows.len();
            start = rows.end;
            self.parts.push(PartAsk { rows, ..ask });
        }
        Ok(if kept.is_empty() { None } else { Some(backend.concat(&kept, 0)?) })
    }
}
