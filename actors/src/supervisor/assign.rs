//! Who works on what: looks at how things are and orders what is missing. It is run after every event that may change it, and
//! asks for nothing twice.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::{HostHealth, JobEvent, JobPhase, Role},
    error::JobError,
    messages::{Generate, HostCommand},
    metric::Observation,
    supervisor::{
        context::{Context, Owner, PreparedContext},
        job::Outcome,
        placement::{Candidate, Demand, PlacementRefusal, place},
        record,
        state::{Command, SupervisorState},
    },
};

/// Generations of one query host at a time.
const GENERATIONS: usize = 8;

impl SupervisorState {
    /// Orders what is missing.
    pub(super) fn advance(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let incomplete = |context: &&Context| context.is_placed() && (context.redo || !context.homeless().is_empty());
        let numbers: Vec<u64> = self.contexts.values().filter(incomplete).map(|context| context.number).collect();
        for number in numbers {
            self.rehouse(now, number, commands);
        }
        self.dispatch(now, commands);
        let ready: Vec<u64> = self.contexts.values().filter(|c| c.is_ready()).map(|c| c.number).collect();
        for number in ready {
            self.on_ready(now, number, commands);
        }
        let unfinished: Vec<u64> = self.jobs.values().filter(|job| !job.has_ended()).map(|job| job.number).collect();
        for number in unfinished {
            self.generate(now, number, commands);
        }
    }

    /// A host came, or came back: tells it again all that it is to do.
    pub(super) fn remind(&mut self, host: usize, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let mut orders = Vec::new();
        for context in self.contexts.values() {
            let here = |block: &usize| context.places[*block].host == Some(host);
            let missing = |block: &usize| here(block) && context.places[*block].encoded.is_none();
            let all = 0..context.places.len();
            let coming = context.heirs.iter().filter(|(_, heir)| **heir == host);
            orders.extend(coming.map(|(block, _)| (host, context.order_alone(*block))));
            // Encoded together, others may wait for what this host passes on, even if it has reported an earlier attempt.
            let blocks: Vec<usize> = match context.together {
                true if context.is_ready() => continue,
                true => all.filter(here).collect(),
                false => all.filter(missing).collect(),
            };
            orders.extend(context.orders(&blocks, &addresses));
        }
        for (host, order) in orders {
            self.send(host, HostCommand::Encode(order), commands);
        }
        let asked = self.running().filter(|job| job.query_host == Some(host)).map(|job| job.number);
        for number in asked.collect::<Vec<_>>() {
            self.order_generation(number, host, commands);
        }
    }

    /// Whether a context could be placed at all, beside what sessions hold.
    ///
    /// # Errors
    /// [`JobError::Placement`] with the numbers when it could not, whatever else ends.
    pub(super) fn check_room(&self, prepared: &PreparedContext) -> Result<(), JobError> {
        let pinned: Vec<&Context> = self.pinned().collect();
        let candidates = self.candidates(&pinned, |_| true);
        let blocks: Vec<usize> = (0..prepared.plan.shards.len()).collect();
        place(&demands(prepared, &blocks), &candidates, &prepared.placement).map(drop).map_err(JobError::Placement)
    }

    /// Contexts of sessions.
    pub(super) fn pinned(&self) -> impl Iterator<Item = &Context> {
        self.contexts.values().filter(|context| matches!(context.owner, Owner::Session(_)))
    }

    /// Name and address of every host.
    pub(super) fn addresses(&self) -> Vec<(String, String)> {
        let address = |host: usize| self.hosts.at(host).hello.as_ref().map_or(String::new(), |h| h.address.clone());
        (0..self.config.hosts.len()).map(|host| (self.hosts.name(host).to_string(), address(host))).collect()
    }

