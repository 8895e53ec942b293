//! Every context, what each host has of them, and which of them something changed for. An index follows a context when the
//! borrow that changed it ends, so that none can be forgotten. Decides nothing.

mod queue;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    time::Duration,
};

use asterism_models::ShardIdentity;

use crate::{
    messages::Encoded,
    supervisor::tables::{
        context::{Context, ContextOwner, QueuedFor, ShardLocation, Stage},
        jobs::{count_down, remove_from},
        prepared::TenantKey,
    },
};
use queue::{ContextQueue, KeyTurns, encode_time, kind_of_work};

/// Contexts by number, with indexes.
#[derive(Debug, Default)]
pub struct Contexts {
    all: BTreeMap<u64, Context>,
    index: ContextIndex,
    changed: BTreeSet<u64>,
    /// Whether a host has more room than before.
    freed: bool,
    turns: KeyTurns,
    /// Seconds that a token of phase 1 takes, learnt from those that were encoded.
    token_seconds: TokenSeconds,
}

/// Seconds that a token of phase 1 takes.
#[derive(Debug)]
struct TokenSeconds(f64);

impl Default for TokenSeconds {
    fn default() -> Self {
        Self(1e-4)
    }
}

/// What one host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Shards that it holds or encodes, those that move to it included.
    pub shards: usize,
    /// Of these, those of contexts that are not ready.
    pub unready: usize,
    /// Bytes that they keep.
    pub kv_bytes: u64,
    /// Of these, those of sessions.
    pub pinned_bytes: u64,
}

/// How many sessions' contexts are how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionContexts {
    /// Those that wait or are encoded for the first time.
    pub encoding: usize,
    /// Those that can be asked.
    pub ready: usize,
    /// Those of which shards are encoded anew.
    pub recovering: usize,
}

type Labels = BTreeMap<String, String>;

#[derive(Debug, Default, PartialEq)]
struct ContextIndex {
    /// By the keys that asked, which have their turns.
    waiting: BTreeMap<TenantKey, ContextQueue>,
    /// How many have begun of each key.
    begun_of: BTreeMap<TenantKey, usize>,
    /// Contexts that wait for a host with these labels.
    aside: BTreeMap<Labels, BTreeSet<u64>>,
    /// Contexts that wait for another one to be encoded, by that.
    followers: BTreeMap<u64, BTreeSet<u64>>,
    /// Contexts that are encoded for the first time, by their first shard.
    coming: BTreeMap<ShardIdentity, BTreeSet<u64>>,
    incomplete: BTreeSet<u64>,
    on_host: BTreeMap<usize, BTreeSet<u64>>,
    loads: BTreeMap<usize, Load>,
    /// Contexts whose turn has come and that are not encoded, or are some job's own.
    begun: usize,
    /// Work of those that are not encoded.
    unready_work: u64,
    sessions: SessionContexts,
    pinned_bytes: u64,
    bytes: u64,
}

/// What of a context the indexes know.
#[derive(Clone, Debug, PartialEq)]
struct ContextIndexKeys {
    key: TenantKey,
    /// Work and arrival while it waits.
    turn: Option<(u64, Duration)>,
    /// Labels that it waits for.
    aside: Option<Labels>,
    /// The context that it waits for.
    leader: Option<u64>,
    /// Its first shard while it is encoded for the first time.
    coming: Option<ShardIdentity>,
    session: bool,
    stage: Stage,
    was_ready: bool,
    incomplete: bool,
    attempt: u32,
    work: u64,
    kv_bytes: u64,
    bytes: u64,
    /// Shards and bytes by host.
    hosts: BTreeMap<usize, (usize, u64)>,
}

impl ContextIndexKeys {
    fn of(context: &Context) -> Self {
        let (placed, queued_for, stage) = (context.is_placed(), context.queued_for(), context.stage());
        Self {
            key: context.prepared.key.clone(),
            turn: (!placed).then(|| (kind_of_work(context.weight.work), context.taken)),
            aside: (queued_for == Some(QueuedFor::Hosts)).then(|| context.prepared.placement.labels.clone()),
            leader: if let Some(QueuedFor::Context(leader)) = queued_for { Some(leader) } else { None },
            coming: context.prepared.identities.first().copied().filter(|_| stage == Stage::Encoding),
            session: matches!(context.owner, ContextOwner::Session(_)),
            stage,
            was_ready: context.was_ready(),
            incomplete: context
                .placed()
                .is_some_and(|placed| placed.redo || placed.places.iter().any(|place| place.host.is_none())),
            attempt: context.attempt(),
            work: context.weight.work,
            kv_bytes: context.weight.kv_bytes,
            bytes: context.weight.bytes,
            hosts: context.loads(),
        }
    }
}

