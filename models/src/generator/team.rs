//! A context whose shards lie on several devices of this process: rows go from device to device, and nobody waits on the host. The
//! devices may share linear layers, too (tensor parallelism): each has the rows, and makes some columns of the widest products.
//! Sums stay whole, so that bits are those of one device.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::{iter, thread};

use asterism_kernels::{Ahead, AllGather, Backend, KernelError, Mask, Merging, Rank};
use asterism_plan::MergeTree;

use super::context::{ContextAttention, Held, HeldShards, LayerQueries, LocalContext, PartAnswer, PartAsk, StepError};
use super::merging::Answered;
use super::{Batch, Generator, StepEnds};
use crate::decoder::Projected;
use crate::{Decoder, ModelError};

/// Columns of a product that devices share are dealt out so many at a time.
const COLUMNS: usize = 16;

/// Context shards on the device that steps are taken on, and on others.
pub struct TeamContext<'a, B: Backend> {
    home: LocalContext<'a, B>,
    others: Vec<LocalContext<'a, B>>,
    linear: Option<&'a TensorParallel<B>>,
}

/// The same model's decoders on several devices of this process, that of the steps first, and what puts together what each makes.
pub struct TensorParallel<B: Backend> {
    decoders: Vec<Arc<Decoder<B>>>,
    gather: Box<dyn AllGather<B>>,
}

/// Devices that share a step, that of the step first.
pub struct Team<'a, B: Backend> {
    members: Vec<(&'a Decoder<B>, &'a LocalContext<'a, B>)>,
    gather: &'a dyn AllGather<B>,
}

impl<B: Backend> TensorParallel<B> {
    /// Of these decoders.
    ///
    /// # Errors
    /// What the devices report.
    pub fn new(decoders: Vec<Arc<Decoder<B>>>) -> Result<Self, ModelError> {
        let backends: Vec<Arc<B>> = decoders.iter().map(|decoder| decoder.shared_backend().clone()).collect();
        Ok(Self { decoders, gather: B::all_gather(&backends)? })
    }
}

impl<'a, B: Backend> TeamContext<'a, B> {
    /// Answers a step that is taken on the first device from the shards that each has.
    ///
    /// # Panics
    /// Without a device.
    pub fn new(devices: Vec<LocalContext<'a, B>>) -> Self {
        let mut devices = devices.into_iter();
        Self { home: devices.next().expect("a device at least"), others: devices.collect(), linear: None }
    }

    /// A step goes ahead of long work on all of the devices, until this is dropped.
    pub fn ahead(&self) -> Vec<Ahead> {
        [&self.home].into_iter().chain(&self.others).map(|context| context.backend().ahead(Rank::Token)).collect()
    }

    /// Has the devices share the linear layers of steps of one part and few rows.
    ///
    /// # Panics
    /// With more or fewer decoders than devices.
    #[must_use]
    pub fn sharing(self, linear: &'a TensorParallel<B>) -> Self {
        assert_eq!(linear.decoders.len(), 1 + self.others.len(), "a decoder for each device");
        Self { linear: Some(linear), ..self }
    }
}

impl<B: Backend> ContextAttention<B> for TeamContext<'_, B> {
    fn here(&self, queries: &LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Option<HeldShards<'_, B>>, ModelError> {
        let LayerQueries { layer, heads, q } = *queries;
        let mut held = self.home.keys(layer, asks);
        if self.others.is_empty() {
            return Ok(Some(held));
        }
        let lent = self.home.backend().lend(vec![q.clone()])?;
        for context in &self.others {
            let (backend, (shards, each)) = (context.backend(), context.asked(layer, asks));
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

    fn team(&self, part: usize, rows: usize) -> Option<Team<'_, B>> {
        let TensorParallel { decoders, gather } = self.linear?;
        let contexts = || [&self.home].into_iter().chain(&self.others);
        let few = decoders.iter().all(|decoder| rows <= decoder.backend().shared_rows());
        let members = || decoders.iter().map(|decoder| &**decoder).zip(contexts()).collect();
        (few && contexts().all(|context| context.has(part))).then(|| Team { members: members(), gather: &**gather })
    }

    fn ask(&mut self, _: LayerQueries<'_, B>, _: &[PartAsk]) -> Result<bool, ModelError> {
        unreachable!("all is here")
    }

    fn collect(&mut self) -> Result<Vec<PartAnswer<B>>, ModelError> {
        unreachable!("all is here")
    }
}

