//! What a process shares out of its machine: threads, cores, memory. Knows no cluster.

pub mod capacity;
pub mod cores;
pub mod machine;
