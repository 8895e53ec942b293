//! The context host's rules: which orders are under way and which shards are held. No I/O, no clock, no tensor.
//!
//! A shard is its context's and its block's, whichever attempt ordered it; only shards that pass each other something belong
//! to an attempt, since they need the others of that attempt. What is held is reported again, never encoded again.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use asterism_models::{ModelError, ShardIdentity, inputs_of};
use asterism_plan::{Exchange, KnownIds, Shard};

use crate::{
    context_host::{
        chain::{self, Attends},
        command::{ContextHostCommand, ContextHostEvent, EncodeWork, Failure},
        inventory::{KnownShard, ShardInventory},
    },
    cores::GpuMemory,
    messages::{ContextIds, EncodeShards, Encoded, HostCommand, HostMessage},
};

/// The part of a GPU's memory that idle shards leave free, and the part that they take at most, where no `memory_limit` says: an agent's
/// conversation of 200,000 tokens is held, of an 8B model on a GPU of 80 GB.
const GPU_RESERVE: u64 = 8;
const GPU_IDLE: u64 = 2;

/// Works that are under way at once, and as many again of keys for which nothing else is.
const MOST_UNDER_WAY: usize = 4;
/// Works of short orders that are, where those begin together: while two are, more gather.
const MOST_PACKS_UNDER_WAY: usize = 2;

/// The state.
#[derive(Default)]
pub struct ContextHostState {
    /// Rows of short orders that are encoded together, at most.
    pack_rows: usize,
    /// Contexts whose orders were encoded together with others in vain.
    alone: BTreeSet<u64>,
    /// In order of arrival.
    waiting: VecDeque<EncodeShards>,
    running: BTreeMap<u64, RunningEncode>,
    held: BTreeMap<(u64, u32), Encoded>,
    /// Of what is held, and of what is idle, what other contexts may have too.
    known: ShardInventory,
    /// Bytes that may be held, as the last order said.
    room: Option<u64>,
    /// Memory of its GPU, as it was seen last.
    gpu: Option<GpuMemory>,
    /// Latest attempts of contexts whose shards pass each other something, and how they failed.
    tied: BTreeMap<u64, (u32, Option<Failure>)>,
    /// Seconds of compute of contexts with orders.
    used: BTreeMap<u64, f64>,
    works: u64,
    /// Token ids by context.
    ids: BTreeMap<u64, KnownIds>,
}

struct RunningEncode {
    context: u64,
    tenant: u64,
    attempt: u32,
    /// The first of the works that it is encoded together with.
    pack: u64,
    /// What is taken up instead when it fails: its order alone where it is one of several, or to be encoded where it is fetched.
    instead: Option<Box<EncodeShards>>,
    blocks: BTreeSet<u32>,
    /// What its shards are, by block, where they may be found again.
    identities: Vec<(u32, ShardIdentity)>,
    /// Whether it needs parcels of others.
    tied: bool,
    /// Whether others could go together with it.
    is_short: bool,
    /// Tokens whose keys and values it will keep.
    kept_tokens: u64,
    /// Nobody wants what it encodes.
    abandoned: bool,
}

impl ContextHostState {
    /// Nothing held yet. Short orders are encoded together up to so many rows; 0: each alone.
    pub fn new(pack_rows: usize) -> Self {
        Self { pack_rows, ..Self::default() }
    }

    /// Applies one event.
    pub fn handle(&mut self, _now: Duration, event: ContextHostEvent) -> Vec<ContextHostCommand> {
        let mut commands = Vec::new();
        match event {
            ContextHostEvent::Command(HostCommand::Encode(order)) if order.exchange == Exchange::None => {
                self.take_independent(order, &mut commands);
            }
            ContextHostEvent::Command(HostCommand::Encode(order)) => self.take_tied(order, &mut commands),
            ContextHostEvent::Command(HostCommand::Ids(ids)) => self.learn(&ids),
            ContextHostEvent::Command(HostCommand::Release { context, keep }) => {
                self.release((context, keep), &mut commands);
            }
            ContextHostEvent::Command(_) => {}
            ContextHostEvent::Layer { work, block, layers, of } => {
                if let Some(RunningEncode { context, .. }) =
                    self.running.get(&work).filter(|running| !running.abandoned)
                {
                    commands.push(ContextHostCommand::Report(HostMessage::Progress {
                        context: *context,
                        block,
                        layers,
                        of,
                    }));
                }
            }
            ContextHostEvent::Encoded { work, encoded, used } => self.encoded(work, encoded, used, &mut commands),
            ContextHostEvent::Stopped { work, failure, used } => self.stopped(work, failure, used, &mut commands),
            ContextHostEvent::Beat => {}
        }
        self.admit(&mut commands);
        let room = self.room.or_else(|| self.gpu_room());
        let surplus = self.known.surplus(room, self.unknown_bytes());
        commands.extend(surplus.into_iter().map(|place| ContextHostCommand::Evict { place }));
        commands
    }

    /// The memory of its GPU is so from now on.
    pub fn see_gpu(&mut self, gpu: Option<GpuMemory>) {
        self.gpu = gpu;
    }

    /// Bytes that may be held where nobody says: what is held, and idle ones in a part of what the GPU has left.
    fn gpu_room(&self) -> Option<u64> {
        let GpuMemory { used, free } = self.gpu?;
        let (all, (held, idle)) = (used.saturating_add(free), self.kv_bytes());
        let left = idle.saturating_add(free).saturating_sub(all / GPU_RESERVE);
        Some(held.saturating_add(left.min(all / GPU_IDLE)))
    }

