//! Methods that encode the whole context on one host, rows seeing some of the keys.

pub(crate) mod anchor;
pub(crate) mod flexprefill;
pub(crate) mod minference;
pub(crate) mod streaming;
