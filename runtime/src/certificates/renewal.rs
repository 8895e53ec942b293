//! How a node that joined by token gets new certificates before its own end. Its processes take them from their files.

use std::time::{Duration, SystemTime};

use asterism_transport::{PlacePort, certificates::Credentials, join};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    certificates::{
        credentials, joining,
        members::{self, NamedMember},
        revocation,
    },
    cluster::Cluster,
    error::CliError,
};

/// How often certificates are looked at; so often a renewal that failed is tried again.
const RENEWAL_LOOK_EVERY: Duration = Duration::from_secs(3600);
/// How often it is asked which certificates are revoked.
pub const ASK_RENEWAL_EVERY: Duration = Duration::from_secs(10);

/// Renews the certificates of the node called `node` and of `hosts`, now and from time to time, where the CA's key is: at
/// `from`, or where the cluster file says.
pub fn keep(cluster: &Cluster, (node, hosts): (&str, &[&str]), from: Option<PlacePort>) {
    let (cluster, node) = (cluster.clone(), node.to_owned());
    follow_revoked(cluster.clone(), node.clone(), from.clone());
    let names: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).chain([node.clone()]).collect();
    tokio::spawn(async move {
        let mut ticks = interval(RENEWAL_LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match renew(&cluster, (&node, &names), from.as_ref(), SystemTime::now()).await {
                Ok(0) => {}
                Ok(certificates) => tracing::info!(node, certificates, "has new certificates"),
                Err(error) => {
                    tracing::warn!(node, %error, hint = error.hint, "certificates end soon, and none are new")
                }
            }
        }
    });
}

