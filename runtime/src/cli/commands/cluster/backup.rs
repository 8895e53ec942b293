//! `backup` and `restore`: what a supervisor's data_dir has, as one file and back. The journal of a cluster that runs is copied by its
//! supervisor, which alone can do so at a moment between two changes.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    cli::output,
    client::Client,
    cluster::{Cluster, size::bytes},
    data_dir::{
        self, LockRole,
        archive::{self, ArchiveWriter},
        private,
    },
    error::{CliError, Exit},
    globals::{DEFAULT_FILE, Format, Globals, ReadFile},
    observe::{logging, version::Version},
};

/// Version of what is in an archive, and where.
const BACKUP_FORMAT: u32 = 1;
/// Its first file, which says what it is.
const MANIFEST: &str = "asterism-backup.json";
/// The cluster file.
const CLUSTER_FILE: &str = "cluster.toml";
/// Before the name of each file of data_dir.
const DATA: &str = "data/";
const JOURNAL: &str = "journal.redb";
/// What of data_dir belongs to processes and to the moment.
const LEFT_OUT: [&str; 4] = ["logs", "backup", "supervisor.json", "up.json"];
/// A manifest is not longer.
const LONGEST_MANIFEST: u64 = 1 << 20;

/// `asterism backup`
#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Where it is written; readable by its owner alone, since the keys of the cluster are in it
    pub path: PathBuf,
}

/// `asterism restore`
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// What `backup` wrote
    pub path: PathBuf,
}

/// What an archive says of itself.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    cluster: String,
    /// The program that wrote it.
    version: String,
    /// Whether its cluster ran.
    running: bool,
}

/// What was written or read.
#[derive(Debug, Serialize)]
struct BackupReport {
    cluster: String,
    file: PathBuf,
    data_dir: PathBuf,
    files: usize,
    bytes: u64,
    running: bool,
}

/// Writes all that a supervisor needs to go on elsewhere.
pub fn backup(globals: &Globals, args: &BackupArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let ReadFile { cluster, text, .. } = globals.read_cluster()?;
    data_dir::look(&cluster.data_dir)?;
    let running = data_dir::running(&cluster.data_dir).is_some();
    // Held until all is read: nobody starts a supervisor meanwhile.
    let held = match running {
        true => None,
        false => Some(data_dir::lock(&cluster.data_dir, &cluster.name, LockRole::Supervisor)?),
    };
    let journal = match running {
        true => Client::find(globals)?.backup()?.path,
        false => data_dir::journal(&cluster.data_dir),
    };
    if !journal.exists() {
        return Err(CliError::new(Exit::NotFound, format!("there is no journal {}", journal.display()))
            .hint("run this on the supervisor's machine, with its cluster file (-f FILE)"));
    }
    let mut partial = args.path.as_os_str().to_owned();
    partial.push(".partial");
    let written = write(&cluster, (&text, &journal, running), Path::new(&partial));
    if running {
        // What is left of it is written over by the next.
        let _ = fs::remove_file(&journal);
    }
    drop(held);
    let (files, size) = written.and_then(|done| fs::rename(&partial, &args.path).map(|()| done)).map_err(|error| {
        let _ = fs::remove_file(&partial);
        private::refused(&args.path, "write", &error)
    })?;
    let (file, data_dir) = (args.path.clone(), cluster.data_dir.clone());
    report(globals, &BackupReport { cluster: cluster.name.clone(), file, data_dir, files, bytes: size, running })?;
    for (key, path) in named_elsewhere(&cluster) {
        globals.note(format_args!("{key} is not in it: keep {} beside it", path.display()));
    }
    globals
        .note(format_args!("next: asterism restore {} on another machine, or here after a loss", args.path.display()));
    Ok(Exit::Success)
}

/// Files that the cluster file names outside of its data_dir.
fn named_elsewhere(cluster: &Cluster) -> Vec<(&'static str, PathBuf)> {
    let token = cluster.security.token_file.clone().map(|path| ("[security] token_file", path));
    let tls = cluster.admin_tls.iter().flat_map(|files| [files.cert.clone(), files.key.clone()]);
    token.into_iter().chain(tls.map(|path| ("[api] admin_tls", path))).collect()
}

