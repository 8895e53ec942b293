//! What is drawn once for the life of a journal, and the numbers that jobs and contexts get. Draws nothing itself.

use crate::ticket::Secret;

/// What is drawn once for the life of a journal.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The cluster's number in hellos: any but 0.
    pub cluster: u64,
    /// What tickets are made from.
    pub secret: Secret,
}

/// What tells this journal's cluster from others, and the last number given away.
#[derive(Clone, Debug)]
pub struct Numbers {
    /// Drawn once.
    pub origin: Origin,
    /// Of a job or a context.
    pub last: u64,
}

impl Numbers {
    /// None is given away yet.
    pub fn new(origin: Origin) -> Self {
        Self { origin, last: 0 }
    }

    /// One that nothing has had.
    pub fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Something has this number.
    pub fn note(&mut self, number: u64) {
        self.last = self.last.max(number);
    }
}
