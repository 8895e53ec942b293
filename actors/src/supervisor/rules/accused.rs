//! Hosts that do what no honest one does: answers that cannot be right, an input that is not the shard's. Their work goes to
//! others at once. Who is fenced for it is decided here, by what others then did; who is asked instead, in `assign.rs`.
//!
//! That a shard's answer is wrong is one host's word against another's, and some inputs overflow a model's dtype on every host.
//! So an accused host is fenced and cordoned when the job has an answer without it. A query host that accuses a second host is the
//! one that is fenced: of one liar among query hosts one context host suffers at most.

use std::time::Duration;

use crate::{
    api::{Role, Scheduling},
    metric::Observation,
    supervisor::{
        state::{Command, SupervisorState},
        tables::job::Outcome,
    },
};

/// Answers of a job that cannot be right, after which the job fails.
const MOST_WRONG: usize = 3;

impl SupervisorState {
    /// A query host got an answer that cannot be right: the shards go elsewhere.
    pub(in crate::supervisor) fn on_wrong(
        &mut self,
        now: Duration,
        from: usize,
        number: u64,
        (accused, cause): (String, String),
        commands: &mut Vec<Command>,
    ) {
        let Some(host) = self.hosts.by_name(&accused) else { return };
        let Some(job) = self.running_job(number).filter(|job| job.query_host == Some(from)) else { return };
        let context = job.context;
        drop(job);
        let ready = self.contexts.get(context).is_some_and(|context| context.is_ready());
        if !ready {
            return;
        }
        if !self.contexts.get(context).is_some_and(|context| context.shards_on(host) > 0) {
            // It told so of who holds them no more.
            return self.tell_holders(number, from, commands);
        }
        let refused = Observation::Refused { reason: "partials", who: accused.clone(), cause: cause.clone() };
        commands.push(Command::Observe(refused));
        let mut job = self.jobs.get_mut(number).expect("it runs");
        job.accused.push((host, cause.clone()));
        let often = job.accused.len() > MOST_WRONG;
        drop(job);
        if often {
            let message = format!("{accused}: {cause}; {MOST_WRONG} answers before it were wrong, too");
            return self.end(now, number, Outcome::Failed { code: "not_finite_partial".into(), message }, commands);
        }
        self.contexts.get_mut(context).expect("it is ready").avoid.insert(host);
        self.take_shards(now, context, (host, "wrong_partials"), commands);
    }

    /// A job that hosts were accused in has its answer from others.
    pub(in crate::supervisor) fn convict(
        &mut self,
        now: Duration,
        accuser: usize,
        accused: Vec<(usize, String)>,
        commands: &mut Vec<Command>,
    ) {
        for (host, cause) in accused.into_iter().filter(|(host, _)| *host != accuser) {
            let first = *self.accusers.entry(accuser).or_insert(host);
            let (culprit, cause) = match first == host {
                true => (host, format!("it answered what cannot be right, and others did not: {cause}")),
                false => {
                    let others = [first, host].map(|host| self.hosts.name(host).to_string()).join(" and ");
                    (
                        accuser,
                        format!(
                            "it said of {others} that they answer what cannot be right; one accuser is likelier wrong"
                        ),
                    )
                }
            };
            self.set_scheduling(culprit, Scheduling::Cordoned, None, commands);
            self.lose(now, culprit, ("lied", cause), commands);
        }
    }

    /// Whether somebody else could encode what a host encoded wrongly.
    pub(in crate::supervisor) fn is_replaceable(&self, host: usize, context: u64) -> bool {
        let Some(context) = self.contexts.get(context) else { return false };
        let able =
            self.hosts.that(|record| record.takes_work() && record.rank(Role::Context, self.config.recovery).is_some());
        able.into_iter().any(|other| other != host && !context.avoid.contains(&other))
    }
}
