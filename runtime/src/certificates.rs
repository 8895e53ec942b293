//! Who a process is and whom it believes: certificates from their making to their end. Knows no link.

pub mod credentials;
pub mod joining;
pub(crate) mod members;
pub mod renewal;
pub mod revocation;
pub mod rotation;
