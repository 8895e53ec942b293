//! Orders of a chain's shards. What stands behind them is what the host holds; what it does not hold is encoded again on the way,
//! and not kept. Decides nothing.

use std::sync::Arc;

use asterism_kernels::Backend;
use asterism_models::{Decoder, EncodedShard, ModelError, Peers, Phase1, Watch};
use asterism_plan::{Exchange, Input, Shard};

use crate::messages::EncodeShards;

/// Whether an order is of shards of a chain that stand behind others.
pub fn is_chain(order: &EncodeShards) -> bool {
    order.shards.iter().any(|shard| shard.behind > 0)
}

/// The shards of an order on their way through the encoder.
pub struct ChainEncoder<'a, B: Backend> {
    /// The model.
    pub decoder: &'a Decoder<B>,
    /// Shards of the whole plan.
    pub blocks: usize,
    /// What the host holds of the context, by block.
    pub kept: &'a dyn Fn(u32) -> Option<Arc<EncodedShard<B>>>,
    /// Who carries what shards pass each other: these pass nothing.
    pub peers: &'a mut dyn Peers<B>,
}

impl<B: Backend> ChainEncoder<'_, B> {
    /// Encodes the shards, ascending by block, each behind all before it.
    ///
    /// # Errors
    /// As [`Phase1::encode`].
    pub fn encode(
        &mut self,
        (shards, inputs): (&[Shard], &[Input]),
        watch: &mut dyn Watch,
    ) -> Result<Vec<EncodedShard<B>>, ModelError> {
        let (mut behind, mut encoded) = (Vec::<Arc<EncodedShard<B>>>::new(), Vec::with_capacity(shards.len()));
        let (mut shards, mut inputs) = (shards, inputs);
        while let Some((first, input)) = shards.first().zip(inputs.first()) {
            for earlier in first.earlier().skip(behind.len()) {
                behind.push(match (self.kept)(earlier.block as u32) {
                    Some(kept) => kept,
                    None => self.again(&earlier, &input.earlier(earlier.own), &behind, watch)?,
                });
            }
            let together = self.together(shards);
            let (now, later) = shards.split_at(together);
            let passed = self.pass((now, &inputs[..together]), &behind, watch)?;
            behind.extend(passed.iter().cloned().map(Arc::new));
            encoded.extend(passed);
            (shards, inputs) = (later, &inputs[together..]);
        }
        Ok(encoded)
    }

    /// How many of the first shards go through the linear layers together: those that follow each other, of as many rows as the
    /// device likes.
    fn together(&self, shards: &[Shard]) -> usize {
        let (most, mut rows) = (self.decoder.backend().linear_rows(), 0);
        let fits = |(at, shard): &(usize, &Shard)| {
            rows += shard.rows();
            *at == 0 || (shard.block == shards[0].block + at && rows <= most)
        };
        shards.iter().enumerate().take_while(fits).count()
    }

    fn pass(
        &mut self,
        (shards, inputs): (&[Shard], &[Input]),
        behind: &[Arc<EncodedShard<B>>],
        watch: &mut dyn Watch,
    ) -> Result<Vec<EncodedShard<B>>, ModelError> {
        let (decoder, blocks, exchange) = (self.decoder, self.blocks, &Exchange::None);
        Phase1 { decoder, shards, inputs, blocks, exchange, behind, heads: None }.encode(self.peers, watch)
    }

    /// A shard that nobody ordered here: its layers are nobody's progress.
    fn again(
        &mut self,
        shard: &Shard,
        input: &Input,
        behind: &[Arc<EncodedShard<B>>],
        watch: &mut dyn Watch,
    ) -> Result<Arc<EncodedShard<B>>, ModelError> {
        let mut goes_on = |_, _| watch.goes_on();
        let (shards, inputs) = (std::slice::from_ref(shard), std::slice::from_ref(input));
        Ok(Arc::new(self.pass((shards, inputs), behind, &mut goes_on)?.swap_remove(0)))
    }
}
