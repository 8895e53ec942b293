//! What survives the supervisor: records, and changes that are decided before they are kept. Writes no file.

pub mod change;
pub mod record;
