//! What the folder of files and batches has, and how much of it is whose: known without looking there. Touches no disk.

use std::collections::{BTreeMap, HashMap};

use asterism_actors::api::StoredStatus;
use thiserror::Error;

use super::{Batch, StoredFile};
use crate::cluster::Limits;

/// Bytes that a file or a batch takes beside its content.
const ENTRY_HEAD_BYTES: u64 = 4096;
/// Most files of all keys, most batches that are kept, and most of these that have not ended. One key has half of each at most.
const MOST_FILES: usize = 10_000;
const BATCHES: usize = 1000;
const OPEN: usize = 64;

/// Why no more is kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{} would have {got} {what}, expected at most {most}: {}", self.whose(), self.remedy())]
pub struct StorageFull {
    what: &'static str,
    got: u64,
    most: u64,
    is_own: bool,
}

impl StorageFull {
    /// Whether it passes when batches end, rather than when something is deleted.
    pub fn may_pass(&self) -> bool {
        self.what == OPEN_BATCHES
    }

    fn whose(&self) -> &'static str {
        if self.is_own { "this key" } else { "all keys together" }
    }

    fn remedy(&self) -> &'static str {
        if self.may_pass() { "wait until one has ended" } else { "delete files, or raise [api] max_stored_bytes" }
    }
}

const OPEN_BATCHES: &str = "open batches";

/// What of a batch is known without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHead {
    pub id: String,
    pub owner: Option<String>,
    pub is_open: bool,
    created_at: u64,
    bytes: u64,
}

impl BatchHead {
    /// Of a batch whose work takes so many bytes.
    pub fn of(batch: &Batch, bytes: u64) -> Self {
        let (id, owner) = (batch.id.clone(), batch.owner.clone());
        Self { id, owner, is_open: batch.is_open(), created_at: batch.created_at, bytes }
    }
}

/// Files and batches, each by when they were made.
#[derive(Debug)]
pub struct Index {
    limits: Limits,
    files: BTreeMap<(u64, String), StoredFile>,
    batches: BTreeMap<(u64, String), BatchHead>,
    times: HashMap<String, u64>,
    bytes: u64,
    bytes_of: HashMap<Option<String>, u64>,
}

impl Index {
    /// Of an empty folder.
    pub fn new(limits: Limits) -> Self {
        let (files, batches, times, bytes_of) = Default::default();
        Self { limits, files, batches, times, bytes: 0, bytes_of }
    }

    /// What is kept.
    pub fn stored(&self) -> StoredStatus {
        StoredStatus {
            bytes: self.bytes,
            max_bytes: self.limits.bytes,
            largest_key_bytes: self.bytes_of.values().max().copied().unwrap_or(0),
            max_bytes_per_key: self.limits.bytes_per_key,
        }
    }

    /// Every file, oldest first.
    pub fn files(&self) -> impl DoubleEndedIterator<Item = &StoredFile> {
        self.files.values()
    }

    /// Every batch, oldest first.
    pub fn batches(&self) -> impl DoubleEndedIterator<Item = &BatchHead> {
        self.batches.values()
    }

    /// A file.
    pub fn file(&self, id: &str) -> Option<&StoredFile> {
        self.files.get(&(*self.times.get(id)?, id.to_owned()))
    }

    /// Takes a file in, unless there is too much.
    pub fn take_file(&mut self, kept: &StoredFile) -> Result<(), StorageFull> {
        let own = self.files.values().filter(|file| file.owner == kept.owner).count();
        within("files", (self.files.len() + 1, own + 1), MOST_FILES)?;
        self.check_bytes(&kept.owner, ENTRY_HEAD_BYTES + kept.bytes as u64)?;
        self.insert_file(kept.clone());
        Ok(())
    }

    /// Counts bytes of a file on its way in, unless there are too many.
    pub fn hold(&mut self, owner: &Option<String>, bytes: u64) -> Result<(), StorageFull> {
        self.check_bytes(owner, bytes)?;
        self.add(owner, bytes);
        Ok(())
    }

    /// Counts such bytes no more.
    pub fn release(&mut self, owner: &Option<String>, bytes: u64) {
        self.subtract(owner, bytes);
    }

