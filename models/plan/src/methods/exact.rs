//! Methods whose answers are those of dense attention.

pub(crate) mod chain;
pub(crate) mod dense;
pub(crate) mod ring;
pub(crate) mod ulysses;
