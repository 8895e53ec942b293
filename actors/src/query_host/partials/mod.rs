//! Asks the hosts of a context's shards for partial answers, and gathers them: over which lines, by which route, and what is
//! done about those that do not come.

pub mod answers;
pub mod channels;
pub mod contexts;
pub mod gather;
pub mod layer_step;
pub mod local_shards;
pub mod route;
