//! What hosts, nodes and strangers cannot do to a cluster that they are, or are not, members of.

pub mod handshakes;
pub mod identity;
#[allow(dead_code, reason = "who goes on after a Retry is tested in transport")]
#[path = "../../transport/tests/common/initials.rs"]
pub mod initials;
pub mod joining;
pub mod roles;
mod thousand;
