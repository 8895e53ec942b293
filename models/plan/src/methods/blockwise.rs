//! Methods that cut the context into blocks, encoded behind something that stands for the blocks before.

pub(crate) mod apb;
pub(crate) mod pulsar;
pub(crate) mod star;
