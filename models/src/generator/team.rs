//! A context whose shards lie on several devices of this process: rows go from device to device, and nobody waits on the host. The
//! devices may share linear layers, too (tensor parallelism): each has the rows, and makes some columns of the widest products.
//! Sums stay whole, so that bits are those of one device.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use asterism_kernels::{AllGather, Ask, Backend};
use asterism_plan::MergeTree;

use super::context::{ContextAttention, Held, HeldShards, LayerQueries, LocalContext, PartAnswer, PartAsk};
use super::merging::Answered;
use super::{Batch, StepEnds};
use crate::decoder::Projected;
use crate::{Decoder, EncodedShard, ModelError};

/// Columns of a product that devices share are dealt out so many at a time.
const COLUMNS: usize = 16;

/// Context shards on the device that steps are taken on, and on others.
pub struct TeamContext<'a, B: Backend> {
    home: LocalContext<'a, B>,
    /// The device of the steps, and those of the others.
    devices: (&'a B, Vec<(&'a B, LocalContext<'a, B>)>),
    sharing: Option<Sharing<'a, B>>,
}

/// Who shares linear layers: the decoders of all devices, and what puts their parts together.
struct Sharing<'a, B: Backend> {
    decoders: Vec<&'a Decoder<B>>,
    gather: AllGather<'a, B>,
}

/// Devices that share a step, that of the step first.
pub struct Team<'a, B: Backend> {
    members: Vec<(&'a Decoder<B>, &'a LocalContext<'a, B>)>,
    gather: &'a AllGather<'a, B>,
}

impl<'a, B: Backend> TeamContext<'a, B> {
    /// Answers a step of one part, taken on the first device, from the shards that each has.
    ///
    /// # Panics
    /// Without a device.
    pub fn new(devices: &[(&'a B, &'a [EncodedShard<B>])]) -> Self {
        let local = |&(backend, shards): &(&'a B, &'a [EncodedShard<B>])| LocalContext::new(backend, shards);
        let (home, others) = devices.split_first().expect("a device at least");
        let devices = (home.0, others.iter().map(|other| (other.0, local(other))).collect());
        Self { home: local(home), devices, sharing: None }
    }

    /// Has the devices share the linear layers of steps of few rows, by the same model's decoder on each.
    ///
    /// # Errors
    /// What the devices report.
    ///
    /// # Panics
    /// With more or fewer decoders than devices.
    pub fn sharing(mut self, decoders: &[&'a Decoder<B>]) -> Result<Self, ModelError> {
        assert_eq!(decoders.len(), 1 + self.devices.1.len(), "a decoder for each device");
        if decoders.len() > 1 {
            let gather = B::all_gather(&decoders.iter().map(|decoder| decoder.backend()).collect::<Vec<_>>())?;
            self.sharing = Some(Sharing { decoders: decoders.to_vec(), gather });
        }
        Ok(self)
    }
}

impl<B: Backend> ContextAttention<B> for TeamContext<'_, B> {
    fn here(&self, queries: &LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Option<HeldShards<'_, B>>, ModelError> {
        let LayerQueries { layer, heads, q } = *queries;
        let mut held = self.home.keys(layer, asks);
        let (home, others) = &self.devices;
        if others.is_empty() {
            return Ok(Some(held));
        }
        let lent = home.lend(vec![q.clone()])?;
        for (backend, context) in others {
            let (shards, each) = context.asked(layer, asks);
            if each.is_empty() {
                continue;
            }
            let q = lent(backend)?.swap_remove(0);
            let rows = backend.attend_rows(heads, &q, (&each, &vec![1; each.len()]))?;
            let (rows, mut start) = (Arc::new(backend.lend(vec![rows])?), 0);
            for ((held, shards), ask) in held.iter_mut().zip(shards).zip(asks) {
                for shard in shards {
                    let end = start + ask.rows.len();
                    held.push(Held::Rows { shards: vec![shard], rows: (rows.clone(), start..end) });
                    start = end;
                }
            }
        }
        Ok(Some(held))
    }

    fn team(&self, rows: usize) -> Option<Team<'_, B>> {
        let Sharing { decoders, gather } = self.sharing.as_ref()?;
        let gain = decoders.iter().all(|decoder| rows <= decoder.backend().shared_rows());
        let contexts = [&self.home].into_iter().chain(self.devices.1.iter().map(|(_, context)| context));
        gain.then(|| Team { members: decoders.iter().copied().zip(contexts).collect(), gather })
    }

    fn ask(&mut self, _: LayerQueries<'_, B>, _: &[PartAsk]) -> Result<bool, ModelError> {
        unreachable!("all is here")
    }

    fn collect(&mut self) -> Result<Vec<PartAnswer<B>>, ModelError> {
        unreachable!("all is here")
    }
}

