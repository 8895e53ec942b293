//! What a process tells of itself: metrics, news, spans. Exports nothing.

pub mod metric;
pub mod news;
pub mod tally;
pub mod trace;
