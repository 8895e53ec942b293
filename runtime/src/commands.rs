//! One file a group of verbs: its arguments as typed, and what they do.

pub mod config;
