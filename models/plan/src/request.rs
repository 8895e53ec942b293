//! What a method plans for.

use crate::{Calibration, ModelShape};

/// What a method plans for. Token ids only: methods that need scores computed at run time put the rule in the plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Context token ids, BOS included.
    pub context: &'a [u32],
    /// Query token ids; empty when the query is not known yet (a session).
    pub query: &'a [u32],
    /// Context hosts to deal shards to, at least 1.
    pub hosts: usize,
    /// Whether all context hosts share a machine, so that passing keys and values within a layer is cheap.
    pub one_machine: bool,
    /// The model that will run it.
    pub shape: &'a ModelShape,
    /// How fast the hosts are, where that was measured.
    pub speeds: Option<&'a Calibration>,
}
