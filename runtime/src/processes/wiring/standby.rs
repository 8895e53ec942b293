//! A journal that several supervisors share, of whom one leads: small values and the lead in etcd, large values in a folder that all see.
//! Decides nothing about jobs, and serves nobody.

pub mod access;
pub mod gateway;
mod lead;
mod store;
mod values;

pub use lead::LeaderRecord;
pub use store::{EtcdStore, JournalTurn, SharedJournal};
