//! What hosts and nodes say, and what it changes. Who then works on what is `assign.rs`.

use std::time::Duration;

use asterism_plan::Exchange;

use crate::{
    api::{JobEvent, JobPhase, JobState, Role},
    messages::{Encoded, Hello, HostCommand, HostMessage, Phase2Times, SaidToken},
    metric::{self, Observation},
    news::News,
    supervisor::{
        codes,
        journal::record,
        state::{Command, Stir, SupervisorState},
        tables::{
            hosts::{Admission, told::Told},
            job::Outcome,
            jobs::Edit,
        },
    },
    ticket::Ticket,
};

/// Seconds that no shard takes to be encoded: a day.
const LONGEST_ENCODE_S: f64 = 86_400.0;

impl SupervisorState {
    /// Applies a message. Says what it may change of who works on what.
    pub(in crate::supervisor) fn on_message(
        &mut self,
        now: Duration,
        from: u64,
        message: HostMessage,
        commands: &mut Vec<Command>,
    ) -> Stir {
        if let HostMessage::Hello(hello) = message {
            self.on_hello(now, from, hello, commands);
            return Stir::Everything;
        }
        let Some(host) = self.hosts.by_connection(from) else {
            if self.hosts.is_node(from) {
                return self.on_node_message(now, from, message, commands);
            }
            let reason = "this host was declared dead or never said hello".to_string();
            commands.push(Command::Disconnect { connection: from, reason });
            return Stir::Nothing;
        };
        commands.extend(self.hosts.heard(now, host).map(Command::Tell));
        match message {
            HostMessage::Heartbeat { kv_bytes, idle_bytes } => {
                let record = self.hosts.at_mut(host);
                (record.kv_bytes, record.idle_bytes) = (kv_bytes, idle_bytes);
                return Stir::Nothing;
            }
            HostMessage::Links(mut report) => {
                // What stands in labels is of this cluster, or not counted.
                report.links.retain(|link| {
                    let known = link.peer == metric::SUPERVISOR || self.hosts.by_name(&link.peer).is_some();
                    known && metric::TRANSPORTS.contains(&link.transport.as_str())
                });
                report.traffic.carried.retain(|carried| metric::TRANSPORTS.contains(&carried.transport.as_str()));
                report.traffic.refused.retain(|refused| metric::REJECTIONS.contains(&refused.reason.as_str()));
                self.hosts.at_mut(host).told = Told::of(&report, now);
                let host = self.hosts.name(host).to_string();
                commands.push(Command::Observe(Observation::Links { host, report }));
                return Stir::Nothing;
            }
            HostMessage::Ready { numerics, model } => {
                self.on_loaded(now, host, (numerics, *model), commands);
                return Stir::Everything;
            }
            HostMessage::Unfit { cause } => {
                self.lose(now, host, ("unfit", cause), commands);
                return Stir::Everything;
            }
            HostMessage::Progress { context, block, layers, of } => {
                self.on_progress(host, context, block, (layers, of), commands);
                return Stir::Nothing;
            }
            HostMessage::Encoded(encoded) => self.on_encoded(now, host, encoded, commands),
            HostMessage::NotEncoded { context, attempt, peer_lost, code, message } => {
                let code = codes::of_host(&code).to_string();
                self.on_not_encoded(now, host, (context, attempt), (peer_lost, code, message), commands);
            }
            HostMessage::Token { job, index, id, text, logprobs } => {
                self.on_token(now, host, job, (index, (id, text, logprobs)), commands);
                return Stir::Nothing;
            }
            HostMessage::Generated { job, tokens, stopped, text, times } => {
                self.on_generated(now, host, job, (tokens, stopped, text, times), commands);
            }
            HostMessage::Stalled { job, host: silent, wrong: false, cause } => {
                self.on_stalled(now, host, job, (silent, cause), commands);
            }
            HostMessage::Stalled { job, host: liar, wrong: true, cause } => {
                self.on_wrong(now, host, job, (liar, cause), commands);
            }
            HostMessage::Failed { job, code, message } => {
                if self.running_job(job).is_some_and(|job| job.query_host == Some(host)) {
                    let code = codes::of_host(&code).to_string();
                    self.end(now, job, Outcome::Failed { code, message }, commands);
                }
            }
            HostMessage::Hello(_)
            | HostMessage::Measured { .. }
            | HostMessage::Exited { .. }
            | HostMessage::Seen { .. } => return Stir::Nothing,
        }
        Stir::Touched
    }

