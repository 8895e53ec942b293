//! What the supervisor can refuse.

use asterism_models::ModelError;
use asterism_plan::PlanError;
use thiserror::Error;

use crate::api::ErrorBody;

/// A request about a job was refused, or a job failed.
#[derive(Debug, Error)]
pub enum JobError {
    /// The request itself is wrong.
    #[error("{message}")]
    Invalid {
        /// The request field at fault.
        param: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The context does not fit the model.
    #[error(
        "the context has {context} tokens and the query {query}; with {generated} tokens to generate that is {} and {model} takes at most {maximum}. Shorten the context or lower --max-tokens",
        context + query + generated
    )]
    TooLong {
        /// Context tokens.
        context: usize,
        /// Query tokens.
        query: usize,
        /// Tokens asked for.
        generated: usize,
        /// The model's maximum.
        maximum: usize,
        /// The model.
        model: String,
    },
    /// The method cannot plan this.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The tokenizer or chat template failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The cluster cannot take jobs yet, or no more.
    #[error("the cluster is not ready: {cause}")]
    NotReady {
        /// Which host and why.
        cause: String,
    },
    /// Too many jobs wait.
    #[error("{waiting} jobs are waiting already, which is the most this cluster queues; try again later")]
    Overloaded {
        /// Jobs waiting.
        waiting: usize,
    },
    /// No such job.
    #[error("there is no job {id}; `asterism job list` shows those there are")]
    NotFound {
        /// The id asked for.
        id: String,
    },
    /// The job has ended already.
    #[error("job {id} has ended already: {state}")]
    Ended {
        /// Job.
        id: String,
        /// How.
        state: String,
    },
    /// The supervisor is shutting down.
    #[error("the supervisor is shutting down")]
    Stopping,
}

impl JobError {
    /// A stable code for clients and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_request",
            Self::TooLong { .. } => "context_too_long",
            Self::Plan(error) => error.code(),
            Self::Model(error) => error.code(),
            Self::NotReady { .. } => "not_ready",
            Self::Overloaded { .. } => "overloaded",
            Self::NotFound { .. } => "job_not_found",
            Self::Ended { .. } => "job_ended",
            Self::Stopping => "stopping",
        }
    }

    /// As a client sees it.
    pub fn body(&self) -> ErrorBody {
        let param = match self {
            Self::Invalid { param, .. } => Some(param.to_string()),
            Self::TooLong { .. } => Some("context".to_string()),
            _ => None,
        };
        ErrorBody { message: self.to_string(), code: self.code().to_string(), param }
    }
}

/// A host process or the supervisor could not do its work.
#[derive(Debug, Error)]
pub enum HostError {
    /// An actor could not be started.
    #[error("an actor did not start: {cause}")]
    Actor {
        /// Why.
        cause: String,
    },
    /// The supervisor cannot be reached.
    #[error("host {host} cannot reach the supervisor at {address}: {cause}")]
    Supervisor {
        /// This host.
        host: String,
        /// Where it looked.
        address: String,
        /// What the transport says.
        cause: asterism_transport::TransportError,
    },
    /// The supervisor refused this host.
    #[error("the supervisor refused host {host}: {reason}")]
    Refused {
        /// This host.
        host: String,
        /// Why.
        reason: String,
    },
    /// The link to the supervisor ended.
    #[error("host {host} lost its supervisor: {cause}")]
    Lost {
        /// This host.
        host: String,
        /// Why.
        cause: String,
    },
    /// The model did not load.
    #[error("host {host} could not load its model: {cause}")]
    Model {
        /// This host.
        host: String,
        /// Why.
        cause: ModelError,
    },
}

impl HostError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Actor { .. } => "actor",
            Self::Supervisor { cause, .. } => cause.code(),
            Self::Refused { .. } => "refused",
            Self::Lost { .. } => "supervisor_lost",
            Self::Model { cause, .. } => cause.code(),
        }
    }
}
