//! Which hosts get shards and generations: those that compute the same bits as what a job has already. Orders nothing.

use std::collections::{BTreeMap, BTreeSet};

use asterism_models::ShardIdentity;
use asterism_plan::Exchange;

use crate::{
    api::{HostHealth, Role},
    cores::GpuMemory,
    error::{JobError, PlacementRefusal},
    supervisor::{
        config::SupervisorConfig,
        placement::{Candidate, Demand, FailureDomain, MixedNumerics, Wanted, island_of, place, place_among_equals},
        tables::{
            context::Context,
            contexts::{Contexts, Load},
            hosts::Hosts,
            job::Job,
            jobs::Jobs,
            prepared::PreparedContext,
            shard_homes::RecentEncoders,
        },
    },
};

/// Of a GPU's memory, one part in so many is left to what is computed.
const SPARE_SHARE: u64 = 16;
/// So many jobs more than the query host with the fewest may the one have that had a session's last question, and still get the next.
const SESSION_SLACK: usize = 2;
/// Most bytes of what a host says that it computes with.
const NUMERICS_BYTES: usize = 160;

/// Refuses words that say nothing, or too much.
pub fn check_numerics(stated: &str) -> Result<(), String> {
    let plain = stated.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match plain && !stated.trim().is_empty() && stated.len() <= NUMERICS_BYTES {
        true => Ok(()),
        false => Err(format!(
            "it says that it computes with {} bytes of something, expected 1 to {NUMERICS_BYTES} printable characters; run \
             the same version of asterism on every host",
            stated.len()
        )),
    }
}

/// Where a job is generated.
pub enum Choice {
    /// There.
    Host(usize),
    /// Hosts that compute what its tokens were computed with have all they take, or there are none.
    NoEqual { up: bool },
    /// The one that it names takes none, which others need not wait for.
    NotNow,
    /// Nobody generates with its model, or all that do have all they take.
    Nobody,
}

/// A GPU, and what hosts have on it.
#[derive(Clone, Copy, Debug, Default)]
struct SharedDevice {
    /// Hosts that compute on it.
    hosts: u64,
    /// Its memory, and what of that is free.
    all: u64,
    free: u64,
    /// Keys and values that lie on it, idle ones among them.
    held: u64,
    /// Those that are placed there, whether they are encoded or not, and of these what sessions hold.
    placed: u64,
    pinned: u64,
}

impl SharedDevice {
    /// Bytes of keys and values that each of its hosts may be given beside those that they were: idle ones go. None: as many as
    /// there are, for what waits until others end would wait for ever where none will.
    fn room(self) -> Option<u64> {
        let spare = self.all / SPARE_SHARE;
        let free = self.free.saturating_add(self.held).saturating_sub(self.placed).saturating_sub(spare);
        (self.placed > self.pinned).then(|| free / self.hosts.max(1))
    }
}

/// Looks for hosts among those that are there, and changes nothing.
#[derive(Clone, Copy)]
pub struct HostSelection<'a> {
    pub config: &'a SupervisorConfig,
    pub hosts: &'a Hosts,
    pub contexts: &'a Contexts,
    pub jobs: &'a Jobs,
}

impl<'a> HostSelection<'a> {
    /// Whether a context could be placed at all, beside what sessions hold.
    ///
    /// # Errors
    /// [`JobError::Placement`] with the numbers when it could not, whatever else ends.
    pub fn check_room(&self, prepared: &PreparedContext, reused: &BTreeSet<usize>) -> Result<(), JobError> {
        let candidates = self.candidates(prepared.model(), |load| load.pinned_bytes, |_| true);
        let blocks: Vec<usize> = (0..prepared.plan.shards.len()).collect();
        let (demands, policy) = (demands(prepared, reused, &blocks), &prepared.placement);
        // Which of the hosts with room is one and the same here.
        let wanted = Wanted { demands: &demands, policy, exchanges: false };
        let placed = match self.config.mixed_numerics {
            MixedNumerics::Refuse => place_among_equals(&wanted, &candidates, None),
            MixedNumerics::Mark => place(&wanted, &candidates),
        };
        placed.map(drop).map_err(JobError::Placement)
    }