    /// Contexts that it holds shards of or encodes.
    pub fn contexts(&self) -> Vec<u64> {
        let running = self.running.values().filter(|running| !running.abandoned).map(|running| running.context);
        let waiting = self.waiting.iter().map(|order| order.context);
        let all: BTreeSet<u64> = self.held.keys().map(|(context, _)| *context).chain(running).chain(waiting).collect();
        all.into_iter().collect()
    }

    /// Bytes of KV held, those of several contexts once, and bytes that are idle.
    pub fn kv_bytes(&self) -> (u64, u64) {
        let others = self.held.iter().filter(|((context, block), _)| !self.known.has(*context, *block));
        let others: u64 = others.map(|(_, shard)| shard.kv_bytes).sum();
        (others + self.known.held_bytes(), self.known.idle_bytes())
    }

    /// Bytes held beside those that are known, or soon will be: about as much a token as others have.
    fn unknown_bytes(&self) -> u64 {
        let others = self.held.iter().filter(|((context, block), _)| !self.known.has(*context, *block));
        let others = others.map(|(_, shard)| shard.kv_bytes).fold(0, u64::saturating_add);
        let a_token = self.held.values().next().map_or(0, |shard| shard.kv_bytes.div_ceil(shard.kept_tokens.max(1)));
        let coming = self.running.values().map(|running| running.kept_tokens).fold(0, u64::saturating_add);
        others.saturating_add(coming.saturating_mul(a_token))
    }

    /// Those that do not add up are of no use: the order that needs them comes to nothing.
    fn learn(&mut self, ids: &ContextIds) {
        let known = self.ids.entry(ids.context).or_default();
        ids.parts().into_iter().flatten().for_each(|(start, ids)| known.learn(start, ids));
    }

    fn take_independent(&mut self, mut order: EncodeShards, commands: &mut Vec<ContextHostCommand>) {
        let (context, attempt) = (order.context, order.attempt);
        self.room = order.room;
        self.untie(context, attempt, commands);
        let identities = std::mem::take(&mut order.identities);
        order.shards.retain(|shard| {
            let block = shard.block as u32;
            if let Some(held) = self.held.get(&(context, block)) {
                commands.push(ContextHostCommand::Report(HostMessage::Encoded(held.clone())));
                return false;
            }
            let mut coming = false;
            let running = self.running.values_mut().filter(|running| !running.abandoned && running.context == context);
            for running in running.filter(|running| running.blocks.contains(&block)) {
                (running.attempt, coming) = (running.attempt.max(attempt), true);
            }
            let waiting = self.waiting.iter_mut().filter(|order| order.context == context);
            for order in waiting.filter(|order| order.shards.iter().any(|other| other.block == shard.block)) {
                (order.attempt, coming) = (order.attempt.max(attempt), true);
            }
            !coming && !self.find_known((context, &identities), shard, commands)
        });
        order.identities = identities;
        if !order.shards.is_empty() {
            self.waiting.push_back(order);
        }
    }

    /// Whether a shard lies here already: its context has it then.
    fn find_known(
        &mut self,
        (context, identities): (u64, &[(u32, ShardIdentity)]),
        shard: &Shard,
        commands: &mut Vec<ContextHostCommand>,
    ) -> bool {
        let Some((_, identity)) = identities.iter().find(|(block, _)| *block as usize == shard.block) else {
            return false;
        };
        let Some(Ok(input)) = self.ids.get(&context).map(|ids| shard.input(ids)) else { return false };
        let Some((found, encoded)) = self.known.take(context, identity, shard.digest(&input)) else { return false };
        commands.push(match found {
            KnownShard::Held { context: from } => ContextHostCommand::Share { from, context, block: encoded.block },
            KnownShard::Idle { place } => ContextHostCommand::TakeUp { place, context },
        });
        self.held.insert((context, encoded.block), encoded.clone());
        commands.push(ContextHostCommand::Report(HostMessage::Encoded(encoded)));
        true
    }

    /// Shards ordered alone are to be encoded alone: an earlier attempt at them may wait for parcels that nobody sends.
    fn untie(&mut self, context: u64, attempt: u32, commands: &mut Vec<ContextHostCommand>) {
        let tied = |order: &EncodeShards| order.exchange != Exchange::None;
        self.waiting.retain(|order| order.context != context || order.attempt >= attempt || !tied(order));
        let earlier = |running: &RunningEncode| running.context == context && running.attempt < attempt && running.tied;
        for (work, running) in self.running.iter_mut().filter(|(_, running)| earlier(running)) {
            if !std::mem::replace(&mut running.abandoned, true) {
                commands.push(ContextHostCommand::Stop { work: *work });
            }
        }
    }

    fn take_tied(&mut self, order: EncodeShards, commands: &mut Vec<ContextHostCommand>) {
        let (context, attempt) = (order.context, order.attempt);
        match self.tied.get(&context) {
            Some((latest, _)) if attempt < *latest => return,
            Some((latest, failure)) if attempt == *latest => {
                let held = self.held.range((context, 0)..=(context, u32::MAX)).map(|(_, shard)| shard);
                commands.extend(held.map(|shard| ContextHostCommand::Report(HostMessage::Encoded(shard.clone()))));
                commands.extend(failure.clone().map(|failure| not_encoded(context, attempt, failure)));
                return;
            }
            _ => {}
        }
        self.room = order.room;
        self.abandon(context, commands);
        // What an earlier attempt was passed may have been wrong.
        if self.drop_held((context, false), commands) {
            commands.push(ContextHostCommand::Free { context });
        }
        self.tied.insert(context, (attempt, None));
        commands.push(ContextHostCommand::Expect { context, attempt });
        self.waiting.push_back(order);
    }

