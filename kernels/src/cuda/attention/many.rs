//! Few rows of many calls at once: one launch over the pieces of all keys, one that combines them, one that merges groups, one copy
//! to the host. The arithmetic is that of each call alone.

mod ahead;
mod asks;
mod groups;
mod laid;
mod layout;
mod merges;
mod rounds;
mod table;
mod tree;

pub use ahead::StepAhead;
pub use laid::LaidStep;
