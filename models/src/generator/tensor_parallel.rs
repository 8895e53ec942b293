//! Devices of this process that share a step's linear layers (tensor parallelism): each has the rows, and makes some columns of the
//! widest products. Sums stay whole, so that bits are those of one device. They wait for each other on the devices alone.

use std::{borrow::Cow, collections::BTreeMap, iter, ops::Range, panic::resume_unwind, sync::Arc, thread};

use asterism_kernels::{AllGather, Backend, KernelError, Merging};
use asterism_plan::MergeTree;

use super::{
    answers::StepError,
    batch::BatchStep,
    context::Team,
    job::Generator,
    jobs::Jobs,
    layer::{Attention, Columns, DeviceStep, LayerAttention, LayerPartials, Share},
    local::LocalContext,
    merging::Answered,
    partials::{Partial, Partials},
};
use crate::{Decoder, ModelError};

/// Columns of a product that devices share are dealt out so many at a time.
const COLUMNS: usize = 16;

/// The same model's decoders on several devices of this process, that of the steps first, and what puts together what each makes.
pub struct TensorParallel<B: Backend> {
    decoders: Vec<Arc<Decoder<B>>>,
    gather: Box<dyn AllGather<B>>,
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

    pub(super) fn decoders(&self) -> &[Arc<Decoder<B>>] {
        &self.decoders
    }

    /// Whether the devices gain by sharing a step of so many rows.
    pub(super) fn gains(&self, rows: usize) -> bool {
        self.decoders.iter().all(|decoder| decoder.is_shareable() && rows <= decoder.backend().shared_rows())
    }

    /// The devices, each with what it has of the context.
    pub(super) fn team<'a>(&'a self, contexts: impl Iterator<Item = &'a LocalContext<'a, B>>) -> Team<'a, B> {
        let members = self.decoders.iter().map(|decoder| &**decoder).zip(contexts).collect();
        Team { members, gather: &*self.gather }
    }
}

/// What is the same in every layer of a shared step.
struct Course {
    step: BatchStep,
    /// What each device answers for.
    devices: Vec<Slots>,
    /// How the slots of all devices, one after the other, are merged.
    merging: Merging,
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

/// A device of a team, in a step of one part.
struct Member<'a, B: Backend> {
    at: usize,
    team: &'a Team<'a, B>,
    course: &'a Course,
    /// The job, on the device that has its own keys.
    job: Option<&'a mut Generator<B>>,
}

impl<B: Backend> Attention<B> for Member<'_, B> {
    fn attend(
        &mut self,
        step: &BatchStep,
        layer: usize,
        [q, k, v]: [&B::Tensor; 3],
    ) -> Result<LayerAttention<'_, B>, ModelError> {
        let (decoder, context) = self.team.members[self.at];
        let (backend, heads, ask) = (decoder.backend(), decoder.config().heads, &step.parts[0]);
        let (devices, rows) = (&self.course.devices, ask.rows.len());
        let slots = &devices[self.at];
        let layer = (layer, decoder.config().window(layer));
        let mut asks = context.picked(layer, ask, &slots.order);
        if let Some(job) = &mut self.job {
            job.append(decoder, layer.0, [k, v])?;
            asks.push(job.own_ask(layer, ask));
        }
        let part = backend.attend_rows(heads, q, (&asks, &slots.groups))?;
        let of_each: Vec<usize> = devices.iter().map(|slots| slots.groups.len() * rows).collect();
        let gathered = self.team.gather.gather(self.at, &part, &of_each, 0)?;
        let slot = |slot: usize| Ok(Partial::Device(backend.rows(&gathered, slot * rows, (slot + 1) * rows)?));
        let slots = devices.iter().map(|slots| slots.groups.len()).sum();
        let all = (0..slots).map(slot).collect::<Result<_, ModelError>>()?;
        let partials = Partials { heads, all };
        let merging = Cow::Borrowed(&self.course.merging);
        Ok(LayerAttention::Partials(LayerPartials { partials, merging, stays: vec![true] }))
    }
}

