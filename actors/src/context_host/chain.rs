//! Orders of a chain's shards, and which go together. What stands behind them is what the host holds; what it does not hold is encoded
//! again on the way, and not kept.

use std::sync::Arc;

use asterism_kernels::Backend;
use asterism_models::{Decoder, Earlier, EncodedShard, ModelError, Peers, Phase1, Watch};
use asterism_plan::{Exchange, Input, LocalAttention, Shard};

use super::command::EncodeWork;
use crate::messages::EncodeShards;

/// Keys behind a row that take about as long as it does in linear layers, or less: 27,000 of an 8B model.
const KEYS_OF_A_ROW: usize = 16_384;

/// How an order's shards attend, for which of them can go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attends {
    /// Behind others of a chain.
    Chained,
    /// One shard to all before within it: as the first of a chain does.
    Plainly,
    /// Otherwise.
    Otherwise,
}

impl Attends {
    /// Of an order.
    pub fn of(order: &EncodeShards) -> Self {
        let is_plain = |shard: &Shard| {
            shard.block == 0
                && shard.prefix.is_empty()
                && shard.apart_rows == 0
                && shard.attention == LocalAttention::Causal
        };
        match &order.shards[..] {
            _ if is_chain(order) => Self::Chained,
            [only] if is_plain(only) => Self::Plainly,
            _ => Self::Otherwise,
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

/// Whether an order could go together with others: where its shards are of a chain, one follows the other.
pub fn may_go_together(order: &EncodeShards) -> bool {
    !is_chain(order) || follow(&order.shards)
}

/// Rows that go through the layers for an order, and as many again as what stands behind them takes.
pub fn weight(order: &EncodeShards) -> usize {
    order.shards.iter().map(|shard| shard.rows() + shard.rows() * shard.behind / KEYS_OF_A_ROW).sum()
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
