//! One file a group of verbs: its arguments as typed, and what they do.

pub mod bench;
pub mod certificates;
pub mod chaos;
pub mod cluster;
pub mod completions;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod evaluate;
pub mod jobs;
pub mod model;
pub mod self_test;
