//! Attention of the vector kernels, dense and over listed keys, with log-sum-exp; scores, masses and stripes that choose keys; and the
//! merge of partials.

mod block;
mod cache;
mod dense;
mod eight;
mod integers;
mod masses;
mod merge;
mod scores;
mod selected;
mod stripes;
mod sums;
mod tiled;

pub(super) use cache::PanelCache;
pub(super) use dense::CpuAttentionCall;
pub(super) use masses::{AttentionMasses, masses};
pub(super) use merge::{merge, merge_packed, merge_rows};
pub(super) use scores::{key_scores, mean};
pub(super) use selected::{CausalSequence, SelectedOutput};
pub(super) use stripes::stripes;
pub(super) use tiled::TiledSequence;