/// What is the same in every layer of a shared step.
struct Course {
    part: usize,
    /// Of each member.
    slots: Vec<Slots>,
    positions: Vec<u32>,
    /// Tokens of the sequence.
    tokens: u32,
    /// What rows see of the context, and of their own keys.
    masks: (Mask, Mask),
    /// How the slots of all members, one after the other, are merged.
    merging: Merging,
}

impl Course {
    /// Slots of all members.
    fn slots(&self) -> usize {
        self.slots.iter().map(|slots| slots.groups.len()).sum()
    }
}

/// What a device answers for, slot by slot: shards, or all those of a merge group.
#[derive(Default)]
struct Slots {
    shards: Vec<Vec<(usize, u64)>>,
    /// Places of the shards among the device's, and how many each slot has.
    order: Vec<usize>,
    groups: Vec<usize>,
}

impl Slots {
    /// Shards that the plan merges first are together, where all of them are here.
    fn of(tree: &MergeTree, shards: Vec<(usize, u64)>) -> Self {
        let mut here: BTreeMap<usize, (usize, u64)> =
            shards.into_iter().enumerate().map(|(at, (block, keys))| (block, (at, keys))).collect();
        let mut slots = Self::default();
        let groups = tree.nodes()[tree.shards()..].iter().filter(|node| node.height == 1);
        for node in groups.filter(|node| node.inputs.iter().all(|block| here.contains_key(block))).collect::<Vec<_>>() {
            slots.push(node.inputs.iter().filter_map(|block| Some((*block, here.remove(block)?))));
        }
        here.into_iter().for_each(|shard| slots.push([shard].into_iter()));
        slots
    }

    fn push(&mut self, slot: impl Iterator<Item = (usize, (usize, u64))>) {
        let (shards, places): (Vec<_>, Vec<_>) = slot.map(|(block, (at, keys))| ((block, keys), at)).unzip();
        self.groups.push(places.len());
        self.order.extend(places);
        self.shards.push(shards);
    }
}

/// Whoever leaves an exchange before its end keeps nobody waiting.
struct Attending<'a, B: Backend>(&'a dyn AllGather<B>, bool);

impl<B: Backend> Drop for Attending<'_, B> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.abandon();
        }
    }
}

impl<B: Backend> Team<'_, B> {
    /// Takes part in all layers as a member; the first has the job.
    fn pass(
        &self,
        (at, ids): (usize, &[u32]),
        course: &Course,
        mut job: Option<&mut Generator<B>>,
    ) -> Result<B::Tensor, ModelError> {
        let mut attending = Attending(self.gather, false);
        let ((decoder, context), slots) = (self.members[at], &course.slots[at]);
        let (backend, config, rows) = (decoder.backend(), decoder.config(), 0..ids.len());
        let of_each: Vec<usize> = course.slots.iter().map(|slots| slots.groups.len() * ids.len()).collect();
        let slot = |all: &B::Tensor, slot: usize| backend.rows(all, slot * ids.len(), (slot + 1) * ids.len());
        let columns = [config.intermediate, config.hidden].map(|width| self.columns(width));
        let columns = columns.map(|columns| (columns[at].clone(), columns.iter().map(Range::len).collect()));
        let mut x = decoder.embed(ids)?;
        for layer in 0..config.layers {
            let Projected { q, k, v } =
                decoder.rotate(&decoder.project(layer, &x)?, &course.positions, course.tokens)?;
            let q = backend.row_major(&q)?;
            let mut asks = context.picked((layer, course.part), (&rows, course.masks.0), &slots.order);
            if let Some(job) = &mut job {
                job.append(backend, layer, [&k, &v])?;
                asks.push(job.own_ask(layer, rows.clone(), course.masks.1));
            }
            let part = backend.attend_rows(config.heads, &q, (&asks, &slots.groups))?;
            let all = self.gather.gather(at, &part, &of_each, 0)?;
            let given = (0..course.slots()).map(|at| slot(&all, at)).collect::<Result<Vec<_>, _>>()?;
            let attended = backend.attend_tree(config.heads, &q, (&[], &given), &course.merging)?;
            x = self.finish((at, layer), x, &attended, &columns)?;
        }
        attending.1 = true;
        Ok(x)
    }

    /// The rest of a layer behind attention: every device has the rows, and what is attended to. Of both products the member's
    /// columns, and how many each has.
    fn finish(
        &self,
        (at, layer): (usize, usize),
        x: B::Tensor,
        attended: &B::Tensor,
        [(wide, of_wide), (narrow, of_narrow)]: &[(Range<usize>, Vec<usize>); 2],
    ) -> Result<B::Tensor, ModelError> {
        let decoder = self.members[at].0;
        let x = decoder.output(layer, x, attended)?;
        let gated = self.gather.gather(at, &decoder.gated_part(layer, &x, wide.clone())?, of_wide, 1)?;
        Ok(self.gather.gather(at, &decoder.down_part(layer, &gated, &x, narrow.clone())?, of_narrow, 1)?)
    }

    /// Which of `n` columns each member makes.
    fn columns(&self, n: usize) -> Vec<Range<usize>> {
        let (steps, all) = (n.div_ceil(COLUMNS), self.members.len());
        let end = |at: usize| (steps * at / all * COLUMNS).min(n);
        (0..all).map(|at| end(at)..end(at + 1)).collect()
    }
}

