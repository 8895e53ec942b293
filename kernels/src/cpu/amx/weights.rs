//! The weights of a linear layer, packed once for the tile unit. Knows no checkpoint.

use std::ops::Range;

use half::bf16;

use super::buffer::AmxBuffer;
use super::engine::{BLOCK_SIDE, Engine, Rows, STEP_ELEMENTS};
use super::{Parallel, dispatch, panels};
use crate::cpu::tensor::BlockPanels;

/// `W (outputs, inputs)` of `y = x W^T + b`: panels of 32 outputs over all inputs, padded with zeros.
pub struct AmxWeights {
    outputs: usize,
    inputs: usize,
    source: PanelSource,
    bias: Option<AmxBuffer>,
}

/// Where panels are.
pub(super) enum PanelSource {
    /// In memory, one after the other.
    Packed(AmxBuffer),
    /// To be widened, two of 16 outputs each.
    Blocks(BlockPanels),
}

impl AmxWeights {
    /// Weights that are widened where they are multiplied.
    pub(in crate::cpu) fn in_blocks(blocks: BlockPanels) -> Self {
        Self { outputs: blocks.n, inputs: blocks.k, source: PanelSource::Blocks(blocks), bias: None }
    }

    /// Packs `rows (outputs, inputs)`.
    pub fn pack(rows: &[bf16], outputs: usize, inputs: usize, parallel: Parallel<'_>) -> Self {
        assert_eq!(rows.len(), outputs * inputs, "weights must be (outputs, inputs)");
        dispatch!(pack_with(rows, outputs, inputs, parallel))
    }

    /// Adds a bias, one f32 for each output.
    pub fn with_bias(mut self, bias: &[f32]) -> Self {
        assert_eq!(bias.len(), self.outputs, "a bias has one element for each output");
        let padded = AmxBuffer::new(self.outputs.next_multiple_of(BLOCK_SIDE) * size_of::<f32>());
        let start = padded.pointer::<f32>();
        for column in 0..self.outputs.next_multiple_of(BLOCK_SIDE) {
            // SAFETY: the buffer was made this long.
            unsafe { start.add(column).write(bias.get(column).copied().unwrap_or(0.0)) };
        }
        self.bias = Some(padded);
        self
    }

    /// Whether they are widened where they are multiplied.
    pub(super) fn are_in_blocks(&self) -> bool {
        matches!(self.source, PanelSource::Blocks(_))
    }

    /// Rows of `W`.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of `W`.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.source.bytes() + self.bias.as_ref().map_or(0, AmxBuffer::bytes)
    }

    /// Steps of the inner dimension.
    pub(super) fn steps(&self) -> usize {
        self.inputs.div_ceil(BLOCK_SIDE)
    }

    /// Panels `range`, one after the other: in memory, or widened into `scratch`.
    ///
    /// # Safety
    /// They must exist, and the machine suit the engine.
    pub(super) unsafe fn panels<E: Engine>(&self, range: Range<usize>, scratch: &mut AmxBuffer) -> *const u16 {
        let elements = self.steps() * STEP_ELEMENTS;
        match &self.source {
            // SAFETY: the caller names a panel that exists.
            PanelSource::Packed(panels) => unsafe { panels.pointer::<u16>().add(range.start * elements) },
            PanelSource::Blocks(blocks) => {
                scratch.reserve(range.len() * elements * size_of::<u16>());
                let start = scratch.pointer::<u16>();
                for (number, panel) in range.enumerate() {
                    // SAFETY: the scratch has room for each, and the caller's promise.
                    unsafe { E::widen(blocks, panel, start.add(number * elements)) }
                }
                start
            }
        }
    }

    /// The bias, padded to whole panels; null for none.
    pub(super) fn bias(&self) -> *const f32 {
        self.bias.as_ref().map_or(std::ptr::null(), |bias| bias.pointer())
    }
}

impl PanelSource {
    fn bytes(&self) -> usize {
        match self {
            Self::Packed(panels) => panels.bytes(),
            Self::Blocks(blocks) => blocks.bytes(),
        }
    }
}

/// # Safety
/// The machine must suit the engine.
unsafe fn pack_with<E: Engine>(rows: &[bf16], outputs: usize, inputs: usize, parallel: Parallel<'_>) -> AmxWeights {
    let panel = inputs.div_ceil(BLOCK_SIDE) * STEP_ELEMENTS;
    let packed = AmxBuffer::new(outputs.div_ceil(BLOCK_SIDE) * panel * size_of::<u16>());
    let source = Rows { data: rows.as_ptr().cast(), stride: inputs, rows: outputs, columns: inputs };
    parallel(outputs.div_ceil(BLOCK_SIDE), &|index| {
        // SAFETY: a band lies within `rows`, the panel within the buffer, and no other task has it.
        unsafe {
            panels::pack_columns::<E>(source.band(index * BLOCK_SIDE), packed.pointer::<u16>().add(index * panel))
        }
    });
    AmxWeights { outputs, inputs, source: PanelSource::Packed(packed), bias: None }
}
