//! The GPU backend: operations on device tensors ([`Device`], [`Products`], [`Attender`], [`CudaKv`]), and a thin
//! [`Backend`](crate::Backend) over them. Reads no file and no configuration.

mod attention;
mod backend;
mod codes;
mod device;
mod elementwise;
mod exchange;
mod gpu;
mod kv;
mod linear;
mod moves;
mod survey;
mod tensor;

pub use attention::{Attender, CudaAttentionCall, PIECE};
pub use device::memory::Gauge;
pub use device::{Device, SPLIT_KEY_ROWS};
pub use elementwise::Positions;
pub use gpu::{Cuda, CudaOptions};
pub use kv::CudaKv;
pub use linear::{CudaLinear, ProductChoice, Products};
pub use moves::Placed;
pub use survey::{DeviceSurvey, Gpu, Library, survey};
pub use tensor::{Tensor, View};
