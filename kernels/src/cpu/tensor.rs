//! Tensors in main memory: what they hold, and copies of parts of them.

mod blocks;
pub(super) mod moves;
mod values;

pub(super) use blocks::{BlockPanels, PairSink};
pub use values::CpuTensor;
pub(super) use values::{StoredRows, convert_host, cube, elements, matrix, tensor};
