//! One encoded context: its plan, where each shard is, and what is still to be encoded. Chooses no host.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use asterism_models::ShardIdentity;
use asterism_plan::{Exchange, HiddenKeys, Plan, Shard};
use serde::{Deserialize, Serialize};

use crate::{
    api::{HostProgress, HostTiming, SessionState},
    messages::{EncodeShards, Encoded, ShardHolder},
    supervisor::tables::{
        hosts::host_report::Address,
        prepared::{PreparedContext, Weight, tenant_number},
    },
    ticket::Ticket,
};

/// Whose context it is; it goes with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContextOwner {
    /// One job's.
    Job(u64),
    /// A session's.
    Session(String),
}

/// Where a shard is.
#[derive(Clone, Debug, Default)]
pub struct ShardLocation {
    /// The host that holds or encodes it.
    pub host: Option<usize>,
    /// What the host reported, once it holds it.
    pub encoded: Option<Encoded>,
    /// The host that had it last, while it has none.
    pub lost_by: Option<usize>,
}

impl ShardLocation {
    /// Whether its host held it before it was ordered.
    fn was_held(&self) -> bool {
        self.encoded.as_ref().is_some_and(|encoded| encoded.cached)
    }
}

/// What a context waits for that has no hosts yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuedFor {
    /// Its turn.
    Turn,
    /// A host with its labels: until one is there, others go before it.
    Hosts,
    /// This other one, which is being encoded and has most of the same shards.
    Context(u64),
}

/// How far a context is.
#[derive(Debug)]
pub enum Phase {
    /// Its turn has not come.
    Queued(QueuedFor),
    /// Its turn has come: its shards have hosts, or are to get others.
    Placed(Placed),
}

/// How far a context is for whoever asks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its turn has not come.
    Queued,
    /// It is encoded for the first time.
    Encoding,
    /// Every shard is encoded and held.
    Ready,
    /// Shards that were there are encoded anew.
    Recovering,
}

impl Stage {
    /// How far a session with this context is.
    pub fn of_session(self) -> SessionState {
        match self {
            Self::Queued | Self::Encoding => SessionState::Encoding,
            Self::Ready => SessionState::Ready,
            Self::Recovering => SessionState::Recovering,
        }
    }
}

/// Where the shards of a context are, and what is under way with them.
#[derive(Debug)]
pub struct Placed {
    /// When its turn came.
    pub began: Duration,
    /// When every shard was encoded for the first time.
    pub first_ready: Option<Duration>,
    /// Times that shards were dealt.
    pub attempt: u32,
    /// Where shards are, in plan order.
    pub places: Vec<ShardLocation>,
    /// Hosts that encode a shard which another holds, to hold it instead, by block.
    pub migration_targets: BTreeMap<usize, usize>,
    /// Whether the shards of the last attempt are encoded together, passing each other something.
    pub together: bool,
    /// Whether shards that have a host are to be encoded anew with others.
    pub redo: bool,
    /// Attempts that failed on the way.
    pub retry: Retry,
    /// Shards that were there or under way, and are encoded again.
    pub again: Option<UnderWay>,
    /// Shards that move.
    pub moving: Option<UnderWay>,
    /// Layers that are done and that there are, by block.
    pub layers_done: BTreeMap<u32, (u32, u32)>,
}

/// Attempts that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    /// How many.
    pub attempts: u32,
    /// When the next may begin.
    pub not_before: Duration,
}

/// Shards that something is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// Since when.
    pub since: Duration,
    /// How many.
    pub shards: usize,
}

impl UnderWay {
    /// None yet.
    pub fn since(since: Duration) -> Self {
        Self { since, shards: 0 }
    }
}

impl Placed {
    /// No shard has a host yet.
    pub fn new(began: Duration, shards: usize) -> Self {
        Self {
            began,
            first_ready: None,
            attempt: 0,
            places: vec![ShardLocation::default(); shards],
            migration_targets: BTreeMap::new(),
            together: false,
            redo: false,
            retry: Retry::default(),
            again: None,
            moving: None,
            layers_done: BTreeMap::new(),
        }
    }
}

