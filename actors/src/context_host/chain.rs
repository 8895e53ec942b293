//! Orders of a chain's shards, and which go together. What stands behind them is what the host holds; what it does not hold is encoded
//! again on the way, and not kept.

use std::sync::Arc;

use asterism_kernels::Backend;
use asterism_models::{Decoder, Earlier, EncodedShard, ModelError, Peers, Phase1, Watch};
use asterism_plan::{Exchange, Input, LocalAttention, Shard};

use super::command::EncodeWork;
use crate::messages::EncodeShards;

/// Tokens behind the shards of an order up to which it goes through the linear layers beside others: beyond, what it sees takes longer
/// than they do.
const MOST_BEHIND: usize = 32_768;

/// How an order's shards attend, for which of them can go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attends {
    /// Behind others of a chain.
    Chained,
    /// To all before within a shard: as the first of a chain does.
    Plainly,
    /// Otherwise.
    Otherwise,
}

impl Attends {
    /// Of an order.
    pub fn of(order: &EncodeShards) -> Self {
        let plain = |shard: &Shard| {
            shard.prefix.is_empty() && shard.apart_rows == 0 && shard.attention == LocalAttention::Causal
        };
        match order.shards.iter().all(plain) {
            _ if is_chain(order) => Self::Chained,
            true => Self::Plainly,
            false => Self::Otherwise,
        }
    }

    /// Whether one of these and one of those go together.
    pub fn goes_with(self, other: Self) -> bool {
        self == Self::Plainly || other == Self::Plainly || self == other
    }
}

/// Whether an order is of shards of a chain that stand behind others.
pub fn is_chain(order: &EncodeShards) -> bool {
    order.shards.iter().any(|shard| shard.behind > 0)
}

/// Whether an order could go together with others of its kind: shards of a chain, where one follows the other and not too much is behind.
pub fn may_go_together(order: &EncodeShards) -> bool {
    !is_chain(order) || (follow(&order.shards) && order.shards.iter().all(|shard| shard.behind <= MOST_BEHIND))
}

fn follow(shards: &[Shard]) -> bool {
    shards.windows(2).all(|pair| pair[1].block == pair[0].block + 1)
}

/// Orders of chains' shards on their way through the encoder.
pub struct ChainEncoder<'a, B: Backend> {
    /// The model.
    pub decoder: &'a Decoder<B>,
    /// Shards of the whole plan.
    pub blocks: usize,
    /// What the host holds of a context, by block.
    pub kept: &'a dyn Fn(u64, u32) -> Option<Arc<EncodedShard<B>>>,
    /// Who carries what shards pass each other: these pass nothing.
    pub peers: &'a mut dyn Peers<B>,
}

/// Shards in block order.
type Behind<B> = Vec<Arc<EncodedShard<B>>>;

impl<B: Backend> ChainEncoder<'_, B> {
    /// Encodes the shards of a context, ascending by block, each behind all before it.
    ///
    /// # Errors
    /// As [`Phase1::encode`].
    pub fn encode(
        &mut self,
        context: u64,
        (shards, inputs): (&[Shard], &[Input]),
        watch: &mut dyn Watch,
    ) -> Result<Vec<EncodedShard<B>>, ModelError> {
        let (mut behind, mut encoded) = (Behind::new(), Vec::with_capacity(shards.len()));
        let (mut shards, mut inputs) = (shards, inputs);
        while let Some(first) = shards.first().zip(inputs.first()) {
            self.bring((context, first), &mut behind, watch)?;
            let together = self.together(shards);
            let (now, later) = shards.split_at(together);
            let earlier = [Earlier { before: 0, shards: &behind }];
            let passed = self.pass((now, &inputs[..together]), &earlier, watch)?;
            behind.extend(passed.iter().cloned().map(Arc::new));
            encoded.extend(passed);
            (shards, inputs) = (later, &inputs[together..]);
        }
        Ok(encoded)
    }

    /// Encodes the shards of several works by one pass, in each of which one follows the other; they are `numbered` through.
    ///
    /// # Errors
    /// As [`Phase1::encode`].
    pub fn encode_beside(
        &mut self,
        works: &[EncodeWork],
        numbered: (&[Shard], &[Input]),
        watch: &mut dyn Watch,
    ) -> Result<Vec<EncodedShard<B>>, ModelError> {
        let (mut behind, mut before) = (Vec::with_capacity(works.len()), 0);
        for EncodeWork { order, inputs, .. } in works {
            let mut shards = Behind::new();
            if let Some(first) = order.shards.first().zip(inputs.first()) {
                self.bring((order.context, first), &mut shards, watch)?;
            }
            behind.push((before, shards));
            before += order.shards.len();
        }
        let earlier: Vec<Earlier<'_, B>> =
            behind.iter().map(|(before, shards)| Earlier { before: *before, shards }).collect();
        self.pass(numbered, &earlier, watch)
    }

    /// What stands behind a shard, of which there is the beginning: what is not held is encoded.
    fn bring(
        &mut self,
        (context, (first, input)): (u64, (&Shard, &Input)),
        behind: &mut Behind<B>,
        watch: &mut dyn Watch,
    ) -> Result<(), ModelError> {
        for earlier in first.earlier().skip(behind.len()) {
            behind.push(match (self.kept)(context, earlier.block as u32) {
                Some(kept) => kept,
                None => self.again(&earlier, &input.earlier(earlier.own), behind, watch)?,
            });
        }
        Ok(())
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
        behind: &[Earlier<'_, B>],
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
        let earlier = [Earlier { before: 0, shards: behind }];
        Ok(Arc::new(self.pass((shards, inputs), &earlier, &mut goes_on)?.swap_remove(0)))
    }
}
