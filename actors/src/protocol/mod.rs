//! What processes say to each other, over which links, and who may say what. Decides nothing.

pub mod authority;
pub mod handing;
pub mod link;
pub mod messages;
pub mod payload;
pub mod probe;
pub mod ticket;
