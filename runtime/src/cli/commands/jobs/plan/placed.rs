//! A plan laid on the hosts of a cluster file, or why their memory or labels do not allow it. Starts nothing.

use std::collections::BTreeSet;

use asterism_actors::{
    PlacementRefusal,
    api::PlacementPolicy,
    supervisor::{Candidate, Demand, NotTaken, Wanted, explain, place},
};
use asterism_kernels::check_heads;
use asterism_models::{DecoderParts, ModelConfig};
use asterism_plan::{Exchange, Plan};

use crate::{
    cluster::{
        Cluster, Host,
        file::{ComputeType, DType, Role},
        size::{bytes, count, grouped},
    },
    error::{CliError, Exit},
    processes::{checkpoint, device},
};

/// Names of hosts that a refusal lists; of more it gives the number.
const HOSTS_LISTED: usize = 8;

/// The hosts that may hold shards: context hosts, then spares.
pub struct Holders<'a> {
    hosts: Vec<&'a Host>,
    /// Bytes of weights that are counted as each host's, in their order.
    weights: Vec<u64>,
    kv_bytes_per_token: u64,
}

impl<'a> Holders<'a> {
    /// Of a cluster that runs nothing.
    pub fn of(cluster: &'a Cluster, model: &ModelConfig) -> Self {
        let kv = checkpoint::kv_type(&cluster.model);
        let hosts: Vec<&Host> = cluster.with_role(Role::Context).chain(cluster.with_role(Role::Spare)).collect();
        Self {
            weights: hosts.iter().map(|host| device::weight_bytes(cluster, host, model)).collect(),
            hosts,
            kv_bytes_per_token: model.shape(kv).kv_bytes_per_token(),
        }
    }

    /// The hosts, in the order that a placed plan counts them.
    pub fn hosts(&self) -> &[&'a Host] {
        &self.hosts
    }

    /// The device of each, the cores of a machine or a GPU, as a number.
    pub fn devices(&self) -> Vec<usize> {
        let shares = |host: &&Host, first: &&Host| first.node == host.node && first.devices == host.devices;
        let device = |host: &&Host| self.hosts.iter().position(|first| shares(host, first)).unwrap_or_default();
        self.hosts.iter().map(device).collect()
    }

    /// Bytes of weights that are counted as a host's, by its place.
    pub fn weights(&self, at: usize) -> u64 {
        self.weights[at]
    }

    /// Makes the plan's hosts those of the cluster.
    pub fn place(&self, plan: &mut Plan, policy: &PlacementPolicy) -> Result<(), CliError> {
        let placed = self.places(plan, policy, |at| self.free(at));
        let placed = placed.map_err(|refusal| self.refused(plan, policy, &refusal))?;
        plan.hosts = self.hosts.len();
        plan.shards.iter_mut().zip(placed).for_each(|(shard, host)| shard.host = host);
        Ok(())
    }

    fn places(
        &self,
        plan: &Plan,
        policy: &PlacementPolicy,
        free: impl Fn(usize) -> Option<u64>,
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let demands = self.demands(plan);
        place(&wanted(plan, &demands, policy), &self.candidates(free))
    }

    /// Where shards of a plan lie, and who has none of them and why, in words.
    pub fn explain(&self, plan: &Plan, policy: &PlacementPolicy) -> Result<Vec<String>, CliError> {
        let placed = self.places(plan, policy, |at| self.free(at));
        let placed = placed.map_err(|refusal| self.refused(plan, policy, &refusal))?;
        let names = |hosts: &[usize]| {
            let listed = hosts.iter().take(HOSTS_LISTED).map(|host| self.hosts[*host].name.as_str());
            let unlisted = hosts.len().saturating_sub(HOSTS_LISTED);
            let more = if unlisted > 0 { format!(" and {unlisted} more") } else { String::new() };
            format!("{}{more}", listed.collect::<Vec<_>>().join(", "))
        };
        let used: Vec<usize> = placed.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let demands = self.demands(plan);
        let passed = explain(&wanted(plan, &demands, policy), &self.candidates(|at| self.free(at)), &placed);
        let lost = |NotTaken { hosts, why }: &NotTaken| format!("not on {}: {why}", names(hosts));
        let words = format!("{} on {}", count(plan.shards.len(), "shard"), names(&used));
        Ok([words].into_iter().chain(passed.iter().map(lost)).collect())
    }

    fn free(&self, at: usize) -> Option<u64> {
        self.hosts[at].memory_limit.map(|limit| limit.saturating_sub(self.weights[at]))
    }

