//! Whether the cluster takes new work: not before a self-test that has to pass, and not after one that found it wrong. What is
//! accepted already goes on. Decides nothing.

use std::sync::{Arc, PoisonError, RwLock};

use crate::error::JobError;

/// Why no new work is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// A self-test has to pass first.
    Untested,
    /// The last one found this.
    Wrong(String),
}

/// Open where nothing closed it; copies are the same gate.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<RwLock<Option<Closed>>>);

impl Gate {
    /// Takes work from now on, or none.
    pub fn set(&self, closed: Option<Closed>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = closed;
    }

    /// Why it is closed, if it is.
    pub fn closed(&self) -> Option<Closed> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses work while it is closed.
    pub(in crate::supervisor) fn check(&self) -> Result<(), JobError> {
        match self.closed() {
            None => Ok(()),
            Some(Closed::Wrong(cause)) => Err(JobError::Wrong { cause }),
            Some(Closed::Untested) => {
                Err(JobError::NotReady { cause: "its self-test has not passed yet; try again soon".into() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_says_why() {
        let gate = Gate::default();
        assert!(gate.check().is_ok());
        gate.set(Some(Closed::Untested));
        assert_eq!(gate.clone().check().unwrap_err().code(), "not_ready");
        gate.set(Some(Closed::Wrong("context-1 differs".into())));
        let refused = gate.check().unwrap_err();
        assert_eq!(refused.code(), "self_test_failed");
        assert!(refused.to_string().contains("context-1 differs"), "{refused}");
        gate.set(None);
        assert!(gate.check().is_ok());
    }
}
