//! Who may say what, and open which door: one table for all messages and endpoints, which every door asks. Knows no link and
//! no transport.
//!
//! A role alone opens no context: that takes its [`crate::ticket::Ticket`]. That what is said is true of who says it, such
//! as a node's words on a host of its own, the supervisor's state checks.

use std::fmt;

use asterism_transport::certificates::{Member, MemberRole};
use thiserror::Error;

use crate::messages::{ChannelOpening, Hello, HostCommand, HostMessage, HostRole};

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// A process with a certificate of the cluster.
    Member(MemberRole),
    /// Who bears the token that a door asks for: the API's, or a join token.
    Client,
    /// Anybody else.
    Stranger,
}

use Party::{Client, Stranger};
const SUPERVISOR_PARTY: Party = Party::Member(MemberRole::Supervisor);
const NODE_PARTY: Party = Party::Member(MemberRole::Node);
const CONTEXT_PARTY: Party = Party::Member(MemberRole::Context);
const QUERY_PARTY: Party = Party::Member(MemberRole::Query);
const SPARE_PARTY: Party = Party::Member(MemberRole::Spare);

impl Party {
    /// All of them.
    pub const ALL: [Self; 7] =
        [CONTEXT_PARTY, QUERY_PARTY, NODE_PARTY, SPARE_PARTY, SUPERVISOR_PARTY, Client, Stranger];
}

impl fmt::Display for Party {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member(role) => write!(formatter, "a {role}"),
            Self::Client => formatter.write_str("a client"),
            Self::Stranger => formatter.write_str("a stranger"),
        }
    }
}

/// Something to be said, or a door to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the message of its name")]
pub enum Action {
    // To the supervisor.
    Hello,
    Ready,
    Unfit,
    Heartbeat,
    Links,
    Measured,
    Progress,
    Encoded,
    NotEncoded,
    Token,
    Generated,
    Stalled,
    Failed,
    Exited,
    Seen,
    Leaving,
    Masked,
    Gpus,
    // To a host or a node.
    Welcome,
    Refuse,
    Encode,
    Generate,
    Holders,
    Stop,
    Release,
    Measure,
    Kill,
    Shutdown,
    Leave,
    Start,
    Configure,
    // To a host, by another.
    Attach,
    Pass,
    Fetch,
    // Where certificates are given out.
    Join,
    Renew,
    /// A method and a path of the HTTP API.
    Http(&'static str, &'static str),
}

/// Who may do something.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What.
    pub act: Action,
    /// By whom.
    pub by: &'static [Party],
}

const fn rule(act: Action, by: &'static [Party]) -> Rule {
    Rule { act, by }
}

const HOST_PARTIES: &[Party] = &[CONTEXT_PARTY, QUERY_PARTY, SPARE_PARTY];
/// With `recovery = "redistribute"` every host does the work of every other; what it is given to do, the supervisor decides.
const WORKERS: &[Party] = HOST_PARTIES;
const HOSTS_AND_NODES: &[Party] = &[CONTEXT_PARTY, QUERY_PARTY, SPARE_PARTY, NODE_PARTY];
const ORDERS: &[Party] = &[SUPERVISOR_PARTY];
const CLIENTS: &[Party] = &[Client];
const EVERYBODY: &[Party] = &Party::ALL;

