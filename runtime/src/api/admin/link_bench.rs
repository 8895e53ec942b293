//! The measuring of a running cluster's links, one at a time, and what came out last.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use asterism_actors::{
    api::{LinkSpeed, LinksReport, LinksState},
    supervisor::Supervisor,
};
use tokio::runtime::Handle;

use super::running::RunningFile;
use crate::data_dir::links;

/// Measures links when it is asked to; clones are the same one.
#[derive(Clone)]
pub struct LinkBench {
    supervisor: Supervisor,
    file: RunningFile,
    runtime: Handle,
    report: Arc<Mutex<LinksReport>>,
}

impl LinkBench {
    /// Of a cluster with this supervisor and file. Runs on the present runtime.
    pub fn new(supervisor: &Supervisor, file: &RunningFile) -> Self {
        let (supervisor, file) = (supervisor.clone(), file.clone());
        Self { supervisor, file, runtime: Handle::current(), report: Arc::default() }
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
                bench.place_by(&links).await;
                *bench.locked() = LinksReport { state: LinksState::Done, links };
            });
        }
        report.clone()
    }

    /// Has the supervisor place by these links from now on, and after its next start.
    async fn place_by(&self, measured: &[LinkSpeed]) {
        if measured.is_empty() {
            return;
        }
        let (cluster, measured) = (self.file.cluster(), measured.to_vec());
        let kept =
            tokio::task::spawn_blocking(move || links::keep(&cluster, &measured).map_err(|error| error.to_string()));
        let kept = kept.await.unwrap_or_else(|panic| Err(panic.to_string()));
        let placed = match kept {
            Ok(_) => self.file.read_again(&self.supervisor).await.map_err(|error| error.to_string()),
            Err(cause) => Err(cause),
        };
        if let Err(cause) = placed {
            tracing::warn!(cause, "shards are not placed by the links that were measured");
        }
    }

    fn locked(&self) -> MutexGuard<'_, LinksReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
