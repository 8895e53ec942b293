//! The order in which things are looked at after an event: what is missing, what is ready, what is generated, whose turn it
//! is. It is run after every event that may change who works on what.

use crate::supervisor::{
    rules::recovery::HostLoss,
    scheduler::{encode::EncodeScheduler, generate::GenerateScheduler},
    tables::{context::Context, shard_homes::RecentEncoders},
};

/// Orders what is missing.
pub struct Scheduler<'a> {
    pub loss: HostLoss<'a>,
    pub lately: &'a RecentEncoders,
}

impl Scheduler<'_> {
    fn encode(&mut self) -> EncodeScheduler<'_> {
        EncodeScheduler { loss: self.loss.reborrow(), lately: self.lately }
    }

    /// Orders what is missing where something changed; with `all`, as after a change of hosts, also where something was missing
    /// before.
    pub fn advance(&mut self, all: bool) {
        let (changed, freed) = (self.loss.contexts.take_changed(), self.loss.contexts.take_freed());
        let incomplete = self.loss.contexts.incomplete();
        let missing: Vec<u64> = match all || freed {
            true => incomplete.iter().copied().collect(),
            false => changed.intersection(incomplete).copied().collect(),
        };
        for number in missing {
            self.encode().rehouse(number);
        }
        for number in changed {
            match self.loss.contexts.get(number).map(Context::is_ready) {
                Some(true) => self.encode().on_ready(number),
                Some(false) => self.encode().on_unready(number),
                None => {}
            }
        }
        // What is generated now leaves its place to the next.
        GenerateScheduler { loss: self.loss.reborrow() }.generate();
        if all {
            self.encode().look_again();
        }
        self.encode().dispatch();
    }
}
