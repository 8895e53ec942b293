//! Which folder a model's path names, and what the model is called: a Hugging Face folder, or a repository of the hub's cache, of
//! which the newest snapshot is taken. Decides by what is said to stand at a path ([`FoundPath`]); the disk is looked at in `disk.rs`.
//! Reads no file whole, downloads nothing.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::sniffed::{self, ForeignFormat};
use crate::ModelError;

/// What stands at a path, links followed.
#[derive(Clone, Debug)]
pub(super) enum FoundPath {
    Nothing,
    /// A link to what is not there.
    Dangling(PathBuf),
    /// With what its entries are called and when they changed.
    Folder(Vec<FolderEntry>),
    /// With how it begins.
    File(Vec<u8>),
}

/// An entry of a folder.
#[derive(Clone, Debug)]
pub(super) struct FolderEntry {
    pub name: String,
    pub modified: SystemTime,
}

/// A model's folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModelFolder {
    pub path: PathBuf,
    /// What people call the model: ORG/NAME where the hub's cache says it, else the folder's name; never a commit.
    pub name: String,
}

/// Looks at a path.
pub(super) type PathLookup<'a> = &'a dyn Fn(&Path) -> Result<FoundPath, ModelError>;

const MODEL_CONFIG: &str = "config.json";
const SNAPSHOTS: &str = "snapshots";
/// How the hub's cache begins the folder of a model: `models--ORG--NAME`.
const REPOSITORY: &str = "models--";
const EXPECTED: &str = "a Hugging Face model folder (config.json, tokenizer.json, model.safetensors), or a GGUF file";

/// The folder that `named` means. `hub` is the hub's cache on this machine.
///
/// # Errors
/// [`ModelError::Unfit`] with what is there instead, [`ModelError::MissingFile`] where a folder is not a model's.
pub(super) fn locate(named: &Path, hub: Option<&Path>, look: PathLookup<'_>) -> Result<ModelFolder, ModelError> {
    let entries = match look(named)? {
        FoundPath::Folder(entries) => entries,
        FoundPath::File(begins) => return Err(a_file(named, &begins)),
        FoundPath::Dangling(target) => return Err(dangling(named, &target)),
        FoundPath::Nothing => return Err(nothing(named, hub, look)?),
    };
    let path = match has(&entries, MODEL_CONFIG) {
        true => named.to_owned(),
        false if has(&entries, SNAPSHOTS) => newest(&named.join(SNAPSHOTS), look)?,
        false if last(named) == SNAPSHOTS => newest(named, look)?,
        false => return Err(no_model(named, &entries)),
    };
    Ok(ModelFolder { name: name_of(&path), path })
}

/// Why a folder has no weights that are read: by what it has instead.
pub(super) fn no_weights(folder: &Path, look: PathLookup<'_>) -> Result<ModelError, ModelError> {
    let FoundPath::Folder(entries) = look(folder)? else { return Ok(missing(folder, WEIGHTS, FETCH)) };
    let instead = OTHER_WEIGHTS.iter().find_map(|(end, remedy)| {
        let entry = entries.iter().find(|entry| entry.name.ends_with(end) && entry.name != "training_args.bin")?;
        Some(format!("it has {}; {remedy}", entry.name))
    });
    Ok(missing(folder, WEIGHTS, instead.unwrap_or_else(|| FETCH.to_owned())))
}

/// How files of weights end that are not read, and what to do about them.
const OTHER_WEIGHTS: &[(&str, &str)] = &[
    (".gguf", "name that file itself, which has its own configuration"),
    (
        "adapter_model.safetensors",
        "an adapter alone is not read: merge it into its base model (peft's merge_and_unload)",
    ),
    (
        ".safetensors",
        "weights have transformers' names: model.safetensors, or model.safetensors.index.json and its shards",
    ),
    (".bin", PYTORCH),
    (".pt", PYTORCH),
    (".pth", PYTORCH),
    (".ckpt", PYTORCH),
    (".msgpack", FRAMEWORK),
    (".h5", FRAMEWORK),
    (".onnx", FRAMEWORK),
];
const PYTORCH: &str =
    "PyTorch's format is not read: fetch the repository's safetensors, or save it with transformers' save_pretrained";
const FRAMEWORK: &str = "weights of other frameworks are not read: fetch the repository's safetensors";
pub(super) const WEIGHTS: &str = "model.safetensors";
const FETCH: &str = "fetch the weights as safetensors, all shards of them";

fn missing(folder: &Path, file: &str, remedy: impl Into<String>) -> ModelError {
    ModelError::MissingFile { file: file.to_owned(), folder: folder.display().to_string(), remedy: remedy.into() }
}

fn unfit(path: &Path, got: impl Into<String>, expected: impl Into<String>) -> ModelError {
    ModelError::Unfit { path: path.display().to_string(), got: got.into(), expected: expected.into() }
}

