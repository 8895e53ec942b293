//! Whose turn it is: begins contexts that wait while there is room for them. What is missing of those that began is
//! `encode.rs`.

use super::{encode::EncodeScheduler, limits};
use crate::{
    api::JobPhase,
    error::PlacementRefusal,
    supervisor::tables::{context::QueuedFor, contexts::Contexts, jobs::Jobs},
};

/// Contexts whose turn has come and that no query host has yet: they are encoded, or wait for one. Those of jobs that are
/// generated are as few as query hosts take.
pub fn running_contexts(contexts: &Contexts, jobs: &Jobs) -> usize {
    contexts.begun().saturating_sub(jobs.generating_own())
}

impl EncodeScheduler<'_> {
    /// Starts waiting contexts while there is room: the one first that would be done first, had it begun when it came. What
    /// waits for a self-test leaves room for its canary. Beyond the room for all there is some for short contexts, which hosts encode
    /// together, and as much again for keys that have nothing begun, one context each: nobody waits until what another key asked for
    /// has ended.
    pub fn dispatch(&mut self) {
        if self.loss.hosts.is_booting(self.loss.now, self.loss.config.patience) {
            return;
        }
        if self.loss.jobs.held {
            if let Some(number) = self.waiting_canary() {
                self.begin(number);
            }
            return;
        }
        for number in self.loss.contexts.freed_followers() {
            self.loss.contexts.get_mut(number).expect("it was there").queue_for(QueuedFor::Turn);
        }
        while let Some(number) = self.next_in_turn() {
            if !self.begin(number) {
                return;
            }
        }
    }

    fn next_in_turn(&self) -> Option<u64> {
        let (running, most) = (running_contexts(self.loss.contexts, self.loss.jobs), self.loss.config.max_running);
        if running < most {
            return self.loss.contexts.next();
        }
        let short = || self.loss.contexts.next_within(self.loss.config.encode_ahead);
        let of_none = || self.loss.contexts.next_of_none().filter(|_| running < 2 * most);
        (running < limits::SHORT_AT_ONCE).then(short).flatten().or_else(of_none)
    }

    /// The context of the latest canary, unless it has begun.
    fn waiting_canary(&self) -> Option<u64> {
        let context = self.loss.contexts.get(self.loss.jobs.canary?)?;
        (context.queued_for() == Some(QueuedFor::Turn)).then_some(context.number)
    }

    /// Begins a context whose turn it is, unless most of it is being encoded for another one: then that comes first. Whether the next
    /// may have its turn.
    fn begin(&mut self, number: u64) -> bool {
        let context = &self.loss.contexts[number];
        if let Some(leader) = self.loss.contexts.leader_of(context, |shard| self.lately.find(shard).is_some()) {
            self.loss.contexts.get_mut(number).expect("it was there").queue_for(QueuedFor::Context(leader));
            return true;
        }
        let is_only_model = self.loss.config.is_only_model(context.prepared.model());
        match self.loss.selection().find_homes(self.lately, context) {
            Ok(hosts) => {
                let held_lately = self.lately.were_all(&context.prepared.identities, &hosts);
                self.loss.contexts.get_mut(number).expect("it was there").held_lately = held_lately;
                let blocks: Vec<usize> = (0..hosts.len()).collect();
                self.settle(number, &blocks, &hosts);
                self.enter_phase(number, JobPhase::Encoding);
            }
            Err(PlacementRefusal::NotEnoughMemory { .. } | PlacementRefusal::UnequalNumerics { .. }) => {
                self.unassigned_since(number);
                if is_only_model {
                    return false;
                }
                // Those of another model need not wait for its hosts.
                self.loss.contexts.get_mut(number).expect("it was there").queue_for(QueuedFor::Hosts);
            }
            Err(refusal) => {
                let nobody = matches!(refusal, PlacementRefusal::NoHost { .. }) && is_only_model;
                if self.give_up_placing(number, &refusal) {
                    return true;
                }
                if nobody {
                    return false;
                }
                // Others go before what only hosts can take that are not there.
                self.loss.contexts.get_mut(number).expect("it was there").queue_for(QueuedFor::Hosts);
            }
        }
        true
    }

    /// Puts contexts back into the queue whose hosts have come, and gives up those that have waited for them too long. Asks
    /// for one of each set of labels.
    pub fn look_again(&mut self) {
        for labels in self.loss.contexts.aside() {
            while let Some(number) = self.loss.contexts.first_aside(&labels) {
                let context = &self.loss.contexts[number];
                let blocks: Vec<usize> = (0..context.plan().shards.len()).collect();
                match self.loss.selection().find_hosts(context, &blocks) {
                    Err(refusal @ (PlacementRefusal::NoSuchLabels { .. } | PlacementRefusal::NoHost { .. })) => {
                        if !self.give_up_placing(number, &refusal) {
                            break;
                        }
                    }
                    _ => self.loss.contexts.get_mut(number).expect("it was there").queue_for(QueuedFor::Turn),
                }
            }
        }
    }

    /// Fails a context that has waited too long for hosts. Whether it has.
    fn give_up_placing(&mut self, number: u64, refusal: &PlacementRefusal) -> bool {
        let since = self.unassigned_since(number);
        let over = self.loss.now.saturating_sub(since) > self.loss.config.patience;
        if over {
            let message = format!("{refusal}. `asterism status` shows the hosts");
            self.loss.teardown().fail_context(number, "placement_impossible", message);
        }
        over
    }
}
