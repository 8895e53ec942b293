//! What tells the documents of a batch's lines from one another. Keeps none.

use asterism_actors::api::JobRequest;
use ring::digest;

pub(super) type Digest = [u8; digest::SHA256_OUTPUT_LEN];

/// The digest of a job's document, where it could be a session's.
pub(super) fn document(job: &JobRequest) -> Option<Digest> {
    let mut context = digest::Context::new(&digest::SHA256);
    let text = job.context.as_ref().filter(|context| context.text().is_some())?;
    context.update(&serde_json::to_vec(&(text, &job.method, &job.query_separator)).ok()?);
    context.finish().as_ref().try_into().ok()
}
