//! A model of a hub into the cache: which of its files, room for them, and each of them.

use std::{fs, path::PathBuf};

use serde::Serialize;

use super::{
    cache::{HubCache, matching},
    client::{HubClient, HubFile, Revision},
    download::{Download, blob_hash, make_folder},
    error::HubError,
    lock,
    meter::PullMeter,
    name::HubName,
    retry::patiently,
};

/// What a pull left in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pulled {
    /// `ORG/NAME`.
    pub name: String,
    /// Its commit.
    pub revision: String,
    /// The snapshot, or the file that was asked for.
    pub path: PathBuf,
    /// Files that it has of it.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that were fetched: the others were there.
    pub fetched: usize,
}

/// Fetches what is missing of a model.
///
/// # Errors
/// [`HubError`]; what came up to then is kept for the next try, but for a file whose hash is wrong.
pub fn pull(client: &HubClient, cache: &HubCache, name: &HubName, quiet: bool) -> Result<Pulled, HubError> {
    let mut meter = PullMeter::new(quiet);
    let revision = patiently(&meter, || client.revision(name))?;
    let wanted = wanted(name, &revision)?;
    let file = |file: &String| patiently(&meter, || client.file(name, &revision, file));
    let files = wanted.iter().map(file).collect::<Result<Vec<_>, _>>()?;
    // From here on nobody removes what this pull takes for fetched.
    let note = format!("another process removes {}: waiting for it", name.repository);
    let _held = lock::shared(&cache.repository_lock(&name.repository), &meter, &note)?;
    let commit = revision.commit.as_str();
    let downloads: Vec<Download<'_>> =
        files.iter().map(|file| Download { client, cache, name, commit, file }).collect();
    let missing = downloads.iter().map(Download::missing).sum();
    check_room(cache, missing)?;
    meter.expect(missing);
    let mut fetched = 0;
    for download in &downloads {
        fetched += usize::from(download.run(&mut meter)?);
    }
    refer(cache, name, commit)?;
    let snapshot = cache.repository(&name.repository).join("snapshots").join(commit);
    let path = match (&name.file, &wanted[..]) {
        (Some(_), [first, ..]) => snapshot.join(first),
        _ => snapshot,
    };
    let bytes = files.iter().map(|file: &HubFile| file.bytes).sum();
    let (name, revision) = (name.repository.clone(), commit.to_owned());
    Ok(Pulled { name, revision, path, files: files.len(), bytes, fetched })
}

/// The blobs of a model's snapshots whose hashes are not those of their names, and how many were looked at.
///
/// # Errors
/// [`HubError::NotCached`] where it is not here; what cannot be read.
pub fn damaged(cache: &HubCache, name: &HubName) -> Result<(Vec<PathBuf>, usize), HubError> {
    let blobs = cache.repository(&name.repository).join("blobs");
    let Ok(entries) = fs::read_dir(&blobs) else {
        return Err(cache.without(&name.to_string()));
    };
    let (mut damaged, mut seen) = (Vec::new(), 0);
    for entry in entries {
        let path = entry.map_err(HubError::disk(&blobs))?.path();
        if let Some(right) = blob_hash(&path)? {
            seen += 1;
            if !right {
                damaged.push(path);
            }
        }
    }
    damaged.sort();
    Ok((damaged, seen))
}

/// The files that a model needs, or that were named.
fn wanted(name: &HubName, revision: &Revision) -> Result<Vec<String>, HubError> {
    let names = revision.names();
    let nothing = |wanted: &str, has: Vec<String>| {
        let has = if has.is_empty() { "no file".to_owned() } else { listed(&has) };
        HubError::Nothing { repository: name.repository.clone(), wanted: wanted.to_owned(), has }
    };
    if let Some(file) = &name.file {
        return matching(&names, file).map_err(|several| match several.is_empty() {
            true => nothing(&format!("file {file}"), names.clone()),
            false => nothing(&format!("one file {file}"), several),
        });
    }
    let weights = |name: &&String| name.ends_with(".safetensors") && !name.starts_with("consolidated");
    let beside = |name: &&String| {
        [".json", ".jinja", ".model"].iter().any(|end| name.ends_with(end)) || name.as_str() == "merges.txt"
    };
    let root: Vec<String> = names.iter().filter(|name| !name.contains('/')).cloned().collect();
    if !root.iter().any(|name| weights(&name)) {
        return Err(nothing("weights as safetensors", names));
    }
    Ok(root.iter().filter(|name| weights(name) || beside(name)).cloned().collect())
}

/// Some names of many.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Whether the disk of the cache has so many bytes free.
fn check_room(cache: &HubCache, needed: u64) -> Result<(), HubError> {
    make_folder(cache.root())?;
    let Ok(disk) = rustix::fs::statvfs(cache.root()) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    match needed > free {
        true => Err(HubError::NoRoom { path: cache.root().to_owned(), needed, free }),
        false => Ok(()),
    }
}

/// Notes which commit a branch is.
fn refer(cache: &HubCache, name: &HubName, commit: &str) -> Result<(), HubError> {
    if name.revision == commit {
        return Ok(());
    }
    let path = cache.repository(&name.repository).join("refs").join(&name.revision);
    make_folder(path.parent().unwrap_or(&path))?;
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&fresh, commit).map_err(HubError::disk(&fresh))?;
    fs::rename(&fresh, &path).map_err(HubError::disk(path))
}