    /// Hosts of a model that could take shards, beside what is `held` of what they have.
    pub fn candidates(
        &self,
        model: &str,
        held: impl Fn(&Load) -> u64,
        fit: impl Fn(usize) -> bool,
    ) -> Vec<Candidate<'a>> {
        let candidate = |host: usize| {
            let record = self.hosts.at(host);
            let rank = record.rank(Role::Context, self.config.recovery)?;
            let rank = rank + u8::from(self.config.avoid_stragglers && record.pace.is_slow());
            let load = self.contexts.load(host);
            let taken = record.spec.weight_bytes + held(&load);
            let free_bytes = record.spec.memory_limit.map(|limit| limit.saturating_sub(taken));
            let (node, labels, numerics) = (record.spec.node.as_str(), &record.spec.labels, record.numerics.as_deref());
            Some(Candidate { host, node, labels, rank, detour: 0, free_bytes, busy: load.unready, numerics })
        };
        let is_of = |host: &usize| self.hosts.at(*host).spec.model() == model;
        (0..self.config.hosts.len()).filter(|host| is_of(host) && fit(*host)).filter_map(candidate).collect()
    }

    /// Hosts that could take shards now. Where nothing says how much one may hold, its device does.
    fn with_room(&self, model: &str, fit: impl Fn(usize) -> bool) -> Vec<Candidate<'a>> {
        let mut candidates = self.candidates(model, |load| load.kv_bytes, fit);
        if candidates.iter().any(|one| one.free_bytes.is_none() && self.hosts.at(one.host).reported.gpu.is_some()) {
            let devices = self.devices();
            for one in candidates.iter_mut().filter(|one| one.free_bytes.is_none()) {
                let spec = &self.hosts.at(one.host).spec;
                one.free_bytes = devices.get(&(&spec.node, &spec.device)).and_then(|device| device.room());
            }
        }
        candidates
    }

    /// GPUs of hosts, by node and name.
    fn devices(&self) -> BTreeMap<(&'a String, &'a String), SharedDevice> {
        let mut devices: BTreeMap<(&String, &String), SharedDevice> = BTreeMap::new();
        for (host, record) in self.hosts.iter().enumerate() {
            let Some(GpuMemory { used, free }) = record.reported.gpu else { continue };
            let device = devices.entry((&record.spec.node, &record.spec.device)).or_default();
            let load = self.contexts.load(host);
            device.hosts += 1;
            (device.all, device.free) = (used.saturating_add(free), free);
            device.held = device.held.saturating_add(record.kv_bytes).saturating_add(record.idle_bytes);
            (device.placed, device.pinned) = (device.placed + load.kv_bytes, device.pinned + load.pinned_bytes);
        }
        devices
    }

    /// Hosts for `blocks` of a context now, or why there are none: of equal numerics, and where there are none such, any if
    /// that is allowed.
    pub fn find_hosts(&self, context: &Context, blocks: &[usize]) -> Result<Vec<usize>, PlacementRefusal> {
        let found = self.find_equals(context, blocks);
        if self.config.mixed_numerics == MixedNumerics::Mark
            && matches!(found, Err(PlacementRefusal::UnequalNumerics { .. }))
        {
            return self.find(context, blocks, place);
        }
        found
    }

    /// Hosts of equal numerics for `blocks` of a context now.
    pub fn find_equals(&self, context: &Context, blocks: &[usize]) -> Result<Vec<usize>, PlacementRefusal> {
        let numerics = self.wanted(context, blocks);
        self.find(context, blocks, |wanted, candidates| place_among_equals(wanted, candidates, numerics.as_deref()))
    }

    /// Hosts of equal numerics for `blocks` of a context now, of those that `fit`.
    pub fn find_among(
        &self,
        context: &Context,
        blocks: &[usize],
        fit: impl Fn(usize) -> bool,
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let numerics = self.wanted(context, blocks);
        let takes = |host| self.hosts.at(host).takes_work() && fit(host);
        let demands = demands_of(context, blocks);
        let mut candidates = self.candidates(context.prepared.model(), |load| load.kv_bytes, takes);
        self.note_held(&mut candidates, context, blocks);
        let policy = &context.prepared.placement;
        let wanted = Wanted { demands: &demands, policy, exchanges: exchange(context, blocks) };
        let found = place_among_equals(&wanted, &candidates, numerics.as_deref());
        found.map(|hosts| of_one_host(context, hosts))
    }

    /// Those that others could not reach are better than none.
    fn find(
        &self,
        context: &Context,
        blocks: &[usize],
        place: impl Fn(&Wanted, &[Candidate]) -> Result<Vec<usize>, PlacementRefusal>,
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let demands = demands_of(context, blocks);
        let policy = &context.prepared.placement;
        let wanted = Wanted { demands: &demands, policy, exchanges: exchange(context, blocks) };
        let find = |fit: &dyn Fn(usize) -> bool| {
            let takes = |host| self.hosts.at(host).takes_work() && fit(host);
            let mut candidates = self.with_room(context.prepared.model(), takes);
            self.note_detours(&mut candidates, context, blocks);
            self.note_held(&mut candidates, context, blocks);
            place(&wanted, &candidates).map(|hosts| of_one_host(context, hosts))
        };
        find(&|host| !context.avoid.contains(&host)).or_else(|_| find(&|_| true))
    }

    /// Notes how far hosts are from where `blocks` of a context would lie best: with what they pass something to, and not where
    /// whoever had them was lost.
    fn note_detours(&self, candidates: &mut [Candidate], context: &Context, blocks: &[usize]) {
        let places = context.places();
        let lost =
            |block: &usize| places.get(*block)?.lost_by.filter(|host| self.hosts.at(*host).health == HostHealth::Dead);
        let shaken: BTreeSet<FailureDomain> = blocks.iter().filter_map(lost).map(|host| self.domain(host)).collect();
        let others = places.iter().enumerate().filter(|(block, _)| !blocks.contains(block));
        let near: BTreeSet<&str> = match exchange(context, blocks) {
            true => others.filter_map(|(_, place)| island_of(&self.hosts.at(place.host?).spec.labels)).collect(),
            false => BTreeSet::new(),
        };
        if shaken.is_empty() && near.is_empty() {
            return;
        }
        for one in candidates {
            let is_far = !near.is_empty() && one.island().is_none_or(|island| !near.contains(island));
            one.detour = 2 * u8::from(is_far) + u8::from(shaken.contains(&one.domain()));
        }
    }

    /// Where shards go one by one, a host has all to do that it holds: it is asked for the keys of all of them.
    fn note_held(&self, candidates: &mut [Candidate], context: &Context, blocks: &[usize]) {
        if go_apart(context, blocks) {
            candidates.iter_mut().for_each(|one| one.busy = self.contexts.load(one.host).shards);
        }
    }

    /// What fails with a host.
    fn domain(&self, host: usize) -> FailureDomain<'a> {
        let spec = &self.hosts.at(host).spec;
        FailureDomain::of(&spec.labels, &spec.node)
    }

    /// What `blocks` of a context are to be encoded with: anything, where nothing else is left of it that they must fit.
    pub fn wanted(&self, context: &Context, blocks: &[usize]) -> Option<String> {
        let decodes = |number: &u64| self.jobs.get(*number).is_some_and(|job| job.numerics.is_some());
        let whole = blocks.len() == context.plan().shards.len();
        match whole && !self.jobs.of_context(context.number).iter().any(decodes) {
            true => None,
            false => context.numerics.clone(),
        }
    }

    /// Hosts for all shards of a context whose turn has come: those that hold the same already where they can take it, and what
    /// belongs to the same part of the plan beside it; the rest where there is room.
    pub fn find_homes(&self, lately: &RecentEncoders, context: &Context) -> Result<Vec<usize>, PlacementRefusal> {
        let known = self.known_homes(lately, context);
        let beside = co_located(context, &known);
        let kept = [beside, known].into_iter().filter(|homes| !homes.is_empty());
        let found = kept.into_iter().find_map(|homes| self.place_around(context, &homes));
        let all = || (0..context.plan().shards.len()).collect::<Vec<_>>();
        found.map_or_else(|| self.find_hosts(context, &all()), Ok)
    }

    /// Hosts that encoded some of its shards lately, all of equal numerics.
    fn known_homes(&self, lately: &RecentEncoders, context: &Context) -> BTreeMap<usize, usize> {
        let identities = context.prepared.identities.iter().enumerate().take(context.plan().shards.len());
        let is_slow = |host: usize| self.config.avoid_stragglers && self.hosts.at(host).pace.is_slow();
        let takes =
            |host: &usize| self.hosts.at(*host).takes_work() && !context.avoid.contains(host) && !is_slow(*host);
        let home = |(block, identity): (usize, &ShardIdentity)| Some((block, lately.find(identity).filter(takes)?));
        let mut homes: BTreeMap<usize, usize> = identities.filter_map(home).collect();
        if context.plan().is_chain() {
            // One host holds all: the one that has the beginning.
            let first = homes.first_key_value().map(|(_, host)| *host);
            homes.retain(|_, host| Some(*host) == first);
        }
        let numerics = homes.values().next().map(|host| self.hosts.at(*host).numerics.clone());
        homes.retain(|_, host| numerics.as_ref() == Some(&self.hosts.at(*host).numerics));
        homes
    }

    /// Hosts for all shards where some have theirs; none where that does not fit.
    fn place_around(&self, context: &Context, homes: &BTreeMap<usize, usize>) -> Option<Vec<usize>> {
        let (prepared, shards) = (&context.prepared, context.plan().shards.len());
        let numerics = &self.hosts.at(*homes.values().next()?).numerics;
        let fit = |host: usize| {
            let record = self.hosts.at(host);
            record.takes_work() && record.numerics == *numerics && !context.avoid.contains(&host)
        };
        let mut candidates = self.with_room(prepared.model(), fit);
        for (block, host) in homes {
            let home = candidates.iter_mut().find(|candidate| candidate.host == *host)?;
            let admitted = home.carries(&prepared.placement.labels);
            let left = home.free_bytes.map(|free| free.checked_sub(context.kv_bytes(*block)));
            home.free_bytes = match left {
                _ if !admitted => return None,
                Some(None) => return None,
                Some(left) => left,
                None => None,
            };
        }
        let rest: Vec<usize> = (0..shards).filter(|block| !homes.contains_key(block)).collect();
        let demands = demands(prepared, &context.reused, &rest);
        let exchanges = prepared.plan.exchange != Exchange::None;
        if exchanges {
            let near: BTreeSet<&str> =
                homes.values().filter_map(|host| island_of(&self.hosts.at(*host).spec.labels)).collect();
            let is_far = |one: &Candidate| !near.is_empty() && one.island().is_none_or(|island| !near.contains(island));
            candidates.iter_mut().for_each(|one| one.detour = u8::from(is_far(one)));
        }
        let wanted = Wanted { demands: &demands, policy: &prepared.placement, exchanges };
        let mut placed = place(&wanted, &candidates).ok()?;
        if context.plan().is_chain() {
            let first = *homes.values().next()?;
            let fits = candidates.iter().find(|candidate| candidate.host == first)?.free_bytes;
            let needed: u64 = demands.iter().map(|demand| demand.kv_bytes).sum();
            fits.is_none_or(|free| free >= needed).then_some(())?;
            placed = vec![first; rest.len()];
        }
        let rest: BTreeMap<usize, usize> = rest.into_iter().zip(placed).collect();
        (0..shards).map(|block| homes.get(&block).or_else(|| rest.get(&block)).copied()).collect()
    }

    /// Where a job is generated next.
    pub fn query_host(&self, number: u64) -> Choice {
        let Some(job) = self.jobs.get(number) else { return Choice::Nobody };
        let prepared = self.contexts.get(job.context).map(|context| &context.prepared);
        let named = prepared.and_then(|prepared| prepared.placement.query_host.as_ref());
        let able = |host: &usize| {
            let record = self.hosts.at(*host);
            prepared.is_none_or(|prepared| prepared.model() == record.spec.model()).then_some(())?;
            named.is_none_or(|named| *named == record.spec.name).then_some(())?;
            Some((record.rank(Role::Query, self.config.recovery).filter(|_| record.takes_work())?, *host))
        };
        let able: Vec<(u8, usize)> = (0..self.config.hosts.len()).filter_map(|host| able(&host)).collect();
        let is_equal = |host: usize| job.numerics.is_none() || self.hosts.at(host).numerics == job.numerics;
        let up = able.iter().any(|&(_, host)| is_equal(host));
        if !up && !able.is_empty() && self.config.mixed_numerics == MixedNumerics::Refuse {
            return Choice::NoEqual { up };
        }
        let generations = |host: usize| self.jobs.count_on(host);
        let most = self.config.max_generating * if self.jobs.generating_of(&job.key) == 0 { 2 } else { 1 };
        let takes = |(_, host): &&(u8, usize)| {
            (!up || is_equal(*host)) && generations(*host) < most && self.holds_generation(*host, job)
        };
        let order = |&&(rank, host): &&(u8, usize)| (job.avoid.contains(&host), rank, generations(host), host);
        let best = able.iter().filter(takes).min_by_key(order);
        // The one that had the session's last question, unless others of its kind have less to do by more than that counts for.
        let usual = self.contexts.get(job.context).and_then(|context| context.asked_at);
        let usual = able.iter().filter(takes).find(|one| {
            let is_alike = |best: &(u8, usize)| {
                let ((avoided, rank, load, _), (best_avoided, best_rank, least, _)) = (order(one), order(&best));
                (avoided, rank) == (best_avoided, best_rank) && load <= least + SESSION_SLACK
            };
            usual == Some(one.1) && best.is_some_and(is_alike)
        });
        match usual.or(best) {
            Some(&(_, host)) => Choice::Host(host),
            None if job.numerics.is_some() && up => Choice::NoEqual { up },
            None if named.is_some() => Choice::NotNow,
            None => Choice::Nobody,
        }
    }

    /// Whether a host's memory has room for what a job keeps there beside what others do. One alone is always tried.
    fn holds_generation(&self, host: usize, job: &Job) -> bool {
        let spec = &self.hosts.at(host).spec;
        let (others, own) = (self.jobs.tokens_on(host), job.own_tokens());
        let Some(limit) = spec.memory_limit.filter(|_| others > 0) else { return true };
        let each = self.contexts.get(job.context).map_or(0, |context| context.prepared.kv_bytes_per_token);
        let kept = others.saturating_add(own).saturating_mul(each);
        let held = spec.weight_bytes.saturating_add(self.contexts.load(host).kv_bytes);
        held.saturating_add(kept) <= limit
    }

    /// Why nobody goes on with a job, where only hosts of other numerics could.
    pub fn lacks_equal(&self, number: u64) -> Option<String> {
        let wanted = self.jobs.get(number)?.numerics.clone()?;
        let lacks = matches!(self.query_host(number), Choice::NoEqual { up: false });
        lacks.then(|| format!("its tokens were made on {wanted}, and no such query host is there"))
    }
}

