//! Who works on what: looks at how things are and orders what is missing. It is run after every event that may change it, and
//! asks for nothing twice.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::{JobEvent, JobPhase, Role},
    messages::{Generate, HostCommand},
    metric::Observation,
    news::News,
    supervisor::{
        journal::record,
        rules::host_selection::Choice,
        state::{Command, SupervisorState},
        tables::{
            context::{Context, Owner},
            hosts::{HostRecord, told::Address},
            job::{Job, Outcome},
            jobs::Unhoused,
        },
    },
};

impl SupervisorState {
    /// Orders what is missing where something changed; with `all`, as after a change of hosts, also where something was missing
    /// before.
    pub(in crate::supervisor) fn advance(&mut self, now: Duration, all: bool, commands: &mut Vec<Command>) {
        let (changed, freed) = (self.contexts.take_changed(), self.contexts.take_freed());
        let incomplete = self.contexts.incomplete();
        let missing: Vec<u64> = match all || freed {
            true => incomplete.iter().copied().collect(),
            false => changed.intersection(incomplete).copied().collect(),
        };
        for number in missing {
            self.rehouse(now, number, commands);
        }
        for number in changed {
            match self.contexts.get(number).map(Context::is_ready) {
                Some(true) => self.on_ready(now, number, commands),
                Some(false) => self.on_unready(number),
                None => {}
            }
        }
        // What is generated now leaves its place to the next.
        self.generate(now, commands);
        if all {
            self.look_again(now, commands);
        }
        self.dispatch(now, commands);
    }

