//! Whether a host may be given work, drained or replaced. Looks, and changes nothing.

use std::time::Duration;

use crate::{
    api::{Role, Scheduling},
    error::JobError,
    supervisor::{
        config::Recovery,
        journal::{
            change::{Decided, Effect},
            record,
        },
        tables::{
            contexts::Contexts,
            hosts::{HostRecord, Hosts, KeptHost},
            jobs::Jobs,
        },
    },
};

/// Decides changes of hosts.
pub struct HostAdmission<'a> {
    pub now: Duration,
    pub hosts: &'a Hosts,
    pub contexts: &'a Contexts,
    pub jobs: &'a Jobs,
}

impl HostAdmission<'_> {
    /// What changes when a host takes new work again, or none, or gives what it has to others, by `deadline` if there is one.
    ///
    /// # Errors
    /// [`JobError::LastHost`] when nobody else could take its work; [`JobError::HostConflict`] when one that is to be removed is
    /// there.
    pub fn schedule_host(
        &self,
        name: &str,
        scheduling: Scheduling,
        deadline: Option<Duration>,
    ) -> Result<Decided, JobError> {
        let host = self.hosts.by_name(name).ok_or_else(|| JobError::NoHost { name: name.to_string() })?;
        let spec = &self.hosts.at(host).spec;
        let role = spec.role;
        let migration_target = |other: &HostRecord| {
            other.spec.name != name
                && other.spec.model() == spec.model()
                && other.takes_work()
                && (other.spec.role == role || other.spec.role == Role::Spare)
                && other.rank(role, Recovery::Redistribute).is_some()
        };
        if scheduling == Scheduling::Draining && role != Role::Spare && self.hosts.that(migration_target).is_empty() {
            return Err(JobError::LastHost { name: name.to_string(), role: format!("{role:?}").to_lowercase() });
        }
        let record = self.hosts.at(host);
        if scheduling == Scheduling::Removed && record.connection.is_some() {
            let message = format!("{name} is there; `asterism host drain {name}`, end its process, and remove it then");
            return Err(JobError::HostConflict { message });
        }
        let change = record::kept(record, &KeptHost { scheduling, ..record.kept.clone() });
        let deadline = deadline.map(|deadline| self.now + deadline);
        Ok(Decided::new(self.now, vec![change], Effect::Schedule(host, scheduling, deadline)))
    }

    /// What changes when a host is to end, by `deadline`, and to be started again.
    ///
    /// # Errors
    /// [`JobError::HostConflict`] when it is being started, or is not there and its node is not either.
    pub fn restart_host(&self, name: &str, deadline: Duration) -> Result<Decided, JobError> {
        let host = self.hosts.by_name(name).ok_or_else(|| JobError::NoHost { name: name.to_string() })?;
        let record = self.hosts.at(host);
        let conflict = |message: String| Err(JobError::HostConflict { message });
        if record.connection.is_some() && !record.is_up() {
            return conflict(format!("{name} is being started; wait until it is ready"));
        }
        if !record.is_up() && self.hosts.node_of(host).is_none() {
            let node = &record.spec.node;
            return conflict(format!(
                "{name} is not there, and neither is node {node}, which would start it; start that"
            ));
        }
        // What the journal takes of it is how the host is: a change without any comes into force nowhere.
        let change = record::kept(record, &record.kept);
        Ok(Decided::new(self.now, vec![change], Effect::Restart(host, self.now + deadline)))
    }

    /// What changes when a spare gets the place of a host that is dead or takes no work, for good.
    ///
    /// # Errors
    /// When one is not there, the spare is no spare or has work, or the host is at work.
    pub fn replace_host(&self, dead: &str, spare: &str) -> Result<Decided, JobError> {
        let find = |name: &str| self.hosts.by_name(name).ok_or_else(|| JobError::NoHost { name: name.to_string() });
        let (old, new) = (find(dead)?, find(spare)?);
        let conflict = |message: String| Err(JobError::HostConflict { message });
        let (leaver, migration_target) = (self.hosts.at(old), self.hosts.at(new));
        if migration_target.spec.role != Role::Spare {
            return conflict(format!("{spare} is a {:?} host, not a spare", migration_target.spec.role).to_lowercase());
        }
        if !migration_target.takes_work() {
            return conflict(format!(
                "{spare} is not ready ({:?}); `asterism host show {spare}`",
                migration_target.health
            ));
        }
        if leaver.spec.role == Role::Spare {
            return conflict(format!("{dead} is a spare itself; nothing is to be replaced"));
        }
        let [own, other] = [leaver, migration_target].map(|record| record.spec.model());
        if own != other {
            return conflict(format!(
                "{spare} has model {other:?}, expected {own:?}, which {dead} has; name a spare of that"
            ));
        }
        if leaver.takes_work() {
            return conflict(format!("{dead} is at work; `asterism host drain {dead}` first"));
        }
        let (shards, jobs) = (self.contexts.load(new).shards, self.jobs.count_on(new));
        if shards + jobs > 0 {
            return Err(JobError::SpareBusy { name: spare.to_string(), shards, jobs });
        }
        let taking = KeptHost { role: Some(leaver.spec.role), ..migration_target.kept.clone() };
        let mut leaving = KeptHost { role: Some(Role::Spare), ..leaver.kept.clone() };
        if leaver.is_up() {
            leaving.scheduling = Scheduling::Draining;
        }
        let changes = vec![record::kept(migration_target, &taking), record::kept(leaver, &leaving)];
        Ok(Decided::new(self.now, changes, Effect::Replace(old, new)))
    }
}
