//! Tensors in main memory: what they hold, and copies of parts of them.

pub(super) mod moves;
mod values;

pub use values::CpuTensor;
pub(super) use values::{check_host, convert_host, cube, elements, matrix, tensor};
