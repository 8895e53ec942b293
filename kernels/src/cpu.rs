//! The CPU backend: tensors in main memory, with its own kernels and threads. Reads no file and no configuration.

pub mod amx;
mod attention;
mod backend;
mod choice;
mod compute;
mod elementwise;
mod gemm;
mod kv;
mod lanes;
mod linear;
mod pool;
mod processor;
mod tensor;

pub use choice::KernelChoice;
pub use kv::CpuKv;
pub use linear::CpuLinear;
pub use pool::{ThreadLimit, keep_cores_for};
pub use processor::{Cpu, CpuOptions};
pub use tensor::CpuTensor;
