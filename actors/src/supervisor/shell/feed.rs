//! The events of one job, once, for all who listen: each reads at its own pace from the same list, so that a slow reader holds up
//! nobody and nothing is queued for it. Decides nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::api::{HostProgress, JobEvent, JobPhase, JobStatus};

/// What happens to a job; dropped, its listeners receive the end.
#[derive(Debug)]
pub struct Feed {
    stated: Arc<Mutex<FeedState>>,
    update: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct FeedState {
    /// Phases, tokens and recoveries, in order.
    events: Vec<JobEvent>,
    /// How far phase 1 is, and how often that was said: only the latest is of use.
    progress: (u64, Vec<HostProgress>),
    /// How it ended.
    ended: Option<Box<JobStatus>>,
}

/// One listener's place in what a job says.
#[derive(Debug)]
pub struct Listener {
    stated: Arc<Mutex<FeedState>>,
    update: watch::Receiver<()>,
    /// The phase that the job is in, said first.
    phase: Option<JobPhase>,
    /// Events that were received or passed over.
    next: usize,
    /// Events from before it listened: of these it receives tokens alone.
    earlier: usize,
    progress: u64,
    ended: bool,
    /// One of so many places, until it is dropped.
    _place: OwnedSemaphorePermit,
}

impl Default for Feed {
    fn default() -> Self {
        Self { stated: Arc::default(), update: watch::Sender::new(()) }
    }
}

impl Feed {
    /// Says something to whoever listens, now or later.
    pub fn publish(&self, event: JobEvent) {
        let mut stated = lock(&self.stated);
        match event {
            JobEvent::Progress { hosts } => stated.progress = (stated.progress.0 + 1, hosts),
            JobEvent::Finished { status } => stated.ended = Some(status),
            event => {
                // How far phase 1 was is of no use any more.
                stated.progress.1.clear();
                stated.events.push(event);
            }
        }
        drop(stated);
        self.update.send_replace(());
    }

    /// Listens to a job in this phase, from one of the places that there are for it.
    pub fn listen(&self, phase: Option<JobPhase>, place: OwnedSemaphorePermit) -> Listener {
        let update = self.update.subscribe();
        let (earlier, progress) = {
            let stated = lock(&self.stated);
            (stated.events.len(), stated.progress.0)
        };
        Listener { stated: self.stated.clone(), update, phase, next: 0, earlier, progress, ended: false, _place: place }
    }

    /// Whether anybody listens.
    pub fn has_listeners(&self) -> bool {
        self.update.receiver_count() > 0
    }
}

impl Listener {
    /// The next event; none after `Finished`, or when the supervisor has ended.
    pub async fn next(&mut self) -> Option<JobEvent> {
        loop {
            self.update.borrow_and_update();
            if let Some(event) = self.take() {
                return Some(event);
            }
            if self.ended || self.update.changed().await.is_err() {
                // What was said last may have been said just before the end.
                return self.take();
            }
        }
    }

    fn take(&mut self) -> Option<JobEvent> {
        if let Some(phase) = self.phase.take() {
            return Some(JobEvent::Phase { phase });
        }
        let stated = lock(&self.stated);
        while let Some(event) = stated.events.get(self.next) {
            self.next += 1;
            if self.next > self.earlier || matches!(event, JobEvent::Token { .. }) {
                return Some(event.clone());
            }
        }
        if let Some(status) = stated.ended.clone().filter(|_| !self.ended) {
            self.ended = true;
            return Some(JobEvent::Finished { status });
        }
        if self.progress < stated.progress.0 && !stated.progress.1.is_empty() && !self.ended {
            self.progress = stated.progress.0;
            return Some(JobEvent::Progress { hosts: stated.progress.1.clone() });
        }
        None
    }
}

fn lock(stated: &Mutex<FeedState>) -> MutexGuard<'_, FeedState> {
    // Nothing in this file panics while it holds the lock.
    stated.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> OwnedSemaphorePermit {
        Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().expect("there is one")
    }

    fn token(id: u32) -> JobEvent {
        JobEvent::Token { id, text: String::new(), logprobs: None }
    }

    fn shown(event: &JobEvent) -> String {
        match event {
            JobEvent::Phase { phase } => format!("{phase:?}"),
            JobEvent::Progress { hosts } => format!("{} done", hosts[0].done_tokens),
            JobEvent::Token { id, .. } => id.to_string(),
            JobEvent::Recovery { .. } => "recovery".into(),
            JobEvent::Waiting { .. } => "waiting".into(),
            JobEvent::Finished { .. } => "end".into(),
        }
    }

    fn progress(done_tokens: usize) -> JobEvent {
        JobEvent::Progress { hosts: vec![HostProgress { host: "c0".into(), done_tokens, total_tokens: 9 }] }
    }

    async fn all(mut listener: Listener) -> Vec<String> {
        let mut heard = Vec::new();
        while let Some(event) = listener.next().await {
            heard.push(shown(&event));
        }
        heard
    }

    #[tokio::test]
    async fn who_reads_late_or_slowly_hears_every_token_and_the_latest_progress() {
        let feed = Feed::default();
        let slow = feed.listen(Some(JobPhase::Encoding), place());
        feed.publish(JobEvent::Phase { phase: JobPhase::Recovering });
        (1..1000).for_each(|done| feed.publish(progress(done)));
        let mut fast = feed.listen(None, place());
        feed.publish(progress(1000));
        assert_eq!(fast.next().await.as_ref().map(shown).as_deref(), Some("1000 done"));
        feed.publish(JobEvent::Phase { phase: JobPhase::Decoding });
        feed.publish(token(7));
        let late = feed.listen(Some(JobPhase::Decoding), place());
        feed.publish(token(8));
        drop(feed);
        assert_eq!(all(slow).await, ["Encoding", "Recovering", "Decoding", "7", "8"]);
        assert_eq!(all(late).await, ["Decoding", "7", "8"]);
    }

    #[tokio::test]
    async fn a_listener_that_waits_is_woken_by_each_word() {
        let feed = Feed::default();
        let mut listener = feed.listen(None, place());
        let (hears, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(event) = listener.next().await {
                let _ = hears.send(shown(&event));
            }
        });
        for id in 0..100 {
            feed.publish(token(id));
            assert_eq!(heard.recv().await, Some(id.to_string()));
        }
        drop(feed);
        task.await.expect("it ends with what it listens to");
    }
}
