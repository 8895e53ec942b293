//! What jobs and sessions wait for: looks at how things are, as the scheduler does, and says why it orders nothing. Changes
//! nothing.

use std::time::Duration;

use crate::{
    api::{AwaitedHost, HostHealth, Role, Waiting},
    error::PlacementRefusal,
    supervisor::{
        config::SupervisorConfig,
        rules::host_selection::HostSelection,
        scheduler::dispatch::running_contexts,
        tables::{
            context::{Context, ContextOwner, QueuedFor},
            contexts::Contexts,
            hosts::{HostRecord, Hosts},
            jobs::Jobs,
        },
    },
};

/// Looks at what keeps things from going on.
#[derive(Clone, Copy)]
pub struct Waits<'a> {
    pub now: Duration,
    pub config: &'a SupervisorConfig,
    pub hosts: &'a Hosts,
    pub contexts: &'a Contexts,
    pub jobs: &'a Jobs,
}

impl Waits<'_> {
    fn selection(&self) -> HostSelection<'_> {
        HostSelection { config: self.config, hosts: self.hosts, contexts: self.contexts, jobs: self.jobs }
    }

    /// What a job waits for, if nobody works on it right self.now.
    pub fn job(&self, number: u64) -> Option<Waiting> {
        let job = self.jobs.get(number).filter(|job| !job.has_ended())?;
        let context = self.contexts.get(job.context)?;
        if let Some(host) = job.query_host {
            return self.awaited(|other, at| at == host && !other.is_up());
        }
        if self.jobs.is_held(number) {
            return Some(Waiting::SelfTest);
        }
        match (context.is_ready(), &context.owner) {
            (true, _) => self.waits_for_query_host(number),
            (false, ContextOwner::Job(_)) => self.context(context),
            (false, ContextOwner::Session(name)) => self
                .context(context)
                .or_else(|| Some(Waiting::Session { name: name.clone(), state: context.stage().of_session() })),
        }
    }

    /// What a context waits for, if nobody encodes it right self.now.
    pub fn context(&self, context: &Context) -> Option<Waiting> {
        if context.is_placed() {
            let unassigned = context.unassigned();
            if !unassigned.is_empty() && context.unassigned_since.is_some() {
                return Some(self.refusal(context, self.selection().find_hosts(context, &unassigned).err()?));
            }
            if !unassigned.is_empty() && self.hosts.expects_return(self.now, self.config.recovery) {
                return self.awaited(|host, _| self.hosts.is_coming(host, self.now));
            }
            let missing =
                |at: usize| context.places().iter().any(|place| place.host == Some(at) && place.encoded.is_none());
            return self.awaited(|host, at| !host.is_up() && missing(at));
        }
        if self.hosts.is_booting(self.now, self.config.patience) {
            return self.awaited(|host, _| matches!(host.health, HostHealth::Starting | HostHealth::Loading));
        }
        if let Some(QueuedFor::Context(_)) = context.queued_for() {
            return Some(Waiting::SameContext);
        }
        if context.queued_for() == Some(QueuedFor::Turn) {
            let (before, running) = (self.contexts.before(context.number), running_contexts(self.contexts, self.jobs));
            if before > 0 || running >= self.config.max_running {
                return Some(Waiting::Turn { before, running });
            }
        }
        let blocks: Vec<usize> = (0..context.plan().shards.len()).collect();
        self.selection().find_hosts(context, &blocks).err().map(|refusal| self.refusal(context, refusal))
    }

    fn waits_for_query_host(&self, number: u64) -> Option<Waiting> {
        let model = self.contexts.get(self.jobs.get(number)?.context)?.prepared.model();
        let able =
            |host: &HostRecord| host.spec.model() == model && host.rank(Role::Query, self.config.recovery).is_some();
        if self.hosts.is_booting(self.now, self.config.patience)
            || !self.hosts.iter().any(|host| able(host) && host.takes_work())
        {
            return self.awaited(|host, _| able(host) && !host.takes_work());
        }
        if let Some(cause) = self.selection().lacks_equal(number) {
            return Some(Waiting::Placement { cause });
        }
        let of_model = (0..self.config.hosts.len()).filter(|host| self.hosts.at(*host).spec.model() == model);
        let running = of_model.map(|host| self.jobs.count_on(host)).sum();
        Some(Waiting::Turn { before: self.jobs.unassigned_before(number), running })
    }

    fn refusal(&self, context: &Context, refusal: PlacementRefusal) -> Waiting {
        match refusal {
            PlacementRefusal::NotEnoughMemory { needed, free, .. } => Waiting::Memory {
                hosts: free.iter().map(|(host, _)| self.hosts.name(*host).to_string()).collect(),
                needed_bytes: needed,
                free_bytes: free.iter().fold(0, |sum, (_, free)| sum.saturating_add(*free)),
            },
            other => {
                let model = context.prepared.model();
                let able = |host: &HostRecord| {
                    host.spec.model() == model && host.rank(Role::Context, self.config.recovery).is_some()
                };
                let cause = other.to_string();
                self.awaited(|host, _| able(host) && !host.takes_work()).unwrap_or(Waiting::Placement { cause })
            }
        }
    }

    fn awaited(&self, is_awaited: impl Fn(&HostRecord, usize) -> bool) -> Option<Waiting> {
        let awaited = self.hosts.iter().enumerate().filter(|(at, host)| is_awaited(host, *at));
        let named = |(_, host): (usize, &HostRecord)| AwaitedHost {
            host: host.spec.name.clone(),
            health: host.health,
            scheduling: host.kept.scheduling,
            cause: host.cause.clone(),
        };
        let hosts: Vec<AwaitedHost> = awaited.map(named).collect();
        (!hosts.is_empty()).then_some(Waiting::Hosts { hosts })
    }
}
