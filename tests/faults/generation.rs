//! Phase 2 on the toy model: one generation with its channels to holders of shards, as [`Gather`] decides.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use asterism_actors::{
    messages::Generate,
    query_host::{
        Command, Event, GenerationEnd,
        gather::{self, Gather},
    },
};
use asterism_plan::MergeTree;

use crate::{
    clock::{Core, Time, What},
    host::{Host, Use},
    network::{Frame, LinkId},
    toy::{self, Decoder, LAYERS},
};

/// One generation.
pub struct Generation {
    life: u64,
    order: Generate,
    gather: Gather,
    started: Time,
    links: BTreeMap<u64, LinkId>,
    decoder: Decoder,
    step: u32,
    layer: u32,
    answers: BTreeMap<u32, u64>,
    tokens: u32,
    ids: Vec<u32>,
    /// Whether it waits for shards, and hears what arrives.
    collects: bool,
    done: Option<u64>,
    arrivals: VecDeque<Arrival>,
}

enum Arrival {
    Frame(u64, Frame),
    Broke(u64, String),
    Holders(gather::Event),
    Stop,
}

impl Host {
    /// Carries out what the query host's state wants.
    pub(super) fn generate(&mut self, core: &mut Core, command: Command) {
        match command {
            Command::Generate(order) => self.begin_generation(core, order),
            Command::Stop { job } => self.arrive(core, job, Arrival::Stop),
            Command::Holders { job, holders } => {
                self.arrive(core, job, Arrival::Holders(gather::Event::Holders(holders)));
            }
            Command::Tell(_) => {}
        }
    }

    fn begin_generation(&mut self, core: &mut Core, order: Generate) {
        self.lives += 1;
        let (job, life, holders) = (order.job, self.lives, order.holders.clone());
        let mut decoder = Decoder::new();
        decoder.begin(&order.query_ids);
        let generation = Generation {
            life,
            gather: Gather::new(Arc::new(MergeTree::new(&order.shards, order.fan_in)), order.fan_in),
            started: core.now,
            links: BTreeMap::new(),
            decoder,
            step: 0,
            layer: 0,
            answers: BTreeMap::new(),
            tokens: 0,
            ids: order.query_ids.clone(),
            collects: false,
            done: None,
            arrivals: VecDeque::new(),
            order,
        };
        self.generations.insert(job, generation);
        self.gather(core, job, gather::Event::Holders(holders), &[]);
        core.timer(self.pid, self.config.layer.1, What::Computed { job, life });
    }

    /// Hands an event to a generation's gather and carries out what it wants; `values` came with an answer.
    fn gather(&mut self, core: &mut Core, job: u64, event: gather::Event, values: &[(u32, u64)]) {
        let Some(generation) = self.generations.get_mut(&job) else { return };
        let (life, context) = (generation.life, generation.order.context);
        let now = std::time::Duration::from_micros(core.now - generation.started);
        let mut stalled = Vec::new();
        for command in generation.gather.handle(now, event) {
            match command {
                gather::Command::Open { channel, route } => {
                    let holder = route.holder;
                    let link = core.connect(self.pid, &holder.address);
                    core.send(link, Frame::Attach { context, blocks: holder.blocks });
                    self.uses.insert(link, Use::Channel { job, life, channel });
                    generation.links.insert(channel, link);
                }
                gather::Command::Drop { channel } => {
                    if let Some(link) = generation.links.remove(&channel) {
                        self.uses.remove(&link);
                        core.close(link, "of no use any more");
                    }
                }
                gather::Command::Send { channel } => {
                    let (step, layer, query) =
                        (generation.step, generation.layer, generation.decoder.query(generation.layer));
                    if let Some(link) = generation.links.get(&channel) {
                        core.send(*link, Frame::Query { step, layer, query });
                    }
                }
                gather::Command::Take { blocks } => {
                    generation.answers.extend(values.iter().copied().filter(|(block, _)| blocks.contains(block)));
                }
                gather::Command::Done { keys } => generation.done = Some(keys),
                gather::Command::Stalled { host, cause } => stalled.push((host, cause)),
            }
        }
        if let Some(deadline) = generation.gather.deadline() {
            let at = generation.started + deadline.as_micros() as Time;
            core.timer(self.pid, at.saturating_sub(core.now), What::GatherTick { job, life });
        }
        for (host, cause) in stalled {
            self.on_query(core, Event::Stalled { job, host, cause });
        }
    }

    /// Its own part of a layer is computed: asks the shards.
    pub(super) fn computed(&mut self, core: &mut Core, job: u64, life: u64) {
        let Some(generation) = self.generations.get_mut(&job).filter(|one| one.life == life) else { return };
        (generation.done, generation.collects) = (None, true);
        generation.answers.clear();
        let (step, layer) = (generation.step, generation.layer);
        self.gather(core, job, gather::Event::Ask { step, layer }, &[]);
        self.collect(core, job);
    }

