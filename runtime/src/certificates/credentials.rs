//! Who a process of the cluster is: certificates from the files that are named, or from the CA in data_dir.

use std::{
    fs::File,
    path::Path,
    time::{Duration, SystemTime},
};

use asterism_actors::metric;
use asterism_transport::{
    certificates::{
        CA_FILE, CA_KEY_FILE, CertificateAuthority, CertificateError, CertificateInfo, Credentials, HOST_FILE, Member,
        Validity,
    },
    quic::Security,
};

use crate::{
    certificates::{
        members::{NamedMember, ca_folder, identity_folder, members},
        revocation,
    },
    cluster::{Cluster, file::SecurityMode},
    data_dir::private,
    error::{CliError, Exit},
};

const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86400);
/// Certificates are renewed this long before they end.
const RENEWAL: Duration = Duration::from_secs(30 * 86400);
const HOST_LIFETIME: Duration = Duration::from_secs(365 * 86400);

/// What this process shows its peers and whom it trusts.
///
/// # Errors
/// Also where the certificate is another member's.
pub fn load(cluster: &Cluster, member: NamedMember<'_>) -> Result<Security, CliError> {
    let (role, name) = member;
    let (credentials, file) = match (&cluster.security.mode, &cluster.security.files) {
        (SecurityMode::Insecure, _) => return Ok(Security::Insecure),
        (SecurityMode::Mtls, Some(files)) => {
            let files = files.of(name);
            (Credentials::load_files(&files.ca, &files.cert, &files.key), files.cert)
        }
        (SecurityMode::Mtls, None) => {
            let folder = identity_folder(cluster, name);
            (Credentials::load(&folder), folder.join(HOST_FILE))
        }
    };
    let credentials = credentials.map_err(refusal)?;
    let expected = Member::new(&cluster.name, role, name);
    let wrong = |error| refusal(CertificateError::File { path: file.clone(), error: Box::new(error) });
    match credentials.member().map_err(wrong)? {
        got if got == expected => Ok(Security::Mutual(credentials)),
        got => Err(wrong(CertificateError::OtherMember { expected, got })),
    }
}

/// Says when what a member shows its peers ends.
pub fn log_certificate_end((_, name): NamedMember<'_>, security: &Security) {
    let Security::Mutual(credentials) = security else { return };
    if let Ok(info) = CertificateInfo::from_pem(&credentials.identity.certificate) {
        let ends = info.validity.not_after.unix_timestamp();
        metrics::gauge!(metric::CERTIFICATE_EXPIRY, "host" => name.to_owned()).set(ends as f64);
    }
}

/// Makes the CA if there is none; whether one was made. For the supervisor's machine alone: one that is made elsewhere is of
/// another cluster, whatever its name.
pub fn found(cluster: &Cluster) -> Result<bool, CliError> {
    if cluster.security.mode == SecurityMode::Insecure || cluster.security.files.is_some() {
        return Ok(false);
    }
    let file = ca_folder(cluster).join(CA_FILE);
    if file.exists() {
        return Ok(false);
    }
    let _alone = alone(cluster)?;
    let made = !file.exists();
    if made {
        make_authority(cluster)?;
    }
    Ok(made)
}

/// Makes a certificate for each of `members` that has none of its own or whose runs out, where the CA's key is. Elsewhere they
/// must have been brought here.
pub fn provide<'a>(cluster: &Cluster, members: impl IntoIterator<Item = NamedMember<'a>>) -> Result<(), CliError> {
    if cluster.security.mode == SecurityMode::Insecure || cluster.security.files.is_some() {
        return Ok(());
    }
    let (folder, members, now) = (ca_folder(cluster), members.into_iter().collect::<Vec<_>>(), SystemTime::now());
    let wanting = |member: &&NamedMember<'_>| ends_by(cluster, **member, now + RENEWAL);
    // A full disk is in nobody's way when there is nothing to be made.
    if !folder.join(CA_KEY_FILE).exists() || !members.iter().any(|member| wanting(&member)) {
        return Ok(());
    }
    let _alone = alone(cluster)?;
    let authority = CertificateAuthority::load(&folder).map_err(refusal)?;
    for member in members.iter().filter(wanting) {
        let issued = Credentials::issue(&authority, *member, Validity::starting(now, HOST_LIFETIME));
        issued.and_then(|credentials| credentials.save(&identity_folder(cluster, member.1))).map_err(refusal)?;
    }
    Ok(())
}

