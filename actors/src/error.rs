//! What the supervisor can refuse.

mod body;
pub(crate) mod codes;
mod placement;

use std::sync::Arc;

use asterism_kernels::KernelError;
use asterism_models::ModelError;
use asterism_plan::PlanError;
use thiserror::Error;

pub use body::ErrorBody;
pub use placement::PlacementRefusal;
pub(crate) use placement::mebibytes;

use crate::store::StoreError;

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
    /// No model of this name.
    #[error("there is no model '{asked}' here, expected {}", known.join(" or "))]
    NoModel {
        /// The name asked for, as far as it is shown.
        asked: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// The context does not fit the model.
    #[error(
        "the context has {context} tokens, the query {query}, and --max-tokens adds {generated}: {} in all, and {model} takes at most {maximum}{bound}. Shorten the context or lower --max-tokens",
        context.saturating_add(*query).saturating_add(*generated)
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
        /// What of the model bounds it, where that needs saying.
        bound: &'static str,
    },
    /// A text too long to look at in full.
    #[error(
        "{param}: {cause}; {model} takes at most {maximum} tokens of context, query and answer together{bound}. Shorten it"
    )]
    TooLarge {
        /// The request field at fault.
        param: &'static str,
        /// What is too much of it.
        cause: Box<ModelError>,
        /// The model's maximum.
        maximum: usize,
        /// The model.
        model: String,
        /// What of the model bounds it, where that needs saying.
        bound: &'static str,
    },
    /// A session's keys are rotated for shorter prompts.
    #[error(
        "with {query} tokens of a question the prompt has {tokens}, and {model} rotates prompts of more than {most} tokens otherwise (its rope_scaling): keys that the session holds are not theirs. Ask it with its context as a job, or keep session and question within {most} tokens"
    )]
    RotatedOtherwise {
        /// Query tokens.
        query: usize,
        /// Those with the session's.
        tokens: u64,
        /// Most tokens of a prompt that is rotated like short ones.
        most: u32,
        /// The model.
        model: String,
    },
    /// The id names a job that was asked for otherwise.
    #[error("there is a job {id} already, and its request was another; choose another id, or none")]
    IdTaken {
        /// The id.
        id: String,
    },
    /// Too many requests are looked at already.
    #[error("the supervisor is busy with other requests; try again")]
    Busy,
    /// A bug of ours.
    #[error("the supervisor failed at this request: {cause}; please report it")]
    Internal {
        /// What panicked.
        cause: String,
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
    /// A self-test found the cluster wrong.
    #[error(
        "this cluster computes wrong answers and takes no work until a self-test passes: {cause}. `asterism self-test` runs one"
    )]
    Wrong {
        /// What was found.
        cause: String,
    },
    /// Too many jobs wait.
    #[error("{waiting} jobs are waiting already, which is the most this cluster queues; try again later")]
    Overloaded {
        /// Jobs waiting.
        waiting: usize,
    },
    /// What is accepted takes as much memory as it may.
    #[error(
        "what is accepted already takes {held} of {limit} bytes here, {waiting} jobs waiting; try again later, or raise [api] max_queue_bytes"
    )]
    Full {
        /// Bytes held.
        held: u64,
        /// Bytes that may be.
        limit: u64,
        /// Jobs waiting.
        waiting: usize,
    },
    /// Too many connections follow jobs.
    #[error(
        "{listeners} connections follow jobs already, which is the most; try again later, or ask for the job's status"
    )]
    Crowded {
        /// Connections.
        listeners: usize,
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
    /// No host can take the context, whatever else ends.
    #[error("{0}")]
    Placement(PlacementRefusal),
    /// Sessions hold what the context would need.
    #[error(
        "{needed} bytes of keys and values are needed and {free} are free: {cause}. Drop a session (`asterism session list`) or shorten the context"
    )]
    Capacity {
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
        /// Which limit.
        cause: String,
    },
    /// The name is taken.
    #[error("there is a session {name} already; `asterism session drop {name}` ends it")]
    SessionExists {
        /// The name.
        name: String,
    },
    /// No such session.
    #[error("there is no session {name}; `asterism session list` shows those there are")]
    NoSession {
        /// The name asked for.
        name: String,
    },
    /// Its time has passed.
    #[error("session {name} has ended: its time to live passed. Create it again, with a longer --ttl")]
    SessionExpired {
        /// The session.
        name: String,
    },
    /// Its context could not be encoded.
    #[error("session {name} failed: {cause}. Drop it and create it again")]
    SessionFailed {
        /// The session.
        name: String,
        /// Why.
        cause: String,
    },
    /// Its context is of another model than the cluster's.
    #[error(
        "session {name} was created under another model than the cluster has now, and its tokens are that one's. Drop it and create it again"
    )]
    ModelChanged {
        /// The session.
        name: String,
    },
    /// Another session has the name by now.
    #[error(
        "session {name} has another context than when the request was prepared: it was created again, or has grown; try again"
    )]
    SessionReplaced {
        /// The session.
        name: String,
    },
    /// What comes behind a session's text changes tokens that it holds already.
    #[error(
        "the session holds other tokens than the whole text comes to: what is asked or appended changes how the tokenizer or the chat template writes what stands before it; create the session again with the whole text, or ask a job"
    )]
    SessionRewritten,
    /// It cannot grow right now.
    #[error(
        "nothing can be appended to session {name} now: {cause}; try again when `asterism session show {name}` says ready"
    )]
    SessionBusy {
        /// The session.
        name: String,
        /// Why.
        cause: &'static str,
    },
    /// No such host.
    #[error("there is no host {name} in the cluster file; `asterism host list` shows those there are")]
    NoHost {
        /// The name asked for.
        name: String,
    },
    /// Nobody else does what it does.
    #[error("{name} is the last {role} host that takes work; start or uncordon another one first")]
    LastHost {
        /// The host.
        name: String,
        /// Its role.
        role: String,
    },
    /// A spare that works already.
    #[error("spare {name} holds {shards} shards and answers {jobs} jobs; take an idle spare, or wait")]
    SpareBusy {
        /// The spare.
        name: String,
        /// Shards it holds or encodes.
        shards: usize,
        /// Jobs it generates for.
        jobs: usize,
    },
    /// A host is not as the request needs it.
    #[error("{message}")]
    HostConflict {
        /// What is and what to do.
        message: String,
    },
    /// The journal could not be written.
    #[error("the request was not taken, as it could not be kept: {0}")]
    Journal(Arc<StoreError>),
    /// The supervisor is shutting down.
    #[error("the supervisor is shutting down")]
    Stopping,
}

