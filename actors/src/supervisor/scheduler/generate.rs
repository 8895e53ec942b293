//! Which query host generates which job, and when. What it is then told is `rules/orders.rs`.

use crate::{
    api::{JobEvent, JobPhase, Role},
    cluster_event::ClusterEventKind,
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        config::ServedModel,
        rules::{host_selection::Choice, recovery::HostLoss},
        tables::{hosts::HostRecord, job::Job, jobs::Passed},
    },
};

/// Decides which jobs are generated where, and when.
pub struct GenerateScheduler<'a> {
    pub loss: HostLoss<'a>,
}

impl GenerateScheduler<'_> {
    /// Has jobs generate whose contexts are ready, keys in turn, while query hosts take them.
    pub fn generate(&mut self) {
        self.note_query_hosts();
        let mut passed = Passed::default();
        while let Some(place) = self
            .loss
            .jobs
            .next_unassigned(&passed)
            .filter(|_| !self.loss.hosts.is_booting(self.loss.now, self.loss.config.patience))
        {
            let number = place.1;
            let job = self.loss.jobs.get(number).expect("an index names those there are");
            if self.loss.jobs.is_held(number) {
                passed.pass(job, place);
                continue;
            }
            match self.loss.selection().query_host(number) {
                Choice::Host(host) => self.begin_generation(number, host),
                Choice::NoEqual { up } => {
                    passed.pass(job, place);
                    if !up {
                        self.give_up_unequal(number);
                    }
                }
                Choice::NotNow => {
                    passed.pass(job, place);
                    self.give_up_unassigned(number);
                }
                Choice::Nobody => {
                    passed.fill(&job.facts.model);
                    self.give_up_unassigned(number);
                }
            }
        }
    }

    fn begin_generation(&mut self, number: u64, host: usize) {
        let record = self.loss.hosts.at(host);
        let (name, numerics) = (record.spec.name.clone(), record.numerics.clone());
        let mut job = self.loss.jobs.get_mut(number).expect("an index names those there are");
        if let Some(wanted) = job.numerics.clone().filter(|wanted| numerics.as_ref() != Some(wanted)) {
            job.progress.mixed_numerics = true;
            let what = format!("job {}", job.facts.id);
            self.loss.out.push(SupervisorCommand::Observe(Observation::NumericsMixed));
            self.loss.out.push(SupervisorCommand::Notify(ClusterEventKind::NumericsMixed { what, host: name, wanted }));
        }
        job.query_host = Some(host);
        job.clock.encoding.get_or_insert(self.loss.now);
        self.loss.out.extend(job.started(self.loss.now).map(SupervisorCommand::Notify));
        let enters = job.clock.querying.is_none() && job.enter(self.loss.now, JobPhase::Querying);
        let context = job.facts.session.is_some().then_some(job.context);
        drop(job);
        if let Some(mut context) = context.and_then(|context| self.loss.contexts.get_mut(context)) {
            context.asked_at = Some(host);
        }
        self.loss.orders().generate(number, host);
        if enters {
            let event = JobEvent::Phase { phase: JobPhase::Querying };
            self.loss.out.push(SupervisorCommand::Publish { job: number, event });
        }
    }

    /// Notes since when models have no query host at all, of those that have none.
    fn note_query_hosts(&mut self) {
        let HostLoss { now, config, hosts, .. } = &mut self.loss;
        let capable = |host: &HostRecord| host.takes_work() && host.rank(Role::Query, config.recovery).is_some();
        for ServedModel { label, .. } in &config.models {
            if hosts.iter().any(|host| capable(host) && host.spec.model() == label) {
                hosts.no_query_host_since.remove(label);
            } else if !hosts.no_query_host_since.contains_key(label) {
                hosts.no_query_host_since.insert(label.clone(), *now);
            }
        }
    }

    /// Fails jobs of a job's model that have waited too long for there to be a query host of it.
    fn give_up_unassigned(&mut self, number: u64) {
        let patience = self.loss.config.patience;
        let Some(job) = self.loss.jobs.get(number) else { return };
        let Some(context) = self.loss.contexts.get(job.context) else { return };
        let (label, model) = (context.prepared.model(), job.facts.model.clone());
        let Some(gone) = self.loss.hosts.no_query_host_since.get(label).copied() else { return };
        let of_model = if self.loss.config.is_only_model(label) { String::new() } else { format!(" of model {model}") };
        while let Some((ready, number)) = self.loss.jobs.longest_unassigned(&model) {
            if self.loss.now.saturating_sub(gone.max(ready)) <= patience {
                return;
            }
            let waited = patience.as_secs_f64();
            let message = format!("no query host{of_model} is alive, and none came within {waited:.0} s");
            self.loss.teardown().fail(number, "host_lost", message);
        }
    }

    /// Fails a job that has waited too long for a query host that goes on as its last one would have.
    fn give_up_unequal(&mut self, number: u64) {
        let patience = self.loss.config.patience;
        let Some(Job { numerics: Some(wanted), .. }) = self.loss.jobs.get(number) else { return };
        let since = self.loss.jobs.get(number).and_then(Job::lost_since).unwrap_or(self.loss.now);
        if self.loss.now.saturating_sub(since) > patience {
            let message = format!(
                "its tokens were made on {wanted}, and no such query host came within {:.0} s; others go on with it where \
                 mixed_numerics of [cluster] is \"mark\"",
                patience.as_secs_f64()
            );
            self.loss.teardown().fail(number, "host_lost", message);
        }
    }
}
