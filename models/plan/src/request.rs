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
    /// Whether all context hosts compute with one device: the cores of one machine, or one GPU.
    pub one_device: bool,
    /// The model that will run it.
    pub shape: &'a ModelShape,
    /// How fast the hosts are, where that was measured.
    pub speeds: Option<&'a Calibration>,
}
