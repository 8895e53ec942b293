//! Certificates that count no more, by serial number, and those that were given out: two files beside the CA. Closes no link
//! itself; `rotation.rs` has transports follow the list, and nodes that joined by token fetch it (`renewal.rs`).

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use asterism_transport::certificates::{CertificateInfo, HOST_FILE};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    certificates::members,
    cluster::Cluster,
    data_dir::private,
    error::{CliError, Exit},
};

/// Serial numbers have at most so many digits (RFC 5280, section 4.1.2.2, and a leading zero).
const MOST_DIGITS: usize = 42;

/// A certificate that was given out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issued {
    /// Serial number, in hexadecimal digits.
    pub serial: String,
    /// Whose it is.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Seconds since 1970 until which it is good, and the day.
    pub ends_s: i64,
    /// See above.
    pub not_after: String,
}

/// A certificate that counts no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// Serial number, in hexadecimal digits.
    pub serial: String,
    /// Whose it was, where that is known.
    pub name: Option<String>,
    /// Seconds since 1970.
    pub revoked_s: u64,
}

/// The list of revoked certificates.
pub fn file(cluster: &Cluster) -> PathBuf {
    members::ca_folder(cluster).join("revoked.json")
}

fn issued_file(cluster: &Cluster) -> PathBuf {
    members::ca_folder(cluster).join("issued.json")
}

/// Every revoked certificate.
pub fn list(cluster: &Cluster) -> Result<Vec<Revoked>, CliError> {
    read(&file(cluster))
}

/// Their serial numbers. What cannot be read revokes nothing here; whoever follows the list says so.
pub fn serials(cluster: &Cluster) -> BTreeSet<String> {
    list(cluster).unwrap_or_default().into_iter().map(|revoked| revoked.serial).collect()
}

/// What was given out over the network and is not over.
pub fn issued(cluster: &Cluster) -> Result<Vec<Issued>, CliError> {
    read(&issued_file(cluster))
}

/// Remembers certificates (PEM) that are given out at `now`, and forgets those that are over.
pub fn note_issued(cluster: &Cluster, certificates: &[String], now: SystemTime) -> Result<(), String> {
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let mut all = issued(cluster).map_err(|error| error.message)?;
    all.retain(|known| known.ends_s > now);
    for pem in certificates {
        let info = CertificateInfo::from_pem(pem).map_err(|error| error.to_string())?;
        let role = info.member.map_or("-", |member| member.role.word()).to_owned();
        let ends = info.validity.not_after;
        let (ends_s, not_after) = (ends.unix_timestamp(), ends.date().to_string());
        all.push(Issued { serial: info.serial, name: info.name, role, ends_s, not_after });
    }
    write(&issued_file(cluster), &all).map_err(|error| error.message)
}

/// Revokes the certificates of a member of this name, or the one of this serial number; which those are.
///
/// # Errors
/// Where no certificate is known by that name, and it is no serial number either.
pub fn revoke(cluster: &Cluster, which: &str, now: SystemTime) -> Result<Vec<Revoked>, CliError> {
    let revoked_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let named = known(cluster)?.into_iter().filter(|(serial, name)| name == which || serial == which);
    let mut fresh: Vec<Revoked> = named.map(|(serial, name)| Revoked { serial, name: Some(name), revoked_s }).collect();
    let is_serial = (2..=MOST_DIGITS).contains(&which.len())
        && which.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    if fresh.is_empty() && is_serial {
        fresh.push(Revoked { serial: which.into(), name: None, revoked_s });
    }
    if fresh.is_empty() {
        return Err(CliError::new(Exit::NotFound, format!("no certificate of '{which}' is known here"))
            .hint("give a name or a serial number of `asterism cert show`, on the machine that has the CA's key"));
    }
    let mut all = list(cluster)?;
    fresh.retain(|fresh| all.iter().all(|known| known.serial != fresh.serial));
    all.extend(fresh.iter().cloned());
    write(&file(cluster), &all)?;
    Ok(fresh)
}

