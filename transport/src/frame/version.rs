//! Which versions of what is said in frames this build speaks, and how two peers settle on one. Knows no message.
//!
//! A peer offers every version that it speaks as a TLS application protocol (`asterism/N`); whoever is connected to takes the newest of
//! them that it speaks too.

use std::fmt;

/// Newest version of messages that is spoken here.
pub const PROTOCOL_VERSION: u16 = 5;
/// Oldest version of messages that is spoken here: that of the release before, or older.
pub const OLDEST_PROTOCOL: u16 = 4;

const PROTOCOL_PREFIX: &str = "asterism/";

/// The versions spoken here, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpokenVersions;

impl fmt::Display for SpokenVersions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match OLDEST_PROTOCOL == PROTOCOL_VERSION {
            true => write!(formatter, "{PROTOCOL_VERSION}"),
            false => write!(formatter, "{OLDEST_PROTOCOL} to {PROTOCOL_VERSION}"),
        }
    }
}

/// What TLS is offered, the newest first.
pub(crate) fn offered() -> Vec<Vec<u8>> {
    (OLDEST_PROTOCOL..=PROTOCOL_VERSION)
        .rev()
        .map(|version| format!("{PROTOCOL_PREFIX}{version}").into_bytes())
        .collect()
}

/// The version that TLS settled on; none where it is not one of those spoken here.
pub(crate) fn settled(protocol: &[u8]) -> Option<u16> {
    let version = std::str::from_utf8(protocol).ok()?.strip_prefix(PROTOCOL_PREFIX)?.parse().ok()?;
    (OLDEST_PROTOCOL..=PROTOCOL_VERSION).contains(&version).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_what_may_be_settled_on_and_the_newest_comes_first() {
        let versions: Vec<_> = offered().iter().map(|protocol| settled(protocol)).collect();
        let expected: Vec<_> = (OLDEST_PROTOCOL..=PROTOCOL_VERSION).rev().map(Some).collect();
        assert_eq!(versions, expected);
        for other in ["asterism/1", "asterism/3", "asterism/6", "asterism/", "asterism/4x", "asterism-ucx/5", ""] {
            assert_eq!(settled(other.as_bytes()), None, "{other}");
        }
    }
}
