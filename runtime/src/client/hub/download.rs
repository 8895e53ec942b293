//! One file of a hub into the cache: goes on where an earlier try ended, one process at a time, and is there only once its hash is right.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::{
    cache::HubCache,
    client::{BlobHash, HubClient, HubFile},
    error::HubError,
    lock,
    meter::PullMeter,
    name::HubName,
    retry::Retries,
};

const CHUNK_BYTES: usize = 1 << 20;

/// A file to be fetched.
pub(super) struct Download<'a> {
    pub client: &'a HubClient,
    pub cache: &'a HubCache,
    pub name: &'a HubName,
    pub commit: &'a str,
    pub file: &'a HubFile,
}

impl Download<'_> {
    /// Where its blob is, once it is there.
    pub fn blob(&self) -> PathBuf {
        self.blobs().join(self.file.hash.digits())
    }

    fn blobs(&self) -> PathBuf {
        self.cache.repository(&self.name.repository).join("blobs")
    }

    fn incomplete(&self) -> PathBuf {
        self.blobs().join(format!("{}.incomplete", self.file.hash.digits()))
    }

    /// Bytes that have yet to come.
    pub fn missing(&self) -> u64 {
        if self.blob().exists() {
            return 0;
        }
        let here = fs::metadata(self.incomplete()).map_or(0, |metadata| metadata.len());
        self.file.bytes.saturating_sub(here)
    }

    /// Fetches what is missing, and links the snapshot to it. Whether anything was.
    pub fn run(&self, meter: &mut PullMeter) -> Result<bool, HubError> {
        let fetched = match self.blob().exists() {
            true => false,
            false => self.fetch_alone(meter)?,
        };
        self.link()?;
        Ok(fetched)
    }

    /// Waits for whoever else fetches it, and does so itself unless it is there then.
    fn fetch_alone(&self, meter: &mut PullMeter) -> Result<bool, HubError> {
        let path = self.cache.blob_lock(&self.name.repository, self.file.hash.digits());
        let note = format!("another process fetches {}: waiting for it", self.file.name);
        let _held = lock::alone(&path, meter, &note)?;
        make_folder(&self.blobs())?;
        if self.blob().exists() {
            meter.add(&self.file.name, self.file.bytes);
            return Ok(false);
        }
        self.fetch(meter)?;
        Ok(true)
    }

    fn fetch(&self, meter: &mut PullMeter) -> Result<(), HubError> {
        let path = self.incomplete();
        let mut part = Part::open(&path, &self.file.hash, self.file.bytes)?;
        let mut retries = Retries::default();
        while part.bytes < self.file.bytes {
            let before = part.bytes;
            let Err(error) = self.more(&mut part, meter) else { break };
            if part.bytes > before {
                retries = Retries::default();
            }
            let paused = retries.pause(error, meter);
            paused.map_err(|error| self.cut(error, part.bytes, retries.failed()))?;
        }
        self.keep(part, meter)
    }

    /// Why a transfer is given up that ended after so many bytes.
    fn cut(&self, error: HubError, got: u64, tries: u32) -> HubError {
        match error.passing() {
            Some(passing) if !matches!(error, HubError::Limited { .. }) => HubError::Cut {
                file: self.file.name.clone(),
                got,
                expected: self.file.bytes,
                tries,
                cause: passing.cause,
            },
            _ => error,
        }
    }

    /// One transfer, up to the file's end; else why it ended.
    fn more(&self, part: &mut Part, meter: &mut PullMeter) -> Result<(), HubError> {
        let (mut bytes, goes_on) = self.client.bytes(self.name, self.commit, self.file, part.bytes)?;
        if part.bytes > 0 && !goes_on {
            meter.take_back(part.bytes);
            part.begin_anew()?;
        }
        let what = || self.client.what(self.name, &self.file.name);
        let mut chunk = vec![0; CHUNK_BYTES];
        while part.bytes < self.file.bytes {
            let read = match bytes.read(&mut chunk) {
                Ok(0) => {
                    let cause = "the connection was closed".to_owned();
                    return Err(HubError::Unreachable { what: what(), cause, passes: true });
                }
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.client.lost(what(), &error.into())),
            };
            if part.bytes + read as u64 > self.file.bytes {
                part.discard()?;
                let got = format!("more than its {} bytes", self.file.bytes);
                return Err(self.wrong(&got));
            }
            part.write(&chunk[..read])?;
            meter.add(&self.file.name, read as u64);
        }
        Ok(())
    }

    fn wrong(&self, got: &str) -> HubError {
        let kind = match self.file.hash {
            BlobHash::Sha256(_) => "SHA-256",
            BlobHash::Git(_) => "the Git hash",
        };
        let (file, expected) = (self.file.name.clone(), self.file.hash.digits().to_owned());
        HubError::Hash { file, kind, expected, got: got.to_owned() }
    }

    /// Makes a part that is whole a blob.
    fn keep(&self, part: Part, meter: &mut PullMeter) -> Result<(), HubError> {
        let (got, length) = (part.digest(), part.bytes);
        if got != self.file.hash.digits() {
            part.discard()?;
            meter.take_back(length);
            return Err(self.wrong(&got));
        }
        let Part { file, path, .. } = part;
        file.sync_all().map_err(HubError::disk(&path))?;
        fs::rename(&path, self.blob()).map_err(HubError::disk(path))
    }

    /// Links the snapshot's name of it to the blob.
    fn link(&self) -> Result<(), HubError> {
        let snapshot = self.cache.repository(&self.name.repository).join("snapshots").join(self.commit);
        let link = snapshot.join(&self.file.name);
        make_folder(link.parent().unwrap_or(&snapshot))?;
        let up = "../".repeat(2 + self.file.name.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{}", self.file.hash.digits()));
        if fs::read_link(&link).is_ok_and(|known| known == target) {
            return Ok(());
        }
        // A link under another name, then its own: whoever looks finds the old one or the new one.
        let fresh = link.with_file_name(format!(".{}.{}", self.file.hash.digits(), std::process::id()));
        let _ = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&target, &fresh).map_err(HubError::disk(&fresh))?;
        fs::rename(&fresh, &link).map_err(HubError::disk(link))
    }
}

