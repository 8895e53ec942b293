//! What a device must offer, by capability: the operations of a decoder and of the attention methods over its own tensors. No
//! device is named here.

mod attention;
pub mod batch;
mod cache;
mod collectives;
mod device;
mod elementwise;
pub mod heads;
mod linear;
mod queue;
mod selection;
mod tensors;
mod wire;

pub use attention::{AttentionOps, Partial};
pub use batch::{BatchAttention, StepLayers};
pub use cache::KvOps;
pub(crate) use collectives::PendingFill;
pub use collectives::{AllGather, Collectives, Exported, GatheredLayer, Rendezvous};
pub use device::ComputeDevice;
pub use elementwise::ElementwiseOps;
pub use heads::{HeadOps, Rotary};
pub use linear::{HostTensor, LinearOps};
pub use queue::{Mark, WorkQueue};
pub use selection::{SelectionOps, Sparse};
pub use tensors::TensorOps;
pub(crate) use tensors::check_lists;
pub use wire::{RawBytes, WireOps};

/// All that a decoder and the attention methods ask of a device.
pub trait Backend: WorkQueue + LinearOps + SelectionOps + BatchAttention + WireOps + Collectives {}

impl<B: WorkQueue + LinearOps + SelectionOps + BatchAttention + WireOps + Collectives> Backend for B {}