    fn release(&mut self, (context, keep): (u64, bool), commands: &mut Vec<ContextHostCommand>) {
        self.abandon(context, commands);
        self.drop_held((context, keep), commands);
        self.tied.remove(&context);
        self.used.remove(&context);
        self.alone.remove(&context);
        self.ids.remove(&context);
        commands.push(ContextHostCommand::Forget { context });
    }

    /// What is under way or waits for a context comes to nothing.
    fn abandon(&mut self, context: u64, commands: &mut Vec<ContextHostCommand>) {
        self.waiting.retain(|order| order.context != context);
        for (work, running) in self.running.iter_mut().filter(|(_, running)| running.context == context) {
            if !std::mem::replace(&mut running.abandoned, true) {
                commands.push(ContextHostCommand::Stop { work: *work });
            }
        }
    }

    /// Whether there was something. What others may ask for again is laid aside.
    fn drop_held(&mut self, (context, keep): (u64, bool), commands: &mut Vec<ContextHostCommand>) -> bool {
        let idle = if keep { self.known.leave(context) } else { Vec::new() };
        self.known.forget(context);
        let idle = idle.into_iter();
        commands.extend(idle.map(|(place, block)| ContextHostCommand::LayIdle { context, block, place }));
        let before = self.held.len();
        self.held.retain(|(held, _), _| *held != context);
        self.held.len() < before
    }

    fn encoded(&mut self, work: u64, encoded: Vec<Encoded>, used: f64, commands: &mut Vec<ContextHostCommand>) {
        let Some(RunningEncode { context, identities, abandoned: false, .. }) = self.ended(work, used) else {
            return commands.push(ContextHostCommand::Discard { work });
        };
        commands.push(ContextHostCommand::Keep { work, context });
        for stated in &encoded {
            let identity = identities.iter().find(|(block, _)| *block == stated.block);
            identity.into_iter().for_each(|(_, identity)| self.known.add(*identity, stated.clone()));
        }
        for shard in encoded {
            self.held.insert((context, shard.block), shard.clone());
            commands.push(ContextHostCommand::Report(HostMessage::Encoded(shard)));
        }
    }

    fn stopped(&mut self, work: u64, failure: Option<Failure>, used: f64, commands: &mut Vec<ContextHostCommand>) {
        let ended = self.ended(work, used);
        let Some(RunningEncode { context, attempt, instead, abandoned: false, .. }) = ended else { return };
        let Some(mut failure) = failure else { return };
        if failure.crowded {
            failure.peer_lost |= self.make_way(commands);
        }
        if let Some(order) = instead {
            // What failed may be another's, or that all of them found no room.
            self.alone.insert(context);
            *self.used.entry(context).or_default() += used;
            return self.waiting.push_front(EncodeShards { attempt, ..*order });
        }
        // The message names the attempt alone: whatever waits of it comes to nothing too.
        self.waiting.retain(|order| order.context != context || order.attempt > attempt);
        if let Some(tied) = self.tied.get_mut(&context) {
            tied.1 = Some(failure.clone());
        }
        commands.push(not_encoded(context, attempt, failure));
    }

    /// Whether there will be room where the device was full: idle shards go at once, and what is under way ends.
    fn make_way(&mut self, commands: &mut Vec<ContextHostCommand>) -> bool {
        let idle = self.known.surplus(Some(0), 0);
        let will_be = !idle.is_empty() || !self.running.is_empty();
        commands.extend(idle.into_iter().map(|place| ContextHostCommand::Evict { place }));
        will_be
    }

    /// What an order reads is not here.
    fn fail(&mut self, order: &EncodeShards, error: &ModelError, commands: &mut Vec<ContextHostCommand>) {
        let (code, message) = (error.code().to_string(), error.to_string());
        let failure = Failure { peer_lost: false, crowded: false, code, message };
        if let Some(tied) = self.tied.get_mut(&order.context) {
            tied.1 = Some(failure.clone());
        }
        commands.push(not_encoded(order.context, order.attempt, failure));
    }

    fn ended(&mut self, work: u64, used: f64) -> Option<RunningEncode> {
        let running = self.running.remove(&work)?;
        if self.waiting.iter().any(|order| order.context == running.context) {
            *self.used.entry(running.context).or_default() += used;
        } else {
            self.used.remove(&running.context);
        }
        Some(running)
    }

    /// Starts what waits, one order a context: however many shards a long context has here, another one gets its turn. Short ones
    /// begin together.
    fn admit(&mut self, commands: &mut Vec<ContextHostCommand>) {
        while let Some(order) = self.next_waiting().and_then(|at| self.waiting.remove(at)) {
            let (pack, weight, is_short) = (self.works, chain::weight(&order), self.may_share(&order));
            let mut beside = Beside {
                rows: if is_short { self.pack_rows.saturating_sub(weight) } else { 0 },
                kind: Attends::of(&order),
            };
            let mut works: Vec<EncodeWork> = self.begin(order, pack, commands).into_iter().collect();
            while !works.is_empty()
                && let Some(order) = self.next_beside(beside).and_then(|at| self.waiting.remove(at))
            {
                beside = beside.and(&order);
                works.extend(self.begin(order, pack, commands));
            }
            self.part_broken(&mut works, commands);
            if works.len() > 1 {
                for EncodeWork { work, order, .. } in &works {
                    let running = self.running.get_mut(work).expect("it has just begun");
                    running.instead = Some(Box::new(order.clone()));
                }
            }
            match works.pop_if(|work| is_held_elsewhere(&work.order)) {
                Some(work) => commands.push(self.fetch(work)),
                None if works.is_empty() => {}
                None => commands.push(ContextHostCommand::Encode(works)),
            }
        }
    }

