//! Tensors from GPU to GPU of one process.

mod lending;
mod signals;

pub(super) use lending::{Lending, open};
pub(super) use signals::SignalsSlot;
