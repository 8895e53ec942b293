//! Documents that several lines of a batch ask about: each is a session while the batch is worked off. Asks nothing about them.

use crate::api::openai::batching::batch_run::work::Digest;
use std::collections::HashMap;

use asterism_actors::{
    JobError,
    api::{JobRequest, SessionRequest},
};
use ring::digest;
use tokio::{sync::OnceCell, time::sleep};

use super::{
    BatchLine,
    work::{BatchWork, LATER, may_pass},
};
use crate::api::openai::store::{self, BATCH_PREFIX};

/// How long a document of a batch is kept at most.
const DOCUMENT_KEPT_S: f64 = 7.0 * 86_400.0;

impl BatchWork {
    /// Forgets the documents that were kept.
    pub(super) async fn drop_sessions(&self) {
        let own = self.session("");
        for kept in self.state.supervisor.sessions().await.into_iter().flatten() {
            if kept.name.starts_with(&own) {
                let _ = self.state.supervisor.drop_session(&kept.name).await;
            }
        }
    }

    fn session(&self, document: &str) -> String {
        format!("batch-{}-{document}", store::digits(BATCH_PREFIX, &self.batch.id).unwrap_or_default())
    }

    /// Names the documents that more than one line asks about.
    pub(super) async fn find_documents(&mut self) {
        let mut seen: HashMap<Digest, usize> = HashMap::new();
        for at in 0..self.lines.places.len() {
            let Ok((BatchLine { body, .. }, _share)) = self.read(self.lines.places[at]).await else { continue };
            let Ok(asked) = self.asked(body).await else { continue };
            if let Some(digest) = document(&asked.job) {
                *seen.entry(digest).or_default() += 1;
            }
        }
        for (digest, _) in seen.into_iter().filter(|(_, lines)| *lines > 1) {
            let name: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            self.documents.insert(digest, (self.session(&name), OnceCell::new()));
        }
    }

    /// Keeps the document of a job as a session; whether there is one then.
    pub(super) async fn keep(&self, name: &str, job: &JobRequest) -> bool {
        loop {
            let Some(context) = job.context.clone() else { return false };
            let request = SessionRequest {
                name: name.to_owned(),
                context,
                model: job.model.clone(),
                method: job.method.clone(),
                allow_idle_hosts: job.allow_idle_hosts,
                chat_template: job.chat_template,
                query_separator: job.query_separator.clone(),
                template_date: job.template_date,
                ttl_s: Some(DOCUMENT_KEPT_S),
                placement: job.placement.clone(),
            };
            match self.state.supervisor.create_session(request).await {
                Err(JobError::SessionExists { .. }) if self.is_of_another_model(name).await => {
                    let _ = self.state.supervisor.drop_session(name).await;
                }
                Ok(_) | Err(JobError::SessionExists { .. }) => return true,
                Err(error) if may_pass(&error) && !*self.cancelled.borrow() => sleep(LATER).await,
                // Each line brings its document then.
                Err(_) => return false,
            }
        }
    }

    /// Whether the tokens of a session are an earlier model's: its document is here, and is encoded anew.
    async fn is_of_another_model(&self, session: &str) -> bool {
        let status = self.state.supervisor.session(session).await;
        status.is_ok_and(|status| status.error.is_some_and(|error| error.code == "model_changed"))
    }
}

/// The digest of a job's document, where it could be a session's: a session has no salt, and a line that has one brings its document.
pub(super) fn document(job: &JobRequest) -> Option<Digest> {
    if job.cache_salt.is_some() {
        return None;
    }
    let mut context = digest::Context::new(&digest::SHA256);
    let text = job.context.as_ref().filter(|context| context.text().is_some())?;
    context.update(&serde_json::to_vec(&(text, &job.method, &job.query_separator, job.chat_template)).ok()?);
    // One model's keys and values are none of another's.
    context.update(job.model.as_deref().unwrap_or_default().as_bytes());
    context.finish().as_ref().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_ask_about_one_document_where_one_session_can_answer_them() {
        let job = JobRequest::new(Some("A text.".into()), "Who?".into());
        let other = JobRequest { query: "Why?".into(), ..job.clone() };
        assert!(document(&job).is_some() && document(&job) == document(&other));
        assert_ne!(document(&job), document(&JobRequest { model: Some("b".into()), ..job.clone() }));
        assert_eq!(document(&JobRequest { cache_salt: Some("a".into()), ..job }), None, "no session has a salt");
    }
}