/// A context and the hosts that it is on.
#[derive(Debug)]
pub struct Context {
    /// Number, unique for the life of the journal.
    pub number: u64,
    /// What it is.
    pub prepared: PreparedContext,
    /// What it weighs.
    pub weight: Weight,
    /// Whose it is.
    pub owner: ContextOwner,
    /// When it was taken in.
    pub taken: Duration,
    /// What opens it on its hosts.
    pub ticket: Ticket,
    /// Shards that another context has too, which counts their bytes.
    pub reused: BTreeSet<usize>,
    /// Hosts that others cannot reach, and that get none of its shards.
    pub avoid: BTreeSet<usize>,
    /// Shards that a host encoded from something else than it was to read.
    pub misread: u32,
    /// What decides the bits of its shards: said by the hosts that had them first.
    pub numerics: Option<String>,
    /// Whether hosts of other numerics have or had some of them.
    pub mixed_numerics: bool,
    /// Since when shards are without a host, if they are.
    pub unassigned_since: Option<Duration>,
    /// Whether its hosts lately had all its shards: each is asked for alone, though they could pass each other something.
    pub held_lately: bool,
    /// The query host that had the last question of the session whose it is.
    pub asked_at: Option<usize>,
    /// How far it is.
    pub phase: Phase,
}

/// Migration targets of a context whose turn has not come.
static NO_HEIRS: BTreeMap<usize, usize> = BTreeMap::new();

impl Context {
    /// One taken in, whose turn has not come.
    pub fn new((number, taken): (u64, Duration), owner: ContextOwner, prepared: PreparedContext) -> Self {
        Self {
            number,
            weight: prepared.weight(),
            prepared,
            owner,
            taken,
            ticket: Ticket::default(),
            reused: BTreeSet::new(),
            avoid: BTreeSet::new(),
            misread: 0,
            numerics: None,
            mixed_numerics: false,
            unassigned_since: None,
            held_lately: false,
            asked_at: None,
            phase: Phase::Queued(QueuedFor::Turn),
        }
    }

    /// Where its shards are, once its turn has come.
    pub fn placed(&self) -> Option<&Placed> {
        match &self.phase {
            Phase::Queued(_) => None,
            Phase::Placed(placed) => Some(placed),
        }
    }

    /// The same, to be changed.
    pub fn placed_mut(&mut self) -> Option<&mut Placed> {
        match &mut self.phase {
            Phase::Queued(_) => None,
            Phase::Placed(placed) => Some(placed),
        }
    }

    /// Where its shards are, in plan order; empty until its turn has come.
    pub fn places(&self) -> &[ShardLocation] {
        self.placed().map_or(&[], |placed| &placed.places)
    }

    /// Hosts that encode a shard which another holds, by block.
    pub fn migration_targets(&self) -> &BTreeMap<usize, usize> {
        self.placed().map_or(&NO_HEIRS, |placed| &placed.migration_targets)
    }

    /// Times that its shards were dealt.
    pub fn attempt(&self) -> u32 {
        self.placed().map_or(0, |placed| placed.attempt)
    }

    /// Whether its shards are encoded together, passing each other something.
    pub fn is_together(&self) -> bool {
        self.placed().is_some_and(|placed| placed.together)
    }

    /// What it waits for while it has no hosts.
    pub fn queued_for(&self) -> Option<QueuedFor> {
        match self.phase {
            Phase::Queued(queued_for) => Some(queued_for),
            Phase::Placed(_) => None,
        }
    }

    /// While it has no hosts: it waits for this from now on.
    pub fn queue_for(&mut self, what: QueuedFor) {
        if let Phase::Queued(queued_for) = &mut self.phase {
            *queued_for = what;
        }
    }

