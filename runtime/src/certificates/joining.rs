//! How nodes get certificates: the listener beside the CA's key, and what a node with a one-time token does. The exchange
//! itself is the transport's.

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use asterism_actors::authority::{self, Action, Party};
use asterism_transport::{
    Place, PlacePort,
    certificates::{CertificateAuthority, Member, MemberRole},
    join::{self, Asked, JoinAddress, JoinConfig, JoinError, JoinListener, JoinRules, JoinToken, TokenRecord},
};
use serde::{Deserialize, Serialize};

use crate::{
    certificates::{credentials, members::NamedMember, revocation},
    cluster::{Cluster, file::SecurityMode},
    data_dir::{self, private},
    error::{CliError, Exit},
    globals,
};

/// What decides who joins. Each may block.
pub struct JoinContext {
    /// The cluster as it is now.
    pub cluster: Box<dyn Fn() -> Cluster + Send + Sync>,
    /// Whether a process of a name is connected.
    pub in_use: Box<dyn Fn(&str) -> bool + Send + Sync>,
    /// Takes in a node that asks from an address, with hosts as it says.
    pub offered: OfferedHosts,
}

/// Takes in a node that asks from an address, with hosts as the text of `[[host]]` sections says; or says why not.
pub type OfferedHosts = Box<dyn Fn((&str, IpAddr), &str) -> Result<(), String> + Send + Sync>;

impl JoinContext {
    /// Of a cluster that stays as it is.
    pub fn of(cluster: Cluster, in_use: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        let refused = |_: (&str, IpAddr), _: &str| Err("the cluster takes no other nodes in".to_owned());
        Self { cluster: Box::new(move || cluster.clone()), in_use: Box::new(in_use), offered: Box::new(refused) }
    }
}

/// Listens where the cluster file says that nodes join, if it does.
///
/// # Errors
/// Where the CA's key is not here, or the address or the file of tokens cannot be used.
pub fn open(cluster: &Cluster, context: JoinContext) -> Result<Option<JoinListener>, CliError> {
    let Some(listen) = cluster.security.join_listen else { return Ok(None) };
    let authority = CertificateAuthority::load(&crate::certificates::members::ca_folder(cluster)).map_err(|error| {
        credentials::refusal(error).hint("the CA's key must be in data_dir; or take join_listen out of [security]")
    })?;
    let file = data_dir::shared(cluster).join("join-tokens.json");
    let tokens = read(&file)?;
    let rules = NodeJoinRules { context, file };
    let listener = JoinListener::bind(JoinConfig::new(listen, authority), tokens, std::sync::Arc::new(rules));
    let listener = listener.map_err(|error| match error {
        JoinError::Bind { address, cause } => {
            CliError::no_listener("who gives certificates to nodes", (address, "[security] join_listen"), cause)
        }
        error => refusal(error),
    })?;
    tracing::info!(address = %listener.local_address(), "nodes join here");
    Ok(Some(listener))
}