/// Gets certificates for those `members` of a node that have none here, by the certificate of the node's agent.
pub async fn bring(
    cluster: &Cluster,
    (node, members): (&str, &[NamedMember<'_>]),
    from: Option<&PlacePort>,
) -> Result<(), CliError> {
    if !credentials::are_wanting(cluster, members) {
        return Ok(());
    }
    let address = joining::join_address(cluster, from, node).await?;
    let current = Credentials::load(&members::identity_folder(cluster, node)).map_err(credentials::refusal)?;
    let names: Vec<String> = members.iter().map(|(_, name)| (*name).to_owned()).collect();
    for (name, issued) in join::renew(address, &current, &names).await.map_err(joining::refusal)? {
        credentials::save(cluster, &name, &issued)?;
    }
    Ok(())
}

/// Brings the list of revoked certificates from where the CA's key is, again and again, where certificates came from there.
fn follow_revoked(cluster: Cluster, node: String, from: Option<PlacePort>) {
    tokio::spawn(async move {
        let mut ticks = interval(ASK_RENEWAL_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stated = String::new();
        loop {
            ticks.tick().await;
            let error = match ask_revoked(&cluster, &node, from.as_ref()).await {
                Ok(()) => String::new(),
                Err(error) => error.message,
            };
            if !error.is_empty() && stated != error {
                tracing::warn!(node, error, "it is not known which certificates are revoked lately");
            }
            stated = error;
        }
    });
}

async fn ask_revoked(cluster: &Cluster, node: &str, from: Option<&PlacePort>) -> Result<(), CliError> {
    if !credentials::are_brought(cluster) {
        return Ok(());
    }
    let at = joining::join_address(cluster, from, node).await?;
    let current = Credentials::load(&members::identity_folder(cluster, node)).map_err(credentials::refusal)?;
    let reported = join::revoked(at, &current).await.map_err(joining::refusal)?;
    revocation::take_over(cluster, reported, SystemTime::now()).map(drop)
}

/// Renews those of `names` that are due at `now`, all or none of them; how many.
async fn renew(
    cluster: &Cluster,
    (node, names): (&str, &[String]),
    from: Option<&PlacePort>,
    now: SystemTime,
) -> Result<usize, CliError> {
    let due: Vec<String> = credentials::due(cluster, names, now).into_iter().map(str::to_owned).collect();
    if due.is_empty() {
        return Ok(0);
    }
    let address = joining::join_address(cluster, from, node).await?;
    let current = Credentials::load(&members::identity_folder(cluster, node)).map_err(credentials::refusal)?;
    for (name, issued) in join::renew(address, &current, &due).await.map_err(joining::refusal)? {
        issued.save(&members::identity_folder(cluster, &name)).map_err(credentials::refusal)?;
    }
    Ok(due.len())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use asterism_transport::{
        certificates::{CertificateAuthority, CertificateInfo, HOST_FILE, HOST_KEY_FILE, MemberRole, Validity},
        join::JoinListener,
    };

    use super::*;
    use crate::{
        cluster::{file as cluster_file, sample::SAMPLE},
        error::Exit,
    };

    const MINUTE: Duration = Duration::from_secs(60);

    /// The sample with `context-0` on a node `b`, its data in `folder`.
    fn cluster(folder: &Path) -> Cluster {
        let text = SAMPLE.replace("[[node]]", "[[node]]\nname = \"b\"\naddress = \"127.0.0.2\"\n\n[[node]]");
        let text = text.replace("role =", "node = \"local\"\nrole =");
        let text = text.replacen("node = \"local\"", "node = \"b\"", 1);
        let file = cluster_file::parse(&text, []).unwrap();
        Cluster { data_dir: folder.to_owned(), ..Cluster::resolve(&file, folder).unwrap() }
    }

    /// Where the CA's key is, and what answers there.
    fn rules(folder: &Path) -> (CertificateAuthority, JoinListener) {
        let mut cluster = cluster(folder);
        cluster.security.join_listen = Some("127.0.0.1:0".parse().unwrap());
        let authority = credentials::create_authority(&cluster).unwrap();
        (authority, joining::open(&cluster, joining::JoinContext::of(cluster.clone(), |_| false)).unwrap().unwrap())
    }

    fn role(name: &str) -> MemberRole {
        if name == "b" { MemberRole::Node } else { MemberRole::Context }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_node_renews_when_a_third_is_left_and_gets_its_own_names_only() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (authority, listener) = rules(folders[0].path());
        let (cluster, from) = (cluster(folders[1].path()), PlacePort::from(listener.local_address()));
        let from = Some(&from);
        let now = SystemTime::now();
        // An hour before now until half an hour after now, and a host of another node that was here once.
        for name in ["context-0", "b", "context-1"] {
            let issued =
                Credentials::issue(&authority, (role(name), name), Validity::starting(now, 30 * MINUTE)).unwrap();
            credentials::save(&cluster, name, &issued).unwrap();
        }
        let file = |name: &str, file| crate::certificates::members::identity_folder(&cluster, name).join(file);
        let read =
            || ["context-0", "b", "context-1"].map(|name| fs::read_to_string(file(name, HOST_KEY_FILE)).unwrap());
        let (own, old) = (names(&["context-0", "b"]), read());
        assert_eq!(renew(&cluster, ("b", &own), from, now - MINUTE).await.unwrap(), 0, "more than a third is left");

        let more = names(&["context-0", "b", "context-1"]);
        let refused = renew(&cluster, ("b", &more), from, now + MINUTE).await.unwrap_err();
        assert_eq!(refused.exit, Exit::Authentication);
        assert!(refused.message.contains("node \"b\" may not be host \"context-1\""), "{}", refused.message);
        assert_eq!(read(), old);

        assert_eq!(renew(&cluster, ("b", &own), from, now + MINUTE).await.unwrap(), 2);
        let new = read();
        assert_eq!([0, 1, 2].map(|at| new[at] == old[at]), [false, false, true]);
        for name in ["context-0", "b"] {
            let renewed = Credentials::load(&crate::certificates::members::identity_folder(&cluster, name)).unwrap();
            let info = CertificateInfo::from_pem(&fs::read_to_string(file(name, HOST_FILE)).unwrap()).unwrap();
            assert_eq!((info.name.as_str(), renewed.ca.as_str()), (name, authority.certificate()));
            assert!(info.validity.not_after > now + 300 * 24 * 60 * MINUTE);
            assert_eq!(fs::metadata(file(name, HOST_KEY_FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(renew(&cluster, ("b", &own), from, now + MINUTE).await.unwrap(), 0, "once");
        let later = renew(&cluster, ("b", &own), None, now + 300 * 24 * 60 * MINUTE).await.unwrap_err();
        assert!(later.hint.unwrap().contains("join_listen"));
    }
}
