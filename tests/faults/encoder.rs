//! Phase 1 on the toy model: orders layer by layer, with parcels from and to peers. Which orders run, the state decides.

use std::collections::BTreeMap;

use asterism_actors::{
    context_host::{Command, Event, Failure, Work},
    messages::{EncodeShards, Encoded},
};
use asterism_plan::{Exchange, Input, Shard};

use crate::{
    clock::{Core, Time, What},
    host::{Host, Use},
    network::{Frame, LinkId},
    toy::{self, LAYERS},
};

/// How often an order that waits for parcels looks whether it was told to stop.
const STOP_CHECK: Time = 20_000;

type Attempt = (u64, u32);

/// Orders under way and parcels.
#[derive(Default)]
pub struct Encoder {
    /// Whether the next order is encoded from something else than it names.
    pub misreads: bool,
    running: BTreeMap<u64, Running>,
    rooms: BTreeMap<Attempt, BTreeMap<(u32, u32), u64>>,
    /// Attempts whose parcels can no longer all come.
    broken: BTreeMap<Attempt, String>,
    /// The earliest attempt of a context that parcels are taken for.
    earliest: BTreeMap<u64, u32>,
}

struct Running {
    order: EncodeShards,
    inputs: Vec<Input>,
    used: f64,
    layer: u32,
    /// Whether its own part of the layer is computed.
    waits: bool,
    shards: BTreeMap<u32, u64>,
    stop: bool,
    failure: Option<String>,
    /// Links that parcels go out on: it computes on only when all are open, and is done when all were taken.
    links: BTreeMap<String, (LinkId, Way)>,
    begun: Time,
}

/// How far a link is that parcels go out on.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Opening,
    Open,
    Taken,
}

impl Encoder {
    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    fn end_before(&mut self, context: u64, attempt: u32) {
        self.rooms.retain(|(open, tried), _| *open != context || *tried >= attempt);
        self.broken.retain(|(open, tried), _| *open != context || *tried >= attempt);
        let earliest = self.earliest.entry(context).or_default();
        *earliest = attempt.max(*earliest);
    }
}

impl Host {
    /// Carries out what the context host's state wants.
    pub(super) fn carry_out(&mut self, core: &mut Core, command: Command) {
        match command {
            Command::Encode(work) => self.begin_work(core, work),
            Command::Stop { work } => {
                if let Some(running) = self.encoder.running.get_mut(&work) {
                    running.stop = true;
                }
            }
            Command::Keep { work, context } => self.desk.keep(work, context),
            Command::Discard { work } => self.desk.discard(work),
            Command::Expect { context, attempt } => {
                self.encoder.end_before(context, attempt);
                self.encoder.rooms.entry((context, attempt)).or_default();
            }
            Command::Free { context } => self.desk.free(context),
            Command::Forget { context } => {
                self.desk.free(context);
                let latest = self.encoder.rooms.range((context, 0)..=(context, u32::MAX)).next_back();
                if let Some(latest) = latest.map(|((_, attempt), _)| *attempt) {
                    self.encoder.end_before(context, latest + 1);
                }
            }
            Command::Tell(_) => {}
        }
    }

    fn begin_work(&mut self, core: &mut Core, Work { work, used, order, mut inputs }: Work) {
        if std::mem::take(&mut self.encoder.misreads)
            && let Some(id) = inputs.last_mut().and_then(|input| input.ids.last_mut())
        {
            *id ^= 1;
        }
        let embed = |(shard, input): (&Shard, &Input)| (shard.block as u32, toy::embed(shard, input));
        let shards = order.shards.iter().zip(&inputs).map(embed).collect();
        let (layer, begun) = (0, core.now);
        let links = BTreeMap::new();
        let running =
            Running { order, inputs, used, layer, waits: false, shards, stop: false, failure: None, links, begun };
        self.encoder.running.insert(work, running);
        self.pass_on(core, work);
        core.timer(self.pid, self.config.layer.0, What::Layer { work });
    }

    /// Sends what others need of the shards in this layer.
    fn pass_on(&mut self, core: &mut Core, work: u64) {
        let Some(running) = self.encoder.running.get_mut(&work) else { return };
        let order = &running.order;
        let foreign =
            order.peers.iter().filter(|peer| peer.blocks.iter().all(|block| !running.shards.contains_key(block)));
        for peer in foreign {
            let wanted = |from: u32| peer.blocks.iter().any(|block| toy::needs(&order.exchange, *block, from));
            let parcels: Vec<(u32, u64)> = running
                .shards
                .iter()
                .filter(|(block, _)| wanted(**block))
                .map(|(block, value)| (*block, *value))
                .collect();
            if parcels.is_empty() {
                continue;
            }
            let (link, _) = *running.links.entry(peer.host.clone()).or_insert_with(|| {
                let link = core.connect(self.pid, &peer.address);
                let (context, attempt) = (order.context, order.attempt);
                core.send(link, Frame::Pass { context, attempt });
                self.uses.insert(link, Use::Parcels { work });
                (link, Way::Opening)
            });
            for (from, value) in parcels {
                let layer = running.layer;
                if !core.send(link, Frame::Parcel { layer, from, value }) {
                    running.failure = Some(format!("host {} is out of reach", peer.host));
                }
            }
        }
    }