/// What blocks ask of hosts; those that are reused take no room that is not taken already.
pub fn demands(prepared: &PreparedContext, reused: &BTreeSet<usize>, blocks: &[usize]) -> Vec<Demand> {
    let bytes = |block: usize| if reused.contains(&block) { 0 } else { prepared.kv_bytes(block) };
    // Blocks that see each other's keys go to one host: the first demands the room of all.
    let chained = prepared.plan.is_chain();
    let all = || blocks.iter().map(|block| bytes(*block)).sum();
    let demand = |(place, &block): (usize, &usize)| Demand {
        block,
        logical: prepared.plan.shards[block].host,
        kv_bytes: match (chained, place) {
            (true, 0) => all(),
            (true, _) => 0,
            (false, _) => bytes(block),
        },
    };
    blocks.iter().enumerate().map(demand).collect()
}

/// Whether `blocks` of a context pass each other something, or others: where only some of those behind a shared prefix are encoded, each
/// is for itself.
fn exchange(context: &Context, blocks: &[usize]) -> bool {
    let plan = context.plan();
    plan.exchange != Exchange::None && (!context.moves_alone() || blocks.len() == plan.shards.len())
}

/// Whether `blocks` of a context, which a host has lost or gives away, go one by one to where there is least: they pass each other
/// nothing, and others are held elsewhere.
fn go_apart(context: &Context, blocks: &[usize]) -> bool {
    let plan = context.plan();
    blocks.len() < plan.shards.len() && !plan.is_chain() && !exchange(context, blocks)
}

