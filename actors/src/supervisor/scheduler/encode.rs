//! Which shards are encoded where: deals out those of a context whose turn has come, and deals anew what was lost. Orders
//! nothing twice. Whose turn it is, `dispatch.rs` decides.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    api::{JobEvent, JobPhase},
    cluster_event::ClusterEventKind,
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::{growth::SessionGrowth, recovery::HostLoss},
        tables::{
            context::{ContextOwner, UnderWay},
            shard_homes::RecentEncoders,
        },
    },
};

/// Decides what of contexts is encoded where, and when.
pub struct EncodeScheduler<'a> {
    pub loss: HostLoss<'a>,
    pub lately: &'a RecentEncoders,
}

impl EncodeScheduler<'_> {
    /// Gives shards without a host a new one, and encodes with them again what was under way with them.
    pub fn rehouse(&mut self, number: u64) {
        let context = &self.loss.contexts[number];
        if context.placed().is_some_and(|placed| placed.retry.not_before > self.loss.now) {
            return;
        }
        let (inherited, mut unassigned): (Vec<usize>, Vec<usize>) =
            context.unassigned().into_iter().partition(|block| context.migration_targets().contains_key(block));
        if !unassigned.is_empty() && self.loss.hosts.expects_return(self.loss.now, self.loss.config.recovery) {
            return;
        }
        if context.plan().is_chain() && !unassigned.is_empty() {
            unassigned = context.entangled();
        }
        let found = match unassigned.is_empty() {
            true => Ok(Vec::new()),
            false => self.loss.selection().find_hosts(context, &unassigned),
        };
        let found = match found {
            Ok(found) => found,
            Err(refusal) => {
                let since = self.unassigned_since(number);
                if self.loss.now.saturating_sub(since) > self.loss.config.patience {
                    let message = format!("{refusal}; waited {:.0} s", self.loss.config.patience.as_secs_f64());
                    self.loss.teardown().fail_context(number, "host_lost", message);
                }
                return;
            }
        };
        let blocks: BTreeSet<usize> =
            [context.entangled(), inherited.clone(), unassigned.clone()].concat().into_iter().collect();
        let at = |block: &usize| match unassigned.iter().position(|unassigned| unassigned == block) {
            Some(at) => found[at],
            None => context.places()[*block]
                .host
                .or(context.migration_targets().get(block).copied())
                .expect("it has a home or a migration target"),
        };
        let (blocks, hosts): (Vec<usize>, Vec<usize>) = blocks.iter().map(|block| (*block, at(block))).unzip();
        let lost = unassigned.len() + inherited.len();
        for (reason, shards) in [("lost", lost), ("together", blocks.len() - lost)] {
            self.loss.out.push(SupervisorCommand::Observe(Observation::ShardsReencoded { reason, shards }));
        }
        let mut context = self.loss.contexts.get_mut(number).expect("it was there");
        context.held_lately = false;
        if let Some(placed) = context.placed_mut() {
            placed.again.get_or_insert(UnderWay::since(self.loss.now)).shards += blocks.len();
        }
        drop(context);
        self.settle(number, &blocks, &hosts);
    }

    /// Deals shards to hosts and orders them.
    pub fn settle(&mut self, number: u64, blocks: &[usize], hosts: &[usize]) {
        self.note_numerics(number, blocks, hosts);
        let addresses = self.loss.hosts.addresses();
        let mut context = self.loss.contexts.get_mut(number).expect("it was there");
        context.settle(self.loss.now, blocks, hosts);
        self.loss.hosts.dealt_at = self.loss.now;
        self.loss.out.extend(record::places(&context, &addresses).map(SupervisorCommand::Persist));
        let orders = context.orders(blocks, &addresses);
        drop(context);
        self.loss.orders().encode(orders);
    }

    /// Shards of a context go to these hosts: what they are encoded with from now on, and whether that is no longer one thing.
    fn note_numerics(&mut self, number: u64, blocks: &[usize], hosts: &[usize]) {
        let (records, wanted) = (&*self.loss.hosts, self.loss.selection().wanted(&self.loss.contexts[number], blocks));
        let Some(first) = hosts.iter().find_map(|host| records.at(*host).numerics.clone()) else { return };
        let wanted = wanted.unwrap_or(first);
        let other = hosts.iter().find(|host| records.at(**host).numerics.as_ref().is_some_and(|has| *has != wanted));
        let other = other.map(|host| records.name(*host).to_string());
        let mut context = self.loss.contexts.get_mut(number).expect("it was there");
        let whole = blocks.len() == context.plan().shards.len();
        let before = context.mixed_numerics && !whole;
        context.mixed_numerics = before || other.is_some();
        context.numerics = Some(wanted.clone());
        drop(context);
        if let Some(host) = other.filter(|_| !before) {
            self.loss.out.push(SupervisorCommand::Observe(Observation::NumericsMixed));
            self.loss.out.push(SupervisorCommand::Notify(ClusterEventKind::NumericsMixed {
                what: format!("context {number}"),
                host,
                wanted,
            }));
        }
    }

    /// Since when a context has had no hosts.
    pub fn unassigned_since(&mut self, number: u64) -> Duration {
        let mut context = self.loss.contexts.get_mut(number).expect("it was there");
        *context.unassigned_since.get_or_insert(self.loss.now)
    }

    /// Every shard is encoded and held: what waited for that goes on, and who asks others hears who holds them.
    pub fn on_ready(&mut self, number: u64) {
        let addresses = self.loss.hosts.addresses();
        let mut context = self.loss.contexts.get_mut(number).expect("it was there");
        let alone = context.moves_alone();
        let Some(placed) = context.placed_mut() else { return };
        let first = placed.first_ready.is_none();
        placed.first_ready.get_or_insert(self.loss.now);
        placed.retry.attempts = 0;
        // All that was passed has been compared: a shard is encoded again alone from now on.
        let apart = placed.together && alone;
        placed.together &= !apart;
        let again = placed.again.take().filter(|again| again.shards > 0);
        let encode_s = self.loss.now.saturating_sub(placed.began).as_secs_f64();
        if first || apart {
            // After a restart too, and it is not ready for the first time then: a session says so once, a job only counts it.
            let kept = match context.owner {
                ContextOwner::Job(_) => SupervisorCommand::Note,
                ContextOwner::Session(_) => SupervisorCommand::Persist,
            };
            self.loss.out.extend(record::places(&context, &addresses).map(kept));
        }
        let (sparsity, attempt) = (context.sparsity(), context.attempt());
        let timings = context.timings(&|host| addresses[host].0.clone());
        let (method, owner) = (context.plan().method.name.clone(), context.owner.clone());
        drop(context);
        let reencoded = |UnderWay { since, shards }| ClusterEventKind::ShardsReencoded {
            context: number,
            shards,
            took: self.loss.now.saturating_sub(since),
        };
        self.loss.out.extend(again.map(reencoded).map(SupervisorCommand::Notify));
        if let ContextOwner::Session(session) = &owner {
            SessionGrowth { down: self.loss.teardown() }.appended(session, number);
        }
        if first {
            self.note_reuse(number);
            if let ContextOwner::Session(session) = owner {
                self.loss.out.push(SupervisorCommand::Notify(ClusterEventKind::SessionReady {
                    session,
                    context: number,
                    encode_s,
                }));
            }
            self.loss.out.push(SupervisorCommand::Observe(Observation::JobEncoded { method, sparsity }));
        }
        let held = self.loss.contexts[number].cached_tokens();
        for asking in self.loss.jobs.of_context(number) {
            let mut job = self.loss.jobs.get_mut(asking).expect("an index names those there are");
            job.ready_since.get_or_insert(self.loss.now);
            if job.facts.session.is_none() {
                job.progress.attention_sparsity = Some(sparsity);
                let refreshed = job.question.refresh_order.as_ref();
                let hidden = refreshed.map_or(&[][..], |refreshed| &refreshed.refresh.hidden);
                let anew = self.loss.contexts[number].cached_and_hidden(hidden);
                (job.progress.reused_tokens, job.progress.cached_tokens) = (held, held.saturating_sub(anew));
                job.progress.hosts = timings.clone();
            }
            let recovered = job.phase() == JobPhase::Encoding && job.is_recovering();
            let reported = job.query_host.filter(|_| job.ordered_attempt != attempt);
            drop(job);
            if recovered {
                self.loss.resume(asking);
            }
            if let Some(host) = reported.filter(|&host| self.loss.hosts.at(host).is_up()) {
                self.loss.orders().send_holders(asking, host);
            }
        }
    }

    /// Counts a job's context by how much of it hosts held already.
    fn note_reuse(&mut self, number: u64) {
        let context = &self.loss.contexts[number];
        let ContextOwner::Job(_) = context.owner else { return };
        let held = match context.cached_tokens() {
            0 => "none",
            tokens if tokens < context.plan().context_tokens => "part",
            _ => "all",
        };
        self.loss.out.push(SupervisorCommand::Observe(Observation::ContextReused { held }));
    }

    /// Nobody is asked about a context of which shards are missing.
    pub fn on_unready(&mut self, number: u64) {
        for asking in self.loss.jobs.of_context(number) {
            self.loss.jobs.get_mut(asking).expect("an index names those there are").ready_since = None;
        }
    }

    /// The jobs that a context is encoded for move on.
    pub fn enter_phase(&mut self, context: u64, phase: JobPhase) {
        let ContextOwner::Job(number) = self.loss.contexts[context].owner else { return };
        let Some(mut job) = self.loss.jobs.get_mut(number) else { return };
        self.loss.out.extend(job.started(self.loss.now).map(SupervisorCommand::Notify));
        if job.enter(self.loss.now, phase) {
            self.loss.out.push(SupervisorCommand::Publish { job: number, event: JobEvent::Phase { phase } });
        }
    }
}
