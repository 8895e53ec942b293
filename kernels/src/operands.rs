//! What operations of several capabilities are told, as values: heads, masks, sets of keys, asks of shards and how their answers are
//! merged, how weights are stored, and how tokens are chosen of logits. Knows no device.

mod activation;
mod heads;
mod key_sets;
mod mask;
pub mod merging;
pub mod packed;
mod sampling;
mod step;
mod stored;

pub use activation::{Activation, Extra};
pub use heads::Heads;
pub use key_sets::{KeySets, Selection};
pub use mask::Mask;
pub use merging::Merging;
pub use packed::Ask;
pub use sampling::{LogitChange, Nucleus, NucleusCut, RowChoice, RowShape, RowToken, TokenChoice};
pub use step::StepSequence;
pub use stored::{BlockFormat, Stored};
pub(crate) use stored::{Packing, SUB, sub_block};
