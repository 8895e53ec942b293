//! The endpoints of the admin API, a file a path. Who may call them stands in the table of `actors`.

pub(crate) mod backup;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod hosts;
pub(crate) mod jobs;
pub(crate) mod joining;
pub(crate) mod links;
pub(crate) mod self_test;
pub(crate) mod sessions;
