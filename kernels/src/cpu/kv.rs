//! Keys and values on the CPU, and attention over them: of one call, of many asks, over keys that a rule selects.

mod estimate;
mod many;
mod sparse;
mod store;

pub(super) use many::attend_many;
pub(super) use sparse::{attention_by, attention_selected};
pub use store::CpuKv;
