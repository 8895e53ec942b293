//! The GPU backend: operations on device tensors ([`Device`], [`Products`], [`Attender`], [`Kv`]), and a thin
//! [`Backend`](crate::Backend) over them. Reads no file and no configuration.

mod attention;
mod backend;
mod device;
mod elementwise;
mod exchange;
mod gpu;
mod kv;
mod linear;
mod moves;
mod survey;
mod tensor;

pub use attention::{Attender, Attention, PIECE};
pub use device::memory::Gauge;
pub use device::{Device, FEW_ROWS};
pub use elementwise::Positions;
pub use gpu::{Cuda, CudaOptions};
pub use kv::Kv;
pub use linear::{Choice, Linear, Products};
pub use moves::Placed;
pub use survey::{Gpu, Library, Survey, survey};
pub use tensor::{Tensor, View};
