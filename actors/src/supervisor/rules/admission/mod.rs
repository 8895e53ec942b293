//! Whether what a client asks may be taken in: decided by looking, on the state as it is. Changes nothing; what is decided
//! comes into force when the journal has it.

pub mod hosts;
pub mod jobs;
pub mod sessions;

use std::time::Duration;

use crate::{
    api::JobState,
    error::JobError,
    store::Change,
    supervisor::{
        config::SupervisorConfig,
        journal::record,
        rules::{host_selection::HostSelection, uses::Uses},
        tables::{
            contexts::Contexts, hosts::Hosts, job::PreparedJob, jobs::Jobs, model::ClusterModels, numbers::Numbers,
            reserved::Reserved, sessions::Sessions,
        },
    },
};

/// Decides changes of jobs and sessions.
#[derive(Clone, Copy)]
pub struct AdmissionControl<'a> {
    pub now: Duration,
    pub config: &'a SupervisorConfig,
    pub hosts: &'a Hosts,
    pub contexts: &'a Contexts,
    pub jobs: &'a Jobs,
    pub sessions: &'a Sessions,
    pub reserved: &'a Reserved,
    pub numbers: &'a Numbers,
    pub models: &'a ClusterModels,
}

impl AdmissionControl<'_> {
    fn selection(&self) -> HostSelection<'_> {
        HostSelection { config: self.config, hosts: self.hosts, contexts: self.contexts, jobs: self.jobs }
    }

    fn uses(&self) -> Uses<'_> {
        Uses { contexts: self.contexts, jobs: self.jobs, sessions: self.sessions, reserved: self.reserved }
    }

    /// What the journal has to say of the cluster once this number is taken.
    fn cluster_record(&self, number: u64) -> Change {
        record::cluster(&self.numbers.origin, self.numbers.last.max(number), self.models)
    }

    /// Whether the queue takes one more.
    fn check_queue(&self, prepared: &PreparedJob) -> Result<(), JobError> {
        let waiting = self.jobs.count(JobState::Pending) + self.reserved.jobs;
        // What waits for a self-test must not keep it out.
        if self.jobs.held && prepared.question.canary {
            return Ok(());
        }
        if waiting >= self.config.max_queue {
            return Err(JobError::Overloaded { waiting });
        }
        self.check_bytes(prepared.bytes())
    }

    /// Whether what is accepted may take so many bytes more.
    fn check_bytes(&self, more: u64) -> Result<(), JobError> {
        let held = self.contexts.bytes() + self.jobs.open_bytes() + self.reserved.bytes;
        let limit = self.config.max_queue_bytes;
        match held.saturating_add(more) > limit {
            true => Err(JobError::Full { held, limit, waiting: self.jobs.count(JobState::Pending) }),
            false => Ok(()),
        }
    }

    /// Refuses more bytes than sessions may hold.
    fn check_pinned(&self, needed: u64) -> Result<(), JobError> {
        let pinned = self.contexts.pinned_bytes();
        match self.config.sessions.max_pinned_bytes {
            Some(most) if pinned.saturating_add(needed) > most => Err(JobError::Capacity {
                needed,
                free: most.saturating_sub(pinned),
                cause: format!("sessions.max_pinned_bytes is {most}, sessions hold {pinned}"),
            }),
            _ => Ok(()),
        }
    }
}
