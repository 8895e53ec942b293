//! Hosts that do what no honest one does: answers that cannot be right, an input that is not the shard's. Their work goes to
//! others at once. Who is fenced for it is decided here, by what others then did; who is asked instead, by the scheduler.
//!
//! That a shard's answer is wrong is one host's word against another's, and some inputs overflow a model's dtype on every host.
//! So an accused host is fenced and cordoned when the job has an answer without it. A query host that accuses a second host is the
//! one that is fenced: of one liar among query hosts one context host suffers at most. What was said long ago, or of or by a host
//! that an operator has let work again, is no second word against anybody.

use crate::{
    api::Scheduling,
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        rules::{drain::set_scheduling, recovery::HostLoss},
    },
};

/// Answers of a job that cannot be right, after which the job fails.
const MOST_WRONG: usize = 3;

/// Weighs what query hosts say of others' answers.
pub struct Accusations<'a> {
    pub loss: HostLoss<'a>,
}

impl Accusations<'_> {
    /// A query host got an answer that cannot be right: the shards go elsewhere.
    pub fn on_wrong(&mut self, from: usize, number: u64, (accused, cause): (String, String)) {
        let Some(host) = self.loss.hosts.by_name(&accused) else { return };
        let Some(job) = self.loss.jobs.running_mut(number).filter(|job| job.query_host == Some(from)) else { return };
        let context = job.context;
        drop(job);
        let ready = self.loss.contexts.get(context).is_some_and(|context| context.is_ready());
        if !ready {
            return;
        }
        if self.loss.contexts.get(context).is_none_or(|context| context.shards_on(host) == 0) {
            // It told so of who holds them no more.
            return self.loss.orders().send_holders(number, from);
        }
        let refused = Observation::Refused { reason: "partials", who: accused.clone(), cause: cause.clone() };
        self.loss.out.push(SupervisorCommand::Observe(refused));
        let mut job = self.loss.jobs.get_mut(number).expect("it runs");
        job.accused.push((host, cause.clone()));
        let often = job.accused.len() > MOST_WRONG;
        drop(job);
        if often {
            let message = format!("{accused}: {cause}; {MOST_WRONG} answers before it were wrong, too");
            return self.loss.teardown().fail(number, "not_finite_partial", message);
        }
        self.loss.contexts.get_mut(context).expect("it is ready").avoid.insert(host);
        self.loss.take_shards(context, (host, "wrong_partials"));
    }

    /// A job that hosts were accused in has its answer from others.
    pub fn convict(&mut self, accuser: usize, accused: Vec<(usize, String)>) {
        for (host, cause) in accused.into_iter().filter(|(host, _)| *host != accuser) {
            let first = self.loss.hosts.accusations.first_of(accuser, host, self.loss.now);
            let (culprit, cause) = match first == host {
                true => (host, format!("it answered what cannot be right, and others did not: {cause}")),
                false => {
                    let others = [first, host].map(|host| self.loss.hosts.name(host).to_string()).join(" and ");
                    (
                        accuser,
                        format!(
                            "it said of {others} that they answer what cannot be right; one accuser is likelier wrong"
                        ),
                    )
                }
            };
            set_scheduling(self.loss.hosts, culprit, Scheduling::Cordoned, None, self.loss.out);
            self.loss.lose(culprit, ("lied", cause));
        }
    }
}
