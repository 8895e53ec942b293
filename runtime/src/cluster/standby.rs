//! `[standby]` resolved: where several supervisors share their journal. Asks nobody.

use std::path::{Path, PathBuf};

use super::ClusterError;
use crate::cluster::file::StandbySection;

/// etcd grants no shorter ones with its defaults.
const SHORTEST_LEASE_S: u64 = 2;
const LONGEST_LEASE_S: u64 = 60;
/// Members of an etcd are few.
const MOST_MEMBERS: usize = 15;

/// Where several supervisors share their journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// Client addresses of etcd's members.
    pub etcd: Vec<String>,
    /// A folder that the machines of all supervisors see.
    pub shared_dir: PathBuf,
    /// Seconds that the lead lasts without being renewed.
    pub lease_s: u64,
}

/// Relative paths are taken from `directory`.
pub(super) fn resolve(section: &StandbySection, directory: &Path) -> Result<Option<Standby>, ClusterError> {
    let refused = |key, got: String, expected: &str| ClusterError::Value { key, got, expected: expected.to_owned() };
    let StandbySection { etcd, shared_dir, lease_s } = section;
    if etcd.is_empty() {
        return match shared_dir {
            None => Ok(None),
            Some(_) => Err(refused(
                "standby.etcd",
                "[]".into(),
                "with shared_dir expected addresses of etcd's members, such as [\"http://10.0.0.7:2379\"]",
            )),
        };
    }
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\"<>".contains(&byte);
    let is_address = |url: &str| {
        let rest = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(plain))
    };
    if let Some(wrong) = etcd.iter().find(|url| !is_address(url)) {
        let expected = "expected http://ADDRESS:PORT of a member of etcd; one with TLS through a proxy on this machine";
        return Err(refused("standby.etcd", format!("{wrong:?}"), expected));
    }
    if etcd.len() > MOST_MEMBERS {
        return Err(refused("standby.etcd", format!("{} addresses", etcd.len()), "expected at most 15"));
    }
    let Some(shared_dir) = shared_dir else {
        let expected = "with etcd expected a folder that the machines of all supervisors see";
        return Err(refused("standby.shared_dir", "nothing".into(), expected));
    };
    if !(SHORTEST_LEASE_S..=LONGEST_LEASE_S).contains(lease_s) {
        return Err(refused("standby.lease_s", lease_s.to_string(), "expected 2 to 60 seconds"));
    }
    Ok(Some(Standby { etcd: etcd.clone(), shared_dir: directory.join(shared_dir), lease_s: *lease_s }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let section = |etcd: &[&str], shared: Option<&str>, lease_s| StandbySection {
            etcd: etcd.iter().map(|url| (*url).to_owned()).collect(),
            shared_dir: shared.map(PathBuf::from),
            lease_s,
        };
        let resolved = |section: StandbySection| resolve(&section, Path::new("/etc/asterism"));
        assert_eq!(resolved(StandbySection::default()), Ok(None));
        let one = "http://10.0.0.7:2379";
        let good = resolved(section(&[one, "http://etcd-1.room:2379/"], Some("shared"), 3)).unwrap().unwrap();
        assert_eq!((good.shared_dir.as_path(), good.lease_s), (Path::new("/etc/asterism/shared"), 3));
        for (wrong, words) in [
            (section(&[], Some("shared"), 5), "standby.etcd = []: with shared_dir expected"),
            (section(&["https://a:1"], Some("s"), 5), "standby.etcd = \"https://a:1\": expected http://"),
            (section(&["http://a/b"], Some("s"), 5), "standby.etcd = \"http://a/b\": expected http://"),
            (section(&[one], None, 5), "standby.shared_dir = nothing: with etcd expected a folder"),
            (section(&[one], Some("s"), 1), "standby.lease_s = 1: expected 2 to 60"),
        ] {
            let error = resolved(wrong).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
