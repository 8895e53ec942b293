//! The hub's cache on this machine, as its other tools lay it out: `models--ORG--NAME` with `blobs` by their hashes, `snapshots` of
//! links to them by commit, and `refs` that say which commit a branch is. Fetches nothing.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use asterism_models::is_plain_path;

use super::{error::HubError, lock, name::HubName};

const REPOSITORY: &str = "models--";

/// The cache.
#[derive(Clone, Debug)]
pub struct HubCache {
    root: PathBuf,
}

/// A snapshot of the cache.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct CachedModel {
    /// `ORG/NAME`.
    pub name: String,
    /// Its commit.
    pub revision: String,
    /// Its folder.
    pub path: PathBuf,
    /// Its files, links to nothing not among them.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl HubCache {
    /// As the environment says: HF_HUB_CACHE, else `hub` in HF_HOME, else in `~/.cache/huggingface`.
    pub fn of_environment() -> Option<Self> {
        let root = folder("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub")))?;
        Some(Self { root })
    }

    /// In this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a repository, whether it is there or not.
    pub fn repository(&self, repository: &str) -> PathBuf {
        self.root.join(format!("{REPOSITORY}{}", repository.replace('/', "--")))
    }

    /// The file that whoever fetches a blob locks.
    pub(super) fn blob_lock(&self, repository: &str, blob: &str) -> PathBuf {
        self.locks(repository).join(format!("{blob}.lock"))
    }

    /// The file that pulls of a repository lock, of which no blob has the name.
    pub(super) fn repository_lock(&self, repository: &str) -> PathBuf {
        self.locks(repository).join("repository.lock")
    }

    fn locks(&self, repository: &str) -> PathBuf {
        self.root.join(".locks").join(format!("{REPOSITORY}{}", repository.replace('/', "--")))
    }

    /// The snapshots of a name that are here, that of its revision first, then the newest.
    pub fn snapshots(&self, name: &HubName) -> Vec<PathBuf> {
        let folder = self.repository(&name.repository);
        let referred = fs::read_to_string(folder.join("refs").join(&name.revision)).ok();
        let commit = referred.as_deref().map_or(name.revision.as_str(), str::trim).to_owned();
        let mut found: Vec<(bool, std::time::SystemTime, PathBuf)> = entries(&folder.join("snapshots"))
            .map(|path| {
                let changed = fs::metadata(&path).and_then(|metadata| metadata.modified());
                let named = path.file_name().is_some_and(|last| last.to_string_lossy() == commit);
                (named, changed.unwrap_or(std::time::SystemTime::UNIX_EPOCH), path)
            })
            .collect();
        found.sort_by_key(|found| std::cmp::Reverse((found.0, found.1)));
        // Another commit than the one that was named is another model.
        found.retain(|(named, ..)| *named || name.revision == "main");
        found.into_iter().map(|(.., path)| path).collect()
    }

    /// What a name means here: a snapshot, or a file of one.
    pub fn find(&self, name: &HubName) -> Option<PathBuf> {
        let snapshots = self.snapshots(name);
        let Some(file) = &name.file else {
            return snapshots.into_iter().find(|snapshot| snapshot.join("config.json").exists());
        };
        snapshots.iter().find_map(|snapshot| {
            let names: Vec<String> = files(snapshot).into_iter().map(|(name, _)| name).collect();
            Some(snapshot.join(matching(&names, file).ok()?.first()?))
        })
    }

    /// All snapshots.
    pub fn models(&self) -> Vec<CachedModel> {
        let mut models = Vec::new();
        for folder in entries(&self.root) {
            let last = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(name) = last.strip_prefix(REPOSITORY) else { continue };
            for path in entries(&folder.join("snapshots")) {
                let revision = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let found = files(&path);
                let bytes = found.iter().map(|(_, bytes)| bytes).sum();
                models.push(CachedModel {
                    name: name.replacen("--", "/", 1),
                    revision,
                    path,
                    files: found.len(),
                    bytes,
                });
            }
        }
        models.sort_by(|a, b| (&a.name, &a.revision).cmp(&(&b.name, &b.revision)));
        models
    }

    /// Removes a repository with all of its snapshots; its bytes.
    ///
    /// # Errors
    /// [`HubError::NotCached`] where there is none, [`HubError::InUse`] while it is pulled, [`HubError::Disk`].
    pub fn remove(&self, name: &HubName) -> Result<u64, HubError> {
        let folder = self.repository(&name.repository);
        if !folder.is_dir() {
            return Err(self.without(&name.repository));
        }
        let locks = lock::all(&self.locks(&name.repository), &self.repository_lock(&name.repository))?;
        let _held = locks.map_err(|lock| HubError::InUse { name: name.repository.clone(), lock })?;
        let bytes =
            entries(&folder.join("blobs")).filter_map(|blob| fs::metadata(blob).ok()).map(|blob| blob.len()).sum();
        fs::remove_dir_all(&folder).map_err(HubError::disk(&folder))?;
        Ok(bytes)
    }

    /// That a model is not here.
    pub(super) fn without(&self, name: &str) -> HubError {
        const SHOWN: usize = 12;
        let mut names: Vec<String> = self.models().into_iter().map(|model| model.name).collect();
        names.dedup();
        let has = match names.len() {
            0 => "nothing".to_owned(),
            all @ ..=SHOWN => names[..all].join(", "),
            all => format!("{} and {} more", names[..SHOWN].join(", "), all - SHOWN),
        };
        HubError::NotCached { name: name.to_owned(), root: self.root.clone(), has }
    }
}