/// A context that is being changed.
pub struct ContextEdit<'a> {
    context: &'a mut Context,
    index: &'a mut ContextIndex,
    changed: &'a mut BTreeSet<u64>,
    freed: &'a mut bool,
    turns: &'a mut KeyTurns,
    before: ContextIndexKeys,
}

impl Deref for ContextEdit<'_> {
    type Target = Context;

    fn deref(&self) -> &Context {
        self.context
    }
}

impl DerefMut for ContextEdit<'_> {
    fn deref_mut(&mut self) -> &mut Context {
        self.context
    }
}

impl Drop for ContextEdit<'_> {
    fn drop(&mut self) {
        let after = ContextIndexKeys::of(self.context);
        if after != self.before {
            let number = self.context.number;
            self.index.remove(number, &self.before);
            self.index.insert(number, &after);
            self.changed.insert(number);
            let less = |host: &usize| !after.hosts.contains_key(host);
            *self.freed |= self.before.hosts.keys().any(less);
            if self.before.turn.is_some() && after.turn.is_none() {
                let index = &*self.index;
                let is_here = |key: &TenantKey| index.waiting.contains_key(key) || index.begun_of.contains_key(key);
                self.turns.took(&after.key, is_here);
            }
        }
    }
}

impl Contexts {
    /// Takes a context in whose number is new.
    pub fn insert(&mut self, context: Context) {
        self.index.insert(context.number, &ContextIndexKeys::of(&context));
        self.changed.insert(context.number);
        self.all.insert(context.number, context);
    }

    /// Forgets a context.
    pub fn remove(&mut self, number: u64) {
        let Some(context) = self.all.remove(&number) else { return };
        self.index.remove(number, &ContextIndexKeys::of(&context));
        self.changed.remove(&number);
        self.freed |= context.is_placed();
    }

    /// The number of each.
    pub fn numbers(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    /// One context.
    pub fn get(&self, number: u64) -> Option<&Context> {
        self.all.get(&number)
    }

    /// One context, to be changed: anything but its number, owner and plan.
    pub fn get_mut(&mut self, number: u64) -> Option<ContextEdit<'_>> {
        let context = self.all.get_mut(&number)?;
        let before = ContextIndexKeys::of(context);
        let Self { index, changed, freed, turns, .. } = self;
        Some(ContextEdit { context, index, changed, freed, turns, before })
    }

    /// Notes a layer of a shard, which no index knows of.
    pub fn progressed(&mut self, number: u64, block: u32, layers: (u32, u32)) {
        if let Some(context) = self.all.get_mut(&number) {
            context.progressed(block, layers);
        }
    }

    /// Notes that a shard's host has encoded it, which an index knows of where no other is missing.
    pub fn note_encoded(&mut self, number: u64, block: usize, encoded: Encoded) {
        let missing = |(other, place): (usize, &ShardLocation)| other != block && place.encoded.is_none();
        let Some(placed) = self.all.get_mut(&number).and_then(Context::placed_mut) else { return };
        if placed.places.iter().enumerate().any(missing) {
            placed.places[block].encoded = Some(encoded);
        } else if let Some(placed) = self.get_mut(number).as_deref_mut().and_then(Context::placed_mut) {
            placed.places[block].encoded = Some(encoded);
        }
    }

    /// No context avoids a host any more.
    pub fn reachable(&mut self, host: usize) {
        for context in self.all.values_mut() {
            context.avoid.remove(&host);
        }
    }

