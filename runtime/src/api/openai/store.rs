//! Files and batches of OpenAI's API in the data_dir: each a small file of its own, found by an id that was drawn. Not in the journal,
//! which is read as a whole when a supervisor starts. What is lost of a batch's answers is asked for again: jobs have the ids of
//! their lines, so that none is done twice.

mod index;
pub(crate) mod kept;
pub(crate) mod metadata;
pub(crate) mod open;
pub(crate) mod record;
pub(crate) mod responses;
mod upload;

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use asterism_actors::api::StoredStatus;
use serde::de::DeserializeOwned;

pub use crate::cluster::Limits;
use crate::{data_dir::private, error::CliError};
pub use index::StorageFull;
use index::{BatchHead, Index};
use kept::UPLOAD;
pub use kept::{
    BATCH_PREFIX, Batch, BatchState, Counts, FILE_PREFIX, RESPONSE_PREFIX, StoredFile, derived, digits, drawn,
};
pub use upload::Upload;

/// The folder of files and batches, and what is in it.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    index: Mutex<Index>,
}

/// Why something is not kept.
#[derive(Debug)]
pub enum StoreRefusal {
    /// The disk does not do it.
    Disk(io::Error),
    /// There is too much already.
    Full(StorageFull),
}

impl From<io::Error> for StoreRefusal {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl From<StorageFull> for StoreRefusal {
    fn from(full: StorageFull) -> Self {
        Self::Full(full)
    }
}

impl Store {
    /// In a folder of the data_dir, made where it is not there.
    pub fn open(data_dir: &Path, limits: Limits) -> Result<Self, CliError> {
        let folder = data_dir.join("openai");
        private::make(&folder).map_err(|error| private::refused(&folder, "make", &error))?;
        let store = Self { folder, index: Mutex::new(Index::new(limits)) };
        crate::api::openai::store::forget_all(&store);
        {
            let mut index = store.index();
            store.all::<StoredFile>(FILE_PREFIX).into_iter().for_each(|kept| index.insert_file(kept));
            for batch in store.all::<Batch>(BATCH_PREFIX) {
                index.insert_batch(BatchHead::of(&batch, store.work_bytes(&batch.id)));
            }
        }
        Ok(store)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, prefix: &str, id: &str, kind: &str) -> io::Result<PathBuf> {
        let digits = digits(prefix, id).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.folder.join(format!("{prefix}{digits}.{kind}")))
    }

    /// What is kept, of all and of the key that has the most.
    pub fn stored(&self) -> StoredStatus {
        self.index().stored()
    }

    /// Keeps a file that a batch made, of what `write` writes; its length is counted whatever there is already.
    pub fn put_made(&self, mut kept: StoredFile, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let (data, partial) = (self.path(FILE_PREFIX, &kept.id, "data")?, self.path(FILE_PREFIX, &kept.id, "made")?);
        let made = private::options().create(true).truncate(true).write(true).open(&partial).and_then(|mut file| {
            write(&mut file)?;
            file.sync_all()?;
            file.metadata()
        });
        let made = made.and_then(|made| fs::rename(&partial, &data).map(|()| made.len()));
        // What stands of it would only take the room that is missing.
        kept.bytes = made.inspect_err(|_| drop(fs::remove_file(&partial)))? as usize;
        self.put_head(&kept)?;
        self.index().insert_file(kept);
        Ok(())
    }

    fn put_head(&self, kept: &StoredFile) -> io::Result<()> {
        private::replace(&self.path(FILE_PREFIX, &kept.id, "json")?, &serde_json::to_vec(kept)?)
    }

    /// A file of that id, if it is there.
    pub fn file(&self, id: &str) -> Option<StoredFile> {
        self.index().file(id).cloned()
    }

    /// Its content.
    pub fn content(&self, id: &str) -> io::Result<File> {
        File::open(self.path(FILE_PREFIX, id, "data")?)
    }

    /// Forgets a file.
    pub fn remove_file(&self, id: &str) -> io::Result<()> {
        fs::remove_file(self.path(FILE_PREFIX, id, "json")?)?;
        self.index().remove_file(id);
        fs::remove_file(self.path(FILE_PREFIX, id, "data")?)
    }

    /// What `read` makes of all files of an owner, oldest first.
    pub fn files<T>(
        &self,
        owner: Option<&String>,
        read: impl FnOnce(&mut dyn DoubleEndedIterator<Item = &StoredFile>) -> T,
    ) -> T {
        read(&mut self.index().files().filter(|kept| kept.owner.as_ref() == owner))
    }

