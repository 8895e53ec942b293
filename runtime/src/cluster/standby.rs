//! `[standby]` resolved: where several supervisors share their journal. Asks nobody.

use std::path::{Path, PathBuf};

use super::{ClusterError, TlsFiles};
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
    /// By what these and a supervisor know each other.
    pub proof: EtcdProof,
    /// A folder that the machines of all supervisors see.
    pub shared_dir: PathBuf,
    /// Seconds that the lead lasts without being renewed.
    pub lease_s: u64,
}

/// By what an etcd and a supervisor know each other: files, which are read when it begins to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdProof {
    /// The authority of its certificates, where it speaks TLS.
    pub ca: Option<PathBuf>,
    /// What the supervisor shows it.
    pub own: Option<TlsFiles>,
    /// As whom the supervisor asks, and the file of the password.
    pub login: Option<(String, PathBuf)>,
}

/// Relative paths are taken from `directory`.
pub(super) fn resolve(section: &StandbySection, directory: &Path) -> Result<Option<Standby>, ClusterError> {
    let StandbySection { etcd, shared_dir, lease_s, .. } = section;
    if etcd.is_empty() {
        return match shared_dir {
            None => Ok(None),
            Some(_) => Err(refused(
                "standby.etcd",
                "[]",
                "with shared_dir expected addresses of etcd's members, such as [\"http://10.0.0.7:2379\"]",
            )),
        };
    }
    if etcd.len() > MOST_MEMBERS {
        return Err(refused("standby.etcd", format!("{} addresses", etcd.len()), "expected at most 15"));
    }
    let proof = proof(section, directory)?;
    let Some(shared_dir) = shared_dir else {
        let expected = "with etcd expected a folder that the machines of all supervisors see";
        return Err(refused("standby.shared_dir", "nothing", expected));
    };
    if !(SHORTEST_LEASE_S..=LONGEST_LEASE_S).contains(lease_s) {
        return Err(refused("standby.lease_s", lease_s.to_string(), "expected 2 to 60 seconds"));
    }
    Ok(Some(Standby { etcd: etcd.clone(), proof, shared_dir: directory.join(shared_dir), lease_s: *lease_s }))
}

fn refused(key: &'static str, got: impl Into<String>, expected: &str) -> ClusterError {
    ClusterError::Value { key, got: got.into(), expected: expected.to_owned() }
}

/// All members speak TLS, and are then known by an authority that is named, or none does.
fn proof(section: &StandbySection, directory: &Path) -> Result<EtcdProof, ClusterError> {
    let StandbySection { etcd, ca, cert, key, user, password_file, .. } = section;
    let secured = etcd.iter().filter(|url| url.starts_with("https://")).count();
    if let Some(wrong) = etcd.iter().find(|url| !is_address(url)) {
        let expected = "expected http://ADDRESS:PORT or https://NAME:PORT of a member of etcd";
        return Err(refused("standby.etcd", format!("{wrong:?}"), expected));
    }
    if secured != 0 && secured != etcd.len() {
        return Err(refused("standby.etcd", format!("{etcd:?}"), "expected https:// for all members, or for none"));
    }
    let at = |path: &PathBuf| directory.join(path);
    let shown = |path: &PathBuf| format!("{:?}", path.display().to_string());
    let tls = [("standby.ca", ca), ("standby.cert", cert), ("standby.key", key)];
    if let Some((key, path)) = tls.iter().find_map(|(key, path)| Some((*key, path.as_ref()?))).filter(|_| secured == 0)
    {
        return Err(refused(key, shown(path), "expected addresses in standby.etcd that begin with https://"));
    }
    if secured != 0 && ca.is_none() {
        let expected = "with https:// expected the PEM file of the authority that made etcd's certificates";
        return Err(refused("standby.ca", "nothing", expected));
    }
    let own = match (cert, key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert: at(cert), key: at(key) }),
        (None, None) => None,
        (Some(cert), None) => return Err(refused("standby.cert", shown(cert), "expected standby.key beside it")),
        (None, Some(key)) => return Err(refused("standby.key", shown(key), "expected standby.cert beside it")),
    };
    let login = match (user, password_file) {
        (Some(user), _) if user.is_empty() => {
            return Err(refused("standby.user", "\"\"", "expected the name of a user of etcd"));
        }
        (Some(user), Some(file)) => Some((user.clone(), at(file))),
        (None, None) => None,
        (Some(user), None) => {
            return Err(refused("standby.user", format!("{user:?}"), "expected standby.password_file beside it"));
        }
        (None, Some(file)) => {
            return Err(refused("standby.password_file", shown(file), "expected standby.user beside it"));
        }
    };
    Ok(EtcdProof { ca: ca.as_ref().map(at), own, login })
}

