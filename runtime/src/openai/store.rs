//! Files and batches of OpenAI's API in the data_dir: each a small file of its own, found by an id that was drawn. Not in the journal,
//! which is read as a whole when a supervisor starts. What is lost of a batch's answers is asked for again: jobs have the ids of
//! their lines, so that none is done twice.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

use ring::digest;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use uuid::Uuid;

use super::metadata::Metadata;
use crate::{error::CliError, private};

/// What ids of files and batches begin with.
pub const FILE: &str = "file-";
pub const BATCH: &str = "batch_";

/// The folder of files and batches.
#[derive(Debug)]
pub struct Store(PathBuf);

/// A file, without its content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
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
pub enum Course {
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

impl Counts {
    /// One more.
    pub fn add(&mut self, is_good: bool) {
        *(if is_good { &mut self.good } else { &mut self.bad }) += 1;
    }
}

/// A batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    pub id: String,
    pub owner: Option<String>,
    pub endpoint: String,
    pub input_file_id: String,
    pub metadata: Option<Metadata>,
    pub status: Course,
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
        matches!(self.status, Course::Open | Course::Cancelling)
    }
}

/// The answer to a line of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    pub line: usize,
    pub is_good: bool,
    pub answer: Value,
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

impl Store {
    /// In a folder of the data_dir, made where it is not there.
    pub fn open(data_dir: &Path) -> Result<Self, CliError> {
        let folder = data_dir.join("openai");
        private::make(&folder).map_err(|error| private::refused(&folder, "make", &error))?;
        Ok(Self(folder))
    }

    fn path(&self, prefix: &str, id: &str, kind: &str) -> io::Result<PathBuf> {
        let digits = digits(prefix, id).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.0.join(format!("{prefix}{digits}.{kind}")))
    }

    /// Keeps a file. Its content comes first, so that none is found without.
    pub fn put_file(&self, kept: &Kept, content: &[u8]) -> io::Result<()> {
        private::replace(&self.path(FILE, &kept.id, "data")?, content)?;
        private::replace(&self.path(FILE, &kept.id, "json")?, &serde_json::to_vec(kept)?)
    }

    /// A file of that id, if it is there.
    pub fn file(&self, id: &str) -> Option<Kept> {
        read(&self.path(FILE, id, "json").ok()?)
    }

    /// Its content.
    pub fn content(&self, id: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(FILE, id, "data")?)
    }

    /// Forgets a file.
    pub fn remove_file(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.path(FILE, id, "json")?)?;
        fs::remove_file(self.path(FILE, id, "data")?)
    }

    /// All files, oldest first.
    pub fn files(&self) -> Vec<Kept> {
        let mut files: Vec<Kept> = self.all(FILE);
        files.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        files
    }

    /// Keeps a new batch with the content of its input file, which may be forgotten then.
    pub fn begin_batch(&self, batch: &Batch) -> io::Result<()> {
        let (from, to) = (self.path(FILE, &batch.input_file_id, "data")?, self.path(BATCH, &batch.id, "input")?);
        // Content is never written in place: a second name takes no room, where the file system knows such.
        fs::hard_link(&from, &to).or_else(|_| private::replace(&to, &fs::read(&from)?))?;
        self.put_batch(batch).inspect_err(|_| drop(fs::remove_file(&to)))
    }

    /// The content of a batch's input file.
    pub fn input(&self, batch: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(BATCH, batch, "input")?)
    }

    /// Keeps a batch.
    pub fn put_batch(&self, batch: &Batch) -> io::Result<()> {
        private::replace(&self.path(BATCH, &batch.id, "json")?, &serde_json::to_vec(batch)?)
    }

    /// A batch of that id, if it is there.
    pub fn batch(&self, id: &str) -> Option<Batch> {
        read(&self.path(BATCH, id, "json").ok()?)
    }

    /// Forgets a batch; files that it made stay.
    pub fn remove_batch(&self, id: &str) -> io::Result<()> {
        self.remove_work(id)?;
        fs::remove_file(self.path(BATCH, id, "json")?)
    }

    /// Forgets what a batch worked with: its input, and its answers, which are in files of their own by then.
    pub fn remove_work(&self, batch: &str) -> io::Result<()> {
        for kind in ["input", "answers"] {
            match fs::remove_file(self.path(BATCH, batch, kind)?) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// All batches, oldest first.
    pub fn batches(&self) -> Vec<Batch> {
        let mut batches: Vec<Batch> = self.all(BATCH);
        batches.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        batches
    }

    /// Where the answers of a batch go, behind those that are there.
    pub fn answers(&self, batch: &str) -> io::Result<File> {
        let path = self.path(BATCH, batch, "answers")?;
        let mut file = private::options().create(true).append(true).open(path)?;
        // A line that was cut short by the end of its process ends here.
        file.write_all(b"\n")?;
        Ok(file)
    }

    /// The answers that a batch has, each line once.
    pub fn answered(&self, batch: &str) -> Vec<Answered> {
        let text = self.path(BATCH, batch, "answers").and_then(fs::read).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut answered: Vec<Answered> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        answered.sort_by_key(|answered| answered.line);
        answered.dedup_by_key(|answered| answered.line);
        answered
    }

    fn all<T: DeserializeOwned>(&self, prefix: &str) -> Vec<T> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(prefix) && name.ends_with(".json")
        };
        entries.filter(named).filter_map(|path| read(&path)).collect()
    }
}

