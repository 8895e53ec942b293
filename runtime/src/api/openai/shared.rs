//! What handlers of OpenAI's API work with. Handles no request.

use std::{sync::Arc, time::Duration};

use asterism_actors::supervisor::Supervisor;
use tokio::runtime::Handle;

use crate::api::{
    http::{body::intake::Intake, error::Refusal, origin::OriginRules},
    openai::{
        batching::batch_run::Open,
        keys::ApiKeys,
        store::{Store, responses::KeptResponses},
    },
};

/// What handlers work with.
#[derive(Clone)]
pub struct ApiState {
    /// The supervisor.
    pub supervisor: Supervisor,
    /// Its cluster's name.
    pub cluster: String,
    /// Who may ask; everybody where there are none.
    pub keys: Option<ApiKeys>,
    /// When this supervisor started, in seconds since 1970.
    pub since: u64,
    /// Files and batches.
    pub store: Arc<Store>,
    /// What is kept of responses.
    pub responses: Arc<KeptResponses>,
    /// Batches that are worked on.
    pub open: Open,
    /// Where they are.
    pub runtime: Handle,
    /// What bodies of requests may take.
    pub intake: Intake,
    /// What pages in browsers may ask.
    pub origins: OriginRules,
    /// Time that a connection is kept between its requests.
    pub kept_idle: Duration,
}

/// What a request must be like to be taken: refused otherwise, by the name of its field.
pub(crate) type Checked<T> = Result<T, Refusal>;