    /// Hosts that could take shards, beside what `others` hold.
    fn candidates(&self, others: &[&Context], fit: impl Fn(usize) -> bool) -> Vec<Candidate<'_>> {
        let candidate = |host: usize| {
            let record = self.hosts.at(host);
            let rank = record.rank(Role::Context, self.config.recovery)?;
            let held: u64 = others.iter().map(|context| context.kv_bytes_on(host)).sum();
            let taken = self.config.weight_bytes + held;
            let free_bytes = record.spec.memory_limit.map(|limit| limit.saturating_sub(taken));
            let busy =
                self.contexts.values().filter(|other| !other.is_ready()).map(|other| other.shards_on(host)).sum();
            let (node, labels) = (record.spec.node.as_str(), &record.spec.labels);
            Some(Candidate { host, node, labels, rank, free_bytes, busy })
        };
        (0..self.config.hosts.len()).filter(|&host| fit(host)).filter_map(candidate).collect()
    }

    /// Hosts for `blocks` of a context now, or why there are none. Those that others could not reach are better than none.
    pub(super) fn find_hosts(&self, context: &Context, blocks: &[usize]) -> Result<Vec<usize>, PlacementRefusal> {
        let others: Vec<&Context> = self.contexts.values().collect();
        let find = |fit: &dyn Fn(usize) -> bool| {
            let candidates = self.candidates(&others, |host| self.hosts.at(host).takes_work() && fit(host));
            place(&demands(&context.prepared, blocks), &candidates, &context.prepared.placement)
        };
        find(&|host| !context.avoid.contains(&host)).or_else(|_| find(&|_| true))
    }

    /// Gives shards without a host a new one, and encodes with them again what was under way with them.
    fn rehouse(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let context = &self.contexts[&number];
        if context.retry.1 > now {
            return;
        }
        let (inherited, homeless): (Vec<usize>, Vec<usize>) =
            context.homeless().into_iter().partition(|block| context.heirs.contains_key(block));
        let found = match homeless.is_empty() {
            true => Ok(Vec::new()),
            false => self.find_hosts(context, &homeless),
        };
        let found = match found {
            Ok(found) => found,
            Err(refusal) => {
                let context = self.contexts.get_mut(&number).expect("it was there");
                let since = *context.homeless_since.get_or_insert(now);
                if now.saturating_sub(since) > self.config.patience {
                    let message = format!("{refusal}; waited {:.0} s", self.config.patience.as_secs_f64());
                    self.fail_context(now, number, ("host_lost", message), commands);
                }
                return;
            }
        };
        let blocks: BTreeSet<usize> = [context.entangled(), inherited, homeless.clone()].concat().into_iter().collect();
        let at = |block: &usize| match homeless.iter().position(|homeless| homeless == block) {
            Some(at) => found[at],
            None => {
                context.places[*block].host.or(context.heirs.get(block).copied()).expect("it has a home or an heir")
            }
        };
        let (blocks, hosts): (Vec<usize>, Vec<usize>) = blocks.iter().map(|block| (*block, at(block))).unzip();
        commands.push(Command::Observe(Observation::ShardsReencoded { shards: blocks.len() }));
        self.settle(number, &blocks, &hosts, commands);
    }

    /// Deals shards to hosts and orders them.
    fn settle(&mut self, number: u64, blocks: &[usize], hosts: &[usize], commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let context = self.contexts.get_mut(&number).expect("it was there");
        context.settle(blocks, hosts);
        commands.push(Command::Persist(record::places(context, &addresses)));
        let orders = context.orders(blocks, &addresses);
        for (host, order) in orders {
            self.send(host, HostCommand::Encode(order), commands);
        }
    }

    /// Starts waiting contexts while there is room: the one first that would be done first, had it begun when it came.
    fn dispatch(&mut self, now: Duration, commands: &mut Vec<Command>) {
        while self.contexts.values().filter(|c| c.is_placed() && !c.was_ready()).count() < self.config.max_running {
            if self.is_booting(now) {
                return;
            }
            let due = |number: &&u64| self.contexts[*number].due(self.token_seconds);
            let Some(&number) = self.waiting.iter().min_by_key(due) else { return };
            let context = &self.contexts[&number];
            let blocks: Vec<usize> = (0..context.plan().shards.len()).collect();
            match self.find_hosts(context, &blocks) {
                Ok(hosts) => {
                    self.waiting.retain(|&waiting| waiting != number);
                    self.contexts.get_mut(&number).expect("it was there").clock.0 = Some(now);
                    self.settle(number, &blocks, &hosts, commands);
                    self.enter_phase(now, number, JobPhase::Encoding, commands);
                }
                Err(refusal) => {
                    let waits = matches!(refusal, PlacementRefusal::NotEnoughMemory { .. });
                    let context = self.contexts.get_mut(&number).expect("it was there");
                    let since = *context.homeless_since.get_or_insert(now);
                    if waits || now.saturating_sub(since) <= self.config.patience {
                        return;
                    }
                    let message = format!("{refusal}. `asterism status` shows the hosts");
                    self.fail_context(now, number, ("placement_impossible", message), commands);
                }
            }
        }
    }

    /// Whether hosts that have never been there may still come, so that a context is not dealt to a part of them.
    fn is_booting(&self, now: Duration) -> bool {
        let coming = self.hosts.iter().any(|host| match host.health {
            HostHealth::Starting => true,
            HostHealth::Loading => host.kept.restarts == 0,
            _ => false,
        });
        coming && now.saturating_sub(self.began) < self.config.patience
    }

    /// Every shard is encoded: what waited for that goes on.
    fn on_ready(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let names: Vec<String> = self.hosts.iter().map(|host| host.spec.name.clone()).collect();
        let context = self.contexts.get_mut(&number).expect("it was there");
        let first = context.clock.1.is_none();
        context.clock.1.get_or_insert(now);
        context.retry.0 = 0;
        let sparsity = context.sparsity();
        let timings = context.timings(&|host| names[host].clone());
        let method = context.plan().method.name.clone();
        if first {
            commands.push(Command::Observe(Observation::JobEncoded { method, sparsity }));
        }
        let mut recovered = Vec::new();
        for job in self.jobs.values_mut().filter(|job| job.context == number && !job.has_ended()) {
            if job.status.session.is_none() {
                job.status.attention_sparsity = Some(sparsity);
                job.status.timings.hosts = timings.clone();
            }
            if job.phase() == JobPhase::Encoding && job.is_recovering() {
                recovered.push(job.number);
            }
        }
        recovered.into_iter().for_each(|job| self.goes_on(now, job, commands));
    }

    /// Has a job generate once its context is ready, and tells its query host when shards moved.
    fn generate(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let job = &self.jobs[&number];
        let Some(context) = self.contexts.get(&job.context).filter(|context| context.is_ready()) else { return };
        let attempt = context.attempt;
        if let Some(host) = job.query_host {
            if job.told_attempt != attempt && self.hosts.at(host).is_up() {
                self.tell_holders(number, host, commands);
            }
            return;
        }
        if self.is_booting(now) {
            return;
        }
        let Some(host) = self.find_query_host(number) else {
            let capable = |host: usize| self.hosts.at(host).rank(Role::Query, self.config.recovery).is_some();
            let any = (0..self.config.hosts.len()).any(|host| capable(host) && self.hosts.at(host).takes_work());
            let job = self.jobs.get_mut(&number).expect("it was there");
            let since = *job.homeless_since.get_or_insert(now);
            if any {
                job.homeless_since = None;
            } else if now.saturating_sub(since) > self.config.patience {
                let seconds = self.config.patience.as_secs_f64();
                let message = format!("no query host is alive, and none came within {seconds:.0} s");
                self.end(now, number, Outcome::Failed { code: "host_lost".into(), message }, commands);
            }
            return;
        };
        let job = self.jobs.get_mut(&number).expect("it was there");
        (job.query_host, job.homeless_since) = (Some(host), None);
        self.order_generation(number, host, commands);
        let job = self.jobs.get_mut(&number).expect("it was there");
        if job.clock.encoding.is_none() {
            job.clock.encoding = Some(now);
        }
        if job.clock.querying.is_none() && job.enter(now, JobPhase::Querying) {
            let event = JobEvent::Phase { phase: JobPhase::Querying };
            commands.push(Command::Publish { job: number, event });
        }
    }

    fn find_query_host(&self, number: u64) -> Option<usize> {
        let job = &self.jobs[&number];
        let generations = |host: usize| self.jobs.values().filter(|job| job.query_host == Some(host)).count();
        let fits = |&host: &usize| self.hosts.at(host).takes_work() && generations(host) < GENERATIONS;
        let rank = |host: usize| self.hosts.at(host).rank(Role::Query, self.config.recovery);
        let ranked = (0..self.config.hosts.len()).filter(fits).filter_map(|host| Some((rank(host)?, host)));
        ranked
            .min_by_key(|&(rank, host)| (job.avoid.contains(&host), rank, generations(host), host))
            .map(|(_, host)| host)
    }

    fn order_generation(&mut self, number: u64, host: usize, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Some(context) = self.contexts.get(&job.context) else { return };
        job.told_attempt = context.attempt;
        let generate = Generate {
            job: number,
            context: context.number,
            query_ids: job.question.query_ids.clone(),
            generated: job.status.tokens.clone(),
            query_start: context.plan().query_start,
            context_keys: context.plan().kept_tokens() as u64,
            view: context.plan().view,
            holders: context.holders(&addresses),
            choice: job.question.choice.clone(),
        };
        self.send(host, HostCommand::Generate(generate), commands);
    }

    pub(super) fn tell_holders(&mut self, number: u64, host: usize, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Some(context) = self.contexts.get(&job.context) else { return };
        job.told_attempt = context.attempt;
        let holders = context.holders(&addresses);
        self.send(host, HostCommand::Holders { job: number, holders }, commands);
    }

    /// The jobs that a context is encoded for move on.
    fn enter_phase(&mut self, now: Duration, context: u64, phase: JobPhase, commands: &mut Vec<Command>) {
        let Owner::Job(number) = self.contexts[&context].owner else { return };
        if let Some(job) = self.jobs.get_mut(&number)
            && job.enter(now, phase)
        {
            commands.push(Command::Publish { job: number, event: JobEvent::Phase { phase } });
        }
    }
}

fn demands(prepared: &PreparedContext, blocks: &[usize]) -> Vec<Demand> {
    let demand = |&block: &usize| Demand {
        block,
        logical: prepared.plan.shards[block].host,
        kv_bytes: prepared.kv_bytes(block),
    };
    blocks.iter().map(demand).collect()
}