    /// A work whose shards another host holds: where they do not come, they are encoded.
    fn fetch(&mut self, work: EncodeWork) -> ContextHostCommand {
        let running = self.running.get_mut(&work.work).expect("it has just begun");
        running.instead = Some(Box::new(EncodeShards { peers: Vec::new(), ..work.order.clone() }));
        ContextHostCommand::Fetch(work)
    }

    /// The order that begins next: of the key for which the fewest are under way, the one that came first. Beyond the room for all
    /// there is as much again for keys for which none is. Short orders gather while others are under way, but for those of such keys.
    fn next_waiting(&self) -> Option<usize> {
        let packs: BTreeSet<u64> = self.running.values().map(|running| running.pack).collect();
        let of_key = |order: &EncodeShards| self.running.values().filter(|other| other.tenant == order.tenant).count();
        let short = self.running.values().filter(|running| running.is_short).map(|running| running.pack);
        let gathers = short.collect::<BTreeSet<u64>>().len() >= MOST_PACKS_UNDER_WAY;
        let may_begin = |order: &EncodeShards, running| {
            self.is_idle(order.context) && !(gathers && running > 0 && self.is_short(order))
        };
        let waiting = self.waiting.iter().enumerate().map(|(at, order)| (of_key(order), at, order));
        let (running, at, _) = waiting
            .filter(|(running, _, order)| may_begin(order, *running))
            .min_by_key(|(running, at, _)| (*running, *at))?;
        let has_place = packs.len() < MOST_UNDER_WAY || (running == 0 && packs.len() < 2 * MOST_UNDER_WAY);
        has_place.then_some(at)
    }

    /// The first order that is encoded together with others.
    fn next_beside(&self, beside: Beside) -> Option<usize> {
        let fits = |order: &EncodeShards| beside.takes(order) && self.may_share(order) && self.is_idle(order.context);
        self.waiting.iter().position(fits)
    }

    /// Of works that were to go together, those go alone of which shards in the middle were found.
    fn part_broken(&mut self, works: &mut Vec<EncodeWork>, commands: &mut Vec<ContextHostCommand>) {
        if works.len() < 2 {
            return;
        }
        for work in works.extract_if(.., |work| !chain::may_go_together(&work.order)) {
            self.running.get_mut(&work.work).expect("it has just begun").pack = work.work;
            commands.push(ContextHostCommand::Encode(vec![work]));
        }
        if let Some(pack) = works.first().map(|work| work.work) {
            for work in works {
                self.running.get_mut(&work.work).expect("it has just begun").pack = pack;
            }
        }
    }

    fn may_share(&self, order: &EncodeShards) -> bool {
        order.exchange == Exchange::None
            && order.peers.is_empty()
            && chain::may_go_together(order)
            && !self.alone.contains(&order.context)
    }

    /// Whether others could go together with an order.
    fn is_short(&self, order: &EncodeShards) -> bool {
        chain::weight(order) <= self.pack_rows && self.may_share(order)
    }

    fn is_idle(&self, context: u64) -> bool {
        self.running.values().all(|running| running.context != context)
    }

    /// What is left of an order becomes a work, of those that begin together; none where nothing is left, or it cannot be.
    fn begin(
        &mut self,
        mut order: EncodeShards,
        pack: u64,
        commands: &mut Vec<ContextHostCommand>,
    ) -> Option<EncodeWork> {
        if order.exchange == Exchange::None {
            // Another context may have encoded the same meanwhile.
            let of = (order.context, &order.identities[..]);
            order.shards.retain(|shard| !self.find_known(of, shard, commands));
            if order.shards.is_empty() {
                return None;
            }
        }
        let (work, context, tenant, attempt) = (self.works, order.context, order.tenant, order.attempt);
        let is_short = self.is_short(&order);
        let inputs = match inputs_of(&order.shards, self.ids.get(&context).unwrap_or(&KnownIds::default())) {
            Ok(inputs) => inputs,
            Err(error) => {
                self.fail(&order, &error, commands);
                return None;
            }
        };
        self.alone.remove(&context);
        let blocks = order.shards.iter().map(|shard| shard.block as u32).collect();
        self.works += 1;
        let (identities, tied) = (order.identities.clone(), order.exchange != Exchange::None);
        let kept_tokens = order.shards.iter().map(|shard| shard.kept_tokens() as u64).sum();
        let (instead, abandoned) = (None, false);
        let running = RunningEncode {
            context,
            tenant,
            attempt,
            pack,
            instead,
            blocks,
            identities,
            tied,
            is_short,
            kept_tokens,
            abandoned,
        };
        self.running.insert(work, running);
        let used = self.used.get(&context).copied().unwrap_or(0.0);
        Some(EncodeWork { work, used, order, inputs })
    }
}

/// What may go together with orders that begin.
#[derive(Clone, Copy)]
struct Beside {
    /// Rows that are left.
    rows: usize,
    /// How those attend that begin; plainly where all do.
    kind: Attends,
}

impl Beside {
    fn takes(self, order: &EncodeShards) -> bool {
        chain::weight(order) <= self.rows && self.kind.goes_with(Attends::of(order))
    }

    /// What may once an order does that it takes.
    fn and(self, order: &EncodeShards) -> Self {
        let kind = if self.kind == Attends::Plainly { Attends::of(order) } else { self.kind };
        Self { rows: self.rows - chain::weight(order), kind }
    }
}

/// Whether another host holds the shards of an order.
fn is_held_elsewhere(order: &EncodeShards) -> bool {
    order.exchange == Exchange::None && !order.peers.is_empty()
}