pub(super) fn make_folder(path: &Path) -> Result<(), HubError> {
    fs::create_dir_all(path).map_err(HubError::disk(path))
}

/// What is here of a file, with the hash so far.
struct Part {
    file: File,
    path: PathBuf,
    bytes: u64,
    context: Context,
    /// To begin again with.
    fresh: Context,
}

impl Part {
    /// What an earlier try left, or nothing.
    fn open(path: &Path, hash: &BlobHash, whole: u64) -> Result<Self, HubError> {
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let file = file.map_err(HubError::disk(path))?;
        if !file.metadata().map_err(HubError::disk(path))?.is_file() {
            return Err(HubError::disk(path)(io::Error::other("it is no regular file; remove it")));
        }
        let fresh = match hash {
            BlobHash::Sha256(_) => Context::new(&SHA256),
            BlobHash::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {whole}\0").as_bytes());
                context
            }
        };
        let mut part = Self { file, path: path.to_owned(), bytes: 0, context: fresh.clone(), fresh };
        part.hash_what_is_there()?;
        if part.bytes > whole {
            part.begin_anew()?;
        }
        Ok(part)
    }

    fn hash_what_is_there(&mut self) -> Result<(), HubError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match self.file.read(&mut chunk).map_err(HubError::disk(&self.path))? {
                0 => return Ok(()),
                read => {
                    self.context.update(&chunk[..read]);
                    self.bytes += read as u64;
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(HubError::disk(&self.path))?;
        self.context.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn begin_anew(&mut self) -> Result<(), HubError> {
        use io::Seek;
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(HubError::disk(&self.path))?;
        (self.bytes, self.context) = (0, self.fresh.clone());
        Ok(())
    }

    fn discard(&self) -> Result<(), HubError> {
        fs::remove_file(&self.path).map_err(HubError::disk(&self.path))
    }

    fn digest(&self) -> String {
        hexadecimal(self.context.clone().finish().as_ref())
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of a blob of the cache, by the kind that its name is of; `None` for a name of no kind.
pub(super) fn blob_hash(path: &Path) -> Result<Option<bool>, HubError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let hash = match name.len() {
        64 => BlobHash::Sha256(name.clone()),
        40 => BlobHash::Git(name.clone()),
        _ => return Ok(None),
    };
    let bytes = fs::metadata(path).map_err(HubError::disk(path))?.len();
    let file = File::open(path).map_err(HubError::disk(path))?;
    let fresh = match &hash {
        BlobHash::Sha256(_) => Context::new(&SHA256),
        BlobHash::Git(_) => {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            context.update(format!("blob {bytes}\0").as_bytes());
            context
        }
    };
    let mut part = Part { file, path: path.to_owned(), bytes: 0, context: fresh.clone(), fresh };
    part.hash_what_is_there()?;
    Ok(Some(part.digest() == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_hashed_as_their_names_say() {
        let folder = tempfile::tempdir().unwrap();
        let hash = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            blob_hash(&path).unwrap()
        };
        // printf hello | sha256sum; printf hello | git hash-object --stdin
        assert_eq!(hash("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", b"hello"), Some(true));
        assert_eq!(hash("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0", b"hello"), Some(true));
        assert_eq!(hash("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0", b"hallo"), Some(false));
        assert_eq!(hash("note.txt", b"hello"), None);
    }
}
