//! The operations of a decoder and of the attention methods, on each device. Knows no model, plan, wire or file.
//!
//! `reference` is the slow, obvious CPU version of every kernel; `cpu` the fast one. Both return attention as
//! `(output, log-sum-exp)`, so that partial results over any split of the keys merge exactly.

mod ahead;
mod backend;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dtype;
mod error;
mod key_sets;
pub mod merging;
pub mod packed;
pub mod reference;
mod sparse;
mod top_k;

pub use ahead::{Ahead, Rank, Steps, Stretch, Stretches};
pub use backend::{
    AllGather, Backend, Heads, HostTensor, Lent, Mark, Mask, Meeting, Partial, RawBytes, Rotary, Sparse,
};
pub use cpu::{Cpu, CpuOptions, KernelChoice, ThreadLimit};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaOptions};
pub use dtype::DType;
pub use error::KernelError;
pub use key_sets::{KeySets, Selection};
pub use merging::Merging;
pub use packed::Ask;
pub use sparse::{FlexRule, StripeRule, VerticalSlashRule};
pub use top_k::top_k;