    fn candidates(&self, free: impl Fn(usize) -> Option<u64>) -> Vec<Candidate<'_>> {
        let candidate = |(at, host): (usize, &&'a Host)| Candidate {
            host: at,
            node: &self.hosts[at].node,
            labels: &self.hosts[at].labels,
            rank: u8::from(host.role == Role::Spare),
            detour: 0,
            free_bytes: free(at),
            busy: 0,
            numerics: None,
        };
        self.hosts.iter().enumerate().map(candidate).collect()
    }

    fn demands(&self, plan: &Plan) -> Vec<Demand> {
        let shards = plan.shards.iter();
        let bytes = |kept: usize| kept as u64 * self.kv_bytes_per_token;
        shards
            .map(|shard| Demand { block: shard.block, logical: shard.host, kv_bytes: bytes(shard.kept_tokens()) })
            .collect()
    }

    fn most_weights(&self) -> u64 {
        self.weights.iter().copied().max().unwrap_or(0)
    }

    fn refused(&self, plan: &Plan, policy: &PlacementPolicy, refusal: &PlacementRefusal) -> CliError {
        let PlacementRefusal::NotEnoughMemory { needed, largest, free, .. } = refusal else {
            return CliError::new(Exit::Capacity, refusal);
        };
        let limits = free.iter().take(HOSTS_LISTED).map(|&(host, free)| {
            let Host { name, memory_limit, .. } = self.hosts[host];
            let limit = memory_limit.map_or("none".into(), bytes);
            format!("{name} {} of {limit}", bytes(free))
        });
        let unlisted = match free.len().saturating_sub(HOSTS_LISTED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "{} tokens of context need {} of KV, the largest shard {}, beside {} of weights on each host; free under memory_limit: {}{unlisted}",
            grouped(plan.context_tokens),
            bytes(*needed),
            bytes(*largest),
            bytes(self.most_weights()),
            limits.collect::<Vec<_>>().join(", "),
        );
        CliError::new(Exit::Capacity, message).hint(self.remedy(plan, policy, free))
    }

    /// What would make the plan fit.
    fn remedy(&self, plan: &Plan, policy: &PlacementPolicy, free: &[(usize, u64)]) -> String {
        let mut taken = vec![0; self.hosts.len()];
        let unlimited = self.places(plan, policy, |_| None).unwrap_or_default();
        unlimited.iter().zip(self.demands(plan)).for_each(|(&host, demand)| taken[host] += demand.kv_bytes);
        let most = self.most_weights() + taken.into_iter().max().unwrap_or(0);
        // Blocks are of about one size, so the host with the least room decides.
        let least = free.iter().map(|(_, free)| free / self.kv_bytes_per_token).min();
        let shorter = match least.unwrap_or(0) * free.len() as u64 {
            0 => String::new(),
            tokens => format!(", or shorten the context to about {} tokens", grouped(tokens as usize)),
        };
        format!("raise memory_limit to {} a host, or add hosts{shorter}", bytes(most))
    }
}

/// What a plan asks of hosts.
fn wanted<'a>(plan: &Plan, demands: &'a [Demand], policy: &'a PlacementPolicy) -> Wanted<'a> {
    Wanted { demands, policy, exchanges: plan.exchange != Exchange::None }
}

/// What weights take of each device, where hosts compute on several devices or on GPUs, and what they would take otherwise.
pub fn weights_by_device(cluster: &Cluster, model: &ModelConfig) -> Option<String> {
    let host = cluster.hosts.iter().max_by_key(|host| host.devices.count())?;
    if host.devices.on_cpu() && host.devices.count() == 1 {
        return None;
    }
    let numbers = device::Numbers::of(&cluster.model);
    let each = |numbers: device::Numbers, devices: usize| {
        bytes(numbers.weight_bytes(model, DecoderParts::All).div_ceil(devices as u64))
    };
    let degrees = [1, 2, 4, 8].into_iter().filter(|devices| check_heads(model.heads, *devices).is_ok());
    let by_degree = |numbers: device::Numbers| {
        degrees.clone().map(|devices| format!("{} on {devices}", each(numbers, devices))).collect::<Vec<_>>().join(", ")
    };
    let now = host.devices.count();
    let mut words = format!(
        "weights of {} take {} of each of its {now} devices, keys and values beside them; by number of devices {}",
        host.name,
        each(numbers, now),
        by_degree(numbers)
    );
    if numbers.linear.is_none() && numbers.dtype == DType::Bf16 {
        let eight = device::Numbers { linear: Some(ComputeType::Fp8), ..numbers };
        words += &format!("; with linear = \"fp8\" (Hopper) {}", by_degree(eight));
    }
    Some(words)
}

/// What the query host needs, in bytes of weights and of KV, or why its limit does not allow it.
pub fn query_memory(
    host: &Host,
    model: &ModelConfig,
    cluster: &Cluster,
    tokens: usize,
) -> Result<(u64, u64), CliError> {
    let kv_type = checkpoint::kv_type(&cluster.model);
    let weights = device::weight_bytes(cluster, host, model);
    let kv = tokens as u64 * model.shape(kv_type).kv_bytes_per_token();
    match host.memory_limit {
        Some(limit) if limit < weights + kv => {
            let message = format!(
                "query host {} needs {}: {} of weights and {} of KV of {} query and answer tokens; its memory_limit is {}",
                host.name,
                bytes(weights + kv),
                bytes(weights),
                bytes(kv),
                grouped(tokens),
                bytes(limit),
            );
            let hint = format!("raise its memory_limit to {}", bytes(weights + kv));
            Err(CliError::new(Exit::Capacity, message).hint(hint))
        }
        _ => Ok((weights, kv)),
    }
}