    /// What an agent says of the hosts of its node.
    fn on_node_message(&mut self, now: Duration, from: u64, message: HostMessage, commands: &mut Vec<Command>) -> Stir {
        match message {
            HostMessage::Exited { host, start, cause, restarting } => {
                self.on_exited(now, from, (&host, start), (cause, restarting), commands);
                Stir::Everything
            }
            HostMessage::Seen { host, start, condition } => {
                self.on_seen(now, from, (&host, start), condition, commands);
                Stir::Nothing
            }
            _ => Stir::Everything,
        }
    }

    fn on_hello(&mut self, now: Duration, from: u64, hello: Hello, commands: &mut Vec<Command>) {
        let heartbeat_ms = self.config.liveness.heartbeat.as_millis() as u64;
        let cluster = self.origin.cluster;
        let welcome = |incarnation| HostCommand::Welcome { heartbeat_ms, cluster, incarnation };
        let refused = |who: &str, reason: &str| {
            let (who, cause) = (who.to_string(), reason.to_string());
            Command::Observe(Observation::Refused { reason: "hello", who, cause })
        };
        let reply = |command| Command::Send { connection: from, command };
        if hello.role.role().is_none() {
            return match self.hosts.admit_node(now, &hello.name, from) {
                Ok(earlier) => {
                    commands.extend(replaced(earlier, from));
                    commands.push(Command::Tell(News::NodeJoined { node: hello.name.clone() }));
                    commands.push(reply(welcome(0)));
                    // The agent may have been out of reach when they were declared dead.
                    let kill = |(host, start)| reply(HostCommand::Kill { host, start });
                    commands.extend(self.hosts.fenced_of(&hello.name).into_iter().map(kill));
                }
                Err(reason) => {
                    commands.push(refused(&hello.name, &reason));
                    commands.push(reply(HostCommand::Refuse { reason }));
                }
            };
        }
        match self.hosts.judge(&hello, cluster) {
            Admission::Refused(reason) => {
                self.hosts.refused(&hello.name, &reason);
                commands.push(refused(&hello.name, &reason));
                return commands.push(reply(HostCommand::Refuse { reason }));
            }
            Admission::New => {}
            Admission::Back(earlier) => commands.extend(replaced(earlier, from)),
            Admission::Successor => {
                let host = self.hosts.by_name(&hello.name).expect("it was judged good");
                let cause = "a later process of it connected".to_string();
                self.lose(now, host, ("exited", cause), commands);
            }
        }
        let (contexts, jobs) = (hello.contexts.clone(), hello.jobs.clone());
        let fresh = hello.cluster == 0;
        let (silent, pid) = (self.hosts.silence_of(now, &hello.name), hello.pid);
        let before = self.hosts.by_name(&hello.name).map_or(0, |host| self.hosts.at(host).kept.restarts);
        let host = self.hosts.admit(now, from, hello);
        commands.push(Command::Tell(self.joined(host, (pid, silent.filter(|_| !fresh)))));
        if fresh {
            // A process that just started has nothing of what its predecessor had, and nobody has failed to reach it.
            self.contexts.reachable(host);
            for number in self.jobs.in_state(JobState::Running).collect::<Vec<_>>() {
                self.jobs.get_mut(number).expect("an index names those there are").avoid.remove(&host);
            }
            self.vacate(now, host, ("exited", "its process was started again".into()), commands);
        }
        let record = self.hosts.at(host);
        if record.kept.restarts > before {
            commands.push(Command::Observe(Observation::HostRestarted { host: record.spec.name.clone() }));
        }
        let incarnation = record.kept.incarnation;
        commands.push(Command::Persist(record::host(record)));
        commands.push(Command::Persist(record::cluster(&self.origin, self.last_number, &self.model.mark())));
        commands.push(reply(welcome(incarnation)));
        self.take_stock(now, host, (contexts, jobs), commands);
    }