    /// A layer is computed, or it is time to look for parcels and orders to stop.
    pub(super) fn encode_layer(&mut self, core: &mut Core, work: u64) {
        let Some(running) = self.encoder.running.get_mut(&work) else { return };
        let attempt = (running.order.context, running.order.attempt);
        let lost = self.encoder.broken.get(&attempt).filter(|_| running.waits).cloned();
        if let Some(message) = running.failure.clone().or(lost).filter(|_| !running.stop) {
            let failure = Failure { peer_lost: true, code: "host".into(), message };
            return self.end_work(core, work, Some(failure));
        }
        if running.stop {
            return self.end_work(core, work, None);
        }
        if running.links.values().any(|(_, way)| *way == Way::Opening) || running.layer == LAYERS {
            if running.links.values().all(|(_, way)| *way == Way::Taken) {
                return self.finish_work(core, work);
            }
            return core.timer(self.pid, STOP_CHECK, What::Layer { work });
        }
        running.waits = true;
        let room = self.encoder.rooms.get(&attempt);
        let exchange = running.order.exchange.clone();
        let mut next = BTreeMap::new();
        for (&block, &value) in &running.shards {
            let needed = (0..running.order.blocks).filter(|&from| toy::needs(&exchange, block, from));
            let given = needed.map(|from| {
                let own = running.shards.get(&from).copied();
                own.or_else(|| room.and_then(|room| room.get(&(running.layer, from)).copied()))
            });
            let Some(passed) = given.collect::<Option<Vec<u64>>>() else {
                return core.timer(self.pid, STOP_CHECK, What::Layer { work });
            };
            next.insert(block, toy::encode_layer(&exchange, running.layer, value, &passed));
        }
        (running.shards, running.waits) = (next, false);
        running.layer += 1;
        let (layers, of) = (running.layer, LAYERS);
        let blocks: Vec<u32> = running.shards.keys().copied().collect();
        for block in blocks {
            self.on_context(core, Event::Layer { work, block, layers, of });
        }
        let links =
            self.encoder.running.get(&work).map_or(Vec::new(), |running| running.links.values().copied().collect());
        match layers < LAYERS {
            true => self.pass_on(core, work),
            false if links.is_empty() => return self.finish_work(core, work),
            false => {
                for (link, _) in links {
                    core.send(link, Frame::Passed);
                }
            }
        }
        core.timer(self.pid, self.config.layer.0, What::Layer { work });
    }

    fn finish_work(&mut self, core: &mut Core, work: u64) {
        let Some(running) = self.encoder.running.get(&work) else { return };
        let seconds = (core.now - running.begun) as f64 / 1e6;
        let context = running.order.context;
        let report = |(shard, input): (&Shard, &Input)| {
            let (block, kept_tokens) = (shard.block as u32, shard.kept_tokens() as u64);
            let digest = shard.digest(input);
            Encoded {
                context,
                block,
                digest,
                kept_tokens,
                kv_bytes: 4 * kept_tokens,
                seconds,
                pairs: 1,
                exchange_bytes: 0,
            }
        };
        let encoded: Vec<Encoded> = running.order.shards.iter().zip(&running.inputs).map(report).collect();
        let laid = encoded.iter().map(|shard| (shard.block, (running.shards[&shard.block], shard.kept_tokens)));
        let (laid, used) = (laid.collect(), running.used + seconds);
        self.desk.lay_ready(work, laid);
        self.clear_work(core, work);
        self.on_context(core, Event::Encoded { work, encoded, used });
    }

    fn end_work(&mut self, core: &mut Core, work: u64, failure: Option<Failure>) {
        self.clear_work(core, work);
        self.on_context(core, Event::Stopped { work, failure, used: 0.0 });
    }

    fn clear_work(&mut self, core: &mut Core, work: u64) {
        let Some(running) = self.encoder.running.remove(&work) else { return };
        for (link, _) in running.links.into_values() {
            self.uses.remove(&link);
            core.close(link, "that was all");
        }
        if !matches!(running.order.exchange, Exchange::None) {
            self.encoder.end_before(running.order.context, running.order.attempt + 1);
        }
    }

    pub(super) fn parcel(&mut self, core: &mut Core, link: LinkId, attempt: Attempt, parcel: (u32, u32, u64)) {
        if self.encoder.earliest.get(&attempt.0).is_some_and(|earliest| attempt.1 < *earliest) {
            self.uses.remove(&link);
            return core.close(link, "the attempt ended");
        }
        let (layer, from, value) = parcel;
        self.encoder.rooms.entry(attempt).or_default().insert((layer, from), value);
    }

    /// A link that parcels go out on is open.
    pub(super) fn parcels_opened(&mut self, link: LinkId) {
        let links = self.encoder.running.values_mut().flat_map(|running| running.links.values_mut());
        links.filter(|(ours, _)| *ours == link).for_each(|(_, way)| *way = Way::Open);
    }

    /// Whoever parcels went to on a link has what it needs.
    pub(super) fn parcels_taken(&mut self, link: LinkId, work: u64) {
        let links = self.encoder.running.get_mut(&work).into_iter().flat_map(|running| running.links.values_mut());
        links.filter(|(ours, _)| *ours == link).for_each(|(_, way)| *way = Way::Taken);
    }

    /// All that a link brings has come.
    pub(super) fn all_passed(&mut self, core: &mut Core, link: LinkId) {
        self.uses.remove(&link);
        core.close(link, "all parcels were taken");
    }

    /// A link that parcels went out on ended, or could not be opened.
    pub(super) fn parcels_lost(&mut self, core: &mut Core, work: u64, cause: &str) {
        if let Some(running) = self.encoder.running.get_mut(&work) {
            running.failure = Some(format!("a host that parcels go to is out of reach: {cause}"));
            core.timer(self.pid, 0, What::Layer { work });
        }
    }

    /// A link that parcels come in on ended early.
    pub(super) fn pass_lost(&mut self, _core: &mut Core, attempt: Attempt, cause: &str) {
        if self.encoder.earliest.get(&attempt.0).is_none_or(|earliest| attempt.1 >= *earliest) {
            self.encoder.broken.insert(attempt, format!("a host that parcels come from is out of reach: {cause}"));
        }
    }
}