/// Where a model's path leads: to what is there, else to what the cache has of a name that its last two parts are, else to itself.
pub fn located(path: &Path) -> PathBuf {
    let cached = || HubCache::of_environment()?.find(&name_of(path)?);
    if path.exists() { path.to_owned() } else { cached().unwrap_or_else(|| path.to_owned()) }
}

/// The name of a hub that a path ends in: those of the cluster file begin in its folder, which is there.
pub fn name_of(path: &Path) -> Option<HubName> {
    if is_plain_path(path) {
        return None;
    }
    let typed = path.to_str()?;
    // The name of a file may have parts of its own.
    let (folder, file) = typed.split_once(':').map_or((typed, None), |(folder, file)| (folder, Some(file)));
    let mut last = folder.rsplitn(3, '/');
    let (name, org) = (last.next()?, last.next()?);
    if last.next().is_some_and(|begins| !Path::new(&format!("{begins}/")).is_dir()) {
        return None;
    }
    let file = file.map_or_else(String::new, |file| format!(":{file}"));
    format!("{org}/{name}{file}").parse().ok()
}

/// Which of some files a name means: itself, else the one file that it is a part of, whatever the case; with all parts of a split one.
///
/// # Errors
/// Those that it could mean.
pub(super) fn matching(files: &[String], wanted: &str) -> Result<Vec<String>, Vec<String>> {
    let lower = wanted.to_lowercase();
    let exact: Vec<&String> = files.iter().filter(|file| *file == wanted).collect();
    let found = match exact.is_empty() {
        true => files.iter().filter(|file| file.to_lowercase().contains(&lower) && file.ends_with(".gguf")).collect(),
        false => exact,
    };
    let mut stems: Vec<String> = found.iter().map(|file| split_stem(file).unwrap_or(file).to_owned()).collect();
    stems.dedup();
    match (&found[..], &stems[..]) {
        ([], _) => Err(Vec::new()),
        ([first, ..], [_]) => Ok(match split_stem(first) {
            Some(stem) => files.iter().filter(|file| split_stem(file) == Some(stem)).cloned().collect(),
            None => vec![(*first).clone()],
        }),
        (found, _) => Err(found.iter().map(|file| (*file).clone()).collect()),
    }
}

/// `STEM` of `STEM-00001-of-00003.gguf`.
fn split_stem(file: &str) -> Option<&str> {
    let (rest, all) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (number(all) && number(part)).then_some(stem)
}

/// The files of a snapshot, by their names within it, with their bytes.
fn files(snapshot: &Path) -> Vec<(String, u64)> {
    let (mut found, mut open) = (Vec::new(), vec![snapshot.to_owned()]);
    while let Some(folder) = open.pop() {
        for path in entries(&folder) {
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => open.push(path),
                Ok(metadata) => {
                    let name = path.strip_prefix(snapshot).unwrap_or(&path).to_string_lossy().into_owned();
                    found.push((name, metadata.len()));
                }
                Err(_) => {}
            }
        }
    }
    found.sort();
    found
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let listed: io::Result<Vec<_>> = fs::read_dir(folder).and_then(|entries| entries.collect());
    listed.unwrap_or_default().into_iter().map(|entry: fs::DirEntry| entry.path())
}