/// Returns the number of files, and their bytes.
fn write(cluster: &Cluster, (text, journal, running): (&str, &Path, bool), to: &Path) -> io::Result<(usize, u64)> {
    let out = private::options().create(true).truncate(true).write(true).open(to)?;
    let mut archive = ArchiveWriter::new(io::BufWriter::new(out));
    let manifest = Manifest {
        format: BACKUP_FORMAT,
        cluster: cluster.name.clone(),
        version: Version::current().version.to_owned(),
        running,
    };
    archive.add(MANIFEST, &serde_json::to_vec(&manifest).expect("plain values are JSON"))?;
    archive.add(CLUSTER_FILE, text.as_bytes())?;
    archive.add_file(&format!("{DATA}{JOURNAL}"), &File::open(journal)?)?;
    let mut found = Vec::new();
    collect(&cluster.data_dir, String::new(), &mut found)?;
    let (mut files, mut bytes) = (3, fs::metadata(journal)?.len());
    for (name, path) in found {
        match File::open(&path) {
            Ok(file) => {
                bytes += file.metadata()?.len();
                archive.add_file(&format!("{DATA}{name}"), &file)?;
                files += 1;
            }
            // A client deleted it a moment ago.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    archive.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok((files, bytes))
}

/// The plain files of a data_dir that outlive its processes, but for the journal.
fn collect(folder: &Path, below: String, found: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let passing = name.ends_with(".lock") || name.ends_with(".partial");
        let of_start = below.is_empty() && name.ends_with(".toml");
        if passing || of_start || below.is_empty() && (LEFT_OUT.contains(&&*name) || name == JOURNAL) {
            continue;
        }
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() {
            collect(&path, format!("{below}{name}/"), found)?;
        } else if kind.is_file() {
            found.push((format!("{below}{name}"), path));
        }
    }
    Ok(())
}

/// Puts back what `backup` wrote, where nothing is yet.
pub fn restore(globals: &Globals, args: &RestoreArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let unreadable = |error: io::Error| {
        CliError::usage(format!("{}: {error}", args.path.display())).hint("name a file that `asterism backup` wrote")
    };
    let (manifest, text) = described(&args.path).map_err(unreadable)?;
    if manifest.format != BACKUP_FORMAT {
        let what = format!("{} has format {}, expected {BACKUP_FORMAT}", args.path.display(), manifest.format);
        return Err(CliError::usage(what).hint(format!("restore it with asterism {}", manifest.version)));
    }
    let file = globals.file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    if !file.exists() {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), private::make).map_err(|error| private::refused(&file, "write", &error))?;
        private::replace(&file, text.as_bytes()).map_err(|error| private::refused(&file, "write", &error))?;
        globals.note(format_args!("wrote the cluster file {}", file.display()));
    }
    let cluster = globals.cluster()?;
    if cluster.name != manifest.cluster {
        let what = format!(
            "{} is of cluster '{}', and {} describes '{}'",
            args.path.display(),
            manifest.cluster,
            file.display(),
            cluster.name
        );
        return Err(CliError::new(Exit::NotFound, what)
            .hint("name its cluster file with -f FILE, or one that is not there yet"));
    }
    let journal = data_dir::journal(&cluster.data_dir);
    if journal.exists() {
        let what = format!("data_dir {} has a journal already", cluster.data_dir.display());
        return Err(CliError::new(Exit::NotFound, what).hint("move that folder away first; nothing was changed"));
    }
    private::folder(&cluster.data_dir)?;
    let _seat = data_dir::lock(&cluster.data_dir, &cluster.name, LockRole::Supervisor)?;
    let (files, size) = unpack(&args.path, &cluster.data_dir).map_err(unreadable)?;
    let (path, data_dir) = (args.path.clone(), cluster.data_dir.clone());
    let running = manifest.running;
    report(
        globals,
        &BackupReport { cluster: cluster.name.clone(), file: path, data_dir, files, bytes: size, running },
    )?;
    globals.note("next: asterism up, or asterism supervisor; nodes reach it at [cluster] listen, and join it with --join if that changed");
    Ok(Exit::Success)
}

/// What an archive says of itself, and its cluster file.
fn described(path: &Path) -> io::Result<(Manifest, String)> {
    let (mut manifest, mut text) = (None, None);
    archive::read(io::BufReader::new(File::open(path)?), |name, content| {
        let mut found = String::new();
        if name == MANIFEST {
            content.take(LONGEST_MANIFEST).read_to_string(&mut found)?;
            manifest = Some(serde_json::from_str(&found)?);
        } else if name == CLUSTER_FILE {
            content.take(LONGEST_MANIFEST).read_to_string(&mut found)?;
            text = Some(found);
        }
        Ok(())
    })?;
    manifest.zip(text).ok_or_else(|| io::Error::other("it is an archive, and no backup of a cluster"))
}

/// The journal comes last: without it nothing was restored, and it can be done again.
fn unpack(path: &Path, data_dir: &Path) -> io::Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let journal = data_dir.join(JOURNAL);
    let partial = data_dir.join(format!("{JOURNAL}.partial"));
    archive::read(io::BufReader::new(File::open(path)?), |name, content| {
        let Some(name) = name.strip_prefix(DATA) else { return Ok(()) };
        let to = if name == JOURNAL { partial.clone() } else { data_dir.join(name) };
        to.parent().map_or(Ok(()), private::make)?;
        let mut out = private::options().create(true).truncate(true).write(true).open(&to)?;
        bytes += io::copy(content, &mut out)?;
        out.sync_all()?;
        files += 1;
        Ok(())
    })?;
    fs::rename(&partial, &journal)?;
    File::open(data_dir)?.sync_all()?;
    Ok((files, bytes))
}

fn report(globals: &Globals, done: &BackupReport) -> Result<(), CliError> {
    if globals.format != Format::Table {
        return output::print_json(done, globals.format);
    }
    output::print_pairs(&[
        ("cluster", done.cluster.clone()),
        ("file", done.file.display().to_string()),
        ("data_dir", done.data_dir.display().to_string()),
        ("files", done.files.to_string()),
        ("size", bytes(done.bytes)),
        ("taken", if done.running { "while the cluster ran" } else { "while the cluster was down" }.to_owned()),
    ])
}