    /// Those that something changed for since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.changed)
    }

    /// Whether a host got room since this was asked last.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Those that lack a host for a shard, or are to be encoded anew.
    pub fn incomplete(&self) -> &BTreeSet<u64> {
        &self.index.incomplete
    }

    /// Those that a host has shards of, or is to have.
    pub fn on_host(&self, host: usize) -> Vec<u64> {
        self.index.on_host.get(&host).into_iter().flatten().copied().collect()
    }

    /// What a host has.
    pub fn load(&self, host: usize) -> Load {
        self.index.loads.get(&host).copied().unwrap_or_default()
    }

    /// Contexts whose turn has come and that are not encoded yet, or that are some job's own.
    pub fn begun(&self) -> usize {
        self.index.begun
    }

    /// Seconds that a token of phase 1 takes, as far as is known.
    #[cfg(test)]
    pub fn token_seconds(&self) -> f64 {
        self.token_seconds.0
    }

    /// A shard of so many tokens took so long.
    pub fn learn_speed(&mut self, seconds: f64, tokens: usize) {
        self.token_seconds.0 += 0.2 * (seconds / tokens.max(1) as f64 - self.token_seconds.0);
    }

    /// The context to begin next: of the key that has the fewest begun and had its last turn first, the one that would be done first,
    /// had it begun when it came.
    pub fn next(&self) -> Option<u64> {
        self.first_of_fewest().map(|(_, number)| number)
    }

    /// The context to begin next, where it and all that are encoded now take no longer than that, about.
    pub fn next_within(&self, seconds: Duration) -> Option<u64> {
        let within = |number: &u64| {
            let work = self.index.unready_work.saturating_add(self[*number].weight.work);
            encode_time(work, self.token_seconds.0) <= seconds
        };
        self.next().filter(within)
    }

    /// The context to begin next, where it is of a key that has none begun.
    pub fn next_of_none(&self) -> Option<u64> {
        self.first_of_fewest().filter(|(begun, _)| *begun == 0).map(|(_, number)| number)
    }

    /// How many the key of the next context has begun, and the context.
    fn first_of_fewest(&self) -> Option<(usize, u64)> {
        let token_seconds = self.token_seconds.0;
        let begun = |key: &TenantKey| self.index.begun_of.get(key).copied().unwrap_or(0);
        let place = |(key, line): (&TenantKey, &ContextQueue)| {
            Some((begun(key), self.turns.last(key), line.first(token_seconds)?))
        };
        self.index.waiting.iter().filter_map(place).min().map(|(begun, _, (_, number))| (begun, number))
    }

    /// How many waiting contexts begin before one: of other keys as many as of its own, as they take turns.
    pub fn before(&self, number: u64) -> usize {
        let token_seconds = self.token_seconds.0;
        let Some(keys) = self.get(number).map(ContextIndexKeys::of) else { return 0 };
        let Some((own, came)) = keys.turn else { return 0 };
        let done = (came.saturating_add(encode_time(own, token_seconds)), number);
        let own = self.index.waiting.get(&keys.key).map_or(0, |line| line.before(done, token_seconds));
        let others = self.index.waiting.iter().filter(|(key, _)| **key != keys.key);
        own + others.map(|(_, line)| line.count().min(own)).sum::<usize>()
    }

    /// Sets of labels that contexts wait for.
    pub fn aside(&self) -> Vec<BTreeMap<String, String>> {
        self.index.aside.keys().cloned().collect()
    }

    /// The first context that waits for a host with these labels.
    pub fn first_aside(&self, labels: &BTreeMap<String, String>) -> Option<u64> {
        self.index.aside.get(labels)?.first().copied()
    }

    /// The context whose shards are being encoded and are most of those of this one, if one is.
    pub fn leader_of(&self, context: &Context, is_there: impl Fn(&ShardIdentity) -> bool) -> Option<u64> {
        let coming = self.index.coming.get(context.prepared.identities.first()?)?;
        coming.iter().copied().find(|other| context.can_follow(&self[*other], &is_there))
    }

    /// Contexts that waited for another one that is encoded no longer: it is ready, or gone.
    pub fn freed_followers(&self) -> Vec<u64> {
        let first = |leader: &u64| self.get(*leader)?.prepared.identities.first();
        let coming = |leader: &u64| self.index.coming.get(first(leader)?);
        let is_coming = |leader: &u64| coming(leader).is_some_and(|coming| coming.contains(leader));
        let freed = self.index.followers.iter().filter(|(leader, _)| !is_coming(leader));
        freed.flat_map(|(_, followers)| followers.iter().copied()).collect()
    }

    /// How far sessions' contexts are.
    pub fn sessions(&self) -> SessionContexts {
        self.index.sessions
    }

    /// Bytes of keys and values that all sessions keep, or will.
    pub fn pinned_bytes(&self) -> u64 {
        self.index.pinned_bytes
    }

    /// Bytes that the plans of all contexts take here.
    pub fn bytes(&self) -> u64 {
        self.index.bytes
    }

    /// Whether the indexes are what counting anew gives.
    pub fn agree(&self) -> bool {
        let mut counted = ContextIndex::default();
        self.all.values().for_each(|context| counted.insert(context.number, &ContextIndexKeys::of(context)));
        self.index == counted
    }
}