    /// That a host is there, or back after it was silent.
    fn joined(&self, host: usize, (pid, silent): (u32, Option<Duration>)) -> News {
        let record = self.hosts.at(host);
        let (host, role, incarnation) = (record.spec.name.clone(), record.spec.role, record.kept.incarnation);
        match silent {
            Some(silent) => News::HostBack { host, silent_s: silent.as_secs_f64() },
            None => News::HostJoined { host, role, incarnation, pid },
        }
    }

    /// A host says what it has: what nobody wants it forgets, a generation that has no host is its own.
    fn take_stock(
        &mut self,
        now: Duration,
        host: usize,
        (contexts, jobs): (Vec<u64>, Vec<(u64, Ticket)>),
        commands: &mut Vec<Command>,
    ) {
        let stale =
            contexts.into_iter().filter(|number| self.contexts.get(*number).is_none_or(|c| c.shards_on(host) == 0));
        let stale: Vec<u64> = stale.collect();
        stale.into_iter().for_each(|context| self.release(host, context, commands));
        for (number, ticket) in jobs {
            // An earlier supervisor told no other host to generate.
            let able = self.hosts.at(host).rank(Role::Query, self.config.recovery).is_some()
                && ticket == self.ticket_of(number)
                && self.jobs.get(number).is_some_and(|job| self.contexts.get(job.context).is_some());
            let free = |job: &Edit| job.query_host.map_or(able, |other| other == host);
            if let Some(mut job) = self.jobs.open_mut(number).filter(free) {
                job.query_host = Some(host);
                job.enter(now, JobPhase::Querying);
                continue;
            }
            self.send(host, HostCommand::Stop { job: number }, commands);
        }
    }

    /// What opens the context that a job asks.
    pub(in crate::supervisor) fn ticket_of(&self, job: u64) -> Ticket {
        let context = self.jobs.get(job).and_then(|job| self.contexts.get(job.context));
        context.map(|context| context.ticket).unwrap_or_default()
    }

    fn on_progress(&mut self, host: usize, number: u64, block: u32, layers: (u32, u32), commands: &mut Vec<Command>) {
        if !self.contexts.get(number).is_some_and(|context| context.is_ordered(block as usize, host)) {
            return;
        }
        self.contexts.progressed(number, block, layers);
        let (Some(context), mut watched) = (self.contexts.get(number), self.jobs.watched_of(number).peekable()) else {
            return;
        };
        if watched.peek().is_some() {
            let hosts = context.progress(&|host| self.hosts.name(host).to_string());
            let event = |job| Command::Publish { job, event: JobEvent::Progress { hosts: hosts.clone() } };
            commands.extend(watched.map(event));
        }
    }

    fn on_encoded(&mut self, now: Duration, host: usize, encoded: Encoded, commands: &mut Vec<Command>) {
        let (number, block) = (encoded.context, encoded.block as usize);
        let Some(context) = self.contexts.get(number) else { return };
        let here = context.places.get(block).is_some_and(|place| place.host == Some(host) && place.encoded.is_none());
        let moves = context.heirs.get(&block) == Some(&host);
        if !here && !moves {
            return;
        }
        let shard = &context.prepared.plan.shards[block];
        let (tokens, expected, got) = (shard.rows(), shard.kept_tokens() as u64, encoded.kept_tokens);
        let name = self.hosts.name(host).to_string();
        if expected != got {
            let message = format!("host {name} kept {got} tokens of shard {block}, not the {expected} planned");
            return self.fail_context(now, number, ("shard_mismatch", message), commands);
        }
        if !context.prepared.is_input(block, encoded.digest) {
            return self.on_misread(now, host, (number, block), commands);
        }
        let encoded = Encoded { seconds: possible(encoded.seconds), ..encoded };
        let (method, seconds) = (context.plan().method.name.clone(), encoded.seconds);
        if context.plan().exchange == Exchange::None {
            self.lately.note(encoded.digest, host);
        }
        commands.push(Command::Observe(match encoded.cached {
            true => Observation::ShardCached { host: name, tokens: context.plan().shards[block].block_tokens() },
            false => {
                self.token_seconds += 0.2 * (seconds / tokens.max(1) as f64 - self.token_seconds);
                Observation::ShardEncoded { host: name, method, seconds, tokens }
            }
        }));
        if moves {
            return self.moved(now, host, encoded, commands);
        }
        self.contexts.note_encoded(number, block, encoded);
    }

