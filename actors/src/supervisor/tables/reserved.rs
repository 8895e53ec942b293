//! What changes that are decided and not in force take of the queue, so that the next is decided as if they were. Decides none.

use std::collections::BTreeMap;

/// What one change takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Jobs.
    pub jobs: usize,
    /// Bytes of jobs and of contexts.
    pub bytes: u64,
    /// The context of a session that its question is about.
    pub asks: Option<u64>,
}

/// What all of them take.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Jobs.
    pub jobs: usize,
    /// Bytes of jobs and of contexts.
    pub bytes: u64,
    /// How many questions are about a context.
    asks: BTreeMap<u64, usize>,
}

impl Reserved {
    /// A change is decided.
    pub fn add(&mut self, share: Reservation) {
        self.jobs += share.jobs;
        self.bytes += share.bytes;
        if let Some(context) = share.asks {
            *self.asks.entry(context).or_default() += 1;
        }
    }

    /// It comes into force now, or never.
    pub fn remove(&mut self, share: Reservation) {
        self.jobs -= share.jobs;
        self.bytes -= share.bytes;
        if let Some(context) = share.asks
            && let Some(questions) = self.asks.get_mut(&context)
        {
            *questions -= 1;
            if *questions == 0 {
                self.asks.remove(&context);
            }
        }
    }

    /// Whether a question that is not in force yet is about a context.
    pub fn asks(&self, context: u64) -> bool {
        self.asks.contains_key(&context)
    }
}
