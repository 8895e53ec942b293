//! Whether the cluster takes new work: not before a self-test that has to pass, and not after one that found it wrong. What is
//! accepted already goes on. Decides nothing.

use std::sync::{Arc, PoisonError, RwLock};

use crate::error::JobError;

/// Why no new work is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionClosed {
    /// A self-test has to pass first.
    Untested,
    /// The last one found this.
    Wrong(String),
}

/// Open where nothing closed it; copies are the same gate.
#[derive(Clone, Debug, Default)]
pub struct AdmissionGate(Arc<RwLock<Option<AdmissionClosed>>>);

impl AdmissionGate {
    /// Takes work from now on, or none.
    pub fn set(&self, closed: Option<AdmissionClosed>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = closed;
    }

    /// Why it is closed, if it is.
    pub fn closed(&self) -> Option<AdmissionClosed> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses work while it is closed.
    pub(in crate::supervisor) fn check(&self) -> Result<(), JobError> {
        match self.closed() {
            None => Ok(()),
            Some(AdmissionClosed::Wrong(cause)) => Err(JobError::Wrong { cause }),
            Some(AdmissionClosed::Untested) => {
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
        let admission_gate = AdmissionGate::default();
        assert!(admission_gate.check().is_ok());
        admission_gate.set(Some(AdmissionClosed::Untested));
        assert_eq!(admission_gate.clone().check().unwrap_err().code(), "not_ready");
        admission_gate.set(Some(AdmissionClosed::Wrong("context-1 differs".into())));
        let refused = admission_gate.check().unwrap_err();
        assert_eq!(refused.code(), "self_test_failed");
        assert!(refused.to_string().contains("context-1 differs"), "{refused}");
        admission_gate.set(None);
        assert!(admission_gate.check().is_ok());
    }
}