    /// Whether at least half of its shards are those of `other`, not all of which are there yet, and `other` takes hardly longer to
    /// encode than it does: then they are there as soon as if they were encoded twice.
    pub fn can_follow(&self, other: &Self, is_there: impl Fn(&ShardIdentity) -> bool) -> bool {
        let (own, others) = (&self.prepared.identities, &other.prepared.identities);
        let shared = || own.iter().zip(others.iter()).filter(|(own, other)| own == other).map(|(own, _)| own);
        let is_as_urgent = self.prepared.background || !other.prepared.background;
        let is_as_soon = other.weight.work <= self.weight.work + self.weight.work / 4;
        let comes = || 2 * shared().count() >= own.len() && !shared().all(is_there);
        self.number != other.number && is_as_urgent && is_as_soon && comes()
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        match &self.phase {
            Phase::Queued(_) => Stage::Queued,
            Phase::Placed(placed) if placed.places.iter().all(|place| place.encoded.is_some()) => Stage::Ready,
            Phase::Placed(placed) if placed.first_ready.is_some() => Stage::Recovering,
            Phase::Placed(_) => Stage::Encoding,
        }
    }

    /// Some of its shards are another context's as well: they are neither encoded nor counted again.
    pub fn reuse(&mut self, reused: BTreeSet<usize>) {
        self.weight = self.prepared.weight();
        let shards = reused.iter().filter_map(|block| self.prepared.plan.shards.get(*block));
        let rows: usize = shards.map(Shard::rows).sum();
        let bytes: u64 = reused.iter().map(|block| self.prepared.kv_bytes(*block)).sum();
        self.weight.work = self.weight.work.saturating_sub(rows.div_ceil(self.prepared.plan.hosts.max(1)) as u64);
        self.weight.kv_bytes = self.weight.kv_bytes.saturating_sub(bytes);
        self.reused = reused;
    }

    /// Shards that hosts lately held are taken to be no work: a chat that goes on is as short as what is new of it.
    pub fn expect_held(&mut self, held: impl Fn(&ShardIdentity) -> bool) {
        let both = self.prepared.plan.shards.iter().zip(self.prepared.identities.iter()).enumerate();
        let held = both.filter(|(block, (_, identity))| !self.reused.contains(block) && held(identity));
        let rows: usize = held.map(|(_, (shard, _))| shard.rows()).sum();
        self.weight.work = self.weight.work.saturating_sub((rows / self.prepared.plan.hosts.max(1)) as u64);
    }

    /// Bytes of keys and values that a shard adds to those of its host.
    pub fn kv_bytes(&self, block: usize) -> u64 {
        if self.reused.contains(&block) { 0 } else { self.prepared.kv_bytes(block) }
    }

    /// Tokens of blocks that hosts had already.
    pub fn cached_tokens(&self) -> usize {
        let both = self.plan().shards.iter().zip(self.places());
        both.filter(|(_, place)| place.was_held()).map(|(shard, _)| shard.block_tokens()).sum()
    }

    /// Of these, those that are among `hidden`: a question gets them anew.
    pub fn cached_and_hidden(&self, hidden: &[HiddenKeys]) -> usize {
        let held = |hidden: &&HiddenKeys| self.places().get(hidden.block as usize).is_some_and(ShardLocation::was_held);
        hidden.iter().filter(held).map(|hidden| hidden.count() as usize).sum()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.prepared.plan
    }

    /// Whether its turn has come.
    pub fn is_placed(&self) -> bool {
        matches!(self.phase, Phase::Placed(_))
    }

    /// Whether every shard is encoded and held.
    pub fn is_ready(&self) -> bool {
        self.stage() == Stage::Ready
    }

    /// Whether every shard was encoded once.
    pub fn was_ready(&self) -> bool {
        self.placed().is_some_and(|placed| placed.first_ready.is_some())
    }

    /// Shards that a host holds or encodes, those that move to it included.
    pub fn shards_on(&self, host: usize) -> usize {
        let coming = self.migration_targets().values().filter(|migration_target| **migration_target == host);
        self.places().iter().filter(|place| place.host == Some(host)).count() + coming.count()
    }