fn has(entries: &[FolderEntry], name: &str) -> bool {
    entries.iter().any(|entry| entry.name == name)
}

fn last(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}

/// The snapshot that changed last, of those that have a configuration if any has.
fn newest(snapshots: &Path, look: PathLookup<'_>) -> Result<PathBuf, ModelError> {
    let FoundPath::Folder(mut entries) = look(snapshots)? else {
        return Err(unfit(snapshots, "no folder", "the snapshots of a repository of the hub's cache; fetch it again"));
    };
    entries.sort_by(|a, b| (b.modified, &b.name).cmp(&(a.modified, &a.name)));
    for entry in &entries {
        let snapshot = snapshots.join(&entry.name);
        if matches!(look(&snapshot.join(MODEL_CONFIG))?, FoundPath::File(_)) {
            return Ok(snapshot);
        }
    }
    match entries.first() {
        Some(entry) => Ok(snapshots.join(&entry.name)),
        None => Err(unfit(snapshots, "an empty folder", "a snapshot; fetch the repository again (`hf download`)")),
    }
}

fn a_file(path: &Path, begins: &[u8]) -> ModelError {
    let what = |kind: &str, remedy: &str| unfit(path, kind, format!("{EXPECTED}: {remedy}"));
    if path.extension().is_some_and(|end| end == "gguf") {
        let shown = String::from_utf8_lossy(&begins[..begins.len().min(4)]);
        let expected = "a GGUF file, which begins with \"GGUF\": fetch it again";
        let other = sniffed::of(begins).map_or_else(String::new, |other| format!("{other} and "));
        return unfit(path, format!("a file that is {other}no GGUF: it begins with {shown:?}"), expected);
    }
    match sniffed::of(begins) {
        Some(ForeignFormat::LfsPointer { .. }) => {
            what("a Git LFS pointer", "run `git lfs pull` there, and name its folder")
        }
        Some(other) => what(other.name(), "name the folder of the model"),
        None => what("a file", "name the folder that it lies in, if that is a model's"),
    }
}

fn dangling(path: &Path, target: &Path) -> ModelError {
    let got = format!("a link to {}, which is not there", target.display());
    unfit(path, got, format!("{EXPECTED}: fetch it again, or name another folder"))
}

/// A folder that is no model's.
fn no_model(folder: &Path, entries: &[FolderEntry]) -> ModelError {
    let repositories: Vec<&str> =
        entries.iter().map(|entry| entry.name.as_str()).filter(|name| name.starts_with(REPOSITORY)).collect();
    let ends = |end: &str| entries.iter().any(|entry| entry.name.ends_with(end));
    let remedy = match entries.len() {
        0 => "the folder is empty: fetch the model, or name another folder".to_owned(),
        _ if !repositories.is_empty() => format!("it is the hub's cache: name one of {}", listed(&repositories)),
        _ if ends(".gguf") => {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let files: Vec<&str> = names.into_iter().filter(|name| name.ends_with(".gguf")).collect();
            format!("it has GGUF files: name one of {}", listed(&files))
        }
        _ if has(entries, "adapter_config.json") => {
            "it has an adapter alone: merge it into its base model (peft's merge_and_unload) and save that".to_owned()
        }
        _ if has(entries, "params.json") => {
            "it has the original format of its authors: fetch the files that transformers reads".to_owned()
        }
        _ => {
            let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            format!("name {EXPECTED}; it has {}", listed(&names))
        }
    };
    missing(folder, MODEL_CONFIG, remedy)
}

/// Some names of many.
fn listed(names: &[&str]) -> String {
    const LISTED_NAMES: usize = 8;
    let mut names = names.to_vec();
    names.sort_unstable();
    let more = names.len().saturating_sub(LISTED_NAMES);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// A path where nothing is: perhaps a name of the hub, perhaps misspelt.
fn nothing(path: &Path, hub: Option<&Path>, look: PathLookup<'_>) -> Result<ModelError, ModelError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = match look(parent)? {
        FoundPath::Folder(entries) => Some(entries),
        _ => None,
    };
    let wanted = last(path).to_string_lossy();
    let near = |entry: &&FolderEntry| (strsim::jaro_winkler(&wanted, &entry.name) * 1e6) as u64;
    let nearest = beside.iter().flatten().filter(|entry| near(entry) > 800_000).max_by_key(near);
    let meant = nearest.map_or_else(String::new, |entry| format!(" (did you mean {}?)", entry.name));
    if is_plain_path(path) {
        return Ok(unfit(path, format!("not there{meant}"), EXPECTED));
    }
    let refused =
        |remedy: &str| missing(path, MODEL_CONFIG, format!("there is no such folder{remedy}; name {EXPECTED}"));
    if beside.is_some() {
        return Ok(refused(&meant));
    }
    // A name of the hub in a cluster file begins in the file's folder, which is there.
    let begins = parent.parent().filter(|_| path.is_absolute());
    if let Some(begins) = begins
        && !matches!(look(begins)?, FoundPath::Folder(_))
    {
        return Ok(unfit(path, "not there", EXPECTED));
    }
    let Some(repository) = hub_name(path) else { return Ok(refused("")) };
    let cached = hub.map(|hub| hub.join(format!("{REPOSITORY}{}", repository.replace('/', "--"))));
    Ok(refused(&match cached {
        Some(cached) if matches!(look(&cached)?, FoundPath::Folder(_)) => {
            format!(", but the hub's cache has {repository}: write path = \"{}\"", cached.display())
        }
        _ => format!(
            ", and nothing is downloaded by itself: if {repository} is a name of the Hugging Face hub, `asterism model pull \
             {repository}`"
        ),
    }))
}

