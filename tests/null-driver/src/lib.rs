//! A driver of GPUs that computes nothing, for tests of what a host does beside computing: as `libcuda.so` and `libcublasLt.so` it
//! counts memory, handles and launches, refuses what GPUs of so much memory would refuse, and notes what no driver forgives. Work is
//! done as soon as it is queued; copies from a GPU give zeros. Pools never have holes: what is freed serves for any size.
//!
//! `NULL_DRIVER_GPUS` and `NULL_DRIVER_BYTES` say how many GPUs there are and how much memory each has. In the folder that `NULL_DRIVER_FOLDER`
//! names, each process that opens a GPU listens at `PID.sock` ([`control`]) and leaves its last [`report::Report`] as `PID.json`.
//!
//! What the product asks a driver for is here, and no more: cudarc looks for a function when it calls it first.

mod control;
mod driver;
mod memory;
mod products;
mod report;

/// Tells a program that was built without kernels that it may open this driver's GPUs, and one that has kernels that it may not.
#[unsafe(no_mangle)]
pub extern "C" fn asterism_null_driver() {}
