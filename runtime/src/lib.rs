//! The command line, the cluster file and the wiring of processes. What hosts say to each other is the actors' business.

mod calibration;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod cluster_file;
pub mod commands;
pub mod credentials;
pub mod data_dir;
pub mod error;
pub mod eval;
pub mod globals;
pub mod http;
pub mod joining;
pub mod keeper;
pub mod logging;
pub mod method_spec;
pub mod metrics;
pub mod node;
pub mod output;
pub mod progress;
pub mod readiness;
pub mod renewal;
pub mod rotation;
pub mod service;
pub mod size;
pub mod temporary;
pub mod wiring;
