//! What clients see of the state: jobs, hosts, the cluster. Changes nothing but who is told.

use std::{collections::BTreeMap, time::Duration};

use super::SupervisorState;
use crate::{
    api::{
        ClusterStatus, GpuStatus, HostHealth, HostStatus, JobState, JobStatus, ModelStatus, Role, SessionState, Waiting,
    },
    error::JobError,
    messages::LinkPeer,
    supervisor::{
        config::{ContextHosts, ReadyWhen, ServedModel},
        tables::{contexts::SessionContexts, hosts::HostRecord},
    },
};

/// A host that can be told to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyHost {
    /// How it is reached.
    pub peer: LinkPeer,
    pub role: Role,
    pub node: String,
    pub connection: u64,
}

/// Which jobs to list, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In these states; empty: in any.
    pub states: Vec<JobState>,
    /// Those that the list has behind the job of this id: submitted before it, or with `oldest_first` after it.
    pub after: Option<String>,
    /// The other way round.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: usize,
}

impl SupervisorState {
    /// Whether a connection is a node agent's.
    pub fn is_node(&self, connection: u64) -> bool {
        self.hosts.is_node(connection)
    }

    /// What jobs of each model are planned for, by its label: the context hosts that were not removed.
    pub fn context_hosts(&self) -> BTreeMap<String, ContextHosts> {
        let of = |model| self.config.context_hosts_of(model, self.hosts.wanted().map(|record| &record.spec));
        self.config.models.iter().map(|model| (model.label.clone(), of(model))).collect()
    }

    /// A job's number by its id.
    pub fn job_number(&self, id: &str) -> Option<u64> {
        self.jobs.number(id)
    }

    /// A job's status with its timings up to `now`.
    pub fn job_status(&self, now: Duration, number: u64) -> Option<JobStatus> {
        let status = self.jobs.get(number)?.status_at(now);
        Some(JobStatus { waiting: self.waits_for(now, number), ..status })
    }

    /// What a job waits for, if nobody works on it right now.
    pub fn waits_for(&self, now: Duration, number: u64) -> Option<Waiting> {
        self.waits(now).job(number)
    }

    /// Hosts that are ready, and how they are reached.
    pub fn ready_hosts(&self) -> Vec<ReadyHost> {
        let ready = self.hosts.iter().filter(|host| host.health == HostHealth::Ready);
        let reached = ready.filter_map(|host| {
            let endpoints = host.hello.as_ref()?.endpoints.clone();
            let peer = LinkPeer { host: host.spec.name.clone(), endpoints };
            Some(ReadyHost { peer, role: host.spec.role, node: host.spec.node.clone(), connection: host.connection? })
        });
        reached.collect()
    }

    /// The numbers of jobs, newest first unless the filter says otherwise.
    ///
    /// # Errors
    /// [`JobError::NotFound`] when the one that they come after is not known.
    pub fn listed_jobs(&self, filter: &JobFilter) -> Result<Vec<u64>, JobError> {
        let number = |id: &String| self.job_number(id).ok_or_else(|| JobError::NotFound { id: id.clone() });
        let after = filter.after.as_ref().map(number).transpose()?;
        Ok(self.jobs.listed(after, &filter.states, (filter.oldest_first, filter.limit)))
    }

    /// The jobs themselves.
    ///
    /// # Errors
    /// As for [`listed_jobs`](Self::listed_jobs).
    #[cfg(test)]
    pub fn job_statuses(&self, now: Duration, filter: &JobFilter) -> Result<Vec<JobStatus>, JobError> {
        Ok(self.listed_jobs(filter)?.into_iter().filter_map(|number| self.job_status(now, number)).collect())
    }

    /// From now on somebody listens to a job's events, or nobody does any more.
    pub fn set_watched(&mut self, number: u64, watched: bool) {
        if let Some(mut job) = self.jobs.open_mut(number) {
            job.watched = watched;
        }
    }

