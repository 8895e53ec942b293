//! The command line, the cluster file and the wiring of processes. What hosts say to each other is the actors' business.

pub mod cluster;
pub mod cluster_file;
pub mod error;
pub mod eval;
pub mod size;