    /// How many shards each host holds or encodes, those that move to it included, and the bytes that they keep.
    pub fn loads(&self) -> BTreeMap<usize, (usize, u64)> {
        let held = self.places().iter().enumerate().filter_map(|(block, place)| Some((place.host?, block)));
        let coming = self.migration_targets().iter().map(|(block, migration_target)| (*migration_target, *block));
        let mut loads: BTreeMap<usize, (usize, u64)> = BTreeMap::new();
        for (host, block) in held.chain(coming) {
            let (shards, bytes) = loads.entry(host).or_default();
            (*shards, *bytes) = (*shards + 1, *bytes + self.kv_bytes(block));
        }
        loads
    }

    /// Shards whose place is a host.
    pub fn held_by(&self, host: usize) -> Vec<usize> {
        (0..self.places().len()).filter(|&block| self.places()[block].host == Some(host)).collect()
    }

    /// The hosts that hold or encode shards, each once.
    pub fn hosts(&self) -> BTreeSet<usize> {
        self.places().iter().filter_map(|place| place.host).chain(self.migration_targets().values().copied()).collect()
    }

    /// A host has its shards no more. Returns how many it had.
    pub fn lose(&mut self, host: usize) -> usize {
        let lost = self.held_by(host);
        let Some(placed) = self.placed_mut() else { return 0 };
        lost.iter().for_each(|&block| {
            placed.places[block] = ShardLocation { lost_by: Some(host), ..ShardLocation::default() }
        });
        placed.migration_targets.retain(|_, migration_target| *migration_target != host);
        lost.len()
    }

    /// Hosts that a host may have passed keys of something else than it was to read: who has a later shard than one that it
    /// has not reported, and so nobody has compared.
    pub fn tainted_by(&self, host: usize) -> BTreeSet<usize> {
        let unseen = |place: &ShardLocation| place.host == Some(host) && place.encoded.is_none();
        // Other exchanges begin again with all shards, whoever has them.
        let first = self.places().iter().position(unseen).filter(|_| self.is_together() && self.moves_alone());
        let later = first.map_or(&[][..], |first| &self.places()[first..]);
        later.iter().filter_map(|place| place.host).filter(|other| *other != host).collect()
    }

    /// A host is to encode its shards anew.
    pub fn doubt(&mut self, host: usize) {
        let Some(placed) = self.placed_mut() else { return };
        placed.places.iter_mut().filter(|place| place.host == Some(host)).for_each(|place| place.encoded = None);
        placed.migration_targets.retain(|_, migration_target| *migration_target != host);
    }

    /// Whether a shard can be encoded elsewhere while it is held: alone, from its input.
    pub fn moves_alone(&self) -> bool {
        matches!(self.plan().exchange, Exchange::None | Exchange::SharedPrefix { .. })
    }

    /// A shard is held by its migration target. Returns the host that had it, if it has none any more.
    pub fn inherit(&mut self, block: usize, migration_target: usize, encoded: Encoded) -> Option<usize> {
        let placed = self.placed_mut()?;
        placed.migration_targets.remove(&block);
        let ShardLocation { host: old, encoded: before, .. } = std::mem::take(&mut placed.places[block]);
        // What came as it lay is what another host encoded; nobody spent that time again.
        let as_it_lay =
            before.filter(|_| encoded.cached).map(|before| Encoded { seconds: 0.0, computing_s: 0.0, ..before });
        let encoded = Some(as_it_lay.unwrap_or(encoded));
        placed.places[block] = ShardLocation { host: Some(migration_target), encoded, lost_by: None };
        placed.attempt += 1;
        old.filter(|&old| self.held_by(old).is_empty())
    }

    /// A host is nobody's migration target any more. Returns the hosts whose shards it was to have.
    pub fn disinherit(&mut self, migration_target: usize) -> BTreeSet<usize> {
        let Some(Placed { places, migration_targets, .. }) = self.placed_mut() else { return BTreeSet::new() };
        let old = migration_targets
            .iter()
            .filter(|(_, host)| **host == migration_target)
            .filter_map(|(block, _)| places[*block].host);
        let old = old.collect();
        migration_targets.retain(|_, host| *host != migration_target);
        old
    }

    /// Shards without a host.
    pub fn unassigned(&self) -> Vec<usize> {
        (0..self.places().len()).filter(|&block| self.places()[block].host.is_none()).collect()
    }