    /// How many sessions are in each state.
    pub fn session_counts(&self) -> [(SessionState, usize); 4] {
        let SessionContexts { encoding, ready, recovering } = self.contexts.sessions();
        [
            (SessionState::Encoding, encoding),
            (SessionState::Ready, ready),
            (SessionState::Recovering, recovering),
            (SessionState::Failed, self.sessions.failed()),
        ]
    }

    /// Bytes of keys and values that sessions pin.
    pub fn pinned_bytes(&self) -> u64 {
        self.contexts.pinned_bytes()
    }

    /// Whether every index is what counting anew gives; for tests, as it looks at everything.
    pub fn indexes_agree(&self) -> bool {
        self.jobs.agree() && self.contexts.agree()
    }

    /// The cluster for `status`.
    pub fn cluster_status(&self, now: Duration, version: &str) -> ClusterStatus {
        ClusterStatus {
            self_test: None,
            stored: None,
            name: self.config.cluster.clone(),
            model: self.config.first_model().name.clone(),
            model_digest: self.digest_of(&self.config.first_model().label),
            models: self.models(),
            method: self.config.method.name().to_string(),
            version: version.to_string(),
            ready: self.hosts.wanted().all(|host| host.health == HostHealth::Ready),
            answers: self.any_answers(),
            removed: self.hosts.iter().filter(|host| host.is_removed()).map(|host| host.spec.name.clone()).collect(),
            hosts: (0..self.config.hosts.len())
                .filter(|host| !self.hosts.at(*host).is_removed())
                .map(|host| self.host_status(now, host))
                .collect(),
            gpus: self.hosts.gpus(now).map(|(node, gpu)| GpuStatus { node: node.into(), gpu: gpu.clone() }).collect(),
            jobs_pending: self.jobs.count(JobState::Pending),
            jobs_running: self.jobs.count(JobState::Running),
        }
    }

    fn digest_of(&self, label: &str) -> Option<String> {
        Some(self.models.of(label)?.id()?.to_string())
    }

    /// Every model where there are several.
    fn models(&self) -> Vec<ModelStatus> {
        if self.config.models.len() == 1 {
            return Vec::new();
        }
        let status = |ServedModel { label, name, .. }: &ServedModel| ModelStatus {
            name: name.clone(),
            digest: self.digest_of(label),
            answers: self.answers(label),
        };
        self.config.models.iter().map(status).collect()
    }

    /// Whether a job for some model would be; for each, where every host has to be ready.
    fn any_answers(&self) -> bool {
        let mut each = self.config.models.iter().map(|model| self.answers(&model.label));
        match self.config.ready_when {
            ReadyWhen::All => each.all(|answers| answers),
            _ => each.any(|answers| answers),
        }
    }

    /// Whether a job for a model would be planned and answered now.
    fn answers(&self, model: &str) -> bool {
        let recovery = self.config.recovery;
        let hosts = || self.hosts.wanted().filter(|host| host.spec.model() == model);
        let does = |role: Role| move |host: &HostRecord| host.takes_work() && host.rank(role, recovery).is_some();
        let able = hosts().any(does(Role::Context)) && hosts().any(does(Role::Query));
        able && match self.config.ready_when {
            ReadyWhen::Answers => true,
            ReadyWhen::All => hosts().all(|host| host.health == HostHealth::Ready),
            ReadyWhen::Contexts(least) => {
                let own = |host: &&HostRecord| host.rank(Role::Context, recovery) == Some(0) && host.takes_work();
                hosts().filter(own).count() >= least
            }
        }
    }

    /// One host for `status`.
    pub fn host_status(&self, now: Duration, host: usize) -> HostStatus {
        let status = self.hosts.at(host).status(now, self.contexts.load(host).shards);
        let (absent, protocol) = (self.hosts.absence(now, host), self.hosts.protocol_of(host));
        HostStatus { absent, protocol, ..status }
    }

    /// One host by name.
    ///
    /// # Errors
    /// [`JobError::NoHost`] when there is none.
    pub fn host_named(&self, now: Duration, name: &str) -> Result<HostStatus, JobError> {
        let host = self.hosts.by_name(name).ok_or_else(|| JobError::NoHost { name: name.to_string() })?;
        Ok(self.host_status(now, host))
    }
}
