//! Whose turn it is: begins contexts that wait while there is room for them. What is missing of those that began is `assign.rs`.

use std::time::Duration;

use crate::{
    api::{HostHealth, JobPhase},
    supervisor::{
        placement::PlacementRefusal,
        state::{Command, SupervisorState},
    },
};

impl SupervisorState {
    /// Contexts whose turn has come and that no query host has yet: they are encoded, or wait for one. Those of jobs that are
    /// generated are as few as query hosts take.
    pub(in crate::supervisor) fn running_contexts(&self) -> usize {
        self.contexts.begun().saturating_sub(self.jobs.generating_own())
    }

    /// Starts waiting contexts while there is room: the one first that would be done first, had it begun when it came. What
    /// waits for a self-test leaves room for its canary.
    pub(in crate::supervisor) fn dispatch(&mut self, now: Duration, commands: &mut Vec<Command>) {
        if self.is_booting(now) {
            return;
        }
        if self.held {
            if let Some(number) = self.waiting_canary() {
                self.begin(now, number, commands);
            }
            return;
        }
        while self.running_contexts() < self.config.max_running {
            let Some(number) = self.contexts.next(self.token_seconds) else { return };
            if !self.begin(now, number, commands) {
                return;
            }
        }
    }

    /// The context of the latest canary, unless it has begun.
    fn waiting_canary(&self) -> Option<u64> {
        let context = self.contexts.get(self.canary?)?;
        (!context.is_placed() && !context.aside).then_some(context.number)
    }

    /// Begins a context whose turn it is. Whether the next may have its turn.
    fn begin(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) -> bool {
        let context = &self.contexts[number];
        match self.find_homes(context) {
            Ok(hosts) => {
                let blocks: Vec<usize> = (0..hosts.len()).collect();
                self.contexts.get_mut(number).expect("it was there").clock.0 = Some(now);
                self.settle(number, &blocks, &hosts, commands);
                self.enter_phase(now, number, JobPhase::Encoding, commands);
            }
            Err(PlacementRefusal::NotEnoughMemory { .. } | PlacementRefusal::UnequalNumerics { .. }) => {
                self.homeless_since(now, number);
                return false;
            }
            Err(refusal) => {
                let nobody = matches!(refusal, PlacementRefusal::NoHost { .. });
                if self.give_up_placing(now, number, &refusal, commands) {
                    return true;
                }
                if nobody {
                    return false;
                }
                // Others go before what only hosts can take that are not there.
                self.contexts.get_mut(number).expect("it was there").aside = true;
            }
        }
        true
    }

    /// Puts contexts back into the queue whose hosts have come, and gives up those that have waited for them too long. Asks
    /// for one of each set of labels.
    pub(in crate::supervisor) fn look_again(&mut self, now: Duration, commands: &mut Vec<Command>) {
        for labels in self.contexts.aside() {
            while let Some(number) = self.contexts.first_aside(&labels) {
                let context = &self.contexts[number];
                let blocks: Vec<usize> = (0..context.plan().shards.len()).collect();
                match self.find_hosts(context, &blocks) {
                    Err(refusal @ PlacementRefusal::NoSuchLabels { .. }) => {
                        if !self.give_up_placing(now, number, &refusal, commands) {
                            break;
                        }
                    }
                    _ => self.contexts.get_mut(number).expect("it was there").aside = false,
                }
            }
        }
    }

    /// Fails a context that has waited too long for hosts. Whether it has.
    fn give_up_placing(
        &mut self,
        now: Duration,
        number: u64,
        refusal: &PlacementRefusal,
        commands: &mut Vec<Command>,
    ) -> bool {
        let since = self.homeless_since(now, number);
        let over = now.saturating_sub(since) > self.config.patience;
        if over {
            let message = format!("{refusal}. `asterism status` shows the hosts");
            self.fail_context(now, number, ("placement_impossible", message), commands);
        }
        over
    }

    /// Whether hosts that have never been there may still come, so that a context is not dealt to a part of them.
    pub(in crate::supervisor) fn is_booting(&self, now: Duration) -> bool {
        let coming = self.hosts.iter().any(|host| match host.health {
            HostHealth::Starting => true,
            HostHealth::Loading => host.kept.restarts == 0,
            _ => false,
        });
        coming && now.saturating_sub(self.began) < self.config.patience
    }
}
