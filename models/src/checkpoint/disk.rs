//! Looks at the disk for `folder.rs`, and reads a model folder's text files. Decides nothing about them.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::folder::{FolderEntry, FoundPath};
use super::sniffed;
use crate::ModelError;

/// Longest text file of a model folder.
const LONGEST_TEXT_FILE: u64 = 256 << 20;

/// Where the hub's tools keep what they fetched.
pub(super) fn hub() -> Option<PathBuf> {
    let folder = |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || folder("HF_HOME").or_else(|| Some(folder("HOME")?.join(".cache/huggingface")));
    folder("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub")))
}

/// What stands at `path`.
pub(super) fn look(path: &Path) -> Result<FoundPath, ModelError> {
    let unreadable = |cause| ModelError::Unreadable { path: path.display().to_string(), cause };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(fs::read_link(path).map_or(FoundPath::Nothing, FoundPath::Dangling));
        }
        Err(error) => return Err(unreadable(error)),
    };
    if metadata.is_dir() {
        let entries = fs::read_dir(path).map_err(unreadable)?;
        let entries = entries.map(|entry| {
            let entry = entry?;
            // A link's own time: what it leads to may be shared by snapshots, or gone.
            let modified = entry.metadata()?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            Ok(FolderEntry { name: entry.file_name().to_string_lossy().into_owned(), modified })
        });
        return entries.collect::<Result<_, _>>().map(FoundPath::Folder).map_err(unreadable);
    }
    regular(path, u64::MAX)?;
    let mut begins = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(sniffed::SNIFFED_BYTES as u64).read_to_end(&mut begins).map_err(unreadable)?;
    Ok(FoundPath::File(begins))
}

/// A text file of a model folder, if it is there.
pub(crate) fn optional(folder: &Path, file: &str) -> Result<Option<Vec<u8>>, ModelError> {
    let path = folder.join(file);
    if !present(&path)? {
        return Ok(None);
    }
    regular(&path, LONGEST_TEXT_FILE)?;
    let bytes = fs::read(&path).map_err(|cause| ModelError::Unreadable { path: path.display().to_string(), cause })?;
    match sniffed::of(&bytes) {
        Some(other) => Err(ModelError::Unfit {
            path: path.display().to_string(),
            got: other.to_string(),
            expected: format!("{file} itself: {}", other.remedy()),
        }),
        None => Ok(Some(bytes)),
    }
}

/// Whether there is something at `path`. A link to what is not there is refused, as a file that was not fetched.
pub(super) fn present(path: &Path) -> Result<bool, ModelError> {
    match look(path)? {
        FoundPath::Nothing => Ok(false),
        FoundPath::Dangling(target) => Err(ModelError::Unfit {
            path: path.display().to_string(),
            got: format!("a link to {}, which is not there", target.display()),
            expected: "a file, or a link to one: fetch the model again".to_owned(),
        }),
        FoundPath::Folder(_) | FoundPath::File(_) => Ok(true),
    }
}

/// Refuses what is no file, whose reading might never end, and what is longer than `most` bytes.
pub(super) fn regular(path: &Path, most: u64) -> Result<(), ModelError> {
    let shown = || path.display().to_string();
    let metadata = fs::metadata(path).map_err(|cause| ModelError::Unreadable { path: shown(), cause })?;
    let (got, expected) = match metadata.len() {
        _ if !metadata.is_file() => ("no regular file".to_owned(), "one, or a link to one".to_owned()),
        length if length > most => (format!("{length} bytes long"), format!("at most {most}")),
        _ => return Ok(()),
    };
    Err(ModelError::Unfit { path: shown(), got, expected })
}
