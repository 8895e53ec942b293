//! A batch that is worked on. Does none of its lines.

use std::{collections::HashMap, time::Duration};

use asterism_actors::{JobError, api::ErrorBody, capacity::Holder};
use ring::digest;
use tokio::sync::{OnceCell, watch};

use crate::api::openai::{ApiState, batching::batch_run::lines::Lines, store::Batch};

/// How long a full queue or disk is left alone.
pub(crate) const LATER: Duration = Duration::from_secs(1);

/// A batch at work.
pub(crate) struct BatchWork {
    pub(super) state: ApiState,
    pub(super) batch: Batch,
    pub(super) cancelled: watch::Receiver<bool>,
    /// Who holds what its lines take.
    pub(super) holder: Holder,
    pub(super) lines: Lines,
    /// Documents that several lines ask about, with the sessions that have them.
    pub(super) documents: HashMap<Digest, (String, OnceCell<bool>)>,
}

/// Whether a refusal is for now alone.
pub(crate) fn may_pass(error: &JobError) -> bool {
    let ErrorBody { code, .. } = error.body();
    ["overloaded", "not_ready", "self_test_failed", "disk_full", "session_replaced"].contains(&code.as_str())
}

/// A digest of a document.
pub(super) type Digest = [u8; digest::SHA256_OUTPUT_LEN];
