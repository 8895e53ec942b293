//! Threads for what clients of OpenAI's API have worked on while nobody waits: batches and their files. Few, and after those that keep
//! the cluster together where a core is wanted. Runs nothing by itself.

use asterism_actors::machine;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::CliError;

/// Threads that go on with batches, and those that wait for the disk or tokenise.
const WORKERS: usize = 2;
const CLIENT_BLOCKING: usize = 4;

/// Such threads, until this is dropped.
pub struct ClientThreads(Option<Runtime>);

impl ClientThreads {
    /// Starts them.
    pub fn start() -> Result<Self, CliError> {
        let threads = Builder::new_multi_thread()
            .enable_all()
            .worker_threads(WORKERS)
            .max_blocking_threads(CLIENT_BLOCKING)
            .thread_name("clients")
            .on_thread_start(machine::stand_back)
            .build();
        let failed = |error: std::io::Error| CliError::unreachable(format!("no threads can be started: {error}"));
        threads.map(Some).map(Self).map_err(failed)
    }

    /// Where to spawn.
    pub fn handle(&self) -> Handle {
        self.0.as_ref().expect("they run until this is dropped").handle().clone()
    }
}

impl Drop for ClientThreads {
    fn drop(&mut self) {
        // What is under way is gone on with at the next start.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}
