//! Which query host generates which job, and when. What it is then told is `rules/orders.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::{JobEvent, JobPhase, Role},
    cluster_event::ClusterEventKind,
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
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
        let mut passed = Passed::new();
        while let Some(place) = self
            .loss
            .jobs
            .next_unassigned(&passed)
            .filter(|_| !self.loss.hosts.is_booting(self.loss.now, self.loss.config.patience))
        {
            let number = place.1;
            let key = self.loss.jobs.get(number).and_then(|job| job.key.clone());
            match if self.loss.jobs.is_held(number) { Choice::NotNow } else { self.loss.selection().query_host(number) }
            {
                Choice::Host(host) => self.begin_generation(number, host),
                Choice::NoEqual { up } => {
                    passed.insert(key, place);
                    if !up {
                        self.give_up_unequal(number);
                    }
                }
                Choice::NotNow => {
                    passed.insert(key, place);
                    self.give_up_without_model(number);
                }
                Choice::Nobody => return self.give_up_unassigned(),
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
        drop(job);
        self.loss.orders().generate(number, host);
        if enters {
            let event = JobEvent::Phase { phase: JobPhase::Querying };
            self.loss.out.push(SupervisorCommand::Publish { job: number, event });
        }
    }

    /// Notes since when models have no query host at all, of those that have none.
    fn note_query_hosts(&mut self) {
        let capable =
            |host: &HostRecord| host.rank(Role::Query, self.loss.config.recovery).is_some() && host.takes_work();
        let mut without = BTreeMap::new();
        for model in self.loss.hosts.iter().map(|host| host.spec.model()).collect::<BTreeSet<_>>() {
            if !self.loss.hosts.iter().any(|host| host.spec.model() == model && capable(host)) {
                let since = self.loss.hosts.no_query_host_since.get(model).copied();
                without.insert(model.to_owned(), since.unwrap_or(self.loss.now));
            }
        }
        self.loss.hosts.no_query_host_since = without;
    }

    /// Fails a job whose model has had no query host for too long.
    fn give_up_without_model(&mut self, number: u64) {
        let patience = self.loss.config.patience;
        let Some(job) = self.loss.jobs.get(number) else { return };
        let Some(model) = self.loss.contexts.get(job.context).map(|context| context.prepared.model()) else { return };
        let is_only = self.loss.config.is_only_model(model);
        let Some(gone) = self.loss.hosts.no_query_host_since.get(model).filter(|_| !is_only) else { return };
        let since = job.ready_since.map_or(*gone, |ready| ready.max(*gone));
        if self.loss.now.saturating_sub(since) > patience {
            let (model, waited) = (&job.facts.model, patience.as_secs_f64());
            let message = format!("no query host of model {model} is alive, and none came within {waited:.0} s");
            self.loss.teardown().fail(number, "host_lost", message);
        }
    }

    /// Fails jobs that have waited too long for there to be a query host.
    fn give_up_unassigned(&mut self) {
        let patience = self.loss.config.patience;
        let model = &self.loss.config.first_model().label;
        let Some(gone) = self.loss.hosts.no_query_host_since.get(model).copied() else { return };
        while let Some((ready, number)) = self.loss.jobs.longest_unassigned() {
            if self.loss.now.saturating_sub(gone.max(ready)) <= patience {
                return;
            }
            let message = format!("no query host is alive, and none came within {:.0} s", patience.as_secs_f64());
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