impl std::ops::Index<u64> for Contexts {
    type Output = Context;

    fn index(&self, number: u64) -> &Context {
        &self.all[&number]
    }
}

impl ContextIndex {
    fn insert(&mut self, number: u64, keys: &ContextIndexKeys) {
        match (&keys.aside, keys.leader, keys.turn) {
            (Some(labels), ..) => drop(self.aside.entry(labels.clone()).or_default().insert(number)),
            (None, Some(leader), _) => drop(self.followers.entry(leader).or_default().insert(number)),
            (None, None, Some((work, taken))) => {
                let waiting = self.waiting.entry(keys.key.clone()).or_default();
                waiting.insert(work, (taken, number));
            }
            (None, None, None) => {}
        }
        if let Some(first) = keys.coming {
            self.coming.entry(first).or_default().insert(number);
        }
        if keys.incomplete {
            self.incomplete.insert(number);
        }
        self.begun += keys.begun();
        self.unready_work += keys.unready_work();
        if keys.begun() > 0 {
            *self.begun_of.entry(keys.key.clone()).or_default() += keys.begun();
        }
        self.bytes += keys.bytes;
        if let Some(sessions) = keys.of_session(&mut self.sessions) {
            *sessions += 1;
            self.pinned_bytes += keys.kv_bytes;
        }
        for (&host, &(shards, bytes)) in &keys.hosts {
            self.on_host.entry(host).or_default().insert(number);
            let load = self.loads.entry(host).or_default();
            load.shards += shards;
            load.kv_bytes += bytes;
            load.unready += if keys.stage == Stage::Ready { 0 } else { shards };
            load.pinned_bytes += if keys.session { bytes } else { 0 };
        }
    }

    fn remove(&mut self, number: u64, keys: &ContextIndexKeys) {
        if let Some(labels) = &keys.aside {
            remove_from(&mut self.aside, labels, number);
        } else if let Some(leader) = &keys.leader {
            remove_from(&mut self.followers, leader, number);
        } else if let Some((work, taken)) = keys.turn
            && let Some(waiting) = self.waiting.get_mut(&keys.key)
        {
            waiting.remove(work, (taken, number));
            if waiting.is_empty() {
                self.waiting.remove(&keys.key);
            }
        }
        if let Some(first) = &keys.coming {
            remove_from(&mut self.coming, first, number);
        }
        self.incomplete.remove(&number);
        self.begun -= keys.begun();
        self.unready_work -= keys.unready_work();
        count_down(&mut self.begun_of, &keys.key, keys.begun());
        self.bytes -= keys.bytes;
        if let Some(sessions) = keys.of_session(&mut self.sessions) {
            *sessions -= 1;
            self.pinned_bytes -= keys.kv_bytes;
        }
        for (host, &(shards, bytes)) in &keys.hosts {
            remove_from(&mut self.on_host, host, number);
            let load = self.loads.get_mut(host).expect("what it has is counted");
            load.shards -= shards;
            load.kv_bytes -= bytes;
            load.unready -= if keys.stage == Stage::Ready { 0 } else { shards };
            load.pinned_bytes -= if keys.session { bytes } else { 0 };
            if *load == Load::default() {
                self.loads.remove(host);
            }
        }
    }
}

impl ContextIndexKeys {
    fn begun(&self) -> usize {
        usize::from(self.turn.is_none() && (!self.session || !self.was_ready))
    }

    fn unready_work(&self) -> u64 {
        if self.turn.is_none() && self.stage != Stage::Ready { self.work } else { 0 }
    }

    fn of_session<'a>(&self, sessions: &'a mut SessionContexts) -> Option<&'a mut usize> {
        self.session.then_some(match self.stage {
            Stage::Ready => &mut sessions.ready,
            Stage::Recovering => &mut sessions.recovering,
            Stage::Queued | Stage::Encoding => &mut sessions.encoding,
        })
    }
}
