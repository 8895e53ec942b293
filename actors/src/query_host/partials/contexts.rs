//! The contexts of all jobs as a step sees them: shards behind lines to their hosts, each job's asked for as its [`Gather`]
//! decides, the rows of all jobs for one host in one frame. Merges nothing.

mod frames;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use asterism_kernels::Backend;
use asterism_models::{
    Answers, ContextAttention, Decoder, LayerQueries, ModelError, PartAnswer, PartAsk, ShardPartial, StepError,
    TeamContext,
};
use asterism_plan::MergeTree;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::{
    compute::ReportSink,
    machine,
    messages::Generate,
    payload,
    query_host::{
        arrival::Arrival,
        partials::{
            channels::HostChannels,
            gather::{self, Gather, GatherCommand},
            layer_step::{LayerStep, LayerStepPart},
            local_shards::{LocalShards, Part},
            route::AskedContext,
        },
        state::QueryHostEvent,
    },
    readings::Phase2Times,
    trace::{self, LayerSpans},
};

/// The contexts of the jobs that are generated for.
pub struct JobContexts<B: Backend> {
    decoder: Arc<Decoder<B>>,
    local_shards: LocalShards<B>,
    lines: HostChannels,
    jobs: BTreeMap<u64, JobContext>,
    /// By the number that hosts know.
    attachments: HashMap<u64, Attachment>,
    attached: u64,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    /// Came during a step, and is for whoever takes the steps.
    later: VecDeque<Arrival>,
    asked: LayerStep<B>,
    /// Whether queries and answers are to stay on devices, and whether some of this layer do.
    on_devices: (bool, bool),
    /// Attachments that the layer under way is to be asked of, with their parts, by line.
    outgoing: BTreeMap<u64, Vec<(usize, u64)>>,
    clock: StepClock,
    post: ReportSink<QueryHostEvent>,
}

/// One job's.
struct JobContext {
    asked: AskedContext,
    gather: Gather,
    /// Line and attachment of each of its gather's channels.
    channels: BTreeMap<u64, (u64, u64)>,
    times: Box<Phase2Times>,
    /// Of its question's pass.
    spans: Option<LayerSpans>,
}

/// Shards of a job at one host.
struct Attachment {
    job: u64,
    /// Of its gather.
    channel: u64,
    /// The shards of each partial that it is answered by.
    answers: Vec<Vec<u32>>,
}

/// When things happen, and how long they take.
struct StepClock {
    started: Instant,
    /// When the last answers were all there, and how long that took.
    collected: Instant,
    waited: Duration,
    /// Whom they were for, and whether a token comes of the step.
    answered: Vec<(u64, bool)>,
}

impl<B: Backend> JobContexts<B> {
    /// None yet. Arrivals come from `arrivals`; what stalls goes to `post`. `hands_over`: queries stay on the device where they can.
    pub fn new(
        (decoder, hands_over): (Arc<Decoder<B>>, bool),
        lines: HostChannels,
        arrivals: mpsc::UnboundedReceiver<Arrival>,
        post: ReportSink<QueryHostEvent>,
    ) -> Self {
        let now = Instant::now();
        let (jobs, attachments, outgoing) = Default::default();
        Self {
            local_shards: LocalShards::new(decoder.clone()),
            decoder,
            lines,
            jobs,
            attachments,
            attached: 0,
            arrivals,
            later: VecDeque::new(),
            asked: LayerStep::default(),
            on_devices: (hands_over, false),
            outgoing,
            clock: StepClock { started: now, collected: now, waited: Duration::ZERO, answered: Vec::new() },
            post,
        }
    }