    fn on_token(
        &mut self,
        now: Duration,
        host: usize,
        number: u64,
        token: (u32, SaidToken),
        commands: &mut Vec<Command>,
    ) {
        let (index, (id, text, logprobs)) = token;
        let Some(job) = self.running_job(number).filter(|job| job.query_host == Some(host)) else { return };
        match job.status.tokens.get(index as usize) {
            Some(&known) if known != id => {
                drop(job);
                let message =
                    format!("gone through again, token {index} of the answer is {id} and was {known}; submit it again");
                return self.end(now, number, Outcome::Failed { code: "replay_mismatch".into(), message }, commands);
            }
            Some(_) => return,
            // Tokens in between were said while nobody listened: all are said again when the host is reminded.
            None if job.status.tokens.len() != index as usize => return,
            None if index >= job.question.choice.max_tokens => return,
            None => {}
        }
        drop(job);
        self.goes_on(now, number, commands);
        let Some(mut job) = self.jobs.get_mut(number) else { return };
        job.stalls = Default::default();
        if job.enter(now, JobPhase::Decoding) {
            let event = JobEvent::Phase { phase: JobPhase::Decoding };
            commands.push(Command::Publish { job: number, event });
        }
        let first = job.numerics.is_none() && self.hosts.at(host).numerics.is_some();
        if first {
            job.numerics.clone_from(&self.hosts.at(host).numerics);
        }
        job.status.generated_tokens += 1;
        job.status.tokens.push(id);
        job.status.text.push_str(&text);
        let logprobs = job.question.told(logprobs);
        job.status.logprobs.extend(logprobs.as_deref().cloned());
        let kept = first.then(|| record::job(&job));
        drop(job);
        commands.push(Command::Publish { job: number, event: JobEvent::Token { id, text, logprobs } });
        // Whoever goes on with it after another supervisor's start computes the same.
        commands.extend(kept.map(Command::Persist));
    }

    fn on_generated(
        &mut self,
        now: Duration,
        host: usize,
        number: u64,
        end: (u32, bool, String, Box<Phase2Times>),
        commands: &mut Vec<Command>,
    ) {
        let (tokens, stopped, text, times) = end;
        let Some(mut job) = self.running_job(number).filter(|job| job.query_host == Some(host)) else { return };
        if job.status.tokens.len() != tokens as usize {
            drop(job);
            return self.remind(host, commands);
        }
        job.status.text.push_str(&text);
        let (method, model) = (job.status.method.clone(), job.status.model.clone());
        let accused = std::mem::take(&mut job.accused);
        drop(job);
        if times.are_of(tokens) {
            let host = self.hosts.name(host).to_string();
            commands.push(Command::Observe(Observation::Phase2 { host, method, model, times }));
        }
        self.goes_on(now, number, commands);
        self.end(now, number, Outcome::Answered { stopped }, commands);
        self.convict(now, host, accused, commands);
    }
}

/// Seconds that a host says it took, or none where nothing can have taken so long.
fn possible(seconds: f64) -> f64 {
    if (0.0..=LONGEST_ENCODE_S).contains(&seconds) { seconds } else { 0.0 }
}

/// Closes the connection that a peer had before it connected anew.
fn replaced(earlier: Option<u64>, now: u64) -> Option<Command> {
    let connection = earlier.filter(|&earlier| earlier != now)?;
    Some(Command::Disconnect { connection, reason: "it connected anew".to_string() })
}