/// What `blocks` of a context ask of hosts now. What the plan deals to one host goes to one, if it can.
fn demands_of(context: &Context, blocks: &[usize]) -> Vec<Demand> {
    let mut demands = demands(&context.prepared, &context.reused, blocks);
    if go_apart(context, blocks) {
        demands.iter_mut().for_each(|demand| demand.logical = demand.block);
    }
    demands
}

/// Of a chain all go to the host of the first, which demanded the room of all.
fn of_one_host(context: &Context, mut hosts: Vec<usize>) -> Vec<usize> {
    if let Some(first) = hosts.first().copied().filter(|_| context.plan().is_chain()) {
        hosts.fill(first);
    }
    hosts
}

/// The same homes, and for what the plan deals to one host with a shard that has one the same.
fn co_located(context: &Context, homes: &BTreeMap<usize, usize>) -> BTreeMap<usize, usize> {
    let mut of_logical: BTreeMap<usize, usize> = BTreeMap::new();
    let shards = &context.plan().shards;
    for (block, host) in homes {
        of_logical.entry(shards[*block].host).or_insert(*host);
    }
    let home = |block: usize| {
        let sibling = || of_logical.get(&shards[block].host).copied();
        Some((block, homes.get(&block).copied().or_else(sibling)?))
    };
    (0..shards.len()).filter_map(home).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_are_a_few_plain_words() {
        assert!(check_numerics("cpu avx2 f32 0a1b2c3d").is_ok());
        for stated in ["", " ", "cpu\n", "cpü", &"x".repeat(NUMERICS_BYTES + 1)] {
            assert!(check_numerics(stated).is_err(), "{stated}");
        }
    }
}
