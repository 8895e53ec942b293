//! What one job says, once, for all who listen: each reads at its own pace from the same list, so that a slow reader holds up
//! nobody and nothing is queued for it. Decides nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::api::{HostProgress, JobEvent, JobPhase, JobStatus};

/// What a job says; dropped, its listeners hear that nothing more comes.
#[derive(Debug)]
pub struct Feed {
    said: Arc<Mutex<Said>>,
    news: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Said {
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
    said: Arc<Mutex<Said>>,
    news: watch::Receiver<()>,
    /// The phase that the job is in, said first.
    phase: Option<JobPhase>,
    /// Events that were heard or passed over.
    next: usize,
    /// Events that were said before it listened: of these it hears tokens alone.
    earlier: usize,
    progress: u64,
    ended: bool,
    /// One of so many places, until it is dropped.
    _place: OwnedSemaphorePermit,
}

impl Default for Feed {
    fn default() -> Self {
        Self { said: Arc::default(), news: watch::Sender::new(()) }
    }
}

impl Feed {
    /// Says something to whoever listens, now or later.
    pub fn say(&self, event: JobEvent) {
        let mut said = lock(&self.said);
        match event {
            JobEvent::Progress { hosts } => said.progress = (said.progress.0 + 1, hosts),
            JobEvent::Finished { status } => said.ended = Some(status),
            event => {
                // How far phase 1 was is no news any more.
                said.progress.1.clear();
                said.events.push(event);
            }
        }
        drop(said);
        self.news.send_replace(());
    }

    /// Listens to a job in this phase, from one of the places that there are for it.
    pub fn listen(&self, phase: Option<JobPhase>, place: OwnedSemaphorePermit) -> Listener {
        let news = self.news.subscribe();
        let (earlier, progress) = {
            let said = lock(&self.said);
            (said.events.len(), said.progress.0)
        };
        Listener { said: self.said.clone(), news, phase, next: 0, earlier, progress, ended: false, _place: place }
    }

    /// Whether anybody listens.
    pub fn is_heard(&self) -> bool {
        self.news.receiver_count() > 0
    }
}

impl Listener {
    /// The next event; none after `Finished`, or when the supervisor has ended.
    pub async fn next(&mut self) -> Option<JobEvent> {
        loop {
            self.news.borrow_and_update();
            if let Some(event) = self.take() {
                return Some(event);
            }
            if self.ended || self.news.changed().await.is_err() {
                // What was said last may have been said just before the end.
                return self.take();
            }
        }
    }

    fn take(&mut self) -> Option<JobEvent> {
        if let Some(phase) = self.phase.take() {
            return Some(JobEvent::Phase { phase });
        }
        let said = lock(&self.said);
        while let Some(event) = said.events.get(self.next) {
            self.next += 1;
            if self.next > self.earlier || matches!(event, JobEvent::Token { .. }) {
                return Some(event.clone());
            }
        }
        if let Some(status) = said.ended.clone().filter(|_| !self.ended) {
            self.ended = true;
            return Some(JobEvent::Finished { status });
        }
        if self.progress < said.progress.0 && !said.progress.1.is_empty() && !self.ended {
            self.progress = said.progress.0;
            return Some(JobEvent::Progress { hosts: said.progress.1.clone() });
        }
        None
    }
}

fn lock(said: &Mutex<Said>) -> MutexGuard<'_, Said> {
    // Nothing in this file panics while it holds the lock.
    said.lock().unwrap_or_else(PoisonError::into_inner)
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
        feed.say(JobEvent::Phase { phase: JobPhase::Recovering });
        (1..1000).for_each(|done| feed.say(progress(done)));
        let mut fast = feed.listen(None, place());
        feed.say(progress(1000));
        assert_eq!(fast.next().await.as_ref().map(shown).as_deref(), Some("1000 done"));
        feed.say(JobEvent::Phase { phase: JobPhase::Decoding });
        feed.say(token(7));
        let late = feed.listen(Some(JobPhase::Decoding), place());
        feed.say(token(8));
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
            feed.say(token(id));
            assert_eq!(heard.recv().await, Some(id.to_string()));
        }
        drop(feed);
        task.await.expect("it ends with what it listens to");
    }
}
