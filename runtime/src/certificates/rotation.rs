//! Certificates that change while a process runs: their files are watched, and those that end soon are renewed where the
//! CA's key is. Decides on nobody's trust.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use asterism_transport::{
    certificates::{CA_FILE, HOST_FILE, HOST_KEY_FILE, MemberRole},
    quic::QuicTransport,
};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    certificates::{
        credentials,
        members::{self, NamedMember},
        revocation,
    },
    cluster::{Cluster, file::SecurityMode},
    error::CliError,
};

/// How often the files are looked at.
const ROTATION_LOOK_EVERY: Duration = Duration::from_secs(2);
const ONE_DAY: Duration = Duration::from_secs(86_400);

/// Follows the certificates of one process of a cluster.
pub struct Rotation {
    cluster: Cluster,
    role: MemberRole,
    name: String,
    watch: Watch,
    /// The list of revoked certificates as it was read last.
    revoked: Option<Stamp>,
}

impl Rotation {
    /// Of a member, from what its files are now on; `None` where there are no certificates.
    pub fn new(cluster: &Cluster, (role, name): NamedMember<'_>) -> Option<Self> {
        let folder = members::identity_folder(cluster, name);
        let files = match (&cluster.security.mode, &cluster.security.files) {
            (SecurityMode::Insecure, _) => return None,
            (SecurityMode::Mtls, Some(files)) => {
                let named = files.of(name);
                [named.ca, named.cert, named.key]
            }
            (SecurityMode::Mtls, None) => [CA_FILE, HOST_FILE, HOST_KEY_FILE].map(|file| folder.join(file)),
        };
        Some(Self { cluster: cluster.clone(), role, name: name.to_owned(), watch: Watch::new(files), revoked: None })
    }

    /// Looks at the files every few seconds for as long as `transport` lives.
    pub fn follow(mut self, transport: &Arc<QuicTransport>) {
        let transport = Arc::downgrade(transport);
        tokio::spawn(async move {
            let mut ticks = interval(ROTATION_LOOK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(transport) = transport.upgrade() else { return };
                match self.look(&transport) {
                    Ok(false) => {}
                    Ok(true) => tracing::info!(name = self.name, "shows and trusts the new certificates"),
                    Err(error) => tracing::error!(name = self.name, %error, "keeps its certificates: the new are bad"),
                }
                if let Err(error) = self.look_at_revoked(&transport) {
                    tracing::error!(name = self.name, %error, "what was revoked lately may still be let in");
                }
            }
        });
    }

    /// Takes the files if they have changed; whether they had. An error is told once.
    fn look(&mut self, transport: &QuicTransport) -> Result<bool, CliError> {
        if !self.watch.changed() {
            return Ok(false);
        }
        let security = credentials::load(&self.cluster, (self.role, &self.name))?;
        transport.rotate(&security).map_err(CliError::unreachable)?;
        credentials::log_certificate_end((self.role, &self.name), &security);
        Ok(true)
    }
}

impl Rotation {
    /// Has the transport refuse whose certificates are revoked, if the list has changed. An error is told once.
    fn look_at_revoked(&mut self, transport: &QuicTransport) -> Result<(), CliError> {
        let now = stamp(&revocation::file(&self.cluster));
        if self.revoked.replace(now) == Some(now) {
            return Ok(());
        }
        let serials: BTreeSet<String> =
            revocation::list(&self.cluster)?.into_iter().map(|revoked| revoked.serial).collect();
        if !serials.is_empty() {
            tracing::info!(
                name = self.name,
                certificates = serials.len(),
                "lets nobody in whose certificate is revoked"
            );
        }
        transport.revoke(serials);
        Ok(())
    }
}

/// Renews, now and once a day, the certificates that this data_dir has of the cluster's processes, if the CA's key is here.
pub fn renew_daily(cluster: &Cluster) {
    let cluster = cluster.clone();
    tokio::spawn(async move {
        let mut days = interval(ONE_DAY);
        loop {
            days.tick().await;
            let cluster = cluster.clone();
            match tokio::task::spawn_blocking(move || credentials::renew(&cluster)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "certificates cannot be renewed"),
                Err(error) => tracing::error!(%error, "renewing certificates failed"),
            }
        }
    });
}

/// Time and length of a file, if it is there.
type Stamp = Option<(SystemTime, u64)>;

/// Tells when files have changed and change no more: a key and its certificate are written one after the other.
struct Watch {
    files: [PathBuf; 3],
    taken: [Stamp; 3],
    seen: [Stamp; 3],
}

impl Watch {
    fn new(files: [PathBuf; 3]) -> Self {
        let now = stamps(&files);
        Self { files, taken: now, seen: now }
    }

    /// Whether the files are not those taken last, and the same as at the last look. They then count as taken.
    fn changed(&mut self) -> bool {
        let now = stamps(&self.files);
        let settled = std::mem::replace(&mut self.seen, now) == now;
        settled && std::mem::replace(&mut self.taken, now) != now
    }
}

fn stamps(files: &[PathBuf; 3]) -> [Stamp; 3] {
    files.each_ref().map(|path| stamp(path))
}

fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).and_then(|file| Ok((file.modified()?, file.len()))).ok()
}

#[cfg(test)]
mod tests {
    use asterism_transport::{
        NoObserver, Transport,
        certificates::{CertificateAuthority, CertificateInfo, Credentials, Validity},
        quic::{QuicConfig, Security},
    };