    /// Keeps a new batch with the content of its input file, which may be forgotten then. Those of its owner that have ended and are
    /// too many are forgotten.
    pub fn begin_batch(&self, batch: &Batch) -> Result<(), StoreRefusal> {
        let (from, to) =
            (self.path(FILE_PREFIX, &batch.input_file_id, "data")?, self.path(BATCH_PREFIX, &batch.id, "input")?);
        let surplus =
            self.index().take_batch(BatchHead::of(batch, fs::metadata(&from).map_or(0, |file| file.len())))?;
        // Content is never written in place: a second name takes no room, where the file system knows such.
        let kept =
            fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop)).and_then(|()| self.put_batch(batch));
        kept.inspect_err(|_| {
            let _ = fs::remove_file(&to);
            self.index().remove_batch(&batch.id);
        })?;
        for id in surplus {
            self.remove_batch(&id)?;
        }
        Ok(())
    }

    /// The content of a batch's input file.
    pub fn input(&self, batch: &str) -> io::Result<File> {
        File::open(self.path(BATCH_PREFIX, batch, "input")?)
    }

    /// Keeps a batch that is there as it is now.
    pub fn put_batch(&self, batch: &Batch) -> io::Result<()> {
        private::replace(&self.path(BATCH_PREFIX, &batch.id, "json")?, &serde_json::to_vec(batch)?)?;
        self.index().set_open(&batch.id, batch.is_open());
        Ok(())
    }

    /// A batch of that id, if it is there.
    pub fn batch(&self, id: &str) -> Option<Batch> {
        read(&self.path(BATCH_PREFIX, id, "json").ok()?)
    }

    /// Forgets a batch; files that it made stay.
    pub fn remove_batch(&self, id: &str) -> io::Result<()> {
        self.remove_work(id)?;
        fs::remove_file(self.path(BATCH_PREFIX, id, "json")?)?;
        self.index().remove_batch(id);
        Ok(())
    }

    /// Forgets what a batch worked with: its input, and its answers, which are in files of their own by then.
    pub fn remove_work(&self, batch: &str) -> io::Result<()> {
        for kind in ["input", "answers"] {
            match fs::remove_file(self.path(BATCH_PREFIX, batch, kind)?) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.index().set_bytes(batch, 0);
        Ok(())
    }

    /// What `read` makes of the ids of an owner's batches, oldest first.
    pub fn batches<T>(
        &self,
        owner: Option<&String>,
        read: impl FnOnce(&mut dyn DoubleEndedIterator<Item = &str>) -> T,
    ) -> T {
        let index = self.index();
        read(&mut index.batches().filter(|batch| batch.owner.as_ref() == owner).map(|batch| batch.id.as_str()))
    }

    /// The ids of all batches that have not ended, oldest first.
    pub fn open_batches(&self) -> Vec<String> {
        self.index().batches().filter(|batch| batch.is_open).map(|batch| batch.id.clone()).collect()
    }

    fn work_bytes(&self, batch: &str) -> u64 {
        let bytes = |kind| self.path(BATCH_PREFIX, batch, kind).and_then(fs::metadata).map_or(0, |file| file.len());
        bytes("input") + bytes("answers")
    }

    /// Counts what a batch's work takes as it lies there: more was counted where the disk did not take it.
    pub fn recount(&self, batch: &str) {
        self.index().set_bytes(batch, self.work_bytes(batch));
    }

    /// Counts bytes of a batch's answers.
    ///
    /// # Errors
    /// When there are too many.
    pub fn grow(&self, batch: &str, bytes: u64) -> Result<(), StorageFull> {
        self.index().grow(batch, bytes)
    }

    /// The file of a batch's answers, to be read and appended to.
    pub fn answers(&self, batch: &str) -> io::Result<File> {
        private::options().create(true).read(true).append(true).open(self.path(BATCH_PREFIX, batch, "answers")?)
    }

    fn all<T: DeserializeOwned>(&self, prefix: &str) -> Vec<T> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with(prefix) && name.ends_with(".json")
        };
        entries.filter(named).filter_map(|path| read(&path)).collect()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Forgets those whose process ended before they were kept.
