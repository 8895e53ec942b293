//! The hosts of a simulation: they hold what they were ordered to, once the time for it has passed. They decide nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use asterism_actors::messages::{EncodeShards, Generate, ShardHolder};

/// A process of a host.
#[derive(Debug, Default)]
pub(super) struct SimulatedHost {
    /// Which of its lives it is, from 1; its connection is another one in each.
    pub(super) life: u64,
    /// Its connection, while it runs.
    pub(super) connection: Option<u64>,
    /// Orders, the first of which is under way.
    pub(super) works: VecDeque<HostWork>,
    /// Bytes of keys and values of each shard that it holds, by context and block.
    pub(super) held: BTreeMap<(u64, u32), u64>,
    /// Answers that it generates.
    pub(super) answers: BTreeMap<u64, Answer>,
}

/// An order to encode.
#[derive(Clone, Debug)]
pub(super) struct HostWork {
    pub(super) number: u64,
    pub(super) order: EncodeShards,
    pub(super) began: Option<Duration>,
    pub(super) seconds: f64,
}

/// An answer under way.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) order: Generate,
    pub(super) holders: Vec<ShardHolder>,
    pub(super) tokens: u32,
    /// Whether a host of the context is gone, so that it waits.
    pub(super) waits: bool,
}

impl SimulatedHost {
    /// Takes an order in, in the place of earlier ones of the same shards. Whether it holds all that is asked, so that it says so.
    pub(super) fn take(&mut self, number: u64, order: EncodeShards, seconds: f64) -> bool {
        let blocks: Vec<u32> = order.shards.iter().map(|shard| shard.block as u32).collect();
        let is_alone = order.exchange == asterism_plan::Exchange::None;
        if is_alone && blocks.iter().all(|block| self.held.contains_key(&(order.context, *block))) {
            return true;
        }
        let of = |work: &HostWork| work.order.shards.iter().any(|shard| blocks.contains(&(shard.block as u32)));
        self.works.retain(|work| work.order.context != order.context || !of(work));
        self.works.push_back(HostWork { number, order, began: None, seconds });
        false
    }

    /// What it begins now, if it has just become free.
    pub(super) fn begin(&mut self, now: Duration) -> Option<(u64, f64)> {
        let first = self.works.front_mut().filter(|work| work.began.is_none())?;
        first.began = Some(now);
        Some((first.number, first.seconds))
    }

    /// Forgets a context.
    pub(super) fn release(&mut self, context: u64) {
        self.works.retain(|work| work.order.context != context);
        self.held.retain(|(of, _), _| *of != context);
    }

    /// Bytes of keys and values that it holds.
    pub(super) fn kv_bytes(&self) -> u64 {
        self.held.values().sum()
    }

    /// Shards that go with it.
    pub(super) fn shards(&self) -> Vec<(u64, u32)> {
        let under_way = self
            .works
            .iter()
            .flat_map(|work| work.order.shards.iter().map(|shard| (work.order.context, shard.block as u32)));
        self.held.keys().copied().chain(under_way).collect()
    }

    /// Its process ends, with all it had.
    pub(super) fn end(&mut self) {
        *self = Self { life: self.life, ..Self::default() };
    }
}
