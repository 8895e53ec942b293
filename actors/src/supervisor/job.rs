//! One job: where its shards are, how far it is, and what it took.

use std::{collections::BTreeMap, time::Duration};

use asterism_plan::{Exchange, Shard};

use crate::{
    api::{FinishReason, HostProgress, HostTiming, JobEvent, JobPhase, JobState, JobStatus, Timings},
    messages::{EncodeShards, Encoded, Generate, HostCommand, HostMessage, ShardHolder},
    metric::Observation,
    supervisor::{
        hosts::HostRecord,
        state::{Command, Outcome, PreparedJob, SupervisorState},
    },
};

/// One job.
#[derive(Debug)]
pub struct Job {
    /// Number, from 1.
    pub number: u64,
    /// What clients see; timings are filled in when asked for.
    pub status: JobStatus,
    prepared: PreparedJob,
    /// Host of each shard, in plan order; empty until started.
    holders: Vec<usize>,
    query_host: Option<usize>,
    encoded: BTreeMap<u32, Encoded>,
    layers_done: BTreeMap<u32, (u32, u32)>,
    submitted: Duration,
    clock: Clock,
}

/// When a job entered each phase.
#[derive(Debug, Default)]
struct Clock {
    encoding: Option<Duration>,
    querying: Option<Duration>,
    decoding: Option<Duration>,
    ended: Option<Duration>,
}

impl Job {
    /// A waiting job.
    pub fn new(number: u64, now: Duration, model: &str, mut prepared: PreparedJob) -> Self {
        let status = JobStatus {
            id: prepared.id.take().unwrap_or_else(|| format!("job-{number}")),
            state: JobState::Pending,
            phase: Some(JobPhase::Queued),
            method: prepared.plan.method.name.clone(),
            method_reason: prepared.plan.method.reason.clone(),
            model: model.to_string(),
            session: None,
            context_tokens: prepared.plan.context_tokens,
            query_tokens: prepared.query_ids.len(),
            generated_tokens: 0,
            text: String::new(),
            tokens: Vec::new(),
            finish_reason: None,
            error: None,
            labels: std::mem::take(&mut prepared.labels),
            attention_sparsity: None,
            recoveries: Vec::new(),
            timings: Timings::default(),
        };
        Self {
            number,
            status,
            prepared,
            holders: Vec::new(),
            query_host: None,
            encoded: BTreeMap::new(),
            layers_done: BTreeMap::new(),
            submitted: now,
            clock: Clock::default(),
        }
    }

    /// Whether hosts work on it.
    pub fn is_running(&self) -> bool {
        self.status.state == JobState::Running
    }

    /// Whether it is over.
    pub fn has_ended(&self) -> bool {
        self.clock.ended.is_some()
    }

    /// Whether its time limit has passed.
    pub fn is_late(&self, now: Duration) -> bool {
        self.prepared.timeout.is_some_and(|limit| now.saturating_sub(self.submitted) > limit)
    }

    /// Whether it needs a host.
    pub fn uses(&self, host: usize) -> bool {
        self.query_host == Some(host) || self.holders.contains(&host)
    }

