//! What disks, models, files and terminals cannot do to a cluster on its own machine.

pub mod disk;
pub mod doctor;
pub mod edges;
pub mod events;
pub mod folders;
pub mod hub;
pub mod logs;
pub mod model;
pub mod self_test;
pub mod terminal;
pub mod traces;
pub mod waiting;