/// The table. What is not in it nobody may do.
pub const TABLE: &[Rule] = &[
    rule(Action::Hello, HOSTS_AND_NODES),
    rule(Action::Ready, HOST_PARTIES),
    rule(Action::Unfit, HOST_PARTIES),
    rule(Action::Heartbeat, HOSTS_AND_NODES),
    rule(Action::Links, HOST_PARTIES),
    rule(Action::Measured, HOST_PARTIES),
    rule(Action::Progress, WORKERS),
    rule(Action::Encoded, WORKERS),
    rule(Action::NotEncoded, WORKERS),
    rule(Action::Token, WORKERS),
    rule(Action::Generated, WORKERS),
    rule(Action::Stalled, WORKERS),
    rule(Action::Failed, WORKERS),
    rule(Action::Exited, &[NODE_PARTY]),
    rule(Action::Seen, &[NODE_PARTY]),
    rule(Action::Leaving, HOST_PARTIES),
    rule(Action::Masked, WORKERS),
    rule(Action::Gpus, &[NODE_PARTY]),
    rule(Action::Welcome, ORDERS),
    rule(Action::Refuse, ORDERS),
    rule(Action::Encode, ORDERS),
    rule(Action::Generate, ORDERS),
    rule(Action::Holders, ORDERS),
    rule(Action::Stop, ORDERS),
    rule(Action::Release, ORDERS),
    rule(Action::Measure, ORDERS),
    rule(Action::Kill, ORDERS),
    rule(Action::Shutdown, ORDERS),
    rule(Action::Leave, ORDERS),
    rule(Action::Start, ORDERS),
    rule(Action::Configure, ORDERS),
    rule(Action::Attach, WORKERS),
    rule(Action::Pass, WORKERS),
    rule(Action::Fetch, WORKERS),
    rule(Action::Join, CLIENTS),
    rule(Action::Renew, &[NODE_PARTY]),
    rule(Action::Http("GET", "/livez"), EVERYBODY),
    rule(Action::Http("GET", "/readyz"), EVERYBODY),
    rule(Action::Http("GET", "/metrics"), EVERYBODY),
    rule(Action::Http("GET", "/"), EVERYBODY),
    rule(Action::Http("GET", "/console.css"), EVERYBODY),
    rule(Action::Http("GET", "/console.js"), EVERYBODY),
    rule(Action::Http("GET", "/api/openapi.json"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/jobs"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/jobs"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/jobs/{id}"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/jobs/{id}/events"), CLIENTS),
    rule(Action::Http("DELETE", "/api/v1/jobs/{id}"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/jobs/{id}/cancel"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/hosts"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/hosts/{name}"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/hosts/{name}/cordon"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/hosts/{name}/uncordon"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/hosts/{name}/drain"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/hosts/{name}/restart"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/hosts/{name}/remove"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/hosts/{name}/replace"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/sessions"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/sessions"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/sessions/{name}"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/sessions/{name}/append"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/sessions/{name}/extend"), CLIENTS),
    rule(Action::Http("DELETE", "/api/v1/sessions/{name}"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/join-tokens"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/config"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/self-test"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/self-test"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/links"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/links"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/backup"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/topology"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/events"), CLIENTS),
    rule(Action::Http("GET", "/api/v1/version"), CLIENTS),
    rule(Action::Http("POST", "/api/v1/shutdown"), CLIENTS),
];

/// Why something was refused to somebody.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Denied {
    /// Not with this role.
    #[error("{who} may not do {act:?}: expected {}", listed(*act))]
    Role {
        /// Who asked.
        who: Party,
        /// For what.
        act: Action,
    },
    /// Not this member.
    #[error("the certificate is for {got}, expected {expected}")]
    Member {
        /// Who it should have been.
        expected: String,
        /// Who it was.
        got: String,
    },
}

impl Denied {
    /// A stable word for metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Role { .. } => "role",
            Self::Member { .. } => "identity",
        }
    }
}

fn listed(act: Action) -> String {
    let by = rule_of(act).map_or(&[][..], |rule| rule.by);
    by.iter().map(Party::to_string).collect::<Vec<_>>().join(" or ")
}

fn rule_of(act: Action) -> Option<&'static Rule> {
    TABLE.iter().find(|rule| rule.act == act)
}

/// Whether a party may do something.
pub fn allows(who: Party, act: Action) -> bool {
    rule_of(act).is_some_and(|rule| rule.by.contains(&who))
}

/// Lets a party do something.
///
/// # Errors
/// [`Denied::Role`] when the table does not have it.
pub fn check(who: Party, act: Action) -> Result<(), Denied> {
    if allows(who, act) { Ok(()) } else { Err(Denied::Role { who, act }) }
}

