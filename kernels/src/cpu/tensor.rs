//! Tensors in main memory.

pub(super) mod moves;
mod values;

pub(super) use values::{check_host, convert_host, cube, dtype, elements, matrix, tensor};