pub fn forget_all(store: &Store) {
    let entries = fs::read_dir(&store.folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(UPLOAD)) {
        if let Err(error) = fs::remove_file(entry.path()) {
            tracing::warn!(path = %entry.path().display(), %error, "a file that was not uploaded to its end stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn store(folder: &Path) -> Arc<Store> {
        Arc::new(Store::open(folder, Limits { bytes: 1 << 20, bytes_per_key: 1 << 20 }).unwrap())
    }

    fn put(store: &Arc<Store>, kept: &StoredFile, content: &[u8]) -> Result<(), StoreRefusal> {
        let mut upload = Upload::begin(store, kept.owner.clone())?;
        upload.write(content)?;
        upload.keep(kept)
    }

    fn kept(id: &str, owner: Option<&str>) -> StoredFile {
        let (filename, purpose) = ("../../a".into(), "batch".into());
        StoredFile { id: id.to_owned(), owner: owner.map(str::to_owned), filename, purpose, bytes: 3, created_at: 1 }
    }

    fn count(store: &Store) -> usize {
        store.files(None, |files| files.count())
    }

    fn content(file: io::Result<File>) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut file?, &mut content).map(|_| content)
    }

    #[test]
    fn only_drawn_ids_name_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |id: &str| kept(id, None);
        let (store, id) = (store(folder.path()), drawn(FILE_PREFIX));
        put(&store, &kept(&id), b"abc").unwrap();
        assert_eq!((store.file(&id), content(store.content(&id)).unwrap()), (Some(kept(&id)), b"abc".to_vec()));
        for wrong in [
            "",
            "file-",
            "file-../../etc/passwd",
            &id.to_uppercase(),
            &id.replace("file-", "batch_"),
            &format!("{id}/"),
        ] {
            assert!(put(&store, &kept(wrong), b"").is_err() && store.content(wrong).is_err(), "{wrong}");
            assert_eq!(store.file(wrong), None, "{wrong}");
        }
        assert_eq!(count(&store), 1);
        store.remove_file(&id).unwrap();
        assert!(count(&store) == 0 && store.content(&id).is_err() && store.stored().bytes == 0);
    }

    #[test]
    fn what_is_there_is_counted_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let (first, id) = (store(folder.path()), drawn(FILE_PREFIX));
        put(&first, &kept(&id, Some("moon")), b"abc").unwrap();
        let made = kept(&drawn(FILE_PREFIX), None);
        first.put_made(made.clone(), |file| std::io::Write::write_all(file, b"12345")).unwrap();
        assert_eq!(first.file(&made.id).unwrap().bytes, 5);
        assert!(first.put_made(kept(&drawn(FILE_PREFIX), None), |_| Err(io::ErrorKind::Other.into())).is_err());
        let mut large = Upload::begin(&first, None).unwrap();
        large.write(&vec![0; 900 << 10]).unwrap();
        assert!(matches!(
            put(&first, &kept(&drawn(FILE_PREFIX), None), &vec![0; 200 << 10]),
            Err(StoreRefusal::Full(_))
        ));
        assert!(matches!(large.write(&vec![0; 200 << 10]), Err(StoreRefusal::Full(_))));
        // One whose process ends.
        std::mem::forget(Upload::begin(&first, None).unwrap());
        drop(large);
        let again = store(folder.path());
        assert_eq!(
            (again.stored(), count(&again), again.file(&id)),
            (first.stored(), 1, Some(kept(&id, Some("moon"))))
        );
        assert_eq!(fs::read_dir(folder.path().join("openai")).unwrap().count(), 4);
    }

    #[test]
    fn a_batch_that_is_forgotten_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let batch = Batch {
            id: drawn(BATCH_PREFIX),
            owner: None,
            endpoint: "/v1/completions".into(),
            input_file_id: drawn(FILE_PREFIX),
            metadata: None,
            status: BatchState::Completed,
            total: 3,
            counts: Counts { good: 2, bad: 1 },
            created_at: 1,
            ended_at: Some(2),
            output_file_id: None,
            error_file_id: None,
        };
        assert!(store.begin_batch(&batch).is_err() && store.batch(&batch.id).is_none());
        let input = kept(&batch.input_file_id, None);
        put(&store, &input, b"abc").unwrap();
        store.begin_batch(&batch).unwrap();
        assert_eq!(store.batch(&batch.id), Some(batch.clone()));
        store.remove_file(&input.id).unwrap();
        assert_eq!(content(store.input(&batch.id)).unwrap(), b"abc");
        store.answers(&batch.id).unwrap();
        for _ in 0..2 {
            store.remove_work(&batch.id).unwrap();
        }
        store.answers(&batch.id).unwrap();
        store.remove_batch(&batch.id).unwrap();
        assert_eq!((fs::read_dir(folder.path().join("openai")).unwrap().count(), store.stored().bytes), (0, 0));
    }
}