impl<B: Backend> Team<'_, B> {
    /// Takes part in all layers as a member; the first has the job.
    fn pass(
        &self,
        at: usize,
        course: &Course,
        job: Option<&mut Generator<B>>,
    ) -> Result<Option<B::Tensor>, ModelError> {
        let mut attending = Attending(self.gather, false);
        let (decoder, _) = self.members[at];
        let columns = |width: usize| {
            let columns = self.columns(width);
            Columns { own: columns[at].clone(), of_each: columns.iter().map(Range::len).collect() }
        };
        let config = decoder.config();
        let [intermediate, hidden] = [config.layer.feed_forward.intermediate(), config.hidden].map(columns);
        let share = Some(Share { gather: self.gather, member: at, intermediate, hidden });
        let mut device = DeviceStep { decoder, step: course.step.clone(), share };
        let begun = device.begin()?;
        let x = device.through(begun, &mut Member { at, team: self, course, job })?;
        attending.1 = true;
        Ok(x)
    }

    /// Which of `n` columns each member makes.
    fn columns(&self, n: usize) -> Vec<Range<usize>> {
        let (steps, all) = (n.div_ceil(COLUMNS), self.members.len());
        let end = |at: usize| (steps * at / all * COLUMNS).min(n);
        (0..all).map(|at| end(at)..end(at + 1)).collect()
    }
}

/// All layers of a step of one part, shared by a team: a thread for each device. Nothing when its part has to leave.
pub(super) fn together<B: Backend>(
    team: &Team<'_, B>,
    step: &BatchStep,
    jobs: &mut Jobs<'_, '_, B>,
) -> Result<Option<B::Tensor>, ModelError> {
    let part = step.parts[0].part;
    let course = match course(team, step, jobs.parts[part].generator) {
        Ok(course) => course,
        Err(error) => {
            jobs.left[part] = Some(error);
            return Ok(None);
        }
    };
    let (course, job) = (&course, &mut *jobs.parts[part].generator);
    let ends: Vec<Result<Option<B::Tensor>, ModelError>> = thread::scope(|scope| {
        let others = (1..team.members.len()).map(|at| scope.spawn(move || team.pass(at, course, None)));
        let others: Vec<_> = others.collect();
        let first = team.pass(0, course, Some(job));
        let ended = |other: thread::ScopedJoinHandle<'_, _>| other.join().unwrap_or_else(|panic| resume_unwind(panic));
        iter::once(first).chain(others.into_iter().map(ended)).collect()
    });
    // Whoever was left alone is not the cause.
    let alone = |end: &Result<_, ModelError>| matches!(end, Err(ModelError::Kernel(KernelError::Abandoned)));
    let (whole, broken): (Vec<_>, Vec<_>) = ends.into_iter().partition(|end| !alone(end));
    let mut x = None;
    for end in whole.into_iter().chain(broken) {
        x = x.or(end?);
    }
    Ok(x)
}

/// How a step of one part goes, or why the part has to leave.
fn course<B: Backend>(team: &Team<'_, B>, step: &BatchStep, job: &Generator<B>) -> Result<Course, StepError> {
    let shards = |(_, context): &(_, &LocalContext<'_, B>)| context.shards(step.parts[0].part);
    let shards = team.members.iter().map(shards).collect::<Result<Vec<_>, _>>().map_err(StepError::Failed)?;
    let mut devices: Vec<Slots> = shards.into_iter().map(|shards| Slots::of(job.merge(), shards)).collect();
    // The first device's last is the job's own keys.
    let own = devices[0].groups.len();
    devices[0].push([].into_iter());
    devices[0].groups[own] = 1;
    let answers = devices.iter_mut().flat_map(|slots| std::mem::take(&mut slots.shards)).enumerate();
    let answers = answers.filter(|(slot, _)| *slot != own).map(|(slot, shards)| (shards, slot));
    let answered = job.review(0, answers.collect())?;
    let slots = devices.iter().map(|slots| slots.groups.len()).sum();
    Ok(Course { step: step.clone(), merging: Answered::merging(&[(&answered, own)], slots), devices })
}
