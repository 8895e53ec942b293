//! Folders that only their owner enters and files that only he reads: made so, and tightened where they are not. Knows not
//! what they are for.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use rustix::process::geteuid;

use crate::error::CliError;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Keys end in this. One that others could read is known to them: who loads it refuses it, and nobody closes it quietly.
const KEY: &str = "key.pem";

/// Makes a folder and those above it that are not there, and sees that all it holds is ours and ours alone.
///
/// # Errors
/// When something in it belongs to somebody else or is no file, or the disk takes nothing now.
pub fn folder(path: &Path) -> Result<(), CliError> {
    make(path).map_err(|error| refused(path, "make", &error))?;
    let found = fs::metadata(path).map_err(|error| refused(path, "look at", &error))?;
    check(path, &found)?;
    tighten(path, &found, FOLDER_MODE)?;
    all_within(path)
}

/// Makes a folder and those above it that are not there.
pub fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// How files are opened that nobody else may read, should they be new.
pub fn options() -> OpenOptions {
    let mut options = File::options();
    options.mode(FILE_MODE);
    options
}

/// Replaces a file as a whole, so that a reader sees the old content or the new, whoever else replaces it meanwhile.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let (folder, name) = (path.parent().unwrap_or(Path::new(".")), path.file_name().unwrap_or_default());
    // A name of its own for each: of two that write one file, one would empty what the other has put in its place.
    let mut partial = tempfile::Builder::new().prefix(name).suffix(".partial").tempfile_in(folder)?;
    partial.write_all(content)?;
    partial.as_file().sync_all()?;
    partial.persist(path).map(drop).map_err(|error| error.error)
}

/// Whether it may pass by itself, or by somebody making room: the disk is full, read-only, or out of order.
pub fn may_pass(kind: ErrorKind) -> bool {
    use ErrorKind::{
        AlreadyExists, InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
        PermissionDenied, Unsupported,
    };
    // Not the other way round: what a broken disk says has no kind.
    !matches!(
        kind,
        AlreadyExists
            | InvalidData
            | InvalidFilename
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | NotFound
            | PermissionDenied
            | Unsupported
    )
}

fn all_within(folder: &Path) -> Result<(), CliError> {
    let entries = fs::read_dir(folder).map_err(|error| refused(folder, "look into", &error))?;
    for entry in entries {
        let path = entry.map_err(|error| refused(folder, "look into", &error))?.path();
        let found = match fs::symlink_metadata(&path) {
            Ok(found) => found,
            // Another process of the cluster replaced it a moment ago.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(refused(&path, "look at", &error)),
        };
        check(&path, &found)?;
        if found.is_dir() {
            tighten(&path, &found, FOLDER_MODE)?;
            all_within(&path)?;
        } else if found.is_file() {
            if !path.to_string_lossy().ends_with(KEY) {
                tighten(&path, &found, FILE_MODE)?;
            }
        } else if !found.is_symlink() {
            let what = format!("{} is neither a file nor a folder", path.display());
            return Err(CliError::usage(what).hint("remove it, or give the cluster another data_dir"));
        }
    }
    Ok(())
}

/// Who owns it can change it at any time.
fn check(path: &Path, found: &Metadata) -> Result<(), CliError> {
    let (expected, got) = (geteuid().as_raw(), found.uid());
    if got == expected {
        return Ok(());
    }
    let what = format!("{} belongs to user {got}, and this process runs as user {expected}", path.display());
    Err(CliError::usage(what)
        .hint(format!("`chown -R {expected} {}`, or run as the user that it belongs to", path.display())))
}

fn tighten(path: &Path, found: &Metadata, most: u32) -> Result<(), CliError> {
    let got = found.mode() & 0o7777;
    if got & !most & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(path = %path.display(), mode = format!("{got:04o}"), to = format!("{:04o}", got & most), "others could read it; closed");
    match fs::set_permissions(path, Permissions::from_mode(got & most)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let what = format!("{} has mode {got:04o}, expected {most:04o} at most: {error}", path.display());
            Err(CliError { may_pass: may_pass(error.kind()), ..CliError::usage(what) }
                .hint(format!("`chmod {most:o} {}`", path.display())))
        }
        _ => Ok(()),
    }
}

/// A file operation that failed, as a command's error.
pub fn refused(path: &Path, verb: &str, error: &io::Error) -> CliError {
    let what = format!("cannot {verb} {}: {error}", path.display());
    match may_pass(error.kind()) {
        true => CliError::no_room(what),
        false => CliError::usage(what).hint("set [cluster] data_dir to a folder this user may write"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_file_that_several_replace_is_whole_at_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.toml");
        replace(&path, b"version = 1").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..40).for_each(|_| replace(&path, b"version = 1").unwrap()));
            }
            for _ in 0..4000 {
                assert_eq!(fs::read(&path).unwrap(), b"version = 1");
            }
        });
        assert_eq!((mode(&path), fs::read_dir(folder.path()).unwrap().count()), (0o600, 1));
    }

    #[test]
    fn what_is_open_to_others_is_closed() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("above/data");
        self::folder(&folder).unwrap();
        assert_eq!((mode(&place.path().join("above")), mode(&folder)), (0o700, 0o700));
        fs::create_dir(folder.join("logs")).unwrap();
        let files = [folder.join("journal.redb"), folder.join("logs/a.log")];
        for file in &files {
            fs::write(file, "open").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
        }
        for folder in [folder.join("logs"), folder.clone()] {
            fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
        }
        self::folder(&folder).unwrap();
        assert_eq!([&folder, &folder.join("logs")].map(|path| mode(path)), [0o700; 2]);
        assert_eq!(files.map(|path| mode(&path)), [0o600; 2]);
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        self::folder(&link).unwrap();
    }

    #[test]
    fn a_pipe_in_the_way_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place.path().join("supervisor.lock")).unwrap();
        let error = folder(place.path()).unwrap_err();
        assert!(error.message.contains("supervisor.lock is neither a file nor a folder"), "{error}");
    }

    #[test]
    fn a_replacement_that_fails_leaves_the_old_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("record");
        replace(&file, b"old").unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::create_dir(place.path().join("taken")).unwrap();
        replace(&place.path().join("taken"), b"new").unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }
}
