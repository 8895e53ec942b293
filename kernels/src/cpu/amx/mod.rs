//! bfloat16 products and attention on Intel's tile unit (AMX), over operands packed for it.
//!
//! Knows neither tensors nor thread pools: operands are slices, and the caller passes a runner. Every routine has a
//! scalar twin over the same packed layout, taken where [`available`] is false: right, and far too slow to choose.

mod attention;
mod buffer;
mod cache;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod detect;
mod engine;
mod gemm;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod native;
mod panels;
mod portable;
mod weights;

pub use attention::{ListedRows, Query, attention, attention_listed};
pub use cache::AmxCache;
pub use gemm::{GemmOutput, gemm};
pub use weights::AmxWeights;

/// Runs `work(0)`, `work(1)`, ... `work(tasks - 1)` on as many threads as the caller likes, started in this order, and
/// returns when all are done. No result depends on the number of threads.
pub type Parallel<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Whether this process may use the tile unit: the processor has AMX-TILE, AMX-BF16 and the AVX-512 subsets used around
/// them, and the kernel saves the tile state and has granted it. False off x86-64 Linux.
pub fn available() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return detect::available();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    return false;
}

/// Calls `$function::<Engine>($arguments)` with the fastest engine of this machine.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
macro_rules! dispatch {
    ($function:ident($($argument:expr),* $(,)?)) => {
        if $crate::cpu::amx::available() {
            // SAFETY: `available` is what the engine asks for.
            unsafe { $function::<$crate::cpu::amx::native::Amx>($($argument),*) }
        } else {
            // SAFETY: the scalar engine asks for nothing.
            unsafe { $function::<$crate::cpu::amx::portable::PortableEngine>($($argument),*) }
        }
    };
}
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
macro_rules! dispatch {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the scalar engine asks for nothing.
        unsafe { $function::<$crate::cpu::amx::portable::PortableEngine>($($argument),*) }
    };
}
use dispatch;

#[cfg(test)]
mod samples;