    /// Takes a file in that is there.
    pub fn insert_file(&mut self, kept: StoredFile) {
        self.remove_file(&kept.id);
        self.add(&kept.owner, ENTRY_HEAD_BYTES + kept.bytes as u64);
        self.times.insert(kept.id.clone(), kept.created_at);
        self.files.insert((kept.created_at, kept.id.clone()), kept);
    }

    /// Forgets a file.
    pub fn remove_file(&mut self, id: &str) {
        let Some(time) = self.times.get(id).copied() else { return };
        if let Some(kept) = self.files.remove(&(time, id.to_owned())) {
            self.times.remove(id);
            self.subtract(&kept.owner, ENTRY_HEAD_BYTES + kept.bytes as u64);
        }
    }

    /// Takes a new batch in, unless there is too much. Returns those that are to be forgotten for it: the oldest that have ended, of
    /// its own key where that has many.
    pub fn take_batch(&mut self, batch: BatchHead) -> Result<Vec<String>, StorageFull> {
        let is_own = |other: &&BatchHead| other.owner == batch.owner;
        let open = self.batches.values().filter(|batch| batch.is_open);
        within(OPEN_BATCHES, (open.clone().count() + 1, open.filter(is_own).count() + 1), OPEN)?;
        self.check_bytes(&batch.owner, ENTRY_HEAD_BYTES + batch.bytes)?;
        let own = self.batches.values().filter(is_own).count() + 1;
        let of_all = (self.batches.len() + 1).saturating_sub(BATCHES);
        let of_own = own.saturating_sub(BATCHES / 2);
        let ended = self.batches.values().filter(|batch| !batch.is_open);
        let surplus = match (of_own, of_all) {
            (0, of_all) => ended.take(of_all).map(|batch| batch.id.clone()).collect(),
            (of_own, of_all) => ended.filter(is_own).take(of_own.max(of_all)).map(|batch| batch.id.clone()).collect(),
        };
        self.insert_batch(batch);
        Ok(surplus)
    }

    /// Takes a batch in that is there.
    pub fn insert_batch(&mut self, batch: BatchHead) {
        self.add(&batch.owner, ENTRY_HEAD_BYTES + batch.bytes);
        self.times.insert(batch.id.clone(), batch.created_at);
        self.batches.insert((batch.created_at, batch.id.clone()), batch);
    }

    /// Forgets a batch.
    pub fn remove_batch(&mut self, id: &str) {
        let Some(time) = self.times.remove(id) else { return };
        if let Some(batch) = self.batches.remove(&(time, id.to_owned())) {
            self.subtract(&batch.owner, ENTRY_HEAD_BYTES + batch.bytes);
        }
    }

    /// Whether a batch goes on.
    pub fn set_open(&mut self, id: &str, is_open: bool) {
        if let Some(batch) = self.batch_mut(id) {
            batch.is_open = is_open;
        }
    }

    /// How many bytes a batch's work takes.
    pub fn set_bytes(&mut self, id: &str, bytes: u64) {
        let Some(batch) = self.batch_mut(id) else { return };
        let (owner, before) = (batch.owner.clone(), std::mem::replace(&mut batch.bytes, bytes));
        self.subtract(&owner, before);
        self.add(&owner, bytes);
    }

    /// Counts more bytes of a batch's work, unless there are too many.
    pub fn grow(&mut self, id: &str, by: u64) -> Result<(), StorageFull> {
        let Some(batch) = self.batch_mut(id) else { return Ok(()) };
        let (owner, bytes) = (batch.owner.clone(), batch.bytes);
        self.check_bytes(&owner, by)?;
        self.set_bytes(id, bytes + by);
        Ok(())
    }

    fn batch_mut(&mut self, id: &str) -> Option<&mut BatchHead> {
        self.batches.get_mut(&(*self.times.get(id)?, id.to_owned()))
    }

    fn check_bytes(&self, owner: &Option<String>, more: u64) -> Result<(), StorageFull> {
        let own = self.bytes_of.get(owner).copied().unwrap_or(0) + more;
        let (all, Limits { bytes, bytes_per_key }) = (self.bytes + more, self.limits);
        let full = |got, most, is_own| Err(StorageFull { what: "bytes stored", got, most, is_own });
        match () {
            () if own > bytes_per_key => full(own, bytes_per_key, true),
            () if all > bytes => full(all, bytes, false),
            () => Ok(()),
        }
    }

