//! Layers of a step whose context is on devices of this process, all of it or some: what they answer is merged where it is.

use std::{borrow::Cow, ops::Range, slice, sync::Arc};

use asterism_kernels::{Ask, Backend, Lent, Mask};

use super::{
    Batch,
    context::{ContextAttention, Held, HeldShards, PartialRows, ShardPartial},
    merging::Answered,
};
use crate::ModelError;

impl<B: Backend> Batch<'_, '_, B> {
    /// The rest of a layer some of whose answers are on devices, as [`Batch::layer_here`]: all of it is merged there.
    pub(super) fn layer_on_devices(
        &mut self,
        layer: usize,
        (x, q): (B::Tensor, &B::Tensor),
        masks: &[(Mask, Mask)],
        context: &mut dyn ContextAttention<B>,
    ) -> Result<Option<B::Tensor>, ModelError> {
        let (decoder, backend, heads) = (self.decoder, self.decoder.backend(), self.decoder.config().heads);
        let (own, mut given) = (self.own_asks(layer, masks).collect::<Vec<_>>(), Vec::new());
        let rows = backend.attend_rows(heads, q, (&own, &vec![1; own.len()]))?;
        let mut start = 0;
        for ask in own {
            given.push(backend.rows(&rows, start, start + ask.rows.len())?);
            start += ask.rows.len();
        }
        let (mut answers, mut last) = (Vec::with_capacity(self.live.len()), None);
        for answer in context.collect()? {
            answers.push(match answer {
                Err(error) => Err(error),
                Ok(partials) => {
                    let mut places = Vec::with_capacity(partials.len());
                    for ShardPartial { shards, rows } in partials {
                        places.push((Cow::Owned(shards), given.len()));
                        given.push(match rows {
                            PartialRows::Lent(lent, rows) => self.fetched(&lent, rows, &mut last)?,
                            PartialRows::Host(rows) => {
                                let (row, values) = (heads.packed_row(), rows.values());
                                backend.upload(&[values.len() / row, row], values)?
                            }
                        });
                    }
                    Ok(places)
                }
            });
        }
        let answered = self.review(layer, answers);
        let parts: Vec<(&Answered<usize>, usize)> =
            answered.iter().enumerate().filter_map(|(own, part)| Some((&part.as_ref()?.1, own))).collect();
        let merged = match parts.is_empty() {
            true => None,
            false => Some(backend.attend_tree(heads, q, (&[], &given), &Answered::merging(&parts, given.len()))?),
        };
        context.merged();
        let x = self.without_those_that_left(x, &answered)?;
        Ok(match (x, merged) {
            (Some(x), Some(merged)) => Some(decoder.finish_joined(layer, x, &merged)?),
            _ => None,
        })
    }

    /// Some rows of what was lent; `last` is what was fetched last, and where from.
    fn fetched(
        &self,
        lent: &Arc<Lent<B>>,
        rows: Range<usize>,
        last: &mut Option<(Arc<Lent<B>>, B::Tensor)>,
    ) -> Result<B::Tensor, ModelError> {
        let backend = self.decoder.backend();
        let (_, all) = match last.take_if(|(of, _)| Arc::ptr_eq(of, lent)) {
            Some(same) => last.insert(same),
            None => last.insert((lent.clone(), lent(backend)?.swap_remove(0))),
        };
        Ok(backend.rows(all, rows.start, rows.end)?)
    }

    /// The rest of a layer whose context is in this process: nobody waits for the device.
    pub(super) fn layer_here(
        &mut self,
        layer: usize,
        (x, q): (B::Tensor, &B::Tensor),
        (masks, held): (&[(Mask, Mask)], &HeldShards<'_, B>),
    ) -> Result<Option<B::Tensor>, ModelError> {
        let (decoder, backend, heads) = (self.decoder, self.decoder.backend(), self.decoder.config().heads);
        let is_key = |held: &&Held<'_, B>| matches!(held, Held::Keys { .. });
        let keys = held.iter().flatten().filter(is_key).count();
        // First the asks, of keys here and of the parts' own, then what came from elsewhere.
        let (own, mut asked, mut slots) = (keys.., 0, keys + self.live.len());
        let mut answers = Vec::with_capacity(held.len());
        for held in held {
            let mut of_part = Vec::with_capacity(held.len());
            for held in held {
                let (shards, slot) = match held {
                    Held::Keys { shard, .. } => (slice::from_ref(shard), &mut asked),
                    Held::Rows { shards, .. } => (&shards[..], &mut slots),
                };
                of_part.push((Cow::Borrowed(shards), *slot));
                *slot += 1;
            }
            answers.push(Ok(of_part));
        }
        let answered = self.review(layer, answers);
        let parts: Vec<(&Answered<usize>, usize)> =
            answered.iter().zip(own).filter_map(|(part, own)| Some((&part.as_ref()?.1, own))).collect();
        let merging = Answered::merging(&parts, slots);
        let mut asks = Vec::with_capacity(keys + self.live.len());
        for ((live, (mask, _)), held) in self.live.iter().zip(masks).zip(held) {
            asks.extend(held.iter().filter_map(|held| match held {
                Held::Keys { kv, holes, .. } => Some(Ask { kv: *kv, rows: live.rows.clone(), mask: *mask, holes }),
                Held::Rows { .. } => None,
            }));
        }
        asks.extend(self.own_asks(layer, masks));
        let merged = match parts.is_empty() {
            true => None,
            false => {
                let given = self.given((q, &mut asks), held)?;
                Some(backend.attend_tree(heads, q, (&asks, &given), &merging)?)
            }
        };
        drop(asks);
        let x = self.without_those_that_left(x, &answered)?;
        Ok(match (x, merged) {
            (Some(x), Some(merged)) => Some(decoder.finish_joined(layer, x, &merged)?),
            _ => None,
        })
    }

    /// Rows of all slots, where some come from other devices; these are waited for once the asks, then none, are queued.
    fn given(
        &self,
        (q, asks): (&B::Tensor, &mut Vec<Ask<'_, B::Kv>>),
        held: &HeldShards<'_, B>,
    ) -> Result<Vec<B::Tensor>, ModelError> {
        let (backend, heads) = (self.decoder.backend(), self.decoder.config().heads);
        let others = held.iter().flatten().filter_map(|held| match held {
            Held::Keys { .. } => None,
            Held::Rows { rows, .. } => Some(rows),
        });
        let mut others = others.peekable();
        if others.peek().is_none() {
            return Ok(Vec::new());
        }
        let rows = backend.attend_rows(heads, q, (asks, &vec![1; asks.len()]))?;
        let (mut start, mut given) = (0, Vec::with_capacity(asks.len()));
        for ask in asks.drain(..) {
            given.push(backend.rows(&rows, start, start + ask.rows.len())?);
            start += ask.rows.len();
        }
        let mut last = None;
        for (lent, range) in others {
            given.push(self.fetched(lent, range.clone(), &mut last)?);
        }
        Ok(given)
    }
}