    pub(super) fn gather_tick(&mut self, core: &mut Core, job: u64, life: u64) {
        let current = self.generations.get(&job).is_some_and(|one| one.life == life && one.collects);
        if current {
            self.gather(core, job, gather::Event::Tick, &[]);
        }
    }

    pub(super) fn arrived(&mut self, core: &mut Core, (job, life): (u64, u64), channel: u64, frame: Frame) {
        if self.generations.get(&job).is_some_and(|one| one.life == life) {
            self.arrive(core, job, Arrival::Frame(channel, frame));
        }
    }

    pub(super) fn channel_broke(&mut self, core: &mut Core, (job, life): (u64, u64), channel: u64, cause: String) {
        if self.generations.get(&job).is_some_and(|one| one.life == life) {
            self.arrive(core, job, Arrival::Broke(channel, cause));
        }
    }

    fn arrive(&mut self, core: &mut Core, job: u64, arrival: Arrival) {
        if let Some(generation) = self.generations.get_mut(&job) {
            generation.arrivals.push_back(arrival);
            self.collect(core, job);
        }
    }

    /// Hears what arrived while it waits for shards; goes on when all have answered.
    fn collect(&mut self, core: &mut Core, job: u64) {
        loop {
            let Some(generation) = self.generations.get_mut(&job).filter(|one| one.collects) else { return };
            if let Some(keys) = generation.done.take() {
                return self.layer_done(core, job, keys);
            }
            let Some(arrival) = generation.arrivals.pop_front() else { return };
            match arrival {
                Arrival::Stop => return self.end_generation(core, job, GenerationEnd::Stopped),
                Arrival::Holders(event) => self.gather(core, job, event, &[]),
                Arrival::Broke(channel, cause) => {
                    self.gather(core, job, gather::Event::Broke { channel, host: None, cause }, &[])
                }
                Arrival::Frame(channel, Frame::Answers { step, layer, shards, values }) => {
                    let values: Vec<(u32, u64)> = shards.iter().map(|shard| shard.block).zip(values).collect();
                    self.gather(core, job, gather::Event::Answer { channel, step, layer, shards }, &values);
                }
                Arrival::Frame(channel, frame) => {
                    let cause = format!("it said {frame:?}");
                    self.gather(core, job, gather::Event::Broke { channel, host: None, cause }, &[]);
                }
            }
        }
    }

    fn layer_done(&mut self, core: &mut Core, job: u64, keys: u64) {
        let Some(generation) = self.generations.get_mut(&job) else { return };
        generation.collects = false;
        let kept: u64 = generation.order.shards.iter().map(|shard| shard.keys).sum();
        if keys != kept {
            let message = format!("shards have {keys} keys, not {kept}");
            return self.end_generation(core, job, GenerationEnd::Failed { code: "shard_mismatch".into(), message });
        }
        generation.decoder.merge(&generation.answers);
        generation.layer += 1;
        let (life, time) = (generation.life, self.config.layer.1);
        if generation.layer < LAYERS {
            return core.timer(self.pid, time, What::Computed { job, life });
        }
        let choice = generation.order.choice.clone();
        let drawn = generation.decoder.draw((choice.seed, choice.temperature == 0.0));
        let given = generation.order.generated.get(generation.tokens as usize).copied();
        if given.is_none() && !choice.ignore_eos && toy::ends(drawn) {
            let end = GenerationEnd::Answered { stopped: true, text: toy::TAIL.into(), times: Box::default() };
            return self.end_generation(core, job, end);
        }
        let id = given.unwrap_or(drawn);
        generation.tokens += 1;
        (generation.step, generation.layer) = (generation.step + 1, 0);
        generation.ids = vec![id];
        generation.decoder.begin(&[id]);
        let over = generation.tokens == choice.max_tokens;
        self.on_query(core, Event::Token { job, id, text: toy::text(id) });
        match over {
            true => {
                let end = GenerationEnd::Answered { stopped: false, text: toy::TAIL.into(), times: Box::default() };
                self.end_generation(core, job, end);
            }
            false => core.timer(self.pid, time, What::Computed { job, life }),
        }
    }

    fn end_generation(&mut self, core: &mut Core, job: u64, end: GenerationEnd) {
        if let Some(generation) = self.generations.remove(&job) {
            for link in generation.links.into_values() {
                self.uses.remove(&link);
                core.close(link, "the generation ended");
            }
        }
        self.on_query(core, Event::Ended { job, end });
    }
}