    /// A host came, or came back: tells it again all that it is to do.
    pub(in crate::supervisor) fn remind(&mut self, host: usize, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let mut orders = Vec::new();
        for number in self.contexts.on_host(host) {
            let context = &self.contexts[number];
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
        self.order(orders, commands);
        for number in self.jobs.on_host(host) {
            self.order_generation(number, host, commands);
        }
    }

    /// Every host's name, and where it is reached.
    pub(in crate::supervisor) fn addresses(&self) -> Vec<Address> {
        let endpoints = |host: usize| self.hosts.at(host).hello.as_ref().map(|hello| hello.endpoints.clone());
        let address = |host: usize| (self.hosts.name(host).to_string(), endpoints(host).unwrap_or_default());
        (0..self.config.hosts.len()).map(address).collect()
    }

    /// Gives shards without a host a new one, and encodes with them again what was under way with them.
    fn rehouse(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let context = &self.contexts[number];
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
                let since = self.homeless_since(now, number);
                if now.saturating_sub(since) > self.config.patience {
                    let message = format!("{refusal}; waited {:.0} s", self.config.patience.as_secs_f64());
                    self.fail_context(now, number, ("host_lost", message), commands);
                }
                return;
            }
        };
        let blocks: BTreeSet<usize> =
            [context.entangled(), inherited.clone(), homeless.clone()].concat().into_iter().collect();
        let at = |block: &usize| match homeless.iter().position(|homeless| homeless == block) {
            Some(at) => found[at],
            None => {
                context.places[*block].host.or(context.heirs.get(block).copied()).expect("it has a home or an heir")
            }
        };
        let (blocks, hosts): (Vec<usize>, Vec<usize>) = blocks.iter().map(|block| (*block, at(block))).unzip();
        let lost = homeless.len() + inherited.len();
        for (reason, shards) in [("lost", lost), ("together", blocks.len() - lost)] {
            commands.push(Command::Observe(Observation::ShardsReencoded { reason, shards }));
        }
        self.contexts.get_mut(number).expect("it was there").again.get_or_insert((now, 0)).1 += blocks.len();
        self.settle(number, &blocks, &hosts, commands);
    }

    /// Deals shards to hosts and orders them.
    pub(in crate::supervisor) fn settle(
        &mut self,
        number: u64,
        blocks: &[usize],
        hosts: &[usize],
        commands: &mut Vec<Command>,
    ) {
        self.note_numerics(number, blocks, hosts, commands);
        let addresses = self.addresses();
        let mut context = self.contexts.get_mut(number).expect("it was there");
        context.settle(blocks, hosts);
        commands.push(Command::Persist(record::places(&context, &addresses)));
        let orders = context.orders(blocks, &addresses);
        drop(context);
        self.order(orders, commands);
    }

    /// Since when a context has had no hosts.
    pub(in crate::supervisor) fn homeless_since(&mut self, now: Duration, number: u64) -> Duration {
        let mut context = self.contexts.get_mut(number).expect("it was there");
        *context.homeless_since.get_or_insert(now)
    }

    /// Every shard is encoded and held: what waited for that goes on, and who asks others hears who holds them.
    fn on_ready(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let mut context = self.contexts.get_mut(number).expect("it was there");
        let first = context.clock.1.is_none();
        context.clock.1.get_or_insert(now);
        context.retry.0 = 0;
        // All that was passed has been compared: a shard is encoded again alone from now on.
        let apart = context.together && context.moves_alone();
        context.together &= !apart;
        if first || apart {
            // After a restart too, and it is not ready for the first time then.
            commands.push(Command::Persist(record::places(&context, &addresses)));
        }
        let again = context.again.take().filter(|(_, shards)| *shards > 0);
        let encode_s = now.saturating_sub(context.clock.0.unwrap_or(now)).as_secs_f64();
        let (sparsity, attempt) = (context.sparsity(), context.attempt);
        let timings = context.timings(&|host| addresses[host].0.clone());
        let (method, owner) = (context.plan().method.name.clone(), context.owner.clone());
        drop(context);
        let reencoded =
            |(since, shards)| News::ShardsReencoded { context: number, shards, took: now.saturating_sub(since) };
        commands.extend(again.map(reencoded).map(Command::Tell));
        if let Owner::Session(session) = &owner {
            self.appended(session, number, commands);
        }
        let cached = self.contexts[number].cached_tokens();
        if first {
            if let Owner::Session(session) = owner {
                commands.push(Command::Tell(News::SessionReady { session, context: number, encode_s }));
            }
            commands.push(Command::Observe(Observation::JobEncoded { method, sparsity }));
        }
        for asking in self.jobs.of_context(number) {
            let mut job = self.jobs.get_mut(asking).expect("an index names those there are");
            job.ready_since.get_or_insert(now);
            if job.status.session.is_none() {
                job.status.attention_sparsity = Some(sparsity);
                job.status.cached_tokens = cached;
                job.status.timings.hosts = timings.clone();
            }
            let recovered = job.phase() == JobPhase::Encoding && job.is_recovering();
            let told = job.query_host.filter(|_| job.told_attempt != attempt);
            drop(job);
            if recovered {
                self.goes_on(now, asking, commands);
            }
            if let Some(host) = told.filter(|&host| self.hosts.at(host).is_up()) {
                self.tell_holders(asking, host, commands);
            }
        }
    }

    /// Nobody is asked about a context of which shards are missing.
    fn on_unready(&mut self, number: u64) {
        for asking in self.jobs.of_context(number) {
            self.jobs.get_mut(asking).expect("an index names those there are").ready_since = None;
        }
    }

    /// Has jobs generate whose contexts are ready, the one that waits for the longest first, while query hosts take them.
    pub(in crate::supervisor) fn generate(&mut self, now: Duration, commands: &mut Vec<Command>) {
        self.note_query_hosts(now);
        let mut after: Option<Unhoused> = None;
        while let Some(place) = self.jobs.next_unhoused(after).filter(|_| !self.is_booting(now)) {
            let number = place.1;
            match if self.is_held(number) { Choice::NotNow } else { self.choose_query_host(number) } {
                Choice::Host(host) => self.begin_generation(now, number, host, commands),
                Choice::NoEqual { up } => {
                    after = Some(place);
                    if !up {
                        self.give_up_unequal(now, number, commands);
                    }
                }
                Choice::NotNow => after = Some(place),
                Choice::Nobody => return self.give_up_unhoused(now, commands),
            }
        }
    }

    fn begin_generation(&mut self, now: Duration, number: u64, host: usize, commands: &mut Vec<Command>) {
        let record = self.hosts.at(host);
        let (name, numerics) = (record.spec.name.clone(), record.numerics.clone());
        let mut job = self.jobs.get_mut(number).expect("an index names those there are");
        if let Some(wanted) = job.numerics.clone().filter(|wanted| numerics.as_ref() != Some(wanted)) {
            job.status.mixed_numerics = true;
            let what = format!("job {}", job.status.id);
            commands.push(Command::Observe(Observation::NumericsMixed));
            commands.push(Command::Tell(News::NumericsMixed { what, host: name, wanted }));
        }
        job.query_host = Some(host);
        job.clock.encoding.get_or_insert(now);
        commands.extend(job.started(now).map(Command::Tell));
        let enters = job.clock.querying.is_none() && job.enter(now, JobPhase::Querying);
        drop(job);
        self.order_generation(number, host, commands);
        if enters {
            let event = JobEvent::Phase { phase: JobPhase::Querying };
            commands.push(Command::Publish { job: number, event });
        }
    }

    /// Notes since when there is no query host at all, if there is none.
    fn note_query_hosts(&mut self, now: Duration) {
        let capable = |host: &HostRecord| host.rank(Role::Query, self.config.recovery).is_some() && host.takes_work();
        match self.hosts.iter().any(capable) {
            true => self.no_query_host_since = None,
            false => drop(self.no_query_host_since.get_or_insert(now)),
        }
    }

    /// Fails jobs that have waited too long for there to be a query host.
    fn give_up_unhoused(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let patience = self.config.patience;
        let Some(gone) = self.no_query_host_since else { return };
        while let Some((ready, number)) = self.jobs.next_unhoused(None) {
            if now.saturating_sub(gone.max(ready)) <= patience {
                return;
            }
            let message = format!("no query host is alive, and none came within {:.0} s", patience.as_secs_f64());
            self.end(now, number, Outcome::Failed { code: "host_lost".into(), message }, commands);
        }
    }

    /// Fails a job that has waited too long for a query host that goes on as its last one would have.
    fn give_up_unequal(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let patience = self.config.patience;
        let Some(Job { numerics: Some(wanted), .. }) = self.jobs.get(number) else { return };
        let since = self.jobs.get(number).and_then(Job::lost_since).unwrap_or(now);
        if now.saturating_sub(since) > patience {
            let message = format!(
                "its tokens were made on {wanted}, and no such query host came within {:.0} s; others go on with it where \
                 mixed_numerics of [cluster] is \"mark\"",
                patience.as_secs_f64()
            );
            self.end(now, number, Outcome::Failed { code: "host_lost".into(), message }, commands);
        }
    }

    fn order_generation(&mut self, number: u64, host: usize, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        let Some(context) = self.contexts.get(job.context) else { return };
        job.told_attempt = context.attempt;
        job.status.mixed_numerics |= context.mixed_numerics;
        let kept = context.plan().kept_shards();
        let (shards, anew) = match &job.question.anew {
            Some(anew) => (anew.refresh.left_of(kept), context.prepared.anew(&anew.refresh)),
            None => (kept, None),
        };
        let generate = Generate {
            job: number,
            context: context.number,
            query_ids: job.question.query_ids.clone(),
            generated: job.status.tokens.clone(),
            query_start: context.plan().query_start,
            shards,
            anew,
            fan_in: context.plan().fan_in,
            view: context.plan().view,
            holders: context.holders(&addresses),
            choice: job.question.choice.clone(),
            ticket: context.ticket,
            trace: job.question.trace.map(|trace| Box::new(trace.own)),
        };
        drop(job);
        self.send(host, HostCommand::Generate(generate), commands);
    }

    pub(in crate::supervisor) fn tell_holders(&mut self, number: u64, host: usize, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        let Some(context) = self.contexts.get(job.context) else { return };
        job.told_attempt = context.attempt;
        job.status.mixed_numerics |= context.mixed_numerics;
        let holders = context.holders(&addresses);
        drop(job);
        self.send(host, HostCommand::Holders { job: number, holders }, commands);
    }

    /// The jobs that a context is encoded for move on.
    pub(in crate::supervisor) fn enter_phase(
        &mut self,
        now: Duration,
        context: u64,
        phase: JobPhase,
        commands: &mut Vec<Command>,
    ) {
        let Owner::Job(number) = self.contexts[context].owner else { return };
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        commands.extend(job.started(now).map(Command::Tell));
        if job.enter(now, phase) {
            commands.push(Command::Publish { job: number, event: JobEvent::Phase { phase } });
        }
    }
}