    fn add(&mut self, owner: &Option<String>, bytes: u64) {
        self.bytes += bytes;
        *self.bytes_of.entry(owner.clone()).or_default() += bytes;
    }

    fn subtract(&mut self, owner: &Option<String>, bytes: u64) {
        self.bytes -= bytes;
        if let Some(of) = self.bytes_of.get_mut(owner) {
            *of -= bytes;
            if *of == 0 {
                self.bytes_of.remove(owner);
            }
        }
    }
}

fn within(what: &'static str, (all, own): (usize, usize), most: usize) -> Result<(), StorageFull> {
    let full = |got: usize, most: usize, is_own| Err(StorageFull { what, got: got as u64, most: most as u64, is_own });
    match () {
        () if own > most / 2 => full(own, most / 2, true),
        () if all > most => full(all, most, false),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(id: usize, owner: &str, bytes: usize) -> StoredFile {
        let (filename, purpose) = ("a".into(), "batch".into());
        StoredFile { id: format!("{id}"), owner: Some(owner.into()), filename, purpose, bytes, created_at: id as u64 }
    }

    fn batch(id: usize, owner: &str, is_open: bool) -> BatchHead {
        BatchHead { id: format!("b{id}"), owner: Some(owner.into()), is_open, created_at: id as u64, bytes: 10 }
    }

    fn index(bytes: u64, bytes_per_key: u64) -> Index {
        Index::new(Limits { bytes, bytes_per_key })
    }

    #[test]
    fn bytes_are_a_key_s_and_all_keys() {
        let (kib, mut index) = (1 << 10, index(40 << 10, 25 << 10));
        index.take_file(&file(1, "a", 16 * kib)).unwrap();
        let own = index.take_file(&file(2, "a", 2 * kib)).unwrap_err().to_string();
        assert!(own.starts_with("this key would have 26624 bytes stored, expected at most 25600"), "{own}");
        index.take_file(&file(3, "b", 8 * kib)).unwrap();
        let all = index.take_file(&file(4, "c", 8 * kib)).unwrap_err().to_string();
        assert!(all.contains("all keys together"), "{all}");
        assert_eq!((index.stored().bytes, index.stored().largest_key_bytes), (32 << 10, 20 << 10));
        index.remove_file("1");
        index.remove_file("1");
        assert_eq!((index.stored().bytes, index.bytes_of.len()), (12 << 10, 1));
        index.take_batch(batch(1, "b", true)).unwrap();
        assert!(index.grow("b1", 5 << 10).is_ok() && index.grow("b1", 5 << 10).is_err());
        index.set_bytes("b1", 0);
        assert_eq!(index.stored().bytes, 16 << 10);
    }

    #[test]
    fn one_key_has_half_of_all_places() {
        let mut index = index(u64::MAX, u64::MAX);
        (0..32).for_each(|at| drop(index.take_batch(batch(at, "a", true)).unwrap()));
        let full = index.take_batch(batch(32, "a", true)).unwrap_err();
        assert!(full.may_pass() && full.to_string().contains("this key would have 33 open batches"), "{full}");
        (33..65).for_each(|at| drop(index.take_batch(batch(at, "b", true)).unwrap()));
        assert!(index.take_batch(batch(65, "c", true)).unwrap_err().to_string().contains("all keys"));
        (0..5000).for_each(|at| index.take_file(&file(at, "a", 0)).unwrap());
        assert!(index.take_file(&file(5000, "a", 0)).is_err() && index.take_file(&file(5001, "b", 0)).is_ok());
    }

    #[test]
    fn whoever_has_many_batches_loses_the_oldest_of_its_own() {
        let mut index = index(u64::MAX, u64::MAX);
        index.insert_batch(batch(0, "b", false));
        (1..=500).for_each(|at| index.insert_batch(batch(at, "a", false)));
        assert_eq!(index.take_batch(batch(1000, "a", true)).unwrap(), ["b1"]);
        (501..1000).for_each(|at| index.insert_batch(batch(at, "b", false)));
        assert_eq!(index.take_batch(batch(1001, "c", true)).unwrap(), ["b0", "b1"]);
    }
}
