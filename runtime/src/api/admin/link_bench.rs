//! The measuring of a running cluster's links, one at a time, and what came out last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asterism_actors::{
    api::{LinksReport, LinksState},
    supervisor::Supervisor,
};
use tokio::runtime::Handle;

/// Measures links when it is asked to; clones are the same one.
#[derive(Clone)]
pub struct LinkBench {
    supervisor: Supervisor,
    runtime: Handle,
    report: Arc<Mutex<LinksReport>>,
}

impl LinkBench {
    /// Of a cluster with this supervisor. Runs on the present runtime.
    pub fn new(supervisor: &Supervisor) -> Self {
        Self { supervisor: supervisor.clone(), runtime: Handle::current(), report: Arc::default() }
    }

    /// What came out last, and whether it runs.
    pub fn report(&self) -> LinksReport {
        self.locked().clone()
    }

    /// Begins, unless it runs. Says how it stands.
    pub fn start(&self) -> LinksReport {
        let mut report = self.locked();
        if report.state != LinksState::Running {
            report.state = LinksState::Running;
            let bench = self.clone();
            self.runtime.spawn(async move {
                let links = bench.supervisor.measure_links().await.unwrap_or_default();
                *bench.locked() = LinksReport { state: LinksState::Done, links };
            });
        }
        report.clone()
    }

    fn locked(&self) -> MutexGuard<'_, LinksReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
