//! What operations of several capabilities are told, as values: heads, masks, sets of keys, asks of shards and how their answers are
//! merged, and how weights are stored. Knows no device.

mod activation;
mod heads;
mod key_sets;
mod mask;
pub mod merging;
pub mod packed;
mod step;
mod stored;

pub use activation::{Activation, Extra};
pub use heads::Heads;
pub use key_sets::{KeySets, Selection};
pub use mask::Mask;
pub use merging::Merging;
pub use packed::Ask;
pub use step::{Likeliest, StepSequence};
pub use stored::{BlockFormat, Stored};
pub(crate) use stored::{Packing, SUB, sub_block};
