//! What handlers of OpenAI's API work with. Handles no request.

use std::{sync::Arc, time::Duration};

use asterism_actors::{
    api::JobRequest,
    supervisor::{ModelFront, Supervisor},
};
use tokio::runtime::Handle;

use crate::api::{
    http::{body::intake::Intake, error::Refusal, origin::OriginRules},
    openai::{batching::batch_run::Open, keys::ApiKeys, store::Store},
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

impl ApiState {
    /// The model of a name, or that of requests that name none.
    pub(crate) fn model_named(&self, asked: Option<&str>) -> Checked<Arc<ModelFront>> {
        Ok(self.supervisor.model_named(asked)?)
    }

    /// The model that answers a job: the session's, where it asks one and names none.
    pub(crate) async fn model_of(&self, job: &JobRequest) -> Checked<Arc<ModelFront>> {
        if let (None, Some(session)) = (&job.model, &job.session)
            && self.supervisor.models().len() > 1
            && let Ok(session) = self.supervisor.session(session).await
        {
            return self.model_named(Some(&session.model));
        }
        self.model_named(job.model.as_deref())
    }
}

/// What a request must be like to be taken: refused otherwise, by the name of its field.
pub(crate) type Checked<T> = Result<T, Refusal>;