    /// The hosts that hold something for it, each once.
    pub fn used_hosts(&self) -> Vec<usize> {
        let mut hosts: Vec<usize> = self.holders.iter().copied().chain(self.query_host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Marks the end.
    pub fn finish(&mut self, now: Duration, outcome: Outcome) {
        self.clock.ended = Some(now);
        self.prepared.plan.shards = Vec::new();
        self.status.phase = None;
        self.status.error = outcome.error();
        self.status.state = match outcome {
            Outcome::Answered { stopped } => {
                self.status.finish_reason = Some(if stopped { FinishReason::Stop } else { FinishReason::Length });
                JobState::Succeeded
            }
            Outcome::Failed { .. } => JobState::Failed,
            Outcome::Cancelled => JobState::Cancelled,
        };
    }

    /// Its status with timings up to `now`.
    pub fn status_at(&self, now: Duration) -> JobStatus {
        JobStatus { timings: self.timings(now), ..self.status.clone() }
    }

    fn timings(&self, now: Duration) -> Timings {
        let end = self.clock.ended.unwrap_or(now);
        let span = |from: Option<Duration>, to: Option<Duration>| match from {
            Some(from) => to.unwrap_or(end).saturating_sub(from).as_secs_f64(),
            None => 0.0,
        };
        Timings {
            queue_s: span(Some(self.submitted), self.clock.encoding),
            encode_s: span(self.clock.encoding, self.clock.querying),
            query_s: span(self.clock.querying, self.clock.decoding),
            decode_s: span(self.clock.decoding, self.clock.ended),
            total_s: end.saturating_sub(self.submitted).as_secs_f64(),
            hosts: self.status.timings.hosts.clone(),
        }
    }

    fn shard(&self, block: u32) -> Option<&Shard> {
        self.prepared.plan.shards.get(block as usize)
    }

    fn progress(&self, names: &dyn Fn(usize) -> String) -> Vec<HostProgress> {
        let mut hosts: BTreeMap<usize, HostProgress> = BTreeMap::new();
        for (shard, &host) in self.prepared.plan.shards.iter().zip(&self.holders) {
            let entry = hosts.entry(host).or_insert_with(|| HostProgress {
                host: names(host),
                done_tokens: 0,
                total_tokens: 0,
            });
            let (done, of) = self.layers_done.get(&(shard.block as u32)).copied().unwrap_or((0, 1));
            entry.total_tokens += shard.input_ids.len();
            entry.done_tokens += shard.input_ids.len() * done as usize / of.max(1) as usize;
        }
        hosts.into_values().collect()
    }

    fn note_encoded(&mut self, host: usize, name: &str, encoded: Encoded) {
        debug_assert_eq!(self.holders.get(encoded.block as usize), Some(&host));
        let tokens = self.shard(encoded.block).map_or(0, |shard| shard.input_ids.len());
        let hosts = &mut self.status.timings.hosts;
        let at = hosts.iter().position(|timing| timing.host == name).unwrap_or_else(|| {
            hosts.push(HostTiming { host: name.to_string(), ..HostTiming::default() });
            hosts.len() - 1
        });
        let timing = &mut hosts[at];
        timing.shards += 1;
        timing.encoded_tokens += tokens;
        timing.kept_tokens += encoded.kept_tokens as usize;
        timing.kv_bytes += encoded.kv_bytes;
        timing.encode_s += encoded.seconds;
        timing.attention_pairs += encoded.pairs;
        timing.exchange_bytes += encoded.exchange_bytes;
        self.encoded.insert(encoded.block, encoded);
    }

    /// Who has which shards, by their names and `addresses`.
    fn shard_holders(&self, addresses: &[(String, String)]) -> Vec<ShardHolder> {
        let mut holders: BTreeMap<usize, ShardHolder> = BTreeMap::new();
        for (shard, &host) in self.prepared.plan.shards.iter().zip(&self.holders) {
            let (name, address) = addresses[host].clone();
            let holder = holders.entry(host).or_insert_with(|| ShardHolder { host: name, address, blocks: Vec::new() });
            holder.blocks.push(shard.block as u32);
        }
        holders.into_values().collect()
    }

    /// What each host is to encode: shards that pass nothing one by one, the others together.
    fn orders(&self, addresses: &[(String, String)]) -> Vec<(usize, EncodeShards)> {
        let plan = &self.prepared.plan;
        let order = |shards: Vec<Shard>, peers: &[ShardHolder]| EncodeShards {
            job: self.number,
            shards,
            blocks: plan.shards.len() as u32,
            exchange: plan.exchange.clone(),
            peers: peers.to_vec(),
        };
        let held = || self.holders.iter().copied().zip(&plan.shards);
        if plan.exchange == Exchange::None {
            return held().map(|(host, shard)| (host, order(vec![shard.clone()], &[]))).collect();
        }
        let peers = self.shard_holders(addresses);
        let mut together: BTreeMap<usize, Vec<Shard>> = BTreeMap::new();
        held().for_each(|(host, shard)| together.entry(host).or_default().push(shard.clone()));
        together.into_iter().map(|(host, shards)| (host, order(shards, &peers))).collect()
    }

    /// What its end adds to the metrics.
    pub fn ended_observations(&self) -> Vec<Observation> {
        let timings = self.timings(self.clock.ended.unwrap_or_default());
        let mut observations = vec![match &self.status.error {
            Some(error) => Observation::RequestFailed { code: error.code.clone() },
            None => Observation::RequestEnded { reason: self.status.finish_reason },
        }];
        if self.status.state == JobState::Succeeded {
            observations.push(Observation::Request {
                method: self.status.method.clone(),
                model: self.status.model.clone(),
                prompt_tokens: self.status.context_tokens + self.status.query_tokens,
                generated_tokens: self.status.generated_tokens,
                timings,
            });
        }
        observations
    }
}

impl SupervisorState {
    /// Context hosts by how many shards of running jobs they have, so that a plan for fewer hosts takes idle ones.
    fn least_busy_first(&self, contexts: &[usize]) -> Vec<usize> {
        let mut contexts = contexts.to_vec();
        let shards =
            |host: usize| self.running().map(|job| job.holders.iter().filter(|&&h| h == host).count()).sum::<usize>();
        contexts.sort_by_key(|&host| shards(host));
        contexts
    }

    /// Name and address of every host.
    fn addresses(&self) -> Vec<(String, String)> {
        let address = |host: &HostRecord| host.hello.as_ref().map_or(String::new(), |hello| hello.address.clone());
        self.hosts.iter().map(|host| (host.spec.name.clone(), address(host))).collect()
    }

    /// Deals a job's shards to context hosts and starts phase 1.
    pub(super) fn start(
        &mut self,
        now: Duration,
        number: u64,
        (contexts, query): (&[usize], usize),
        commands: &mut Vec<Command>,
    ) {
        let contexts = self.least_busy_first(contexts);
        let addresses = self.addresses();
        let Some(job) = self.job_mut(number) else { return };
        // A plan made for more hosts than are alive now: the shards stay as they are, their holders wrap around.
        job.holders = job.prepared.plan.shards.iter().map(|shard| contexts[shard.host % contexts.len()]).collect();
        job.query_host = Some(query);
        job.clock.encoding = Some(now);
        job.status.state = JobState::Running;
        job.status.phase = Some(JobPhase::Encoding);
        let orders = job.orders(&addresses);
        commands.push(Command::Publish { job: number, event: JobEvent::Phase { phase: JobPhase::Encoding } });
        for (host, order) in orders {
            let command = HostCommand::Encode(order);
            commands.extend(self.hosts.at(host).connection.map(|connection| Command::Send { connection, command }));
        }
    }

    /// A message of a host about a job it works on. Messages about jobs that ended are late, and dropped.
    pub(super) fn on_job_message(
        &mut self,
        now: Duration,
        host: usize,
        message: HostMessage,
        commands: &mut Vec<Command>,
    ) {
        match message {
            HostMessage::Progress { job, block, layers, of } => self.on_progress(job, block, (layers, of), commands),
            HostMessage::Encoded(encoded) => self.on_encoded(now, host, encoded, commands),
            HostMessage::Token { job: number, id, text } => {
                let Some(job) = self.job_mut(number).filter(|job| job.is_running()) else { return };
                if job.clock.decoding.is_none() {
                    job.clock.decoding = Some(now);
                    job.status.phase = Some(JobPhase::Decoding);
                    let event = JobEvent::Phase { phase: JobPhase::Decoding };
                    commands.push(Command::Publish { job: number, event });
                }
                job.status.generated_tokens += 1;
                job.status.tokens.push(id);
                job.status.text.push_str(&text);
                commands.push(Command::Publish { job: number, event: JobEvent::Token { id, text } });
            }
            HostMessage::Generated { job: number, stopped, text } => {
                if let Some(job) = self.job_mut(number).filter(|job| job.is_running()) {
                    job.status.text.push_str(&text);
                }
                self.end(now, number, Outcome::Answered { stopped }, commands);
            }
            _ => {}
        }
    }

    fn on_progress(&mut self, number: u64, block: u32, layers: (u32, u32), commands: &mut Vec<Command>) {
        let names: Vec<String> = self.hosts.iter().map(|host| host.spec.name.clone()).collect();
        let Some(job) = self.job_mut(number).filter(|job| job.is_running()) else { return };
        job.layers_done.insert(block, layers);
        let hosts = job.progress(&|host| names[host].clone());
        commands.push(Command::Publish { job: number, event: JobEvent::Progress { hosts } });
    }

    fn on_encoded(&mut self, now: Duration, host: usize, encoded: Encoded, commands: &mut Vec<Command>) {
        let number = encoded.job;
        let name = self.hosts.at(host).spec.name.clone();
        let Some(job) = self.job_mut(number).filter(|job| job.is_running()) else { return };
        let Some(shard) = job.shard(encoded.block) else { return };
        let (expected, got) = (shard.kept_tokens() as u64, encoded.kept_tokens);
        if expected != got {
            let message =
                format!("host {name} kept {got} tokens of shard {}, not the {expected} planned", encoded.block);
            return self.end(now, number, Outcome::Failed { code: "shard_mismatch".into(), message }, commands);
        }
        let tokens = shard.input_ids.len();
        let (method, seconds) = (job.status.method.clone(), encoded.seconds);
        commands.push(Command::Observe(Observation::ShardEncoded { host: name.clone(), method, seconds, tokens }));
        job.note_encoded(host, &name, encoded);
        if job.encoded.len() == job.prepared.plan.shards.len() {
            self.query(now, number, commands);
        }
    }

    /// Starts phase 2: every shard is encoded.
    fn query(&mut self, now: Duration, number: u64, commands: &mut Vec<Command>) {
        let addresses = self.addresses();
        let Some(job) = self.job_mut(number) else { return };
        job.clock.querying = Some(now);
        let pairs: u64 = job.status.timings.hosts.iter().map(|host| host.attention_pairs).sum();
        let sparsity = 1.0 - pairs as f64 / job.prepared.dense_pairs.max(1) as f64;
        job.status.attention_sparsity = Some(sparsity);
        let method = job.status.method.clone();
        commands.push(Command::Observe(Observation::JobEncoded { method, sparsity }));
        job.status.phase = Some(JobPhase::Querying);
        let generate = Generate {
            job: number,
            query_ids: job.prepared.query_ids.clone(),
            query_start: job.prepared.plan.query_start,
            context_keys: job.prepared.plan.kept_tokens() as u64,
            view: job.prepared.plan.view,
            holders: job.shard_holders(&addresses),
            choice: job.prepared.choice.clone(),
        };
        let query_host = job.query_host.expect("a running job has a query host");
        commands.push(Command::Publish { job: number, event: JobEvent::Phase { phase: JobPhase::Querying } });
        let command = HostCommand::Generate(generate);
        let connection = self.hosts.at(query_host).connection;
        commands.extend(connection.map(|connection| Command::Send { connection, command }));
    }
}