    /// Shards that go on in the same pass as others and so begin again with them: with shards that depend on each other, all;
    /// where a prefix was shared, or an attempt came to nothing, those that are not encoded.
    pub fn entangled(&self) -> Vec<usize> {
        let all = 0..self.places().len();
        let redo = self.placed().is_some_and(|placed| placed.redo);
        match self.plan().exchange {
            // One host holds all, and encodes a block behind those before it: what it holds it says again at once.
            Exchange::None if self.plan().is_chain() && (redo || !self.unassigned().is_empty()) => all.collect(),
            Exchange::None if !redo => Vec::new(),
            Exchange::None | Exchange::SharedPrefix { .. } => {
                all.filter(|&block| self.places()[block].encoded.is_none()).collect()
            }
            _ => all.collect(),
        }
    }

    /// Gives shards their hosts, which they begin with now.
    pub fn settle(&mut self, now: Duration, blocks: &[usize], hosts: &[usize]) {
        let shards = self.prepared.plan.shards.len();
        if let Phase::Queued(_) = self.phase {
            self.phase = Phase::Placed(Placed::new(now, shards));
        }
        let passes = self.plan().exchange != Exchange::None && blocks.len() == shards && !self.held_lately;
        let Phase::Placed(placed) = &mut self.phase else { return };
        for (&block, &host) in blocks.iter().zip(hosts) {
            placed.places[block] = ShardLocation { host: Some(host), ..ShardLocation::default() };
            placed.migration_targets.remove(&block);
            placed.layers_done.remove(&(block as u32));
        }
        placed.attempt += 1;
        (placed.together, placed.redo) = (passes, false);
        self.unassigned_since = None;
    }

    /// Who has which shards, by their names and addresses.
    pub fn holders(&self, addresses: &[Address]) -> Vec<ShardHolder> {
        let mut holders: BTreeMap<usize, ShardHolder> = BTreeMap::new();
        for (block, place) in self.places().iter().enumerate() {
            let Some(host) = place.host else { continue };
            let holder = holders.entry(host).or_insert_with(|| {
                let (name, endpoints) = addresses[host].clone();
                ShardHolder { host: name, endpoints, blocks: Vec::new() }
            });
            holder.blocks.push(block as u32);
        }
        holders.into_values().collect()
    }

    /// The orders for `blocks`, host by host. Shards that depend on nothing go one by one, those of a chain together and in order.
    /// A shared prefix is passed on when all are encoded together, and encoded by each when only some are encoded again: to the
    /// same bits.
    pub fn orders(&self, blocks: &[usize], addresses: &[Address]) -> Vec<(usize, EncodeShards)> {
        let placed = blocks.iter().filter_map(|&block| Some((self.places()[block].host?, block)));
        if self.plan().is_chain() {
            let mut chain: BTreeMap<usize, Vec<Shard>> = BTreeMap::new();
            placed.for_each(|(host, block)| chain.entry(host).or_default().push(self.plan().shards[block].clone()));
            let ordered = |(host, shards)| (host, self.order(shards, Exchange::None, Vec::new()));
            return chain.into_iter().map(ordered).collect();
        }
        if !self.is_together() {
            return placed.map(|(host, block)| (host, self.order_alone(block))).collect();
        }
        let mut together: BTreeMap<usize, Vec<Shard>> = BTreeMap::new();
        placed.for_each(|(host, block)| together.entry(host).or_default().push(self.plan().shards[block].clone()));
        let (holders, exchange, blocks) = (self.holders(addresses), &self.plan().exchange, self.places().len());
        let ordered = |(host, shards): (usize, Vec<Shard>)| {
            let receives = exchange.receivers(&shards, blocks);
            let sent = |holder: &&ShardHolder| holder.blocks.iter().any(|block| receives(*block as usize));
            (host, self.order(shards, exchange.clone(), holders.iter().filter(sent).cloned().collect()))
        };
        together.into_iter().map(ordered).collect()
    }

