//! What a process tells of itself: log lines, metrics, spans, its version. Nothing here decides.

pub mod gpus;
pub mod logging;
pub mod metrics;
pub mod service_manager;
pub mod telemetry;
pub mod version;