impl JobError {
    /// A stable code for clients and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_request",
            Self::NoModel { .. } => "model_not_found",
            Self::TooLong { .. } | Self::TooLarge { .. } | Self::RotatedOtherwise { .. } => "context_too_long",
            Self::IdTaken { .. } => "job_exists",
            Self::Busy => "overloaded",
            Self::Internal { .. } => "internal",
            Self::Plan(error) => error.code(),
            Self::Model(error) => error.code(),
            Self::NotReady { .. } => "not_ready",
            Self::Wrong { .. } => "self_test_failed",
            Self::Overloaded { .. } | Self::Full { .. } | Self::Crowded { .. } => "overloaded",
            Self::NotFound { .. } => "job_not_found",
            Self::Ended { .. } => "job_ended",
            Self::Placement(_) => "placement_impossible",
            Self::Capacity { .. } => "capacity_exhausted",
            Self::SessionExists { .. } => "session_exists",
            Self::NoSession { .. } => "session_not_found",
            Self::SessionExpired { .. } => "session_expired",
            Self::SessionFailed { .. } => "session_failed",
            Self::ModelChanged { .. } => "model_changed",
            Self::SessionReplaced { .. } => "session_replaced",
            Self::SessionRewritten => "session_rewritten",
            Self::SessionBusy { .. } => "session_busy",
            Self::NoHost { .. } => "host_not_found",
            Self::LastHost { .. } => "last_host",
            Self::SpareBusy { .. } => "spare_busy",
            Self::HostConflict { .. } => "host_conflict",
            Self::Journal(error) => error.code(),
            Self::Stopping => "stopping",
        }
    }

    /// As a client sees it.
    pub fn body(&self) -> ErrorBody {
        let param = match self {
            Self::Invalid { param, .. } => Some(param.to_string()),
            Self::TooLong { .. } => Some("context".to_string()),
            Self::RotatedOtherwise { .. } => Some("session".to_string()),
            Self::TooLarge { param, .. } => Some(param.to_string()),
            Self::IdTaken { .. } => Some("id".to_string()),
            Self::NoModel { .. } => Some("model".to_string()),
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
        cause: Box<asterism_transport::TransportError>,
    },
    /// Who listens at the supervisor's address is no supervisor.
    #[error(
        "host {host} expected a supervisor at {address} and found {got}; see who listens there, and who has that certificate"
    )]
    Impostor {
        /// This host.
        host: String,
        /// Where it looked.
        address: String,
        /// Who listens there.
        got: String,
    },
    /// The supervisor refused this host.
    #[error("the supervisor refused host {host}: {reason}")]
    Refused {
        /// This host.
        host: String,
        /// Why.
        reason: String,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] StoreError),
    /// The device computes no more for this process.
    #[error(
        "the device of host {host} failed: {cause}; it is opened anew when the host starts again. See what the driver logged (dmesg)"
    )]
    Device {
        /// This host.
        host: String,
        /// What it says.
        cause: KernelError,
    },
    /// The link to the supervisor ended.
    #[error("host {host} lost its supervisor: {cause}")]
    Lost {
        /// This host.
        host: String,
        /// Why.
        cause: String,
    },
    /// The supervisor has another model than this host has loaded.
    #[error("the supervisor refused the model of {reason}")]
    OtherModel {
        /// This host, and how they differ.
        reason: String,
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
            Self::Impostor { .. } => "impostor",
            Self::Refused { .. } => "refused",
            Self::OtherModel { .. } => "other_model",
            Self::Journal(error) => error.code(),
            Self::Lost { .. } => "supervisor_lost",
            Self::Model { cause, .. } => cause.code(),
            Self::Device { cause, .. } => cause.code(),
        }
    }
}
