//! What is kept of files and batches, and what they are called. Writes nothing.

use ring::digest;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::api::openai::store::metadata::Metadata;

/// What ids of files and batches begin with.
pub const FILE_PREFIX: &str = "file-";

pub const BATCH_PREFIX: &str = "batch_";

/// What ids of responses begin with.
pub const RESPONSE_PREFIX: &str = "resp_";

/// A file, without its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredFile {
    pub id: String,
    /// The name of the key that it belongs to.
    pub owner: Option<String>,
    pub filename: String,
    pub purpose: String,
    pub bytes: usize,
    pub created_at: u64,
}

/// How a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    #[serde(rename = "in_progress")]
    Open,
    Cancelling,
    Completed,
    Cancelled,
}

/// How many lines of a batch were answered, and how many refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub good: usize,
    pub bad: usize,
}

/// A batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub id: String,
    pub owner: Option<String>,
    pub endpoint: String,
    pub input_file_id: String,
    pub metadata: Option<Metadata>,
    pub status: BatchState,
    pub total: usize,
    /// Of one that has ended.
    pub counts: Counts,
    pub created_at: u64,
    pub ended_at: Option<u64>,
    pub output_file_id: Option<String>,
    pub error_file_id: Option<String>,
}

impl Batch {
    /// Whether it is not at its end.
    pub fn is_open(&self) -> bool {
        matches!(self.status, BatchState::Open | BatchState::Cancelling)
    }
}

/// An id from 128 random bits.
pub fn drawn(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::new_v4().simple())
}

/// The id that follows from a batch and what of it is meant.
pub fn derived(prefix: &str, batch: &str, kind: &str) -> String {
    let digest = digest::digest(&digest::SHA256, format!("{batch} {kind}").as_bytes());
    digest.as_ref()[..16].iter().fold(prefix.to_owned(), |id, byte| format!("{id}{byte:02x}"))
}

/// The digits of an id that was drawn, and nothing else: they become names of files.
pub fn digits<'a>(prefix: &str, id: &'a str) -> Option<&'a str> {
    let digits = id.strip_prefix(prefix)?;
    let plain = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (digits.len() == 32 && digits.bytes().all(plain)).then_some(digits)
}

/// What names of such files begin with.
pub(crate) const UPLOAD: &str = "upload_";