fn is_address(url: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"/?#@\"<>".contains(&byte);
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.map(|rest| rest.trim_end_matches('/')).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> StandbySection {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key() {
        let resolved = |text: &str| resolve(&section(text), Path::new("/etc/asterism"));
        assert_eq!(resolved(""), Ok(None));
        let good = resolved(
            "etcd = [\"http://10.0.0.7:2379\", \"http://etcd-1.room:2379/\"]\nshared_dir = \"shared\"\nlease_s = 3",
        );
        let good = good.unwrap().unwrap();
        assert_eq!((good.shared_dir.as_path(), good.lease_s), (Path::new("/etc/asterism/shared"), 3));
        assert_eq!(good.proof, EtcdProof::default());
        let (plain, tls) =
            ("shared_dir = \"s\"\netcd = [\"http://a:1\"]\n", "shared_dir = \"s\"\netcd = [\"https://a:1\"]\n");
        for (wrong, words) in [
            ("shared_dir = \"s\"".to_owned(), "standby.etcd = []: with shared_dir expected"),
            ("etcd = [\"ftp://a:1\"]".to_owned(), "standby.etcd = \"ftp://a:1\": expected http://"),
            ("etcd = [\"http://a/b\"]".to_owned(), "standby.etcd = \"http://a/b\": expected http://"),
            ("etcd = [\"http://a:1\"]".to_owned(), "standby.shared_dir = nothing: with etcd expected a folder"),
            (format!("{plain}lease_s = 1"), "standby.lease_s = 1: expected 2 to 60"),
            (
                "etcd = [\"http://a:1\", \"https://b:1\"]\nca = \"c\"".to_owned(),
                "standby.etcd = [\"http://a:1\", \"https://b:1\"]: expected https:// for all",
            ),
            (tls.to_owned(), "standby.ca = nothing: with https:// expected"),
            (
                format!("{plain}ca = \"c\""),
                "standby.ca = \"c\": expected addresses in standby.etcd that begin with https",
            ),
            (format!("{plain}cert = \"c\"\nkey = \"k\""), "standby.cert = \"c\": expected addresses"),
            (format!("{tls}ca = \"c\"\ncert = \"d\""), "standby.cert = \"d\": expected standby.key"),
            (format!("{tls}ca = \"c\"\nkey = \"d\""), "standby.key = \"d\": expected standby.cert"),
            (format!("{plain}user = \"u\""), "standby.user = \"u\": expected standby.password_file"),
            (format!("{plain}user = \"\"\npassword_file = \"p\""), "standby.user = \"\": expected the name"),
            (format!("{plain}password_file = \"p\""), "standby.password_file = \"p\": expected standby.user"),
        ] {
            let error = resolved(&wrong).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn files_of_etcd_are_taken_from_the_files_folder() {
        let text = "etcd = [\"https://a:1\"]\nshared_dir = \"s\"\nca = \"ca.pem\"\ncert = \"/c.pem\"\nkey = \"k.pem\"\nuser = \"u\"\npassword_file = \"p\"";
        let proof = resolve(&section(text), Path::new("/etc")).unwrap().unwrap().proof;
        let own = Some(TlsFiles { cert: "/c.pem".into(), key: "/etc/k.pem".into() });
        assert_eq!(
            proof,
            EtcdProof { ca: Some("/etc/ca.pem".into()), own, login: Some(("u".into(), "/etc/p".into())) }
        );
    }
}