    /// Attaches a job's shards at their holders.
    pub fn add(&mut self, generate: &Generate, spans: Option<LayerSpans>) {
        let hidden = generate.refresh_order.as_ref().map_or(Vec::new(), |refresh_order| refresh_order.hidden.clone());
        let trace = generate.trace.as_deref().copied().filter(|_| trace::is_wanted());
        let asked = AskedContext { context: generate.context, ticket: generate.ticket, hidden, trace };
        let gather = Gather::new(Arc::new(MergeTree::new(&generate.shards, generate.fan_in)), generate.fan_in);
        let (channels, times) = Default::default();
        self.jobs.insert(generate.job, JobContext { asked, gather, channels, times, spans });
        self.apply(generate.job, gather::GatherEvent::Holders(generate.holders.clone()), None);
    }

    /// Detaches a job. Returns where its seconds went.
    pub fn remove(&mut self, job: u64) -> Box<Phase2Times> {
        let Some(JobContext { channels, times, .. }) = self.jobs.remove(&job) else { return Box::default() };
        for (line, attachment) in channels.into_values() {
            self.attachments.remove(&attachment);
            self.local_shards.leave(attachment);
            self.lines.detach(line, attachment, false);
        }
        times
    }

    /// Whether a job has to wait until somebody holds all of its shards, and has said whether it hands them over.
    pub fn is_stuck(&self, job: u64) -> bool {
        let open =
            |(line, attachment): &(u64, u64)| self.lines.hands_over(*line) && !self.local_shards.is_known(*attachment);
        self.jobs.get(&job).is_none_or(|context| context.gather.is_stuck() || context.channels.values().any(open))
    }

