//! What operations of several capabilities are told, as values: heads, masks, sets of keys, asks of shards and how their answers are
//! merged. Knows no device.

mod activation;
mod heads;
mod key_sets;
mod mask;
pub mod merging;
pub mod packed;

pub use activation::{Activation, Extra};
pub use heads::Heads;
pub use key_sets::{KeySets, Selection};
pub use mask::Mask;
pub use merging::Merging;
pub use packed::Ask;
