//! What jobs and sessions wait for: looks at how things are, as `assign.rs` does, and says why it orders nothing. Changes
//! nothing.

use std::time::Duration;

use crate::{
    api::{AwaitedHost, HostHealth, Role, SessionState, Waiting},
    supervisor::{
        placement::PlacementRefusal,
        state::SupervisorState,
        tables::{
            context::{Context, Owner},
            hosts::HostRecord,
        },
    },
};

impl SupervisorState {
    /// What a job waits for, if nobody works on it right now.
    pub fn waits_for(&self, now: Duration, number: u64) -> Option<Waiting> {
        let job = self.jobs.get(number).filter(|job| !job.has_ended())?;
        let context = self.contexts.get(job.context)?;
        if let Some(host) = job.query_host {
            return self.awaited(|other, at| at == host && !other.is_up());
        }
        if self.is_held(number) {
            return Some(Waiting::SelfTest);
        }
        match (context.is_ready(), &context.owner) {
            (true, _) => self.waits_for_query_host(now, number),
            (false, Owner::Job(_)) => self.context_waits_for(now, context),
            (false, Owner::Session(name)) => self.context_waits_for(now, context).or_else(|| {
                let state = if context.was_ready() { SessionState::Recovering } else { SessionState::Encoding };
                Some(Waiting::Session { name: name.clone(), state })
            }),
        }
    }

    /// What a context waits for, if nobody encodes it right now.
    pub(in crate::supervisor) fn context_waits_for(&self, now: Duration, context: &Context) -> Option<Waiting> {
        if context.is_placed() {
            let homeless = context.homeless();
            if !homeless.is_empty() && context.homeless_since.is_some() {
                return Some(self.refusal(self.find_hosts(context, &homeless).err()?));
            }
            let missing =
                |at: usize| context.places.iter().any(|place| place.host == Some(at) && place.encoded.is_none());
            return self.awaited(|host, at| !host.is_up() && missing(at));
        }
        if self.is_booting(now) {
            return self.awaited(|host, _| matches!(host.health, HostHealth::Starting | HostHealth::Loading));
        }
        let blocks: Vec<usize> = (0..context.plan().shards.len()).collect();
        if context.aside {
            return self.find_hosts(context, &blocks).err().map(|refusal| self.refusal(refusal));
        }
        let (before, running) = (self.contexts.before(context.number, self.token_seconds), self.running_contexts());
        if before > 0 || running >= self.config.max_running {
            return Some(Waiting::Turn { before, running });
        }
        self.find_hosts(context, &blocks).err().map(|refusal| self.refusal(refusal))
    }

    fn waits_for_query_host(&self, now: Duration, number: u64) -> Option<Waiting> {
        let able = |host: &HostRecord| host.rank(Role::Query, self.config.recovery).is_some();
        if self.is_booting(now) || !self.hosts.iter().any(|host| able(host) && host.takes_work()) {
            return self.awaited(|host, _| able(host) && !host.takes_work());
        }
        if let Some(cause) = self.lacks_equal(number) {
            return Some(Waiting::Placement { cause });
        }
        let running = (0..self.config.hosts.len()).map(|host| self.jobs.count_on(host)).sum();
        Some(Waiting::Turn { before: self.jobs.unhoused_before(number), running })
    }

    fn refusal(&self, refusal: PlacementRefusal) -> Waiting {
        match refusal {
            PlacementRefusal::NotEnoughMemory { needed, free, .. } => Waiting::Memory {
                hosts: free.iter().map(|(host, _)| self.hosts.name(*host).to_string()).collect(),
                needed_bytes: needed,
                free_bytes: free.iter().fold(0, |sum, (_, free)| sum.saturating_add(*free)),
            },
            other => {
                let able = |host: &HostRecord| host.rank(Role::Context, self.config.recovery).is_some();
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