/// Whether a path is one by how it is written, and no name of the hub: it begins as one, or ends as a file of its own does. An
/// absolute path may be such a name in a cluster file.
pub fn is_plain_path(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let begins = ["./", "../", "~"].iter().any(|begin| text.starts_with(begin)) || text.contains("/./");
    begins || text.ends_with(".gguf") && !text.contains(':')
}

/// The last two names of a path, where they can be an organisation and a model.
fn hub_name(path: &Path) -> Option<String> {
    let mut names = path.components().rev().map_while(|component| match component {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let (name, organisation) = (names.next()?, names.next()?);
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (plain(name) && plain(organisation)).then(|| format!("{organisation}/{name}"))
}

/// A folder's name, or that of the nearest one around it which is neither a commit nor the cache's own.
fn name_of(folder: &Path) -> String {
    let commit = |name: &str| name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let snapshot = |path: &Path| path.parent().is_some_and(|parent| last(parent) == SNAPSHOTS);
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let ancestors = folder.ancestors().filter(|path| last(path) != SNAPSHOTS && !snapshot(path));
    match ancestors.filter_map(name).find(|name| !commit(name)) {
        // A hub name has no "--" of its own.
        Some(name) => name.strip_prefix(REPOSITORY).map_or(name.clone(), |name| name.replace("--", "/")),
        None => folder.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    /// A made-up disk: paths of files, their first bytes, and when they changed.
    struct Disk(BTreeMap<PathBuf, (FoundPath, u64)>);

    impl Disk {
        fn of(files: &[(&str, &str, u64)]) -> Self {
            let file = |(path, text, time): &(&str, &str, u64)| {
                (PathBuf::from(path), (FoundPath::File(text.as_bytes().to_vec()), *time))
            };
            Self(files.iter().map(file).collect())
        }

        fn link(mut self, path: &str, target: &str) -> Self {
            self.0.insert(path.into(), (FoundPath::Dangling(target.into()), 0));
            self
        }

        fn look(&self, path: &Path) -> Result<FoundPath, ModelError> {
            if let Some((found, _)) = self.0.get(path) {
                return Ok(found.clone());
            }
            let mut entries: BTreeMap<String, u64> = BTreeMap::new();
            for (file, (_, time)) in &self.0 {
                if let Some(name) = file.strip_prefix(path).ok().and_then(|rest| rest.components().next()) {
                    let modified = entries.entry(name.as_os_str().to_string_lossy().into()).or_default();
                    *modified = (*modified).max(*time);
                }
            }
            let entry = |(name, time)| FolderEntry { name, modified: UNIX_EPOCH + Duration::from_secs(time) };
            Ok(if entries.is_empty() {
                FoundPath::Nothing
            } else {
                FoundPath::Folder(entries.into_iter().map(entry).collect())
            })
        }

        fn locate(&self, path: &str) -> Result<ModelFolder, ModelError> {
            locate(Path::new(path), Some(Path::new("/hub")), &|path| self.look(path))
        }

        fn refuses(&self, path: &str) -> String {
            self.locate(path).expect_err("no model").to_string()
        }
    }

    const OLD: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const NEW: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache() -> Disk {
        let at = |commit: &str, file: &str| format!("/hub/models--Qwen--Qwen2.5-0.5B/snapshots/{commit}/{file}");
        Disk::of(&[
            (&at(OLD, "config.json"), "{}", 1),
            (&at(NEW, "config.json"), "{}", 2),
            (&at("partial", "README.md"), "", 3),
            ("/hub/models--gpt2/refs/main", OLD, 1),
            ("/hub/models--gpt2/snapshots/x/README.md", "", 1),
        ])
    }

    #[test]
    fn of_a_cached_repository_the_newest_whole_snapshot_is_taken_and_named_by_the_repository() {
        let repository = "/hub/models--Qwen--Qwen2.5-0.5B";
        let newest = PathBuf::from(format!("{repository}/snapshots/{NEW}"));
        let expected = ModelFolder { path: newest.clone(), name: "Qwen/Qwen2.5-0.5B".into() };
        for path in [repository.to_owned(), format!("{repository}/snapshots"), newest.display().to_string()] {
            assert_eq!(cache().locate(&path).unwrap(), expected, "{path}");
        }
        let old = cache().locate(&format!("{repository}/snapshots/{OLD}")).unwrap();
        assert_eq!((old.name.as_str(), old.path.ends_with(OLD)), ("Qwen/Qwen2.5-0.5B", true));
        assert!(cache().refuses("/hub").contains("name one of models--Qwen--Qwen2.5-0.5B, models--gpt2"));
    }

    #[test]
    fn a_name_is_never_a_commit() {
        for (path, name) in [
            ("/models/tiny", "tiny"),
            ("/models/tiny/.", "tiny"),
            (&format!("/models/qwen/{NEW}"), "qwen"),
            ("/hub/models--gpt2/snapshots/main", "gpt2"),
            (&format!("/hub/models--gpt2/snapshots/{NEW}"), "gpt2"),
            ("/", "/"),
        ] {
            assert_eq!(name_of(Path::new(path)), name, "{path}");
        }
    }

    #[test]
    fn what_is_no_model_is_named_with_what_to_do() {
        let disk = Disk::of(&[
            ("/m/a.gguf", "GGML\x03", 0),
            ("/m/model.safetensors", "version https://git-lfs.github.com/spec/v1\nsize 7\n", 0),
            ("/m/notes.txt", "notes", 0),
            ("/gguf/a-q4.gguf", "GGUF", 0),
            ("/meta/params.json", "{}", 0),
            ("/lora/adapter_config.json", "{}", 0),
            ("/here/config.json", "{}", 0),
            ("/work/cluster.toml", "", 0),
        ])
        .link("/current", "/gone");
        for (path, words) in [
            ("/m/a.gguf", vec!["/m/a.gguf is a file that is no GGUF", "begins with \"GGML\"", "fetch it again"]),
            ("/m/model.safetensors", vec!["is a Git LFS pointer", "git lfs pull"]),
            ("/m/notes.txt", vec!["is a file", "name the folder"]),
            ("/m", vec!["no config.json in /m", "GGUF"]),
            ("/gguf", vec!["no config.json in /gguf", "GGUF files: name one of a-q4.gguf"]),
            ("/meta", vec!["original format"]),
            ("/lora", vec!["merge_and_unload"]),
            ("/current", vec!["/current is a link to /gone, which is not there"]),
            ("/her", vec!["no config.json in /her: there is no such folder", "did you mean here?"]),
            (
                "/work/Qwen/Qwen2.5-7B",
                vec!["no such folder", "asterism model pull Qwen/Qwen2.5-7B", "nothing is downloaded"],
            ),
            ("/work/org/my model", vec!["there is no such folder; name a Hugging Face model folder"]),
            ("/gguf/b-q4.gguf", vec!["/gguf/b-q4.gguf is not there (did you mean a-q4.gguf?); expected"]),
            ("/nowhere/at/all.gguf", vec!["/nowhere/at/all.gguf is not there; expected", "a GGUF file"]),
            ("models/smol.gguf", vec!["models/smol.gguf is not there; expected"]),
            ("./models/smol", vec!["./models/smol is not there; expected"]),
            ("../models/smol", vec!["../models/smol is not there; expected"]),
            ("~/models/smol", vec!["~/models/smol is not there; expected"]),
            ("/work/./models/smol", vec!["/work/./models/smol is not there; expected"]),
            ("/nowhere/models/smol", vec!["/nowhere/models/smol is not there; expected"]),
        ] {
            let stated = disk.refuses(path);
            assert!(words.iter().all(|word| stated.contains(word)), "{path}: {stated}");
        }
        let known = cache().refuses("Qwen/Qwen2.5-0.5B");
        assert!(known.contains("write path = \"/hub/models--Qwen--Qwen2.5-0.5B\""), "{known}");
    }

    #[test]
    fn weights_of_other_formats_are_told_apart() {
        for (file, words) in [
            ("pytorch_model-00001-of-00002.bin", "PyTorch's format is not read"),
            ("model-q4.gguf", "name that file itself"),
            ("adapter_model.safetensors", "merge it into its base model"),
            ("flax_model.msgpack", "other frameworks"),
            ("consolidated.safetensors", "have transformers' names"),
            ("README.md", "fetch the weights as safetensors"),
        ] {
            let disk = Disk::of(&[(&format!("/m/{file}"), "", 0)]);
            let stated = no_weights(Path::new("/m"), &|path| disk.look(path)).unwrap().to_string();
            assert!(stated.starts_with("no model.safetensors in /m: ") && stated.contains(words), "{file}: {stated}");
        }
    }
}
