//! What tensors of large files hash to, remembered from one start to the next. An entry holds as long as its file is the one that
//! was hashed: of that size, times and inode. Hashes nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::digest::{DigestId, Hash};

/// Tensor name to hash.
pub(super) type Hashes = BTreeMap<String, Hash>;

/// The cache's name beside the weights.
const CACHE_NAME: &str = ".asterism-digest.json";
/// Another number where what is hashed changes.
const VERSION: u32 = 1;
/// Longest cache that is read.
const LARGEST_CACHE: u64 = 64 << 20;
/// A file that changed later than so long ago may change again without its times showing it.
const SETTLED: Duration = Duration::from_secs(2);

/// Which file was hashed, as far as its metadata tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub bytes: u64,
    inode: u64,
    /// Seconds and nanoseconds of the last write, and of the last change of anything: the latter nobody sets back.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            bytes: metadata.len(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether its last change was `long` ago.
    fn has_settled(&self, long: Duration) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanoseconds) = self.changed.max(self.modified);
        let at = Duration::new(seconds.max(0) as u64, nanoseconds.clamp(0, 999_999_999) as u32);
        now.checked_sub(at).is_some_and(|age| age >= long)
    }
}

/// Where hashes are kept.
pub(super) struct HashCache {
    /// Beside the weights, and where nothing can be written there.
    places: [PathBuf; 2],
    /// How long ago a file must have changed.
    settled: Duration,
}

#[derive(Default, Serialize, Deserialize)]
struct Stored {
    version: u32,
    files: BTreeMap<String, StoredFile>,
}

#[derive(Serialize, Deserialize)]
struct StoredFile {
    stamp: Stamp,
    tensors: BTreeMap<String, String>,
}

/// What caches say.
pub(super) struct CachedHashes([Stored; 2]);

impl HashCache {
    /// The cache of the weights in the folder of `weights`, with `folder` to fall back on.
    pub fn new(weights: &str, folder: &Path) -> Self {
        let beside = Path::new(weights).parent().unwrap_or(Path::new(""));
        let own = fs::canonicalize(beside).unwrap_or_else(|_| beside.to_owned());
        let id = DigestId::of([own.as_os_str().as_encoded_bytes()]);
        Self { places: [beside.join(CACHE_NAME), folder.join(format!("digest-{id}.json"))], settled: SETTLED }
    }

    /// What is kept; nothing of what is no cache of this version.
    pub fn read(&self) -> CachedHashes {
        CachedHashes([0, 1].map(|place| read(&self.places[place]).unwrap_or_default()))
    }

    /// Keeps hashes of files by their paths in place of all that is kept, if a later write would show in a file's times. Where that cannot be done the next start hashes again.
    pub fn keep(&self, mut files: BTreeMap<&str, (Stamp, Hashes)>) {
        files.retain(|_, (stamp, _)| stamp.has_settled(self.settled));
        if files.is_empty() {
            return;
        }
        let stored = |(path, (stamp, hashes)): (&str, (Stamp, Hashes))| {
            let tensors = hashes.into_iter().map(|(name, hash)| (name, hex(&hash))).collect();
            (name_of(path), StoredFile { stamp, tensors })
        };
        let stored = Stored { version: VERSION, files: files.into_iter().map(stored).collect() };
        let text = serde_json::to_vec(&stored).expect("names and numbers are JSON");
        let _ = self.places.iter().any(|place| write(place, &text).is_ok());
    }
}

impl CachedHashes {
    /// The hashes of exactly these tensors of a file, if it is the one that was hashed.
    pub fn take<'a>(&mut self, path: &str, stamp: Stamp, names: impl Iterator<Item = &'a str>) -> Option<Hashes> {
        let wanted: BTreeSet<&str> = names.collect();
        let found = self.0.iter_mut().find_map(|stored| {
            let file = stored.files.remove(&name_of(path)).filter(|file| file.stamp == stamp)?;
            file.tensors.keys().map(String::as_str).eq(wanted.iter().copied()).then_some(file)
        })?;
        found.tensors.into_iter().map(|(name, hash)| Some((name, from_hex(&hash)?))).collect()
    }
}