/// Writes the answer of a line.
pub fn append(file: &mut File, answered: &Answered) -> io::Result<()> {
    let mut line = serde_json::to_vec(answered)?;
    line.push(b'\n');
    file.write_all(&line)
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drawn_ids_name_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let kept = |id: &str| Kept {
            id: id.to_owned(),
            owner: None,
            filename: "../../a".into(),
            purpose: "batch".into(),
            bytes: 3,
            created_at: 1,
        };
        let id = drawn(FILE);
        store.put_file(&kept(&id), b"abc").unwrap();
        assert_eq!((store.file(&id), store.content(&id).unwrap()), (Some(kept(&id)), b"abc".to_vec()));
        for wrong in [
            "",
            "file-",
            "file-../../etc/passwd",
            &id.to_uppercase(),
            &id.replace("file-", "batch_"),
            &format!("{id}/"),
        ] {
            assert!(store.put_file(&kept(wrong), b"").is_err() && store.content(wrong).is_err(), "{wrong}");
            assert_eq!(store.file(wrong), None, "{wrong}");
        }
        assert_eq!(store.files().len(), 1);
        store.remove_file(&id).unwrap();
        assert!(store.files().is_empty() && store.content(&id).is_err());
    }

    #[test]
    fn an_answer_that_was_cut_short_is_none_and_two_of_a_line_are_one() {
        let folder = tempfile::tempdir().unwrap();
        let (store, batch) = (Store::open(folder.path()).unwrap(), drawn(BATCH));
        let answered = |line| Answered { line, is_good: true, answer: Value::Null };
        let mut file = store.answers(&batch).unwrap();
        append(&mut file, &answered(2)).unwrap();
        file.write_all(b"{\"line\": 3, \"is_g").unwrap();
        let mut file = store.answers(&batch).unwrap();
        [0, 2].into_iter().for_each(|line| append(&mut file, &answered(line)).unwrap());
        assert_eq!(store.answered(&batch), [answered(0), answered(2)]);
    }

    #[test]
    fn a_batch_that_is_forgotten_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let batch = Batch {
            id: drawn(BATCH),
            owner: None,
            endpoint: "/v1/completions".into(),
            input_file_id: drawn(FILE),
            metadata: None,
            status: Course::Completed,
            total: 3,
            counts: Counts { good: 2, bad: 1 },
            created_at: 1,
            ended_at: Some(2),
            output_file_id: None,
            error_file_id: None,
        };
        assert!(store.begin_batch(&batch).is_err() && store.batch(&batch.id).is_none());
        let input = Kept {
            id: batch.input_file_id.clone(),
            owner: None,
            filename: "a".into(),
            purpose: "batch".into(),
            bytes: 3,
            created_at: 1,
        };
        store.put_file(&input, b"abc").unwrap();
        store.begin_batch(&batch).unwrap();
        assert_eq!(store.batch(&batch.id), Some(batch.clone()));
        store.remove_file(&input.id).unwrap();
        assert_eq!(store.input(&batch.id).unwrap(), b"abc");
        store.answers(&batch.id).unwrap();
        for _ in 0..2 {
            store.remove_work(&batch.id).unwrap();
        }
        store.answers(&batch.id).unwrap();
        store.remove_batch(&batch.id).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("openai")).unwrap().count(), 0);
    }
}