    /// The order for one shard that waits for no other.
    pub fn order_alone(&self, block: usize) -> EncodeShards {
        self.order(vec![self.plan().alone(block)], Exchange::None, Vec::new())
    }

    fn order(&self, shards: Vec<Shard>, exchange: Exchange, peers: Vec<ShardHolder>) -> EncodeShards {
        let (context, attempt, blocks) = (self.number, self.attempt(), self.plan().shards.len() as u32);
        let identity = |shard: &Shard| Some((shard.block as u32, *self.prepared.identities.get(shard.block)?));
        let identities = shards.iter().filter_map(identity).collect();
        let tenant = tenant_number(&self.prepared.key, self.prepared.background);
        let (ticket, room, trace) = (self.ticket, None, None);
        EncodeShards { context, tenant, attempt, shards, blocks, exchange, peers, ticket, room, trace, identities }
    }

    /// Whether a host has been ordered to encode a shard.
    pub fn is_ordered(&self, block: usize, host: usize) -> bool {
        let placed = self.places().get(block).is_some_and(|place| place.host == Some(host));
        placed || self.migration_targets().get(&block) == Some(&host)
    }

    /// Whether a host has been ordered to encode any shard.
    pub fn is_ordered_any(&self, host: usize) -> bool {
        (0..self.places().len()).any(|block| self.is_ordered(block, host))
    }

    /// Notes a layer.
    pub fn progressed(&mut self, block: u32, layers: (u32, u32)) {
        if let Some(placed) = self.placed_mut() {
            placed.layers_done.insert(block, layers);
        }
    }

    /// How far each host is.
    pub fn progress(&self, name: &dyn Fn(usize) -> String) -> Vec<HostProgress> {
        let mut hosts: BTreeMap<usize, HostProgress> = BTreeMap::new();
        let Some(placed) = self.placed() else { return Vec::new() };
        for (shard, place) in self.plan().shards.iter().zip(&placed.places) {
            let Some(host) = place.host else { continue };
            let entry =
                hosts.entry(host).or_insert_with(|| HostProgress { host: name(host), done_tokens: 0, total_tokens: 0 });
            let (done, of) = match place.encoded {
                Some(_) => (1, 1),
                None => placed.layers_done.get(&(shard.block as u32)).copied().unwrap_or((0, 1)),
            };
            let rows = shard.rows();
            entry.total_tokens += rows;
            entry.done_tokens += rows * done as usize / of.max(1) as usize;
        }
        hosts.into_values().collect()
    }

    /// What each host did for it.
    pub fn timings(&self, name: &dyn Fn(usize) -> String) -> Vec<HostTiming> {
        let mut hosts: BTreeMap<usize, HostTiming> = BTreeMap::new();
        for (shard, place) in self.plan().shards.iter().zip(self.places()) {
            let (Some(host), Some(encoded)) = (place.host, &place.encoded) else { continue };
            let timing = hosts.entry(host).or_insert_with(|| HostTiming { host: name(host), ..HostTiming::default() });
            timing.shards += 1;
            match encoded.cached {
                true => timing.cached_tokens += shard.block_tokens(),
                false => timing.encoded_tokens += shard.rows(),
            }
            timing.kept_tokens += encoded.kept_tokens as usize;
            timing.encode_s += encoded.seconds;
            // Counted by the host, which may say what it likes.
            timing.kv_bytes = timing.kv_bytes.saturating_add(encoded.kv_bytes);
            timing.attention_pairs = timing.attention_pairs.saturating_add(encoded.pairs);
            timing.exchange_bytes = timing.exchange_bytes.saturating_add(encoded.exchange_bytes);
        }
        hosts.into_values().collect()
    }

    /// Share of dense attention's pairs that phase 1 did not compute.
    pub fn sparsity(&self) -> f64 {
        let encoded = self.places().iter().filter_map(|place| place.encoded.as_ref());
        let pairs = encoded.fold(0, |pairs: u64, shard| pairs.saturating_add(shard.pairs));
        1.0 - pairs as f64 / self.prepared.dense_pairs.max(1) as f64
    }
}