/// Gets certificates for the node called `node` and for its `hosts` at `from`, with the token of `token_file`, unless all of
/// them are here, of the CA that the token names. Those of another CA are replaced. `offer`: what it says of hosts that the cluster
/// does not know.
pub async fn join(
    cluster: &Cluster,
    (node, hosts, offer): (&str, &[NamedMember<'_>], Option<&str>),
    token_file: &Path,
    from: Option<&PlacePort>,
) -> Result<(), CliError> {
    let members: Vec<NamedMember<'_>> = hosts.iter().copied().chain([(MemberRole::Node, node)]).collect();
    if cluster.security.mode == SecurityMode::Insecure || cluster.security.files.is_some() {
        return Ok(());
    }
    // Who has its certificates needs no token, and may have removed the spent one.
    if !token_file.exists() && credentials::are_of(cluster, &members, |_| true)? {
        return Ok(());
    }
    let token: JoinToken = globals::read_token(token_file)?.parse().map_err(refusal)?;
    if credentials::are_of(cluster, &members, |ca| token.is_of(ca))? {
        return Ok(());
    }
    let names: Vec<String> = members.iter().map(|(_, name)| (*name).to_owned()).collect();
    let at = join_address(cluster, from, node).await?;
    let issued = match offer {
        Some(offer) => join::join_offering(at, &token, (node, offer.to_owned()), &names).await,
        None => join::join(at, &token, node, &names).await,
    };
    for (name, issued) in issued.map_err(refusal)? {
        credentials::save(cluster, &name, &issued)?;
    }
    tracing::info!(node, certificates = names.len(), address = %at.listener, "joined by token");
    Ok(())
}

/// Where certificates are given out to a node: at `from`, or where the cluster file says.
pub async fn join_address(cluster: &Cluster, from: Option<&PlacePort>, node: &str) -> Result<JoinAddress, CliError> {
    let listener = from.cloned().or(cluster.security.join_listen.map(PlacePort::from)).filter(|at| at.port != 0);
    let listener = listener.ok_or_else(|| {
        CliError::usage("it is not known where nodes get certificates")
            .hint("add --token-from ADDRESS, as `asterism cert token` printed it, or [security] join_listen")
    })?;
    let unknown = |error| CliError::unreachable(error).hint("the names of nodes and supervisor must have addresses");
    let own = match cluster.node_place(node) {
        Some(place) => Some(PlacePort { place: place.clone(), port: 0 }.look_up().await.map_err(unknown)?.ip()),
        None => None,
    };
    Ok(JoinAddress { listener: listener.look_up().await.map_err(unknown)?, node: own })
}

/// A token or a node that is refused ends a command with exit 6; an address that does not answer, with 3.
pub fn refusal(error: JoinError) -> CliError {
    let exit = match &error {
        JoinError::Unreachable { .. }
        | JoinError::Unavailable { .. }
        | JoinError::Bind { .. }
        | JoinError::Store { .. } => Exit::Unreachable,
        _ => Exit::Authentication,
    };
    CliError::new(exit, error)
        .hint("where the supervisor runs, `asterism cert token --node NODE` makes a token for a node")
}

/// Knows the hosts of each node, and keeps tokens in a file.
struct NodeJoinRules {
    context: JoinContext,
    file: PathBuf,
}

impl JoinRules for NodeJoinRules {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn role(&self, node: &str, host: &str) -> Option<MemberRole> {
        let cluster = (self.context.cluster)();
        let hosts = &cluster.hosts;
        match cluster.host(host) {
            Some(known) => (known.node == node).then(|| known.member().0),
            // The certificate of the node's agent.
            None => (host == node && hosts.iter().any(|host| host.node == node)).then_some(MemberRole::Node),
        }
    }

    fn may_renew(&self, member: &Member) -> bool {
        authority::allows(Party::Member(member.role), Action::Renew)
    }

    fn offered(&self, Asked { node, from, names, .. }: &Asked<'_>, offer: &str) -> Result<(), String> {
        match names.iter().find(|name| (self.context.in_use)(name)) {
            Some(name) => Err(format!("{name} is connected; a token is for processes that are not")),
            None => (self.context.offered)((node, from.to_canonical()), offer),
        }
    }

    fn objection(&self, Asked { node, from, names, serial }: &Asked<'_>) -> Option<String> {
        let cluster = (self.context.cluster)();
        let (from, place) = (from.to_canonical(), cluster.node_place(node)?);
        match place.resolve() {
            Ok(expected) if from == expected => {}
            Ok(expected) if *place == Place::Address(expected) => {
                return Some(format!("it asks from {from}, and the cluster file has it at {expected}"));
            }
            Ok(expected) => {
                return Some(format!(
                    "it asks from {from}, and the cluster file has it at {place}, which is {expected} now"
                ));
            }
            Err(error) => {
                return Some(format!(
                    "it asks from {from}, and its name in the cluster file, {place}, has no address: {error}"
                ));
            }
        }
        match serial {
            Some(serial) => revocation::serials(&cluster).contains(*serial).then(|| {
                format!("its certificate {serial} is revoked; remove its certificates and join by a new token")
            }),
            None => names.iter().find(|name| (self.context.in_use)(name)).map(|name| {
                format!("{name} is connected; a token is for processes that are not. Stop that one first if it is to be replaced")
            }),
        }
    }

    fn revoked(&self) -> Vec<String> {
        revocation::serials(&(self.context.cluster)()).into_iter().collect()
    }

    fn issued(&self, certificates: &[String]) -> Result<(), String> {
        revocation::note_issued(&(self.context.cluster)(), certificates, self.now())
    }

    fn store(&self, tokens: &[TokenRecord]) -> Result<(), String> {
        write(&self.file, tokens).map_err(|error| format!("{}: {error}", self.file.display()))
    }
}

/// A token as kept.
#[derive(Serialize, Deserialize)]
struct StoredToken {
    /// SHA-256 of its secret.
    hash: [u8; 32],
    /// The node that it is for.
    node: Option<String>,
    /// Seconds since 1970.
    expires_s: u64,
    spent_by: Option<String>,
}

fn read(file: &Path) -> Result<Vec<TokenRecord>, CliError> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|error| error.to_string()),
    };
    let kept =
        bytes.and_then(|bytes| serde_json::from_slice::<Vec<StoredToken>>(&bytes).map_err(|error| error.to_string()));
    let kept = kept.map_err(|cause| {
        CliError::usage(format!("the join tokens in {} cannot be read: {cause}", file.display()))
            .hint("move the file away; tokens made before are then not known any more")
    })?;
    let record = |kept: StoredToken| TokenRecord {
        hash: kept.hash,
        node: kept.node,
        expires: UNIX_EPOCH + Duration::from_secs(kept.expires_s),
        spent_by: kept.spent_by,
    };
    Ok(kept.into_iter().map(record).collect())
}