/// The table's entry for a method and the pattern of a path.
pub fn endpoint(method: &str, path: &str) -> Option<Action> {
    let acts = TABLE.iter().map(|rule| rule.act);
    acts.into_iter().find(|act| matches!(act, Action::Http(known, pattern) if (*known, *pattern) == (method, path)))
}

/// Who a peer is: by its certificate, or where there are none, what it is taken for.
pub fn party(peer: Option<&Member>, otherwise: Party) -> Party {
    peer.map_or(otherwise, |member| Party::Member(member.role))
}

/// Whether a peer is the host of this name. Where there are no certificates it is.
///
/// # Errors
/// [`Denied`] when its certificate says otherwise.
pub fn is_host(peer: Option<&Member>, name: &str) -> Result<(), Denied> {
    match peer {
        Some(member) if member.name != name || !HOST_PARTIES.contains(&Party::Member(member.role)) => {
            Err(Denied::Member { expected: format!("host {name}"), got: member.to_string() })
        }
        _ => Ok(()),
    }
}

/// Whether a hello is of who its certificate names. Where there are no certificates it is.
///
/// # Errors
/// [`Denied`] with both names when it is not.
pub fn is_own(peer: Option<&Member>, hello: &Hello) -> Result<(), Denied> {
    let role = hello.role.member();
    match peer {
        Some(member) if (member.role, &member.name) != (role, &hello.name) => {
            let expected = Member::new(&member.cluster, role, &hello.name).to_string();
            Err(Denied::Member { expected, got: member.to_string() })
        }
        _ => Ok(()),
    }
}

impl HostRole {
    /// As it stands in certificates.
    pub fn member(self) -> MemberRole {
        match self {
            Self::Context => MemberRole::Context,
            Self::Query => MemberRole::Query,
            Self::Spare => MemberRole::Spare,
            Self::Node => MemberRole::Node,
        }
    }
}

/// A message that not everybody may say.
pub trait AuthorizedMessage {
    /// Its entry in the table.
    fn act(&self) -> Action;

    /// Who says it where that is not known by a certificate, if it tells.
    fn claim(&self) -> Option<Party> {
        None
    }

    /// Whether it is true of the member that says it.
    ///
    /// # Errors
    /// [`Denied`] when it is another's.
    fn is_of(&self, peer: Option<&Member>) -> Result<(), Denied> {
        let _ = peer;
        Ok(())
    }
}

impl AuthorizedMessage for HostMessage {
    fn act(&self) -> Action {
        match self {
            Self::Hello(_) => Action::Hello,
            Self::Ready { .. } => Action::Ready,
            Self::Unfit { .. } => Action::Unfit,
            Self::Heartbeat { .. } => Action::Heartbeat,
            Self::Links(_) => Action::Links,
            Self::Measured { .. } => Action::Measured,
            Self::Progress { .. } => Action::Progress,
            Self::Encoded(_) => Action::Encoded,
            Self::NotEncoded { .. } => Action::NotEncoded,
            Self::Token { .. } => Action::Token,
            Self::Generated { .. } => Action::Generated,
            Self::Stalled { .. } => Action::Stalled,
            Self::Failed { .. } => Action::Failed,
            Self::Exited { .. } => Action::Exited,
            Self::Seen { .. } => Action::Seen,
            Self::Leaving { .. } => Action::Leaving,
            Self::Masked { .. } => Action::Masked,
            Self::Gpus { .. } => Action::Gpus,
        }
    }

    fn claim(&self) -> Option<Party> {
        match self {
            Self::Hello(hello) => Some(Party::Member(hello.role.member())),
            _ => None,
        }
    }

    fn is_of(&self, peer: Option<&Member>) -> Result<(), Denied> {
        match self {
            Self::Hello(hello) => is_own(peer, hello),
            _ => Ok(()),
        }
    }
}

