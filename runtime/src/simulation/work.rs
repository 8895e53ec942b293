//! What work takes: the cost model's seconds of an order, of a plan, and of a token by length. Counts; waits for nothing.

use std::collections::BTreeMap;

use asterism_actors::{
    api::PlacementPolicy,
    messages::EncodeShards,
    supervisor::{MODEL_LABEL, PreparedContext},
};
use asterism_models::QuerySeparator;
use asterism_plan::{
    Conditions, Cost, Exchange, Forecast, HostCost, Method, MethodConfig, Plan, PlanError, PlanRequest, Shard,
};

use super::room::Room;

/// Seconds of phase 1 and 2 of one plan.
pub(super) struct Work {
    plan: Plan,
    room: Room,
    /// Of each logical host, where all encode together, and how many shards it has.
    together: Vec<(f64, usize)>,
    /// The query step, and each token after it.
    pub(super) steps: (f64, f64),
    /// Phase 1, until the slowest logical host is done.
    pub(super) encode_s: f64,
    /// The same where each encodes its shards one by one, behind all that they need.
    alone_s: f64,
    /// What hosts of a crowded node are slower by.
    crowding: BTreeMap<String, f64>,
}

impl Work {
    pub(super) fn new(plan: &Plan, room: &Room, query_tokens: usize) -> Self {
        let cost = Cost::of(plan, &room.shape);
        let machines: Vec<usize> = (0..plan.hosts).collect();
        let on = Conditions { shape: &room.shape, devices: &machines, query_tokens };
        let forecast = Forecast::of(&cost, &on, &room.speeds);
        let crowding: BTreeMap<String, f64> = room
            .crowds()
            .into_iter()
            .map(|(node, hosts)| (node.to_owned(), (hosts as f64 / room.speeds.full_speed_hosts).max(1.0)))
            .collect();
        let slowest = crowding.values().copied().fold(1.0, f64::max);
        let mut work = Self {
            together: forecast.hosts.iter().copied().zip(cost.hosts.iter().map(|host| host.shards)).collect(),
            steps: (forecast.query_s, forecast.token_s),
            encode_s: forecast.encode_s * slowest,
            plan: plan.clone(),
            room: room.clone(),
            crowding,
            alone_s: 0.0,
        };
        if let Exchange::None | Exchange::SharedPrefix { .. } = plan.exchange {
            work.alone_s = work.longest_alone();
        }
        work
    }

    /// Seconds that an order takes a host of a node.
    pub(super) fn seconds(&self, order: &EncodeShards, node: &str) -> f64 {
        let crowding = self.crowding.get(node).copied().unwrap_or(1.0);
        let alone = match order.exchange {
            Exchange::None => self.alone(&order.shards).0,
            _ => order.shards.iter().map(|shard| self.share(shard)).sum(),
        };
        alone * crowding
    }

    /// Seconds until lost shards are there again, once that is known: a host ends what it has of the plan, then encodes them. Where
    /// shards pass each other something, others begin again as well: each for itself behind a shared prefix, else all together.
    pub(super) fn again(&self, lost: impl Iterator<Item = usize>) -> f64 {
        let own = self.encode_s.max(self.alone_s);
        match self.plan.exchange {
            Exchange::None | Exchange::SharedPrefix { .. } => own + self.one_by_one(lost),
            _ => 2.0 * own,
        }
    }

    /// Seconds of shards that are encoded one after another by a host, with nobody else.
    fn one_by_one(&self, blocks: impl Iterator<Item = usize>) -> f64 {
        let slowest = self.crowding.values().copied().fold(1.0, f64::max);
        blocks.map(|block| self.alone(&[self.plan.alone(block)]).0).sum::<f64>() * slowest
    }

    /// The longest that a logical host takes for its shards one by one.
    fn longest_alone(&self) -> f64 {
        let mut own: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        self.plan.shards.iter().for_each(|shard| own.entry(shard.host).or_default().push(shard.block));
        own.into_values().map(|blocks| self.one_by_one(blocks.into_iter())).fold(0.0, f64::max)
    }

    /// Operations and pairs of shards, as a host counts them.
    pub(super) fn counted(&self, shards: &[Shard]) -> HostCost {
        self.alone(shards).1
    }

