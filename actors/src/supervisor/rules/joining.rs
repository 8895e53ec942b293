//! Hosts and nodes that join or come back: what they are told, and what is made of what they have.

use std::time::Duration;

use crate::{
    api::{JobPhase, JobState, Role},
    cluster_event::ClusterEventKind,
    messages::{Hello, HostCommand},
    metric::Observation,
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::{drain::leaving::Departures, recovery::HostLoss},
        tables::{
            contexts::Contexts,
            hosts::HelloVerdict,
            jobs::{JobEdit, Jobs},
            model::ClusterModels,
            numbers::Numbers,
        },
    },
    ticket::Ticket,
};

/// Takes hosts and nodes in.
pub struct Joining<'a> {
    pub loss: HostLoss<'a>,
    pub numbers: &'a Numbers,
    pub models: &'a ClusterModels,
}

impl Joining<'_> {
    /// A process says which host or node it is.
    pub fn on_hello(&mut self, from: u64, hello: Hello) {
        let heartbeat_ms = self.loss.config.liveness.heartbeat.as_millis() as u64;
        let cluster = self.numbers.origin.cluster;
        let welcome = |incarnation| HostCommand::Welcome { heartbeat_ms, cluster, incarnation };
        let refused = |who: &str, reason: &str| {
            let (who, cause) = (who.to_string(), reason.to_string());
            SupervisorCommand::Observe(Observation::Refused { reason: "hello", who, cause })
        };
        let reply = |command| SupervisorCommand::Send { connection: from, command };
        if hello.role.role().is_none() {
            return match self.loss.hosts.admit_node(self.loss.now, &hello.name, from) {
                Ok(earlier) => {
                    self.loss.out.extend(replaced(earlier, from));
                    self.loss
                        .out
                        .push(SupervisorCommand::Notify(ClusterEventKind::NodeJoined { node: hello.name.clone() }));
                    self.loss.out.push(reply(welcome(0)));
                    // The agent may have been out of reach when they were declared dead.
                    let kill = |(host, start)| reply(HostCommand::Kill { host, start });
                    self.loss.out.extend(self.loss.hosts.fenced_of(&hello.name).into_iter().map(kill));
                }
                Err(reason) => {
                    self.loss.out.push(refused(&hello.name, &reason));
                    self.loss.out.push(reply(HostCommand::Refuse { reason }));
                }
            };
        }
        match self.loss.hosts.judge(&hello, cluster) {
            HelloVerdict::Refused(reason) => {
                self.loss.hosts.refused(&hello.name, &reason);
                self.loss.out.push(refused(&hello.name, &reason));
                return self.loss.out.push(reply(HostCommand::Refuse { reason }));
            }
            HelloVerdict::New => {}
            HelloVerdict::Back(earlier) => self.loss.out.extend(replaced(earlier, from)),
            HelloVerdict::Successor => {
                let host = self.loss.hosts.by_name(&hello.name).expect("it was judged good");
                match self.loss.hosts.at(host).was_told_to_leave() {
                    true => self.loss.on_left(host),
                    false => self.loss.lose(host, ("exited", "a later process of it connected".to_string())),
                }
            }
        }
        let (contexts, jobs) = (hello.contexts.clone(), hello.jobs.clone());
        let fresh = hello.cluster == 0;
        let (silent, pid) = (self.loss.hosts.silence_of(self.loss.now, &hello.name), hello.pid);
        let before = self.loss.hosts.by_name(&hello.name).map_or(0, |host| self.loss.hosts.at(host).kept.restarts);
        let host = self.loss.hosts.admit(self.loss.now, from, hello);
        self.loss.out.push(SupervisorCommand::Notify(self.joined(host, (pid, silent.filter(|_| !fresh)))));
        if fresh {
            // A process that just started has nothing of what its predecessor had, and nobody has failed to reach it.
            self.loss.contexts.reachable(host);
            for number in self.loss.jobs.in_state(JobState::Running).collect::<Vec<_>>() {
                self.loss.jobs.get_mut(number).expect("an index names those there are").avoid.remove(&host);
            }
            self.loss.vacate(host, ("exited", "its process was started again".into()));
        }
        let record = self.loss.hosts.at(host);
        if record.kept.restarts > before {
            self.loss
                .out
                .push(SupervisorCommand::Observe(Observation::HostRestarted { host: record.spec.name.clone() }));
        }
        let incarnation = record.kept.incarnation;
        self.loss.out.push(SupervisorCommand::Persist(record::host(record)));
        self.loss.out.push(SupervisorCommand::Persist(record::cluster(
            &self.numbers.origin,
            self.numbers.last,
            self.models,
        )));
        let told_to_end = !fresh && record.kept.ordered_to_end;
        self.loss.out.push(reply(welcome(incarnation)));
        self.take_stock(host, (contexts, jobs));
        if told_to_end {
            // Its connection ended before it received that.
            Departures { loss: self.loss.reborrow() }.order_to_end(host);
        }
    }

    /// That a host is there, or back after it was silent.
    fn joined(&self, host: usize, (pid, silent): (u32, Option<Duration>)) -> ClusterEventKind {
        let record = self.loss.hosts.at(host);
        let (host, role, incarnation) = (record.spec.name.clone(), record.spec.role, record.kept.incarnation);
        match silent {
            Some(silent) => ClusterEventKind::HostBack { host, silent_s: silent.as_secs_f64() },
            None => ClusterEventKind::HostJoined { host, role, incarnation, pid },
        }
    }

    /// A host says what it has: what nobody wants it forgets, a generation that has no host is its own.
    fn take_stock(&mut self, host: usize, (contexts, jobs): (Vec<u64>, Vec<(u64, Ticket)>)) {
        let stale = contexts
            .into_iter()
            .filter(|number| self.loss.contexts.get(*number).is_none_or(|c| c.shards_on(host) == 0));
        let stale: Vec<u64> = stale.collect();
        stale.into_iter().for_each(|context| self.loss.orders().release(host, context));
        for (number, ticket) in jobs {
            // An earlier supervisor told no other host to generate.
            let able = self.loss.hosts.at(host).rank(Role::Query, self.loss.config.recovery).is_some()
                && ticket == ticket_of(self.loss.jobs, self.loss.contexts, number)
                && self.loss.jobs.get(number).is_some_and(|job| self.loss.contexts.get(job.context).is_some());
            let free = |job: &JobEdit| job.query_host.map_or(able, |other| other == host);
            if let Some(mut job) = self.loss.jobs.open_mut(number).filter(free) {
                job.query_host = Some(host);
                job.enter(self.loss.now, JobPhase::Querying);
                continue;
            }
            self.loss.orders().send(host, HostCommand::Stop { job: number });
        }
    }
}

/// What opens the context that a job asks.
pub fn ticket_of(jobs: &Jobs, contexts: &Contexts, job: u64) -> Ticket {
    let context = jobs.get(job).and_then(|job| contexts.get(job.context));
    context.map(|context| context.ticket).unwrap_or_default()
}

/// Closes the connection that a peer had before it connected anew.
fn replaced(earlier: Option<u64>, now: u64) -> Option<SupervisorCommand> {
    let connection = earlier.filter(|&earlier| earlier != now)?;
    Some(SupervisorCommand::Disconnect { connection, reason: "it connected anew".to_string() })
}