fn folder(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Where the hub's tools keep what they have.
pub(super) fn home() -> Option<PathBuf> {
    folder("HF_HOME").or_else(|| Some(folder("HOME")?.join(".cache/huggingface")))
}

#[cfg(test)]
mod tests {
    use super::{super::meter::PullMeter, *};

    fn snapshot(cache: &HubCache, repository: &str, commit: &str, files: &[&str]) {
        let folder = cache.repository(repository).join("snapshots").join(commit);
        fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|file| fs::write(folder.join(file), file.as_bytes()).unwrap());
    }

    #[test]
    fn names_find_what_is_cached() {
        let folder = tempfile::tempdir().unwrap();
        let cache = HubCache::new(folder.path());
        snapshot(&cache, "org/name", "aaaa", &["config.json", "x-Q4_K_M.gguf", "x-Q8_0.gguf"]);
        snapshot(&cache, "org/name", "bbbb", &["config.json"]);
        fs::create_dir_all(cache.repository("org/name").join("refs")).unwrap();
        fs::write(cache.repository("org/name").join("refs/main"), "aaaa\n").unwrap();
        let find = |name: &str| {
            let found = cache.find(&name.parse().unwrap())?;
            Some(found.strip_prefix(folder.path()).unwrap().display().to_string())
        };
        assert_eq!(find("org/name").unwrap(), "models--org--name/snapshots/aaaa");
        assert_eq!(find("org/name@bbbb").unwrap(), "models--org--name/snapshots/bbbb");
        assert_eq!(find("org/name:q4_k_m").unwrap(), "models--org--name/snapshots/aaaa/x-Q4_K_M.gguf");
        assert_eq!(
            (find("org/name:Q4"), find("org/other"), find("org/name@cccc")),
            (find("org/name:q4_k_m"), None, None)
        );
        assert_eq!(find("org/name:Q"), None, "either of two");
        let models: Vec<_> = cache.models().into_iter().map(|model| (model.name, model.files)).collect();
        assert_eq!(models, [("org/name".to_owned(), 3), ("org/name".to_owned(), 1)]);
        assert!(cache.remove(&"org/name".parse().unwrap()).is_ok() && cache.models().is_empty());
        assert_eq!(cache.remove(&"org/name".parse().unwrap()).unwrap_err().code(), "hub_not_cached");
    }

    #[test]
    fn what_somebody_fetches_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, name) = (HubCache::new(folder.path()), "org/name".parse().unwrap());
        snapshot(&cache, "org/name", "aaaa", &["config.json"]);
        let meter = PullMeter::new(true);
        let pull = || lock::shared(&cache.repository_lock("org/name"), &meter, "").unwrap();
        let tool = || lock::alone(&cache.blob_lock("org/name", "ab"), &meter, "").unwrap();
        for (held, file) in [(vec![pull(), pull()], "repository.lock"), (vec![tool()], "ab.lock")] {
            let error = cache.remove(&name).unwrap_err();
            assert!(error.code() == "hub_in_use" && error.to_string().contains(file), "{error}");
            assert_eq!(cache.models().len(), 1);
            drop(held);
        }
        assert!(cache.remove(&name).is_ok() && cache.models().is_empty());
    }

    #[test]
    fn a_path_is_no_name() {
        let name = |path: &str| name_of(Path::new(path)).map(|name| name.to_string());
        assert_eq!(name("org/name").as_deref(), Some("org/name"));
        assert_eq!(name("/tmp/org/name:a/b.gguf").as_deref(), Some("org/name:a/b.gguf"));
        for path in ["org/name.gguf", "./org/name", "../org/name", "~/org/name", "/tmp/./org/name", "/no/such/org/name"]
        {
            assert_eq!(name(path), None, "{path}");
        }
    }

    #[test]
    fn a_split_file_is_all_of_its_parts() {
        let files = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "n.gguf"].map(str::to_owned);
        assert_eq!(matching(&files, "m-00001-of-00002.gguf").unwrap().len(), 2);
        assert_eq!(matching(&files, "n").unwrap(), ["n.gguf"]);
        assert_eq!(matching(&files, "gguf").unwrap_err().len(), 3);
        assert!(matching(&files, "z").unwrap_err().is_empty());
    }
}
