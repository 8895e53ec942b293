//! The operations of a decoder and of the attention methods, on each device. Knows no model, plan, wire or file.
//!
//! `backend` says what a device offers, `operands` and `sparse` what operations are told. `reference` is the slow, obvious CPU version
//! of every kernel; `cpu` the fast one. `group` makes one device of several. All return attention as `(output, log-sum-exp)`, so that partial results over any split of
//! the keys merge exactly.

mod backend;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dtype;
mod error;
mod group;
mod operands;
mod priority;
pub mod reference;
mod sparse;
mod top_k;

pub use backend::{
    AllGather, AttentionOps, Backend, BatchAttention, Collectives, ComputeDevice, ElementwiseOps, Exported,
    GatheredLayer, HeadOps, HostTensor, KvOps, LinearOps, Mark, Partial, RawBytes, Rendezvous, Rotary, SelectionOps,
    Sparse, StepLayers, TensorOps, WireOps, WorkQueue, batch, heads,
};
pub use cpu::{Cpu, CpuOptions, KernelChoice, ThreadLimit};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaOptions};
pub use dtype::{DType, KvFormat, KvType};
pub use error::KernelError;
pub use group::{DeviceGroup, GroupKv, GroupLinear, GroupTensor, check_heads};
pub use operands::{
    Activation, Ask, BlockFormat, Extra, Heads, KeySets, LogitChange, Mask, Merging, Nucleus, NucleusCut, RowChoice,
    RowShape, RowToken, Selection, StepSequence, Stored, TokenChoice, merging, packed,
};
pub use priority::{PriorityGuard, Quanta, Quantum, Rank, Steps};
pub use sparse::{FlexRule, Selector, StripeRule, VerticalSlashRule};
pub use top_k::top_k;

/// The capabilities, for who has a device at hand: to import together.
pub mod prelude {
    pub use crate::backend::{
        AttentionOps, Backend, BatchAttention, Collectives, ComputeDevice, ElementwiseOps, HeadOps, KvOps, LinearOps,
        SelectionOps, TensorOps, WireOps, WorkQueue,
    };
}
