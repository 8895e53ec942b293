//! What a process tells of itself: metrics, news, spans. Exports nothing.

pub mod cluster_event;
pub mod metric;
pub mod readings;
pub mod tally;
pub mod trace;
