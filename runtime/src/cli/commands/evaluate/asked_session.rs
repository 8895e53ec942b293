//! A session that is made for one question, and dropped after it.

use asterism_actors::api::{JobRequest, SessionRequest};
use serde_json::json;

use crate::{client::Client, error::CliError};

/// The session; dropped on the cluster when this is.
pub struct AskedSession<'a> {
    client: &'a Client,
    name: String,
}

impl<'a> AskedSession<'a> {
    /// Has the context of a job encoded as a session's; the job that is left asks it. It need not wait.
    pub fn create(client: &'a Client, job: JobRequest, place: usize) -> Result<(JobRequest, Self), CliError> {
        let name = format!("eval-{}-{place}", std::process::id());
        let request = json!({"name": name, "model": job.model, "context": job.context, "method": job.method, "allow_idle_hosts": true,
                             "chat_template": job.chat_template});
        let request: SessionRequest = serde_json::from_value(request).expect("what a session is asked for with");
        client.create_session(&request)?;
        let session = Self { client, name: name.clone() };
        Ok((JobRequest { context: None, method: None, session: Some(name), ..job }, session))
    }

    /// Seconds that encoding the session took; none where hosts held some of it already, or the session is gone.
    pub fn encode_s(self) -> Option<f64> {
        let session = self.client.session(&self.name).ok()?;
        (session.cached_tokens == 0).then_some(session.encode_s)
    }
}

impl Drop for AskedSession<'_> {
    /// One that ended meanwhile needs no dropping, and a supervisor that is gone has none.
    fn drop(&mut self) {
        if let Err(error) = self.client.drop_session(&self.name) {
            tracing::debug!(session = self.name, %error, "not dropped");
        }
    }
}
