//! What handlers of OpenAI's API work with, and which there are. Handles no request.

use std::{sync::Arc, time::Duration};

use asterism_actors::{
    api::{JobRequest, JobStatus},
    supervisor::{ModelFront, Supervisor},
};
use tokio::runtime::Handle;

use crate::api::{
    http::{body::intake::Intake, error::Refusal, origin::OriginRules},
    openai::{
        batching::batch_run::Open,
        keys::ApiKeys,
        store::{Store, responses::KeptResponses},
    },
};

/// Every method and path; all of them but three want a key where there are keys.
pub const ENDPOINTS: &[(&str, &str)] = &[
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/v1/models/{organisation}/{model}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/{id}"),
    ("POST", "/v1/responses/{id}/cancel"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files"),
    ("GET", "/v1/files/{id}"),
    ("GET", "/v1/files/{id}/content"),
    ("DELETE", "/v1/files/{id}"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{id}"),
    ("POST", "/v1/batches/{id}/cancel"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/health"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
];

/// Those for whom a key is not needed: what balances load, or is made for this API, has none.
pub const FOR_EVERYBODY: [&str; 3] = ["/health", "/version", "/openapi.json"];

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

    /// The model that answers a job that there is; the first, where the cluster no longer has the one that answered it.
    pub(crate) fn model_that_answers(&self, status: &JobStatus) -> Arc<ModelFront> {
        self.supervisor.model_named(Some(&status.model)).unwrap_or_else(|_| self.supervisor.model())
    }
}

/// What a request must be like to be taken: refused otherwise, by the name of its field.
pub(crate) type Checked<T> = Result<T, Refusal>;