/// Takes over the list of where the CA's key is; whether it says something new.
pub fn take_over(cluster: &Cluster, reported: Vec<String>, now: SystemTime) -> Result<bool, CliError> {
    let (known, reported): (_, BTreeSet<String>) = (serials(cluster), reported.into_iter().collect());
    if reported.is_subset(&known) {
        return Ok(false);
    }
    let revoked_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut all = list(cluster)?;
    let fresh = reported.difference(&known).cloned();
    all.extend(fresh.map(|serial| Revoked { serial, name: None, revoked_s }));
    write(&file(cluster), &all)?;
    Ok(true)
}

/// Serial number and name of each certificate that was given out or lies here.
fn known(cluster: &Cluster) -> Result<BTreeSet<(String, String)>, CliError> {
    let given = issued(cluster)?.into_iter().map(|issued| (issued.serial, issued.name));
    let here = members::members(cluster).filter_map(|(_, name)| {
        let file = match &cluster.security.files {
            Some(files) => files.of(name).cert,
            None => members::identity_folder(cluster, name).join(HOST_FILE),
        };
        let info = CertificateInfo::from_pem(&fs::read_to_string(file).ok()?).ok()?;
        Some((info.serial, info.name))
    });
    Ok(given.chain(here).collect())
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<Vec<T>, CliError> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|error| error.to_string()),
    };
    let list = bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
    list.map_err(|cause| {
        CliError::usage(format!("{} cannot be read: {cause}", file.display()))
            .hint("bring back the file as it was; without it, what was revoked counts again")
    })
}

fn write<T: Serialize>(file: &Path, list: &[T]) -> Result<(), CliError> {
    let folder = file.parent().unwrap_or(file);
    let text = serde_json::to_vec_pretty(list).expect("numbers and texts are JSON");
    let written = private::make(folder).and_then(|()| private::replace(file, &text));
    written.map_err(|error| private::refused(file, "write", &error))
}

#[cfg(test)]
mod tests {
    use asterism_transport::certificates::{CertificateAuthority, Credentials, MemberRole, Validity};

    use super::*;
    use crate::cluster::{file as cluster_file, sample::SAMPLE};

    #[test]
    fn a_name_revokes_every_certificate_that_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let parsed = cluster_file::parse(SAMPLE, []).unwrap();
        let cluster =
            Cluster { data_dir: folder.path().to_owned(), ..Cluster::resolve(&parsed, folder.path()).unwrap() };
        let (now, hour) = (SystemTime::now(), std::time::Duration::from_secs(3600));
        let authority = CertificateAuthority::create(&cluster.name, Validity::starting(now, hour)).unwrap();
        let issue = |name| {
            let issued = Credentials::issue(&authority, (MemberRole::Context, name), Validity::starting(now, hour));
            issued.unwrap()
        };
        let (here, far, other) = (issue("context-0"), issue("context-0"), issue("context-1"));
        here.save(&crate::certificates::members::identity_folder(&cluster, "context-0")).unwrap();
        let pem = |credentials: &Credentials| credentials.identity.certificate.clone();
        note_issued(&cluster, &[pem(&far), pem(&other)], now).unwrap();
        let serial = |credentials: &Credentials| CertificateInfo::from_pem(&pem(credentials)).unwrap().serial;
        assert_eq!(revoke(&cluster, "context-0", now).unwrap().len(), 2);
        assert_eq!(serials(&cluster), [serial(&here), serial(&far)].into());
        assert!(revoke(&cluster, "context-0", now).unwrap().is_empty(), "once");
        assert_eq!(revoke(&cluster, &serial(&other), now).unwrap()[0].name.as_deref(), Some("context-1"));
        assert_eq!(revoke(&cluster, "0badcafe", now).unwrap()[0].name, None);
        assert_eq!(revoke(&cluster, "nobody", now).unwrap_err().exit, Exit::NotFound);
        assert!(!take_over(&cluster, vec!["0badcafe".into()], now).unwrap());
        assert!(take_over(&cluster, vec!["0badcaff".into()], now).unwrap());
        assert_eq!(serials(&cluster).len(), 5);
        note_issued(&cluster, &[], now + 2 * hour).unwrap();
        assert_eq!(issued(&cluster).unwrap(), [], "what is over is forgotten");
    }
}
