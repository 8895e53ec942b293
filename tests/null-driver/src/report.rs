//! What a driver has been asked for so far, as tests read it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::memory::{Figures, Memory};

/// All of it.
#[derive(Serialize)]
pub struct Report<'a> {
    gpus: Vec<GpuReport>,
    /// Handles that live, by their kinds.
    handles: BTreeMap<&'static str, u64>,
    /// Bytes of the host's memory that are locked for copies.
    locked_bytes: u64,
    /// Launches, by the kernels' names.
    launches: &'a BTreeMap<String, u64>,
    /// What was asked that no driver forgives, in words.
    faults: &'a [String],
    /// Whether allocations are still to be refused that a test wants refused.
    refusing: bool,
}

#[derive(Serialize)]
struct GpuReport {
    used_bytes: u64,
    most_used_bytes: u64,
    kept_bytes: u64,
    all_bytes: u64,
    allocations: u64,
    refused: u64,
}

impl<'a> Report<'a> {
    pub fn new(
        memory: &Memory,
        handles: BTreeMap<&'static str, u64>,
        locked_bytes: u64,
        (launches, faults): (&'a BTreeMap<String, u64>, &'a [String]),
    ) -> Self {
        let of = |figures: Figures| GpuReport {
            used_bytes: figures.used,
            most_used_bytes: figures.most,
            kept_bytes: figures.kept,
            all_bytes: figures.limit,
            allocations: figures.runs,
            refused: figures.refused,
        };
        let gpus = memory.figures().into_iter().map(of).collect();
        Self { gpus, handles, locked_bytes, launches, faults, refusing: memory.is_refusing() }
    }
}