fn name_of(path: &str) -> String {
    Path::new(path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(place: &Path) -> Option<Stored> {
    let metadata = fs::metadata(place).ok().filter(|metadata| metadata.is_file() && metadata.len() <= LARGEST_CACHE);
    let stored: Stored = serde_json::from_slice(&fs::read(metadata.map(|_| place)?).ok()?).ok()?;
    (stored.version == VERSION).then_some(stored)
}

/// Writes a file whole or not at all.
fn write(place: &Path, text: &[u8]) -> std::io::Result<()> {
    let new = place.with_extension(format!("{}.new", std::process::id()));
    let written = File::create(&new).and_then(|mut file| file.write_all(text)).and_then(|()| fs::rename(&new, place));
    if written.is_err() {
        // It may not be there.
        let _ = fs::remove_file(&new);
    }
    written
}

fn hex(hash: &Hash) -> String {
    blake3::Hash::from(*hash).to_hex().to_string()
}

fn from_hex(text: &str) -> Option<Hash> {
    Some(*blake3::Hash::from_hex(text).ok()?.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use tempfile::TempDir;

    use super::*;
    use crate::Checkpoint;

    /// A folder with a checkpoint, and one to fall back on.
    fn folders() -> [TempDir; 2] {
        let (tiny, folder) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(tiny.join("../tests/golden/models/tiny-qwen2").join(file), folder.path().join(file)).unwrap();
        }
        [folder, tempfile::tempdir().unwrap()]
    }

    fn cache([folder, other]: &[TempDir; 2]) -> HashCache {
        let weights = folder.path().join("model.safetensors");
        HashCache { settled: Duration::ZERO, ..HashCache::new(weights.to_str().unwrap(), other.path()) }
    }

    fn hashes(folders: &[TempDir; 2]) -> Hashes {
        Checkpoint::open(folders[0].path()).unwrap().cached_hashes(&cache(folders)).unwrap()
    }

    /// What a cache is given in place of a tensor's hash, so that whoever reads it is known.
    fn forge(place: &Path) -> String {
        let mut stored: Stored = serde_json::from_slice(&fs::read(place).unwrap()).unwrap();
        let (name, hash) = stored.files.values_mut().next().unwrap().tensors.iter_mut().next().unwrap();
        *hash = hex(&[7; 32]);
        let name = name.clone();
        fs::write(place, serde_json::to_vec(&stored).unwrap()).unwrap();
        name
    }

    /// Writes one byte in the last tensor, in place.
    fn write_weight(folder: &Path) {
        let mut file = File::options().write(true).open(folder.join("model.safetensors")).unwrap();
        file.seek(SeekFrom::End(-1)).unwrap();
        file.write_all(&[1]).unwrap();
    }

    #[test]
    fn what_was_hashed_is_not_hashed_again() {
        let folders = folders();
        let first = hashes(&folders);
        let name = forge(&folders[0].path().join(CACHE_NAME));
        assert_eq!(hashes(&folders)[&name], [7; 32], "it was read");
        assert_eq!(first.len(), hashes(&folders).len());
    }

    #[test]
    fn a_file_that_was_written_is_hashed_again_though_its_time_was_set_back() {
        let folders = folders();
        let path = folders[0].path().join("model.safetensors");
        let first = hashes(&folders);
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        forge(&folders[0].path().join(CACHE_NAME));
        write_weight(folders[0].path());
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        let second = hashes(&folders);
        let differs: Vec<&String> = first.keys().filter(|name| first[*name] != second[*name]).collect();
        assert_eq!(differs.len(), 1, "{differs:?}");
    }

    #[test]
    fn a_file_of_another_size_or_another_file_is_hashed_again() {
        let folders = folders();
        let (path, first) = (folders[0].path().join("model.safetensors"), hashes(&folders));
        forge(&folders[0].path().join(CACHE_NAME));
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(hashes(&folders), first);
        let place = folders[0].path().join(CACHE_NAME);
        let mut stored: Stored = serde_json::from_slice(&fs::read(&place).unwrap()).unwrap();
        stored.files.values_mut().for_each(|file| file.stamp.bytes += 1);
        fs::write(&place, serde_json::to_vec(&stored).unwrap()).unwrap();
        forge(&place);
        assert_eq!(hashes(&folders), first);
    }

    #[test]
    fn where_nothing_can_be_written_the_other_folder_has_it() {
        let folders = folders();
        fs::create_dir(folders[0].path().join(CACHE_NAME)).unwrap();
        hashes(&folders);
        let left: Vec<_> = fs::read_dir(folders[1].path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        let [place] = &left[..] else { panic!("{left:?}") };
        let name = forge(place);
        assert_eq!(hashes(&folders)[&name], [7; 32], "it was read");
        assert_eq!(fs::read_dir(folders[0].path()).unwrap().count(), 4, "nothing else is left");
    }

    #[test]
    fn nowhere_to_write_and_nonsense_in_a_cache_change_nothing() {
        let mut folders = folders();
        let first = hashes(&folders);
        let place = folders[0].path().join(CACHE_NAME);
        for nonsense in ["", "{}", "[1]", r#"{"version": 1, "files": {"model.safetensors": 1}}"#] {
            fs::write(&place, nonsense).unwrap();
            assert_eq!(hashes(&folders), first, "{nonsense}");
        }
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        folders[1] = tempfile::tempdir().unwrap();
        fs::remove_dir(folders[1].path()).unwrap();
        assert_eq!(hashes(&folders), first);
    }

    #[test]
    fn a_file_that_changed_just_now_is_not_kept() {
        let folders = folders();
        let weights = folders[0].path().join("model.safetensors");
        let cache = HashCache::new(weights.to_str().unwrap(), folders[1].path());
        Checkpoint::open(folders[0].path()).unwrap().cached_hashes(&cache).unwrap();
        assert!(!folders[0].path().join(CACHE_NAME).exists());
    }
}