impl<B: Backend> Batch<'_, '_, B> {
    /// All layers of the only part, shared by a team: a thread for each device, which wait for each other on the devices alone.
    pub(super) fn together(mut self, team: &Team<'_, B>, ids: &[u32]) -> Result<StepEnds<B>, ModelError> {
        let Some(course) = self.course(team) else { return self.end(None) };
        let (course, job) = (&course, &mut *self.parts[course.part].generator);
        let ends: Vec<Result<B::Tensor, ModelError>> = thread::scope(|scope| {
            let others = (1..team.members.len()).map(|at| scope.spawn(move || team.pass((at, ids), course, None)));
            let others: Vec<_> = others.collect();
            let first = team.pass((0, ids), course, Some(job));
            let ended =
                |other: thread::ScopedJoinHandle<'_, _>| other.join().unwrap_or_else(|panic| resume_unwind(panic));
            iter::once(first).chain(others.into_iter().map(ended)).collect()
        });
        // Whoever was left alone is not the cause.
        let alone = |end: &Result<_, ModelError>| matches!(end, Err(ModelError::Kernel(KernelError::Abandoned)));
        let (whole, broken): (Vec<_>, Vec<_>) = ends.into_iter().partition(|end| !alone(end));
        let mut x = None;
        for end in whole.into_iter().chain(broken) {
            x = x.or(Some(end?));
        }
        self.end(x)
    }

    /// How the step goes; nothing when its part has to leave.
    fn course(&mut self, team: &Team<'_, B>) -> Option<Course> {
        let (part, positions, tokens) = (self.live[0].part, self.positions(), self.sequences()[0].1);
        let (masks, tree) = (self.parts[part].generator.masks(), self.parts[part].generator.merge.clone());
        let shards = team.members.iter().map(|(_, context)| context.shards(part)).collect::<Result<Vec<_>, _>>();
        let shards = shards.map_err(|error| self.left[part] = Some(StepError::Failed(error))).ok()?;
        let mut slots: Vec<Slots> = shards.into_iter().map(|shards| Slots::of(&tree, shards)).collect();
        // The first member's last is the job's own keys.
        let own = slots[0].groups.len();
        slots[0].push([].into_iter());
        slots[0].groups[own] = 1;
        let answers = slots.iter_mut().flat_map(|slots| std::mem::take(&mut slots.shards)).enumerate();
        let answers = answers.filter(|(slot, _)| *slot != own).map(|(slot, shards)| (Cow::Owned(shards), slot));
        let answered = self.review(0, vec![Ok(answers.collect())]);
        let (_, answered) = answered.first()?.as_ref()?;
        let mut course = Course { part, slots, positions, tokens, masks, merging: Merging::default() };
        course.merging = Answered::merging(&[(answered, own)], course.slots());
        Some(course)
    }
}
