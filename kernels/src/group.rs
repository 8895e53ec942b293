//! Several devices of one process as one backend: tensor parallelism. Each has some heads of queries and keys, and some outputs of every
//! linear layer; rows are put together wherever a sum goes over all of them, so that every sum stays whole and bits are those of one
//! device. Knows no model beyond its heads, and no kind of device.

mod arriving;
mod attention;
mod batch;
mod heads;
mod layout;
mod linear;
mod members;
mod raw;
mod rotating;
mod spread;
mod tensors;

pub use attention::GroupKv;
pub use heads::check_heads;
pub use linear::GroupLinear;
pub use members::DeviceGroup;
pub use spread::GroupTensor;
