//! The GPU backend: operations on device tensors ([`Device`], [`Products`], [`Attender`], [`Kv`]), and a thin
//! [`Backend`](crate::Backend) over them. Reads no file and no configuration.

mod attention;
mod backend;
mod device;
mod elementwise;
mod gathering;
mod gpu;
mod kv;
mod lending;
mod linear;
mod many;
mod moves;
mod sparse;
mod staging;
mod survey;
mod tensor;

pub use attention::{Attender, Attention, FEW_ROWS, PIECE};
pub use device::Device;
pub use elementwise::Positions;
pub use gpu::{Cuda, CudaOptions};
pub use kv::Kv;
pub use linear::{Choice, Linear, Products};
pub use moves::Placed;
pub use survey::{Gauge, Gpu, Library, Survey, survey};
pub use tensor::{Tensor, View};