    /// The contexts of the parts of a step, in their order, if all of their shards are in this process.
    pub fn local_shards(&mut self, jobs: &[u64]) -> Option<TeamContext<'_, B>> {
        self.local_shards.look();
        let part = |job: &u64| {
            let JobContext { asked, gather, channels, .. } = self.jobs.get(job)?;
            let attachments = channels.values().map(|(_, attachment)| *attachment).collect();
            Some(Part { attachments, shards: gather.shards(), hidden: &asked.hidden })
        };
        self.local_shards.context(&jobs.iter().map(part).collect::<Option<Vec<_>>>()?)
    }

    /// A step failed for all of its parts.
    pub fn failed(&mut self) {
        self.local_shards.failed();
    }

    /// Whether a step failed for a device that is not needed for the next.
    pub fn has_lost_a_device(&mut self) -> bool {
        self.local_shards.has_lost_a_device()
    }

    /// Shards of a job that one host holds, at most.
    pub fn most_shards(&self, job: u64) -> usize {
        self.jobs.get(&job).map_or(0, |context| context.gather.most_shards())
    }

    /// A step begins: the job of each of its parts, and whether a token comes of it.
    pub fn begin(&mut self, jobs: Vec<(u64, bool)>) {
        self.asked.jobs = jobs;
        self.asked.step = self.asked.step.wrapping_add(1);
    }

    /// A token of a job took so long.
    pub fn stepped(&mut self, job: u64, took: Duration) {
        if let Some(context) = self.jobs.get_mut(&job) {
            context.times.stepped(took);
            context.spans = None;
        }
    }

    /// A step brought so many guesses of a job's tokens, of which the first ones were right.
    pub fn guessed(&mut self, job: u64, guesses: usize, right: usize) {
        if let Some(context) = self.jobs.get_mut(&job) {
            context.times.guessed(guesses as u64, right as u64);
        }
    }

    /// What there is to hear without waiting, but for what only concerns the contexts.
    pub fn arrived_by_now(&mut self) -> Option<Arrival> {
        loop {
            let arrival = self.later.pop_front().or_else(|| self.arrivals.try_recv().ok())?;
            if let Some(arrival) = self.on_arrival(arrival) {
                return Some(arrival);
            }
        }
    }

    /// Waits until something happens. Returns it unless it only concerns the contexts.
    pub fn wait(&mut self) -> Option<Arrival> {
        let arrival = self.next()?;
        self.on_arrival(arrival)
    }

    /// The next arrival; none when losses are due to be told again, which they then are.
    fn next(&mut self) -> Option<Arrival> {
        if let Some(arrival) = self.lines.look(&mut self.arrivals) {
            return Some(arrival);
        }
        let deadline = self.jobs.values().filter_map(|context| context.gather.deadline()).min();
        let Some(deadline) = deadline else { return machine::block_on(self.arrivals.recv()) };
        let (arrivals, left) = (&mut self.arrivals, deadline.saturating_sub(self.clock.started.elapsed()));
        match machine::block_on(async { timeout(left, arrivals.recv()).await }) {
            Ok(arrival) => arrival,
            Err(_) => {
                let jobs: Vec<u64> = self.jobs.keys().copied().collect();
                jobs.into_iter().for_each(|job| self.apply(job, gather::GatherEvent::Tick, None));
                None
            }
        }
    }

    /// Takes in what concerns the contexts; all else comes back.
    fn on_arrival(&mut self, arrival: Arrival) -> Option<Arrival> {
        match arrival {
            Arrival::Frame(line, frame, _place) => {
                if let Err(wrong) = self.read(line, &frame) {
                    self.broke(line, true, &wrong.to_string());
                }
            }
            Arrival::Broke(line, cause) => self.broke(line, false, &cause),
            Arrival::Holders { job, holders } if self.jobs.contains_key(&job) => {
                self.apply(job, gather::GatherEvent::Holders(holders), None);
            }
            other => return Some(other),
        }
        None
    }

    fn broke(&mut self, line: u64, wrong: bool, cause: &str) {
        for attachment in self.lines.ended(line) {
            self.local_shards.leave(attachment);
            if let Some(Attachment { job, channel, .. }) = self.attachments.remove(&attachment) {
                let (host, cause) = (None, cause.to_owned());
                self.apply(job, gather::GatherEvent::Broke { channel, host, wrong, cause }, None);
            }
        }
    }

    /// Applies an event; `answers` are those that came with it.
    fn apply(&mut self, job: u64, event: gather::GatherEvent, mut answers: Option<Vec<ShardPartial<'static, B>>>) {
        let Some(context) = self.jobs.get_mut(&job) else { return };
        let part = self.asked.parts.iter().position(|part| part.job == job);
        for command in context.gather.handle(self.clock.started.elapsed(), event) {
            match command {
                GatherCommand::Open { channel, route } => {
                    let attachment = self.attached;
                    self.attached += 1;
                    let attach = route.attach(attachment, &context.asked);
                    context
                        .channels
                        .insert(channel, (self.lines.attach(&route.holder, attach, context.asked.trace), attachment));
                    self.attachments.insert(attachment, Attachment { job, channel, answers: route.answers() });
                }
                GatherCommand::Drop { channel } => {
                    if let Some((line, attachment)) = context.channels.remove(&channel) {
                        self.attachments.remove(&attachment);
                        self.local_shards.leave(attachment);
                        self.lines.detach(line, attachment, true);
                    }
                }
                GatherCommand::Send { channel } => {
                    let to = context.channels.get(&channel).zip(part);
                    let outgoing = to.map(|((line, attachment), part)| (*line, (part, *attachment)));
                    outgoing.into_iter().for_each(|(line, ask)| self.outgoing.entry(line).or_default().push(ask));
                }
                GatherCommand::Take { blocks } => {
                    let Some(part) = part.map(|part| &mut self.asked.parts[part].answers) else { continue };
                    for answer in answers.take().into_iter().flatten() {
                        let has = |block: usize| answer.shards.iter().any(|shard| shard.0 == block);
                        if blocks.iter().any(|block| has(*block as usize)) {
                            // A group that is merged as a whole stands for its shards that answered before.
                            part.retain(|before| !before.shards.iter().any(|shard| has(shard.0)));
                            part.push(answer);
                        }
                    }
                }
                GatherCommand::Done { .. } => part.into_iter().for_each(|part| {
                    self.asked.parts[part].end.get_or_insert(Ok(()));
                }),
                GatherCommand::Stalled { host, wrong, cause } => {
                    tracing::warn!(job, %host, wrong, %cause, "shards do not answer");
                    (self.post)(QueryHostEvent::Stalled { job, host, wrong, cause });
                }
            }
        }
    }

    /// Sends what is to be asked, one frame a line, all at once.
    fn flush(&mut self) -> Result<(), ModelError> {
        for (line, asks) in std::mem::take(&mut self.outgoing) {
            let hands_over = self.on_devices.1 && self.lines.hands_over(line);
            self.lines.send(line, self.asked.frame(self.decoder.backend(), &asks, hands_over)?);
        }
        self.lines.flush();
        Ok(())
    }

    /// Parts whose shards nobody holds leave the step, once nobody else is waited for.
    fn leave_those_that_are_stuck(&mut self) {
        let jobs = &self.jobs;
        self.asked.leave_where(|job| jobs.get(&job).is_none_or(|context| context.gather.is_stuck()));
    }

    /// Waits for what the parts of the layer get, in their order.
    fn collect(&mut self) -> Result<Vec<PartAnswer<'static, B>>, ModelError> {
        let began = Instant::now();
        loop {
            self.leave_those_that_are_stuck();
            if self.asked.parts.iter().all(|part| part.end.is_some()) {
                break;
            }
            match self.next() {
                None => {}
                Some(Arrival::Close) => {
                    self.later.push_back(Arrival::Close);
                    return Err(ModelError::Cancelled);
                }
                Some(Arrival::Stop { job }) => {
                    let part = self.asked.parts.iter_mut().find(|part| part.job == job);
                    part.into_iter().for_each(|part| part.end = Some(Err(StepError::Later)));
                    self.later.push_back(Arrival::Stop { job });
                }
                Some(arrival) => {
                    let other = self.on_arrival(arrival);
                    self.later.extend(other);
                }
            }
            self.flush()?;
        }
        self.clock.collected = Instant::now();
        self.clock.waited = self.clock.collected - began;
        let parts = std::mem::take(&mut self.asked.parts);
        self.clock.answered.clear();
        let mut answers = Vec::with_capacity(parts.len());
        for LayerStepPart { job, token, answers: shards, end, .. } in parts {
            if let Some(Err(error)) = end {
                self.jobs.get_mut(&job).into_iter().for_each(|context| context.gather.give_up());
                answers.push(Err(error));
            } else {
                self.clock.answered.push((job, token));
                answers.push(Ok(shards));
            }
        }
        Ok(answers)
    }
}