    use super::*;
    use crate::cluster::{file as cluster_file, sample::SAMPLE};

    fn validity(lifetime: Duration) -> Validity {
        Validity::starting(SystemTime::now(), lifetime)
    }

    fn cluster(folder: &Path) -> Cluster {
        let file = cluster_file::parse(SAMPLE, []).unwrap();
        Cluster { data_dir: folder.to_owned(), ..Cluster::resolve(&file, folder).unwrap() }
    }

    fn transport(security: Security) -> QuicTransport {
        let config = QuicConfig::new("127.0.0.1:0".parse().unwrap(), security);
        QuicTransport::bind(config, Arc::new(NoObserver)).unwrap()
    }

    #[tokio::test]
    async fn new_certificates_are_taken_and_bad_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = cluster(folder.path());
        let place = crate::certificates::members::identity_folder(&cluster, "context-0");
        let [old, new] = [(); 2].map(|()| CertificateAuthority::create(&cluster.name, validity(ONE_DAY)).unwrap());
        let issue = |authority, member| Credentials::issue(authority, member, validity(ONE_DAY)).unwrap();
        let member = (MemberRole::Context, "context-0");
        issue(&old, member).save(&place).unwrap();
        let host = transport(credentials::load(&cluster, member).unwrap());
        let peer = transport(Security::Mutual(issue(&new, (MemberRole::Query, "query-0"))));
        let mut rotation = Rotation::new(&cluster, member).unwrap();
        assert!(!rotation.look(&host).unwrap());
        assert!(peer.connect(host.local_address()).await.is_err());

        issue(&new, member).save(&place).unwrap();
        assert!(!rotation.look(&host).unwrap(), "they may still be changing");
        assert!(rotation.look(&host).unwrap());
        assert!(!rotation.look(&host).unwrap(), "once");
        peer.connect(host.local_address()).await.unwrap();

        fs::write(place.join(HOST_FILE), "no certificate").unwrap();
        assert!(!rotation.look(&host).unwrap());
        assert!(rotation.look(&host).unwrap_err().message.contains("host.pem"));
        assert!(!rotation.look(&host).unwrap(), "told once");
        peer.connect(host.local_address()).await.unwrap();
    }

    #[tokio::test]
    async fn a_revoked_certificate_ends_its_links_and_opens_none() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = cluster(folder.path());
        let authority = CertificateAuthority::create(&cluster.name, validity(ONE_DAY)).unwrap();
        let issue = |member| Credentials::issue(&authority, member, validity(ONE_DAY)).unwrap();
        let (context, query) = ((MemberRole::Context, "context-0"), (MemberRole::Query, "query-0"));
        issue(context).save(&crate::certificates::members::identity_folder(&cluster, context.1)).unwrap();
        let host = transport(credentials::load(&cluster, context).unwrap());
        let mut rotation = Rotation::new(&cluster, context).unwrap();
        let (stolen, own) = (issue(query), issue(query));
        let serial = CertificateInfo::from_pem(&stolen.identity.certificate).unwrap().serial;
        let (thief, genuine) = (transport(Security::Mutual(stolen)), transport(Security::Mutual(own)));
        let lost = thief.connect(host.local_address()).await.unwrap();
        let kept = genuine.connect(host.local_address()).await.unwrap();

        revocation::revoke(&cluster, &serial, SystemTime::now()).unwrap();
        rotation.look_at_revoked(&host).unwrap();
        let words = lost.closed().await.to_string();
        assert!(words.contains(&format!("{serial} is revoked")), "{words}");
        let refused = thief.connect(host.local_address()).await.map(drop).unwrap_err().to_string();
        assert!(refused.contains("is revoked"), "{refused}");
        assert!(kept.open().await.is_ok(), "another certificate of the same name is as good as before");
        assert!(host.connect(thief.local_address()).await.is_err(), "nor is it reached");

        fs::write(revocation::file(&cluster), "no list").unwrap();
        assert!(rotation.look_at_revoked(&host).unwrap_err().message.contains("revoked.json"));
        rotation.look_at_revoked(&host).unwrap();
        assert!(thief.connect(host.local_address()).await.is_err(), "what was read before stands");
    }

    #[test]
    fn what_ends_soon_is_renewed_and_nothing_else_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = cluster(folder.path());
        let authority = credentials::create_authority(&cluster).unwrap();
        let file = |name: &str| crate::certificates::members::identity_folder(&cluster, name).join(HOST_FILE);
        for (name, days) in [("context-0", 3), ("context-1", 300), ("stranger", 3)] {
            let issued = Credentials::issue(&authority, (MemberRole::Context, name), validity(ONE_DAY * days)).unwrap();
            issued.save(&crate::certificates::members::identity_folder(&cluster, name)).unwrap();
        }
        let read = |name: &str| fs::read_to_string(file(name)).unwrap();
        let before = ["context-0", "context-1", "stranger"].map(read);
        credentials::renew(&cluster).unwrap();
        let after = ["context-0", "context-1", "stranger"].map(read);
        assert_eq!([0, 1, 2].map(|at| before[at] == after[at]), [false, true, true]);
        let ends = CertificateInfo::from_pem(&after[0]).unwrap().validity.not_after;
        assert!(ends > SystemTime::now() + ONE_DAY * 300);
        assert!(!file("context-2").exists());
    }
}