/// Replaces the file as a whole, readable by its owner only.
fn write(file: &Path, tokens: &[TokenRecord]) -> io::Result<()> {
    let kept = |token: &TokenRecord| StoredToken {
        hash: token.hash,
        node: token.node.clone(),
        expires_s: token.expires.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        spent_by: token.spent_by.clone(),
    };
    let text = serde_json::to_vec(&tokens.iter().map(kept).collect::<Vec<_>>())?;
    private::replace(file, &text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cluster::{file as cluster_file, sample::SAMPLE};

    #[test]
    fn a_node_gets_its_own_hosts_and_itself() {
        let text = SAMPLE.replace("[[node]]", "[[node]]\nname = \"b\"\naddress = \"10.0.0.2\"\n\n[[node]]");
        let text = text.replace("role =", "node = \"local\"\nrole =");
        let text = text.replacen("node = \"local\"", "node = \"b\"", 1);
        let cluster = Cluster::resolve(&cluster_file::parse(&text, []).unwrap(), Path::new("/")).unwrap();
        let joining = |cluster: &Cluster| JoinContext::of(cluster.clone(), |name| name == "context-1");
        let rules = NodeJoinRules { context: joining(&cluster), file: PathBuf::new() };
        let asked = [
            ("b", "context-0"),
            ("b", "b"),
            ("local", "context-1"),
            ("local", "context-0"),
            ("b", "local"),
            ("b", "supervisor"),
            ("supervisor", "supervisor"),
            ("c", "c"),
        ];
        let allowed = asked.map(|(node, host)| rules.role(node, host));
        let (context, node) = (Some(MemberRole::Context), Some(MemberRole::Node));
        assert_eq!(allowed, [context, node, context, None, None, None, None, None]);
        let objects = |node, from: &str, names: &[&str], serial| {
            let from = from.parse().unwrap();
            rules.objection(&Asked { node, from, names, serial })
        };
        assert_eq!(objects("b", "10.0.0.2", &["b", "context-0"], None), None);
        assert_eq!(objects("b", "::ffff:10.0.0.2", &["b"], Some("12")), None);
        let words = objects("b", "10.0.0.3", &["b"], Some("12")).expect("another machine");
        assert!(words.contains("10.0.0.3") && words.contains("10.0.0.2"), "{words}");
        let words = objects("local", "127.0.0.1", &["local", "context-1"], None).expect("it is connected");
        assert!(words.contains("context-1 is connected"), "{words}");
        assert_eq!(objects("local", "127.0.0.1", &["context-1"], Some("12")), None, "it renews");
        let mut cluster = cluster;
        cluster.hosts.iter_mut().find(|host| host.name == "context-1").unwrap().name = "b".into();
        let rules = NodeJoinRules { context: joining(&cluster), ..rules };
        assert_eq!(rules.role("local", "b"), context, "b is a host of another node");
        assert_eq!(rules.role("b", "b"), None);
        let renewing = MemberRole::ALL.map(|role| rules.may_renew(&Member::new("sample", role, "b")));
        assert_eq!(renewing, [false, true, false, false, false]);
    }

    #[test]
    fn tokens_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("join-tokens.json");
        assert_eq!(read(&file).unwrap(), []);
        let expires = UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let tokens = [None, Some("b".to_owned())].map(|spent_by| TokenRecord {
            hash: [7; 32],
            node: spent_by.clone(),
            expires,
            spent_by,
        });
        for _ in 0..2 {
            write(&file, &tokens).unwrap();
            assert_eq!(read(&file).unwrap(), tokens);
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&file, "tokens").unwrap();
        let damaged = read(&file).unwrap_err();
        assert_eq!(damaged.exit, Exit::Usage);
        assert!(damaged.message.contains("join-tokens.json"), "{}", damaged.message);
    }
}