    fn alone(&self, shards: &[Shard]) -> (f64, HostCost) {
        let shards = shards.iter().map(|shard| Shard { host: 0, ..shard.clone() }).collect();
        let plan = Plan { hosts: 1, shards, exchange: Exchange::None, ..bare(&self.plan) };
        let cost = Cost::of(&plan, &self.room.shape);
        let on = Conditions { shape: &self.room.shape, devices: &[0], query_tokens: 1 };
        let seconds = Forecast::of(&cost, &on, &self.room.speeds).encode_s;
        (seconds, cost.hosts.into_iter().next().unwrap_or_default())
    }

    /// A shard's part of what its logical host takes where all encode together.
    fn share(&self, shard: &Shard) -> f64 {
        let (seconds, shards) = self.together.get(shard.host).copied().unwrap_or_default();
        seconds / shards.max(1) as f64
    }
}

/// A plan without its shards.
fn bare(plan: &Plan) -> Plan {
    Plan {
        method: plan.method.clone(),
        context_tokens: plan.context_tokens,
        hosts: plan.hosts,
        shards: Vec::new(),
        exchange: plan.exchange.clone(),
        query_start: plan.query_start,
        view: plan.view,
        extra_ids: Vec::new(),
        refresh: None,
        fan_in: plan.fan_in,
    }
}

/// Seconds of phase 1 that all hosts together spend on a token of a plan's context.
pub fn per_token(plan: &Plan, room: &Room) -> f64 {
    let cost = Cost::of(plan, &room.shape);
    let machines: Vec<usize> = (0..plan.hosts).collect();
    let on = Conditions { shape: &room.shape, devices: &machines, query_tokens: 1 };
    Forecast::of(&cost, &on, &room.speeds).hosts.iter().sum::<f64>() / plan.context_tokens.max(1) as f64
}

/// The same of contexts of a method, each half as long as the next, up to all of `context`: as many as there are to see how it grows.
///
/// # Errors
/// Where the method has no plan for a length.
pub fn sweep(context: &[u32], method: &MethodConfig, room: &Room) -> Result<Vec<(usize, f64)>, PlanError> {
    let mut lengths: Vec<usize> = (0..7).map(|halved| context.len() >> halved).filter(|length| *length > 0).collect();
    lengths.reverse();
    let at = |length: usize| {
        let plan = method.plan(&request(&context[..length], room))?;
        Ok((length, per_token(&plan, room)))
    };
    lengths.into_iter().map(at).collect()
}

/// What is to be planned: a context that is asked nothing, on a room's context hosts.
fn request<'a>(context: &'a [u32], room: &'a Room) -> PlanRequest<'a> {
    let hosts = room.config.context_hosts();
    let (shape, speeds) = (&room.shape, Some(&room.speeds));
    PlanRequest { context, query: &[], hosts: hosts.count, one_device: hosts.one_device, shape, speeds }
}

/// A context of these ids, as a request for it would be planned.
///
/// # Errors
/// Where the method has no plan for it.
pub fn prepared(ids: Vec<u32>, method: &MethodConfig, room: &Room) -> Result<PreparedContext, PlanError> {
    let plan = method.plan(&request(&ids, room))?;
    let ids = if plan.extra_ids.is_empty() { ids } else { plan.numbered_ids(&ids) };
    let model = &room.config.first_model().label;
    let labels = match model.is_empty() {
        true => BTreeMap::new(),
        false => BTreeMap::from([(MODEL_LABEL.to_owned(), model.clone())]),
    };
    Ok(PreparedContext {
        ids: ids.into(),
        identities: Default::default(),
        method: Box::new(method.clone()),
        hosts: room.config.context_hosts().count,
        plan: plan.into(),
        dense_pairs: 1,
        kv_bytes_per_token: room.shape.kv_bytes_per_token(),
        kv_block: 1,
        chat_template: false,
        query_separator: QuerySeparator::NONE,
        template_date: None,
        text: None,
        placement: PlacementPolicy { labels, ..PlacementPolicy::default() },
        key: None,
        cache_salt: None,
        background: false,
    }
    .identified())
}
