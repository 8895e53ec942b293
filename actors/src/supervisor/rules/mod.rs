//! What each event means, as functions that borrow only the tables they may touch. No I/O, no clock.

pub mod accused;
pub mod append;
pub mod drain;
pub mod homes;
pub mod host_selection;
pub mod orders;
pub mod recovery;
pub mod reports;
pub mod sessions;
