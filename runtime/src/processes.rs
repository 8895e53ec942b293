//! The processes of a cluster: a supervisor's, a node's, its hosts', and what each needs to run. Serves no HTTP itself.

pub(crate) mod calibration;
pub(crate) mod condition;
pub(crate) mod cores;
pub mod device;
pub mod keeper;
pub mod node;
pub mod readiness;
pub mod service;
pub mod template;
pub(crate) mod temporary;
pub mod wiring;
