//! Batches and their files: many requests of one file, worked off in the background. Keeps nothing itself.

pub(crate) mod batch_run;
pub(crate) mod batches;
pub(crate) mod files;
pub(crate) mod listing;