fn not_encoded(context: u64, attempt: u32, failure: Failure) -> ContextHostCommand {
    let Failure { peer_lost, code, message, .. } = failure;
    ContextHostCommand::Report(HostMessage::NotEncoded { context, attempt, peer_lost, code, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use asterism_plan::{Input, LocalAttention, Shard, Span, attention::Stripes};

    use crate::messages::ShardHolder;

    fn order(context: u64, attempt: u32, blocks: &[usize], exchange: Exchange) -> EncodeShards {
        let shard = |block| Shard {
            block,
            host: 0,
            prefix: Vec::new(),
            own: Span { start: 0, tokens: 2, position: 0 },
            keeps_prefix: false,
            apart_rows: 0,
            behind: 0,
            attention: LocalAttention::Causal,
            rope_length: 0,
        };
        let shards = blocks.iter().copied().map(shard).collect();
        let (peers, ticket, room) = Default::default();
        let identities = blocks.iter().map(|block| (*block as u32, [*block as u8; 32])).collect();
        EncodeShards {
            context,
            tenant: 0,
            attempt,
            shards,
            blocks: 8,
            exchange,
            peers,
            ticket,
            room,
            trace: None,
            identities,
        }
    }

    fn report(context: u64, block: u32) -> Encoded {
        Encoded { context, block, digest: 5, kept_tokens: 2, kv_bytes: 8, seconds: 0.1, pairs: 3, ..Encoded::default() }
    }

    fn reported(context: u64, block: u32) -> ContextHostCommand {
        ContextHostCommand::Report(HostMessage::Encoded(report(context, block)))
    }

    struct Host(ContextHostState);

    impl Host {
        fn new() -> Self {
            Self(ContextHostState::default())
        }

        /// Before an order come the ids that it reads.
        fn hears(&mut self, command: HostCommand) -> Vec<ContextHostCommand> {
            if let HostCommand::Encode(EncodeShards { context, .. }) = &command {
                let ids = ContextIds::of(*context, &[1, 2], std::iter::once(0..2)).remove(0);
                self.0.handle(Duration::ZERO, ContextHostEvent::Command(HostCommand::Ids(ids)));
            }
            self.0.handle(Duration::ZERO, ContextHostEvent::Command(command))
        }

        fn alone(&mut self, context: u64, attempt: u32, block: usize) -> Vec<ContextHostCommand> {
            self.hears(HostCommand::Encode(order(context, attempt, &[block], Exchange::None)))
        }

        fn ring(&mut self, context: u64, attempt: u32) -> Vec<ContextHostCommand> {
            self.hears(HostCommand::Encode(order(context, attempt, &[1], Exchange::Broadcast)))
        }

        fn encoded(&mut self, work: u64, context: u64, block: u32) -> Vec<ContextHostCommand> {
            let encoded = vec![report(context, block)];
            self.0.handle(Duration::ZERO, ContextHostEvent::Encoded { work, encoded, used: 1.5 })
        }

        fn failed(&mut self, work: u64) -> Vec<ContextHostCommand> {
            let failure = Failure { peer_lost: true, crowded: false, code: "host_lost".into(), message: "no".into() };
            self.0.handle(Duration::ZERO, ContextHostEvent::Stopped { work, failure: Some(failure), used: 0.5 })
        }

        fn stopped(&mut self, work: u64) -> Vec<ContextHostCommand> {
            self.0.handle(Duration::ZERO, ContextHostEvent::Stopped { work, failure: None, used: 0.5 })
        }
    }

    fn part(work: u64, used: f64, order: EncodeShards) -> EncodeWork {
        let inputs = vec![Input { ids: vec![1, 2], positions: vec![0, 1], behind: vec![] }; order.shards.len()];
        EncodeWork { work, used, order, inputs }
    }

    fn work(work: u64, used: f64, order: EncodeShards) -> ContextHostCommand {
        ContextHostCommand::Encode(vec![part(work, used, order)])
    }

    fn not_encoded_of(commands: &[ContextHostCommand]) -> Vec<(u64, u32)> {
        let reported = commands.iter().filter_map(|command| match command {
            ContextHostCommand::Report(HostMessage::NotEncoded { context, attempt, .. }) => Some((*context, *attempt)),
            _ => None,
        });
        reported.collect()
    }

    #[test]
    fn one_order_a_context_and_four_contexts_are_under_way() {
        let mut host = Host::new();
        let alone = |context, block| order(context, 1, &[block], Exchange::None);
        assert_eq!(host.alone(1, 1, 0), [work(0, 0.0, alone(1, 0))]);
        assert_eq!(host.alone(1, 1, 1), []);
        for context in 2..=4 {
            assert_eq!(host.alone(context, 1, 0), [work(context - 1, 0.0, alone(context, 0))]);
        }
        assert_eq!(host.alone(5, 1, 0), []);
        let next = work(4, 1.5, alone(1, 1));
        assert_eq!(host.encoded(0, 1, 0), [ContextHostCommand::Keep { work: 0, context: 1 }, reported(1, 0), next]);
        assert_eq!((host.0.contexts(), host.0.kv_bytes()), (vec![1, 2, 3, 4, 5], (8, 0)));
    }

    #[test]
    fn a_key_with_nothing_under_way_does_not_wait_for_what_another_asked_for() {
        let mut host = Host::new();
        let of = |context, tenant| EncodeShards {
            tenant,
            identities: Vec::new(),
            ..order(context, 1, &[0], Exchange::None)
        };
        (1..=9).for_each(|context| drop(host.hears(HostCommand::Encode(of(context, 7)))));
        assert_eq!(host.hears(HostCommand::Encode(of(10, 8))), [work(4, 0.0, of(10, 8))]);
        assert_eq!(host.hears(HostCommand::Encode(of(11, 8))), [], "it has one under way");
        // Of the key with the fewest under way, though others came before.
        host.encoded(0, 1, 0);
        assert_eq!(host.encoded(1, 2, 0)[2..], [work(5, 0.0, of(11, 8))]);
    }

    #[test]
    fn short_orders_that_wait_are_encoded_together_and_one_by_one_when_that_fails() {
        let mut host = Host(ContextHostState::new(6));
        let of = |context, blocks: &[usize]| EncodeShards {
            identities: Vec::new(),
            ..order(context, 1, blocks, Exchange::None)
        };
        (1..=2).for_each(|context| drop(host.alone(context, 1, 0)));
        // Two rows each: the sixth has more than fit, so that it gathers no others, and the eighth more than are left.
        let mut hears = |context, blocks: &[usize]| host.hears(HostCommand::Encode(of(context, blocks)));
        assert_eq!(hears(5, &[0]), []);
        assert_eq!(hears(6, &[0, 1, 2, 3]), [work(2, 0.0, of(6, &[0, 1, 2, 3]))]);
        assert_eq!((hears(7, &[0, 1]), hears(8, &[0])), (vec![], vec![]));
        let together = vec![part(3, 0.0, of(5, &[0])), part(4, 0.0, of(7, &[0, 1]))];
        assert_eq!(host.encoded(0, 1, 0)[2..], [ContextHostCommand::Encode(together)]);
        assert_eq!(host.encoded(1, 2, 0)[2..], [work(5, 0.0, of(8, &[0]))]);
        // One of them is wanted no more: the others go on.
        assert_eq!(
            host.hears(HostCommand::Release { context: 5, keep: true }),
            [ContextHostCommand::Stop { work: 3 }, ContextHostCommand::Forget { context: 5 }]
        );
        let (stopped, failed) = (host.stopped(3), host.failed(4));
        assert_eq!(stopped, []);
        assert_eq!(failed, [work(6, 0.5, of(7, &[0, 1]))], "alone, and nobody is told");
        assert_eq!(not_encoded_of(&host.failed(6)), [(7, 1)]);
    }

    /// Shards of a chain, of blocks of two tokens.
    fn chained(context: u64, blocks: &[usize]) -> EncodeShards {
        let mut order = order(context, 1, blocks, Exchange::None);
        order.shards.iter_mut().for_each(|shard| shard.behind = 2 * shard.block);
        order
    }

    /// What a host begins that knows the ids of a chain's context: of each pass the contexts, with their blocks.
    fn begun(host: &mut Host, order: EncodeShards) -> Vec<Vec<(u64, Vec<usize>)>> {
        let ids = ContextIds::of(order.context, &[1; 64], std::iter::once(0..64)).remove(0);
        host.0.handle(Duration::ZERO, ContextHostEvent::Command(HostCommand::Ids(ids)));
        passes(&host.0.handle(Duration::ZERO, ContextHostEvent::Command(HostCommand::Encode(order))))
    }

    fn passes(commands: &[ContextHostCommand]) -> Vec<Vec<(u64, Vec<usize>)>> {
        let blocks =
            |work: &EncodeWork| (work.order.context, work.order.shards.iter().map(|shard| shard.block).collect());
        let works = commands.iter().filter_map(|command| match command {
            ContextHostCommand::Encode(works) => Some(works.iter().map(blocks).collect()),
            _ => None,
        });
        works.collect()
    }

    #[test]
    fn chains_begin_together_with_what_attends_as_their_first_shards_do() {
        let mut host = Host(ContextHostState::new(20));
        let anew = |order| EncodeShards { identities: Vec::new(), ..order };
        let mut other = order(5, 1, &[0], Exchange::None);
        other.shards[0].attention = LocalAttention::Stripes(Stripes::default());
        let mut long = chained(7, &[1]);
        long.shards[0].behind = 1 << 20;
        assert!(!host.0.is_short(&long), "two rows that see as much as a hundred");
        assert!(!chain::may_go_together(&chained(4, &[1, 3])));
        assert_eq!(Attends::of(&other), Attends::Otherwise);
        (1..=2).for_each(|context| drop(host.alone(context, 1, 0)));
        let waits = [chained(3, &[1, 2]), other, order(6, 1, &[0], Exchange::None), chained(8, &[0, 1])];
        waits.into_iter().for_each(|order| assert!(begun(&mut host, anew(order)).is_empty()));
        let gaps = begun(&mut host, anew(chained(4, &[1, 3])));
        assert_eq!(gaps, [[(4, vec![1, 3])]], "what cannot go with others does not wait for them");
        let first = passes(&host.encoded(0, 1, 0));
        assert_eq!(first, [[(3, vec![1, 2]), (6, vec![0]), (8, vec![0, 1])]]);
        assert_eq!(passes(&host.encoded(1, 2, 0)), [[(5, vec![0])]]);
    }

    #[test]
    fn a_chain_of_which_a_shard_in_the_middle_is_found_goes_alone() {
        let mut host = Host(ContextHostState::new(20));
        begun(&mut host, chained(1, &[1]));
        begun(&mut host, chained(2, &[9]));
        for waits in [chained(3, &[0, 1, 2]), chained(4, &[3, 4])] {
            assert!(begun(&mut host, waits).is_empty());
        }
        assert_eq!(passes(&host.encoded(0, 1, 1)), [[(3, vec![0, 2])], [(4, vec![3, 4])]]);
        let packs: BTreeSet<u64> = host.0.running.values().map(|running| running.pack).collect();
        assert_eq!(packs.len(), 3, "each goes alone, beside the one that was under way");
    }

    #[test]
    fn a_shard_ordered_alone_waits_for_no_parcels_of_an_earlier_attempt() {
        let mut host = Host::new();
        host.ring(1, 1);
        assert_eq!(host.alone(1, 2, 1), [ContextHostCommand::Stop { work: 0 }]);
        assert_eq!(host.alone(1, 2, 1), [], "the order again");
        assert_eq!(host.stopped(0), [work(1, 0.5, order(1, 2, &[1], Exchange::None))]);
    }

    #[test]
    fn a_shard_held_is_reported_again_and_one_under_way_not_begun_anew() {
        let mut host = Host::new();
        host.alone(1, 1, 0);
        host.alone(1, 1, 1);
        assert_eq!(host.alone(1, 2, 0), []);
        assert_eq!(host.alone(1, 2, 1), []);
        host.encoded(0, 1, 0);
        assert_eq!(host.alone(1, 3, 0), [reported(1, 0)]);
        // The order was repeated under a later attempt: that one failed.
        assert_eq!(not_encoded_of(&host.failed(1)), [(1, 2)]);
        // It may be ordered once more.
        assert_eq!(host.alone(1, 2, 1), [work(2, 0.0, order(1, 2, &[1], Exchange::None))]);
    }

    #[test]
    fn a_later_attempt_ends_an_earlier_one_whose_shards_pass_each_other_something() {
        let mut host = Host::new();
        let ring = |attempt| order(1, attempt, &[1], Exchange::Broadcast);
        let expect = |attempt| ContextHostCommand::Expect { context: 1, attempt };
        assert_eq!(host.ring(1, 1), [expect(1), work(0, 0.0, ring(1))]);
        assert_eq!(host.ring(1, 1), []);
        assert_eq!(host.ring(1, 3), [ContextHostCommand::Stop { work: 0 }, expect(3)]);
        assert_eq!(host.ring(1, 2), [], "an order that was overtaken");
        // Its error is nobody's concern any more.
        assert_eq!(host.failed(0), [work(1, 0.5, ring(3))]);
        assert_eq!(host.encoded(1, 1, 1), [ContextHostCommand::Keep { work: 1, context: 1 }, reported(1, 1)]);
        assert_eq!(host.ring(1, 3), [reported(1, 1)]);
        assert_eq!(host.ring(1, 4), [ContextHostCommand::Free { context: 1 }, expect(4), work(2, 0.0, ring(4))]);
        assert_eq!(not_encoded_of(&host.failed(2)), [(1, 4)]);
        assert_eq!(not_encoded_of(&host.ring(1, 4)), [(1, 4)], "said again");
    }

    #[test]
    fn a_release_stops_what_is_under_way_and_keeps_nothing() {
        let mut host = Host::new();
        host.alone(1, 1, 0);
        host.alone(1, 1, 1);
        let released = host.hears(HostCommand::Release { context: 1, keep: true });
        assert_eq!(released, [ContextHostCommand::Stop { work: 0 }, ContextHostCommand::Forget { context: 1 }]);
        assert!(host.0.contexts().is_empty());
        // Ordered again while the encoder has not stopped yet: its shard comes all the same and must not stay.
        assert_eq!(host.alone(1, 2, 0), []);
        let again = work(1, 1.5, order(1, 2, &[0], Exchange::None));
        assert_eq!(host.encoded(0, 1, 0), [ContextHostCommand::Discard { work: 0 }, again]);
        host.hears(HostCommand::Release { context: 1, keep: true });
        assert_eq!(host.stopped(1), []);
        assert_eq!(host.0.kv_bytes(), (0, 0));
    }

    /// The report of a shard that was encoded from what it was to read.
    fn read_well(context: u64, block: u32) -> Encoded {
        let shard = order(context, 1, &[block as usize], Exchange::None).shards.remove(0);
        let mut known = KnownIds::default();
        known.learn(0, &[1, 2]);
        Encoded { digest: shard.digest(&shard.input(&known).expect("ids")), ..report(context, block) }
    }

    #[test]
    fn what_another_context_holds_or_held_is_not_encoded_again() {
        let mut host = Host::new();
        host.alone(1, 1, 0);
        assert_eq!(host.alone(2, 1, 0), [work(1, 0.0, order(2, 1, &[0], Exchange::None))], "nobody has it yet");
        host.0.handle(Duration::ZERO, ContextHostEvent::Encoded { work: 0, encoded: vec![read_well(1, 0)], used: 1.5 });
        let cached = |context| {
            let (seconds, pairs, cached) = (0.0, 0, true);
            let stated = Encoded { seconds, pairs, cached, ..read_well(context, 0) };
            ContextHostCommand::Report(HostMessage::Encoded(stated))
        };
        assert_eq!(host.alone(3, 1, 0), [ContextHostCommand::Share { from: 1, context: 3, block: 0 }, cached(3)]);
        assert_eq!(host.alone(3, 2, 0), [cached(3)], "said again");
        assert_eq!(host.0.kv_bytes(), (8, 0), "held once");
        assert_eq!(
            host.hears(HostCommand::Release { context: 1, keep: true }),
            [ContextHostCommand::Forget { context: 1 }]
        );
        let [ContextHostCommand::LayIdle { context: 3, block: 0, place }, ContextHostCommand::Forget { context: 3 }] =
            host.hears(HostCommand::Release { context: 3, keep: true })[..]
        else {
            panic!("nobody asks for it any more")
        };
        assert_eq!(host.0.kv_bytes(), (0, 8));
        assert_eq!(host.alone(4, 1, 0), [ContextHostCommand::TakeUp { place, context: 4 }, cached(4)]);
        // No room for anything that is not held.
        host.hears(HostCommand::Release { context: 4, keep: true });
        let order = EncodeShards { room: Some(0), ..order(5, 1, &[1], Exchange::None) };
        assert!(host.hears(HostCommand::Encode(order)).contains(&ContextHostCommand::Evict { place }));
    }

    #[test]
    fn idle_shards_take_a_part_of_what_a_gpu_has_left() {
        let mut host = Host::new();
        host.alone(1, 1, 0);
        host.encoded(0, 1, 0);
        let idle = |host: &mut Host, free| {
            host.0.see_gpu(Some(GpuMemory { used: 80 - free, free }));
            host.hears(HostCommand::Release { context: 1, keep: true });
            host.0.kv_bytes().1
        };
        assert_eq!(idle(&mut host, 40), 8);
        assert_eq!(idle(&mut host, 10), 8, "what is idle would be free without it");
        assert_eq!(idle(&mut host, 1), 0, "the rest is for what is asked about");
        host.alone(2, 1, 1);
        host.encoded(1, 2, 1);
        host.0.see_gpu(Some(GpuMemory { used: 40, free: 40 }));
        host.hears(HostCommand::Release { context: 2, keep: true });
        let beat = |host: &mut Host, free| {
            host.0.see_gpu(Some(GpuMemory { used: 80 - free, free }));
            host.0.handle(Duration::ZERO, ContextHostEvent::Beat)
        };
        assert_eq!(beat(&mut host, 40), []);
        assert!(matches!(beat(&mut host, 1)[..], [ContextHostCommand::Evict { .. }]), "another host takes the memory");
    }

    #[test]
    fn what_found_no_room_is_tried_again_where_there_will_be_some() {
        let mut host = Host::new();
        let crowded = |host: &mut Host, work| {
            let (code, message) = ("kernel".to_owned(), "shards do not fit on the device".to_owned());
            let failure = Some(Failure { peer_lost: false, crowded: true, code, message });
            let commands = host.0.handle(Duration::ZERO, ContextHostEvent::Stopped { work, failure, used: 0.5 });
            let again = commands.iter().find_map(|command| match command {
                ContextHostCommand::Report(HostMessage::NotEncoded { peer_lost, .. }) => Some(*peer_lost),
                _ => None,
            });
            (again.expect("it is reported"), commands)
        };
        host.alone(1, 1, 0);
        assert!(!crowded(&mut host, 0).0, "a device that holds nothing else has no more room later");
        host.alone(2, 1, 0);
        host.alone(3, 1, 0);
        assert!(crowded(&mut host, 1).0, "the other's memory is free soon");
        host.encoded(2, 3, 0);
        let commands = host.hears(HostCommand::Release { context: 3, keep: true });
        let [ContextHostCommand::LayIdle { place, .. }, ..] = commands[..] else { panic!("{commands:?}") };
        host.alone(4, 1, 1);
        let (again, commands) = crowded(&mut host, 3);
        assert!(again && commands.contains(&ContextHostCommand::Evict { place }), "{commands:?}");
    }

    #[test]
    fn what_may_be_wrong_is_not_found_again() {
        let mut host = Host::new();
        for (context, keep) in [(1, true), (2, false)] {
            host.alone(context, 1, 0);
            host.0.handle(
                Duration::ZERO,
                ContextHostEvent::Encoded { work: context - 1, encoded: vec![read_well(context, 0)], used: 1.5 },
            );
            host.hears(HostCommand::Release { context, keep });
        }
        // The first was found for the second, which was doubted: nothing of it is left.
        assert_eq!(host.0.kv_bytes(), (0, 0));
    }

    #[test]
    fn an_order_whose_ids_never_came_comes_to_nothing() {
        let mut host = ContextHostState::default();
        let order = order(1, 3, &[0], Exchange::None);
        let commands = host.handle(Duration::ZERO, ContextHostEvent::Command(HostCommand::Encode(order)));
        let [ContextHostCommand::Report(HostMessage::NotEncoded { context: 1, attempt: 3, code, .. })] = &commands[..]
        else {
            panic!("{commands:?}")
        };
        assert_eq!(code, "tokens_missing");
        assert!(host.contexts().is_empty());
    }

    #[test]
    fn a_failure_drops_what_waits_of_its_attempt() {
        let mut host = Host::new();
        for (attempt, block) in [(1, 0), (1, 1), (2, 2)] {
            host.alone(1, attempt, block);
        }
        let commands = host.failed(0);
        assert_eq!(not_encoded_of(&commands), [(1, 1)]);
        assert_eq!(commands[1..], [work(1, 0.5, order(1, 2, &[2], Exchange::None))]);
    }

    #[test]
    fn what_another_host_holds_is_fetched_and_encoded_only_where_it_does_not_come() {
        let mut host = Host::new();
        let holder = ShardHolder { host: "c1".into(), endpoints: Vec::new(), blocks: vec![2] };
        let to_encode = order(1, 3, &[2], Exchange::None);
        let to_fetch = EncodeShards { peers: vec![holder], ..to_encode.clone() };
        let commands = host.hears(HostCommand::Encode(to_fetch.clone()));
        assert_eq!(commands, [ContextHostCommand::Fetch(part(0, 0.0, to_fetch.clone()))]);
        assert_eq!(host.hears(HostCommand::Encode(to_fetch)), [], "it is under way");
        let failure = Failure { peer_lost: true, crowded: false, code: "host_lost".into(), message: "c1: gone".into() };
        let stopped = ContextHostEvent::Stopped { work: 0, failure: Some(failure), used: 0.0 };
        assert_eq!(host.0.handle(Duration::ZERO, stopped), [work(1, 0.0, to_encode)]);
    }
}
