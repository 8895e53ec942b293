//! Where a cluster keeps what it keeps, as a request names it, so that another cluster of the same name does not take it.

use std::{fmt, fs, path::Path};

use super::shared;
use crate::cluster::Cluster;

/// Characters of a word that stands for a machine or a folder.
const WORD: usize = 16;

/// A folder among those of a machine, in words that tell neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Those who see the same folders: this boot's processes in one mount namespace.
    machine: String,
    folder: String,
}

impl Place {
    /// That of a cluster here. `None` where the system does not say which machine this is.
    pub fn of(cluster: &Cluster) -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let mounts = fs::read_link("/proc/self/ns/mnt").ok()?;
        let folder = resolved(shared(cluster));
        let word = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..WORD].to_owned();
        let machine = format!("{} {}", boot.trim(), mounts.display());
        Some(Self { machine: word(machine.as_bytes()), folder: word(folder.as_os_str().as_encoded_bytes()) })
    }

    /// The same that was written with `Display`; `None` for what is none.
    pub fn read(text: &str) -> Option<Self> {
        let (machine, folder) = text.split_once('.')?;
        let plain = |word: &str| word.len() == WORD && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        (plain(machine) && plain(folder)).then(|| Self { machine: machine.to_owned(), folder: folder.to_owned() })
    }

    /// Whether this is known to be another folder than `other`: on another machine the same path may be meant, or another for the same.
    pub fn is_apart(&self, other: &Self) -> bool {
        self.machine == other.machine && self.folder != other.folder
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.machine, self.folder)
    }
}

/// A path without links, as far as it is there.
fn resolved(path: &Path) -> std::path::PathBuf {
    let found = path.ancestors().find_map(|there| Some((there, fs::canonicalize(there).ok()?)));
    let Some((there, real)) = found else { return path.to_owned() };
    // Part by part: nothing behind it would leave a slash.
    real.iter().chain(path.strip_prefix(there).expect("it is an ancestor")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{file, sample::SAMPLE};

    #[test]
    fn folders_of_one_machine_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |data: &Path| {
            let cluster = Cluster::resolve(&file::parse(SAMPLE, []).unwrap(), folder.path()).unwrap();
            Place::of(&Cluster { data_dir: data.to_owned(), ..cluster }).unwrap()
        };
        let (data, link) = (folder.path().join("data"), folder.path().join("link"));
        let before = at(&data);
        fs::create_dir(&data).unwrap();
        std::os::unix::fs::symlink(&data, &link).unwrap();
        assert_eq!([at(&data), at(&link)], [before.clone(), before.clone()], "made, and by another name");
        assert_eq!(Place::read(&before.to_string()), Some(before.clone()));
        let other = at(&folder.path().join("other"));
        assert!(other.is_apart(&before) && !before.is_apart(&before));
        let elsewhere = Place { machine: "0".repeat(WORD), ..other };
        assert!(!elsewhere.is_apart(&before));
        assert_eq!(["", ".", "a.b", "00000000000000000.0"].map(Place::read), [None, None, None, None]);
    }
}
