//! The command line, the cluster file and the wiring of processes. What hosts say to each other is the actors' business.

pub mod api;
pub mod certificates;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod data_dir;
pub mod error;
pub mod eval;
pub mod globals;
pub mod observe;
pub mod processes;
pub mod simulation;
