//! What runs the state: the actor, its clock, connections, listeners and the thread that writes. Decides nothing.

pub mod actor;
pub mod event_loop;
pub mod events;
pub mod feed;
pub mod gate;
pub mod lists;
pub mod measuring;
pub mod pulse;
pub mod write_queue;
pub mod writer;
