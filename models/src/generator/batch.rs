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
    /// Position of the first of the part's own keys.
    pub(super) own_start: u32,
    /// The position behind their question: its rows are of a sequence that long, each later one of one that ends with it.
    pub(super) question_end: u32,
}

impl PartAsk {
    fn sequences(&self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let (start, end) = (self.position, self.position + self.rows.len() as u32);
        let asked = self.question_end.clamp(start, end);
        let question = (asked > start).then_some(((asked - start) as usize, self.question_end));
        question.into_iter().chain((asked..end).map(|position| (1, position + 1)))
    }

    /// Which keys of the context its rows see in a layer with such a window, if it has one. Rows and keys are counted as positions: a
    /// shard's keys begin at its own ([`Mask::beginning_at`]).
    pub fn mask_within(&self, window: Option<usize>) -> Mask {
        match window {
            None => self.mask,
            Some(window) => Mask::Streaming { sink: 0, window, first_row: self.position as usize, first_key: 0 },
        }
    }

    /// The same of its own keys.
    pub(super) fn own_mask_within(&self, window: Option<usize>) -> Mask {
        match window {
            None => self.own_mask,
            Some(window) => {
                let (first_row, first_key) = (self.position as usize, self.own_start as usize);
                Mask::Streaming { sink: 0, window, first_row, first_key }
            }
        }
    }
}

impl BatchStep {
    /// Positions of all rows.
    pub fn positions(&self) -> Vec<u32> {
        self.parts.iter().flat_map(|ask| (ask.position..).take(ask.rows.len())).collect()
    }

    /// Rows one after the other that are of sequences of as many tokens, and how many these are.
    pub fn sequences(&self) -> Vec<(usize, u32)> {
        self.parts.iter().flat_map(PartAsk::sequences).collect()
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
