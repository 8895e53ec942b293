//! What a process reports of itself: metrics, readings, events, spans. Exports nothing.

pub mod cluster_event;
pub mod metric;
pub mod readings;
pub mod tally;
pub mod trace;
