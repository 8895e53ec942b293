//! The messages between processes, their links, and who may send what. Decides nothing.

pub mod authority;
pub mod handing;
pub mod link;
pub mod messages;
pub mod payload;
pub mod probe;
pub mod ticket;