/// Refuses a node whose `members` have no certificates here, where none can be made.
pub fn require(cluster: &Cluster, node: &str, members: &[NamedMember<'_>]) -> Result<(), CliError> {
    if !are_wanting(cluster, members) {
        return Ok(());
    }
    let folder = ca_folder(cluster);
    let what = format!(
        "node '{node}' has no certificates of cluster '{}' in {}, and the CA's key, which could make them, is not there",
        cluster.name,
        folder.display()
    );
    Err(CliError::new(Exit::Authentication, what).hint(
        "where the supervisor runs, `asterism cert token > join-token` makes a token; bring it here and add --token-file join-token. On the supervisor's own machine start the supervisor first",
    ))
}

/// Whether the files here of all `members` are good and of the CA that `is_ours` knows. Those of another CA whose key is here
/// too are nobody's to replace.
pub fn are_of(
    cluster: &Cluster,
    members: &[NamedMember<'_>],
    is_ours: impl Fn(&str) -> bool,
) -> Result<bool, CliError> {
    let folder = ca_folder(cluster);
    let ours = |folder: &Path| std::fs::read_to_string(folder.join(CA_FILE)).is_ok_and(|ca| is_ours(&ca));
    if folder.join(CA_KEY_FILE).exists() {
        if ours(&folder) {
            return Ok(true);
        }
        let what = format!(
            "the token is of another CA than the one whose key is in {}: `up` or `supervisor` ran here, or an earlier try to join made it",
            folder.display()
        );
        return Err(CliError::new(Exit::Authentication, what).hint(format!(
            "if no supervisor of this data_dir is to run here, delete that folder (`rm -r {}`) and run the same command again",
            folder.display()
        )));
    }
    let good = |member: &NamedMember<'_>| {
        ours(&identity_folder(cluster, member.1)) && !ends_by(cluster, *member, SystemTime::now())
    };
    Ok(members.iter().all(good))
}

/// Renews what `provide` would, of every process of the cluster file that has a certificate here.
pub fn renew(cluster: &Cluster) -> Result<(), CliError> {
    // Not a folder's names: a host that is no more in the file needs no certificate.
    let here = members(cluster).filter(|(_, name)| identity_folder(cluster, name).join(HOST_FILE).exists());
    match ca_folder(cluster).join(CA_KEY_FILE).exists() {
        true => provide(cluster, here),
        false => Ok(()),
    }
}

/// Whether one of `members` has no certificate that is good now, and none can be made here.
pub fn are_wanting(cluster: &Cluster, members: &[NamedMember<'_>]) -> bool {
    let now = SystemTime::now();
    cluster.security.mode == SecurityMode::Mtls
        && cluster.security.files.is_none()
        && !ca_folder(cluster).join(CA_KEY_FILE).exists()
        && members.iter().any(|member| ends_by(cluster, *member, now))
}

/// Whether certificates here come from where the CA's key is.
pub fn are_brought(cluster: &Cluster) -> bool {
    cluster.security.mode == SecurityMode::Mtls
        && cluster.security.files.is_none()
        && !ca_folder(cluster).join(CA_KEY_FILE).exists()
}

/// Those of `names` whose certificates here came from elsewhere and have at most a third of their time left at `now`.
pub fn due<'a>(cluster: &Cluster, names: &'a [String], now: SystemTime) -> Vec<&'a str> {
    let brought = are_brought(cluster);
    let is_due = |name: &&str| {
        let pem = std::fs::read_to_string(identity_folder(cluster, name).join(HOST_FILE)).unwrap_or_default();
        CertificateInfo::from_pem(&pem).is_ok_and(|info| {
            let Validity { not_before, not_after } = info.validity;
            now >= not_after - (not_after - not_before) / 3
        })
    };
    names.iter().map(String::as_str).filter(|_| brought).filter(is_due).collect()
}

/// Keeps what `name` got from where the CA's key is, and the CA's certificate, so that no other CA is made here.
pub fn save(cluster: &Cluster, name: &str, credentials: &Credentials) -> Result<(), CliError> {
    let file = ca_folder(cluster).join(CA_FILE);
    let kept = private::make(&ca_folder(cluster)).and_then(|()| private::replace(&file, credentials.ca.as_bytes()));
    kept.map_err(|error| {
        CliError::usage(format!("cannot write {}: {error}", file.display()))
            .hint("set [cluster] data_dir to a folder this user may write; a token that was used is spent")
    })?;
    credentials.save(&identity_folder(cluster, name)).map_err(refusal)
}

/// Whether the certificate of a member is missing, unreadable, another's, revoked or over at `time`.
fn ends_by(cluster: &Cluster, (role, name): NamedMember<'_>, time: SystemTime) -> bool {
    let Ok(pem) = std::fs::read_to_string(identity_folder(cluster, name).join(HOST_FILE)) else { return true };
    let own = Some(Member::new(&cluster.name, role, name));
    let revoked = revocation::serials(cluster);
    CertificateInfo::from_pem(&pem)
        .map_or(true, |info| info.member != own || info.validity.not_after < time || revoked.contains(&info.serial))
}

/// Makes the cluster's CA; one that is there is never replaced.
pub fn create_authority(cluster: &Cluster) -> Result<CertificateAuthority, CliError> {
    let _alone = alone(cluster)?;
    make_authority(cluster)
}

/// Held while certificates are made: another process would make the same ones at the same time.
fn alone(cluster: &Cluster) -> Result<File, CliError> {
    private::folder(&cluster.data_dir)?;
    let (folder, file) = (ca_folder(cluster), ca_folder(cluster).join("lock"));
    private::make(&folder).map_err(|error| private::refused(&folder, "make", &error))?;
    let opened = private::options().create(true).truncate(false).write(true).open(&file);
    let held = opened.and_then(|lock| lock.lock().map(|()| lock));
    held.map_err(|error| private::refused(&file, "hold", &error))
}

fn make_authority(cluster: &Cluster) -> Result<CertificateAuthority, CliError> {
    let authority = CertificateAuthority::create(&cluster.name, Validity::starting(SystemTime::now(), CA_LIFETIME));
    let authority = authority.map_err(refusal)?;
    authority.save(&ca_folder(cluster)).map_err(refusal)?;
    Ok(authority)
}

/// Certificates that cannot be used end a command with exit 6; one that is there already, with 5.
pub fn refusal(error: CertificateError) -> CliError {
    if let CertificateError::Write { kind, .. } = &error
        && private::may_pass(*kind)
    {
        return CliError::no_room(error);
    }
    let exit = match error {
        CertificateError::Exists { .. } => Exit::NotFound,
        _ => Exit::Authentication,
    };
    CliError::new(exit, error).hint("`asterism cert show` lists the cluster's certificates")
}