impl<B: Backend> ContextAttention<B> for JobContexts<B> {
    fn ask(&mut self, queries: LayerQueries<'_, B>, asks: &[PartAsk]) -> Result<Answers<'_, B>, ModelError> {
        self.asked.layer(queries, payload::payload_type(self.decoder.backend().dtype()), asks);
        let (step, layer) = (self.asked.step, self.asked.layer);
        let jobs: Vec<u64> = self.asked.parts.iter().map(|part| part.job).collect();
        jobs.into_iter().for_each(|job| self.apply(job, gather::GatherEvent::Ask { step, layer }, None));
        self.on_devices.1 = self.on_devices.0 && self.outgoing.keys().any(|line| self.lines.hands_over(*line));
        self.flush()?;
        Ok(Answers::Coming { on_devices: self.on_devices.1, collect: Box::new(|| self.collect()) })
    }

    fn merged(&mut self) {
        let (waited, merged) = (self.clock.waited, self.clock.collected.elapsed());
        for job in self.clock.answered.iter().filter(|(_, token)| *token).map(|(job, _)| job) {
            if let Some(JobContext { times, spans, .. }) = self.jobs.get_mut(job) {
                times.layer_wait.add(waited);
                times.merge.add(merged);
                spans.iter_mut().for_each(|spans| spans.done(self.asked.layer as usize + 1));
            }
        }
    }
}
