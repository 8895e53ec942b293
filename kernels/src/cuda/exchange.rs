//! Tensors from GPU to GPU of one process.

mod exporting;
mod signals;

pub(super) use exporting::{Lending, open};
pub(super) use signals::SignalsSlot;