impl<B: Backend> Team<'_, B> {
    /// The rest of a layer behind attention: every device has the rows, and what is attended to.
    fn finish(&self, layer: usize, x: Vec<B::Tensor>, attended: &[B::Tensor]) -> Result<Vec<B::Tensor>, ModelError> {
        let of_each = x.into_iter().zip(attended).zip(&self.members);
        let x = of_each.map(|((x, attended), (decoder, _))| decoder.output(layer, x, attended));
        let x = x.collect::<Result<Vec<_>, _>>()?;
        let gated = self
            .each(|at, decoder| decoder.gated_part(layer, &x[at], self.columns(decoder.config().intermediate, at)))?;
        let gated = (self.gather)(&gated, 1)?;
        let parts = self.each(|at, decoder| {
            decoder.down_part(layer, &gated[at], &x[at], self.columns(decoder.config().hidden, at))
        })?;
        Ok((self.gather)(&parts, 1)?)
    }

    fn each<T>(&self, work: impl Fn(usize, &Decoder<B>) -> Result<T, ModelError>) -> Result<Vec<T>, ModelError> {
        self.members.iter().enumerate().map(|(at, (decoder, _))| work(at, decoder)).collect()
    }

    /// Which of `n` columns a member makes.
    fn columns(&self, n: usize, at: usize) -> Range<usize> {
        let (steps, all) = (n.div_ceil(COLUMNS), self.members.len());
        let end = |at: usize| (steps * at / all * COLUMNS).min(n);
        end(at)..end(at + 1)
    }
}

/// What a device answers for, slot by slot: shards, or all those of a merge group; and their asks, as many for each slot.
struct Slots<'a, K> {
    shards: Vec<Vec<(usize, u64)>>,
    asks: Vec<Ask<'a, K>>,
    groups: Vec<usize>,
}

impl<'a, K> Slots<'a, K> {
    /// Shards that the plan merges first are together, where all of them are here.
    fn of(tree: &MergeTree, shards: Vec<(usize, u64)>, asks: Vec<Ask<'a, K>>) -> Self {
        let mut here: BTreeMap<usize, ((usize, u64), Ask<'a, K>)> =
            shards.into_iter().zip(asks).map(|(shard, ask)| (shard.0, (shard, ask))).collect();
        let mut slots = Self { shards: Vec::new(), asks: Vec::with_capacity(here.len() + 1), groups: Vec::new() };
        let groups = tree.nodes()[tree.shards()..].iter().filter(|node| node.height == 1);
        for node in groups {
            if node.inputs.iter().all(|shard| here.contains_key(shard)) {
                slots.push(node.inputs.iter().filter_map(|shard| here.remove(shard)));
            }
        }
        here.into_values().for_each(|shard| slots.push([shard].into_iter()));
        slots
    }

    fn push(&mut self, of_slot: impl Iterator<Item = ((usize, u64), Ask<'a, K>)>) {
        let (shards, asks): (Vec<_>, Vec<_>) = of_slot.unzip();
        self.groups.push(asks.len());
        self.shards.push(shards);
        self.asks.extend(asks);
    }
}

impl<B: Backend> Batch<'_, '_, B> {
    /// All layers of the only part, shared by a team.
    pub(super) fn together(mut self, team: &Team<'_, B>, ids: &[u32]) -> Result<StepEnds<B>, ModelError> {
        let mut x = team.each(|_, decoder| decoder.embed(ids))?;
        for layer in 0..self.decoder.config().layers {
            let Some(attended) = self.attend_together(layer, &x, team)? else { return self.end(None) };
            x = team.finish(layer, x, &attended)?;
        }
        self.end(x.into_iter().next())
    }

    /// What the part's rows attend to, `(t, query dim)` in compute type, on every device; nothing when it has to leave.
    fn attend_together(
        &mut self,
        layer: usize,
        x: &[B::Tensor],
        team: &Team<'_, B>,
    ) -> Result<Option<Vec<B::Tensor>>, ModelError> {
        let (heads, positions) = (self.decoder.config().heads, self.positions());
        let (part, rows) = (self.live[0].part, self.live[0].rows.clone());
        let (masks, tree) = ([self.parts[part].generator.masks()], self.parts[part].generator.merge.clone());
        let ask = [PartAsk { part, rows: rows.clone(), mask: masks[0].0 }];
        let (mut queries, mut partials, mut answers, mut own) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (at, (x, (decoder, context))) in x.iter().zip(&team.members).enumerate() {
            let Projected { q, k, v } = decoder.rotate(&decoder.project(layer, x)?, &positions)?;
            let q = decoder.backend().row_major(&q)?;
            let (shards, asks) = context.asked(layer, &ask);
            let mut slots = Slots::of(&tree, shards.into_iter().flatten().collect(), asks);
            answers.append(&mut slots.shards);
            if at == 0 {
                self.append(layer, &k, &v)?;
                slots.asks.extend(self.own_asks(layer, &masks));
                slots.groups.push(1);
                own = answers.len();
                answers.push(Vec::new());
            }
            partials.push(decoder.backend().attend_rows(heads, &q, (&slots.asks, &slots.groups))?);
            queries.push(q);
        }
        let (all, slots) = ((team.gather)(&partials, 0)?, answers.len());
        let answers = answers.into_iter().enumerate().filter(|(slot, _)| *slot != own);
        let answered = self.review(layer, vec![Ok(answers.map(|(slot, shards)| (Cow::Owned(shards), slot)).collect())]);
        let Some(Some((_, answered))) = answered.first() else { return Ok(None) };
        let merging = Answered::merging(&[(answered, own)], slots);
        let merge = |at: usize, decoder: &Decoder<B>| {
            let (backend, t) = (decoder.backend(), rows.len());
            let of_slot = |slot: usize| backend.rows(&all[at], slot * t, (slot + 1) * t);
            let given = (0..slots).map(of_slot).collect::<Result<Vec<_>, _>>()?;
            Ok(backend.attend_tree(heads, &queries[at], (&[], &given), &merging)?)
        };
        team.each(merge).map(Some)
    }
}
