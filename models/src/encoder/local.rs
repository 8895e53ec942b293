//! Attention of a pass over its own rows, by the rule its plan gives it.

use asterism_kernels::{Backend, FlexRule, Mask, Partial, Selector, Sparse, StripeRule, VerticalSlashRule};
use asterism_plan::{
    LocalAttention,
    attention::{Flex, Streaming, Stripes, VerticalSlash},
};

use super::{Chosen, Layer, Pass, Watch};
use crate::{ModelError, decoder::Projected};

impl<B: Backend> Layer<'_, B> {
    /// The partial of a pass over its own rows.
    pub(super) fn local(&self, pass: &Pass<'_, B>, watch: &mut dyn Watch) -> Result<Partial<B::Tensor>, ModelError> {
        let (backend, Projected { q, .. }, kv) = (self.backend(), &pass.qkv, &pass.kv);
        let (rows, heads) = (pass.shard.rows(), self.query_heads());
        // Beside `given` pairs.
        let mut chosen = |sparse: Sparse<'_, B>, given: u64| -> Result<Partial<B::Tensor>, ModelError> {
            let (partial, keys) = sparse?;
            watch.pairs(pass.shard.block, given + keys.pairs());
            watch.chosen(self.index, pass.shard.block, Chosen::Keys(&keys));
            Ok(partial)
        };
        match pass.shard.attention {
            LocalAttention::VerticalSlash(VerticalSlash { vertical, slash }) => {
                let selector = Selector::VerticalSlash(VerticalSlashRule { vertical, slash });
                chosen(backend.attention_by(q, kv, selector), 0)
            }
            LocalAttention::Flex(Flex { gamma, tau, min_budget }) => {
                let selector = Selector::Flex(FlexRule { gamma, tau, min_budget });
                chosen(backend.attention_by(q, kv, selector), 0)
            }
            LocalAttention::Stripes(Stripes { theta, step, block_q, block_kv }) => {
                let rule = StripeRule { theta, step, block_q, block_kv };
                chosen(backend.attention_by(q, kv, Selector::Stripes(rule)), heads * rule.anchor_pairs(rows))
            }
            LocalAttention::Causal => {
                watch.pairs(pass.shard.block, heads * pass.shard.attention.pairs(rows));
                Ok(backend.attention(q, kv, Mask::Causal)?)
            }
            LocalAttention::Streaming(Streaming { sink_tokens, window_tokens }) => {
                watch.pairs(pass.shard.block, heads * pass.shard.attention.pairs(rows));
                let mask = Mask::Streaming { sink: sink_tokens, window: window_tokens, first_row: 0, first_key: 0 };
                Ok(backend.attention(q, kv, mask)?)
            }
        }
    }
}
