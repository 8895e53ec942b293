//! What each event means, as structs that borrow only the tables they may touch. No I/O, no clock.

pub mod accused;
pub mod admission;
pub mod drain;
pub mod growth;
pub mod host_selection;
pub mod joining;
pub mod model;
pub mod orders;
pub mod recovery;
pub mod reports;
pub mod teardown;
pub mod uses;
