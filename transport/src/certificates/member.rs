//! Who a certificate says its holder is: a URI among its alternative names, `asterism://CLUSTER/ROLE/NAME`. What a role may
//! do is not decided here.

use std::{fmt, str::FromStr};

use rkyv::{Archive, Deserialize, Serialize};

/// What the URI begins with.
pub(super) const SCHEME: &str = "asterism://";
/// Longest cluster or member name, in bytes.
pub const MAX_NAME_BYTES: usize = 63;

/// What a member of a cluster is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Archive, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the archived twin that rkyv derives carries no docs of its own")]
pub enum MemberRole {
    /// Tells all others what to do.
    Supervisor,
    /// Starts and ends the host processes of a machine.
    Node,
    /// Encodes shards and answers queries over them.
    Context,
    /// Generates.
    Query,
    /// Waits to take the place of a context or query host.
    Spare,
}

impl MemberRole {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Supervisor, Self::Node, Self::Context, Self::Query, Self::Spare];

    /// As it stands in a certificate.
    pub fn word(self) -> &'static str {
        match self {
            Self::Supervisor => "supervisor",
            Self::Node => "node",
            Self::Context => "context",
            Self::Query => "query",
            Self::Spare => "spare",
        }
    }
}

impl fmt::Display for MemberRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// One process of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The cluster's name.
    pub cluster: String,
    /// What it is there for.
    pub role: MemberRole,
    /// Its name, as the cluster file has it.
    pub name: String,
}

impl Member {
    /// A member of `cluster`.
    pub fn new(cluster: &str, role: MemberRole, name: &str) -> Self {
        Self { cluster: cluster.into(), role, name: name.into() }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, role, name } = self;
        write!(formatter, "{SCHEME}{cluster}/{role}/{name}")
    }
}

impl FromStr for Member {
    type Err = String;

    fn from_str(uri: &str) -> Result<Self, String> {
        let malformed = || format!("{uri:?} names no member, expected {SCHEME}CLUSTER/ROLE/NAME");
        let parts: Vec<&str> = uri.strip_prefix(SCHEME).ok_or_else(malformed)?.split('/').collect();
        let [cluster, role, name] = parts[..] else { return Err(malformed()) };
        let role = MemberRole::ALL.into_iter().find(|known| known.word() == role).ok_or_else(malformed)?;
        match is_name(cluster) && is_name(name) {
            true => Ok(Self::new(cluster, role, name)),
            false => Err(malformed()),
        }
    }
}

/// Whether a name can stand in the URI as it is.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_read_back_from_its_uri_only() {
        for role in MemberRole::ALL {
            let member = Member::new("prod.eu-1", role, "host_0");
            assert_eq!(member.to_string().parse(), Ok(member));
        }
        let wrong = [
            "",
            "asterism://",
            "asterism://a/context",
            "asterism://a/context/",
            "asterism:///context/b",
            "asterism://a/context/b/c",
            "asterism://a/Context/b",
            "asterism://a/king/b",
            "asterism://a/context/b c",
            "https://a/context/b",
        ];
        for uri in wrong {
            assert!(uri.parse::<Member>().is_err(), "{uri}");
        }
    }
}
