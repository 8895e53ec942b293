//! What runs the state: the actor, its clock, connections, listeners and the thread that writes. Decides nothing.

pub mod actor;
pub mod admission_gate;
pub mod config_metrics;
pub mod event_loop;
pub mod events;
pub mod feed;
pub mod lists;
pub mod measuring;
pub mod watchdog;
pub mod write_queue;
pub mod writer;
