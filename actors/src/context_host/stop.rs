//! An order to stop, seen by threads that look and by tasks that wait. Stops nothing itself.

use std::sync::Arc;

use tokio::sync::watch;

/// Set once; clones share it.
#[derive(Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Stop {
    /// Gives the order.
    pub fn set(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was given.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes once it is given.
    pub async fn wait(&self) {
        let given = self.0.subscribe().wait_for(|set| *set).await.map(drop);
        given.expect("the sender outlives this borrow");
    }
}