impl AuthorizedMessage for HostCommand {
    fn act(&self) -> Action {
        match self {
            Self::Welcome { .. } => Action::Welcome,
            Self::Refuse { .. } => Action::Refuse,
            Self::Ids(_) | Self::Encode(_) => Action::Encode,
            Self::Generate(_) => Action::Generate,
            Self::Holders { .. } => Action::Holders,
            Self::Stop { .. } => Action::Stop,
            Self::Release { .. } => Action::Release,
            Self::Measure { .. } => Action::Measure,
            Self::Kill { .. } => Action::Kill,
            Self::Shutdown => Action::Shutdown,
            Self::Leave => Action::Leave,
            Self::Start { .. } => Action::Start,
            Self::Configure { .. } => Action::Configure,
        }
    }

    fn claim(&self) -> Option<Party> {
        Some(SUPERVISOR_PARTY)
    }
}

impl AuthorizedMessage for ChannelOpening {
    fn act(&self) -> Action {
        match self {
            Self::Attach(_) | Self::Detach { .. } | Self::Trace { .. } | Self::Probe => Action::Attach,
            Self::Pass { .. } => Action::Pass,
            Self::Fetch { .. } => Action::Fetch,
        }
    }

    fn claim(&self) -> Option<Party> {
        Some(CONTEXT_PARTY)
    }
}

/// Lets a peer say something.
///
/// # Errors
/// [`Denied`] when its role may not, or when it is another's to say.
pub fn admit(
    peer: Option<&Member>,
    claimed: &mut Option<Party>,
    message: &impl AuthorizedMessage,
) -> Result<(), Denied> {
    let claim = *claimed.get_or_insert_with(|| message.claim().unwrap_or(Stranger));
    check(party(peer, claim), message.act())?;
    message.is_of(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_act_stands_in_the_table_once_and_somebody_may_do_it() {
        for (at, rule) in TABLE.iter().enumerate() {
            assert!(TABLE[..at].iter().all(|other| other.act != rule.act), "{rule:?}");
            assert!(!rule.by.is_empty(), "{rule:?}");
        }
        assert_eq!(endpoint("GET", "/livez"), Some(Action::Http("GET", "/livez")));
        assert_eq!(endpoint("PUT", "/livez"), None);
    }

    #[test]
    fn a_refusal_says_who_and_expected_whom() {
        let denied = check(CONTEXT_PARTY, Action::Exited).expect_err("only nodes say so");
        assert_eq!(denied.to_string(), "a context may not do Exited: expected a node");
        let peer = Member::new("prod", MemberRole::Context, "context-1");
        let hello = Hello { name: "query-0".into(), role: HostRole::Query, ..Hello::default() };
        let denied = is_own(Some(&peer), &hello).expect_err("it is another's");
        let words = "the certificate is for asterism://prod/context/context-1, expected asterism://prod/query/query-0";
        assert_eq!(denied.to_string(), words);
        assert!(is_own(None, &hello).is_ok());
        assert!(is_host(Some(&peer), "context-1").is_ok());
        assert!(is_host(Some(&peer), "context-0").is_err());
        let node = Member::new("prod", MemberRole::Node, "context-1");
        assert!(is_host(Some(&node), "context-1").is_err());
    }

    #[test]
    fn without_certificates_a_peer_is_what_its_first_words_say() {
        let mut claimed = None;
        assert!(
            admit(None, &mut claimed, &HostMessage::Ready { numerics: String::new(), model: Box::default() }).is_err(),
            "nobody has said hello"
        );
        let (mut claimed, hello) = (None, Hello { role: HostRole::Node, ..Hello::default() });
        assert!(admit(None, &mut claimed, &HostMessage::Hello(hello)).is_ok());
        assert!(
            admit(None, &mut claimed, &HostMessage::Ready { numerics: String::new(), model: Box::default() }).is_err()
        );
        assert!(admit(None, &mut claimed, &HostMessage::Heartbeat { kv_bytes: 0, idle_bytes: 0 }).is_ok());
    }
}
