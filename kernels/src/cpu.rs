//! The CPU backend on candle-core tensors in main memory, with its own kernels and threads. Reads no file and no configuration.

mod aligned;
pub mod amx;
mod attention;
mod backend;
mod cache;
mod choice;
mod compute;
mod elementwise;
mod gemm;
mod kv;
mod lanes;
mod linear;
mod many;
mod merge;
mod moves;
mod pool;
mod processor;
mod scores;
mod sparse;
mod tensor;
mod tile;

pub use choice::KernelChoice;
pub use kv::Kv;
pub use linear::Linear;
pub use pool::ThreadLimit;
pub use processor::{Cpu, CpuOptions};
