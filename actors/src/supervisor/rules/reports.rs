//! What hosts say of the shards and answers that they work on, and what it changes.

use crate::{
    api::{JobEvent, JobPhase},
    messages::{AnswerToken, Encoded},
    metric::Observation,
    readings::{DurationHistogram, Phase2Times},
    supervisor::{
        command::SupervisorCommand,
        journal::record,
        rules::{accused::Accusations, drain::Draining, recovery::HostLoss},
        tables::{hosts::pace::WorkKind, job::Outcome, shard_homes::RecentEncoders},
    },
};

/// Seconds that no shard takes to be encoded: a day.
const LONGEST_ENCODE_S: f64 = 86_400.0;

/// Takes in what hosts report.
pub struct Reports<'a> {
    pub loss: HostLoss<'a>,
    pub lately: &'a mut RecentEncoders,
}

impl Reports<'_> {
    pub fn on_progress(&mut self, host: usize, number: u64, block: u32, layers: (u32, u32)) {
        if !self.loss.contexts.get(number).is_some_and(|context| context.is_ordered(block as usize, host)) {
            return;
        }
        self.loss.contexts.progressed(number, block, layers);
        let (Some(context), mut watched) =
            (self.loss.contexts.get(number), self.loss.jobs.watched_of(number).peekable())
        else {
            return;
        };
        if watched.peek().is_some() {
            let hosts = context.progress(&|host| self.loss.hosts.name(host).to_string());
            let event = |job| SupervisorCommand::Publish { job, event: JobEvent::Progress { hosts: hosts.clone() } };
            self.loss.out.extend(watched.map(event));
        }
    }

    pub fn on_encoded(&mut self, host: usize, encoded: Encoded) {
        let (number, block) = (encoded.context, encoded.block as usize);
        let Some(context) = self.loss.contexts.get(number) else { return };
        let here = context.places().get(block).is_some_and(|place| place.host == Some(host) && place.encoded.is_none());
        let moves = context.migration_targets().get(&block) == Some(&host);
        if !here && !moves {
            return;
        }
        let shard = &context.prepared.plan.shards[block];
        let (tokens, expected, got) = (shard.rows(), shard.kept_tokens() as u64, encoded.kept_tokens);
        let name = self.loss.hosts.name(host).to_string();
        if expected != got {
            let message = format!("host {name} kept {got} tokens of shard {block}, not the {expected} planned");
            return self.loss.teardown().fail_context(number, "shard_mismatch", message);
        }
        if !context.prepared.is_input(block, encoded.digest) {
            return self.loss.on_misread(host, (number, block));
        }
        let encoded = Encoded {
            seconds: possible(encoded.seconds),
            computing_s: possible(encoded.computing_s).min(possible(encoded.seconds)),
            ..encoded
        };
        let (method, seconds) = (context.plan().method.name.clone(), encoded.seconds);
        if let Some(identity) = context.prepared.identities.get(block) {
            self.lately.note(*identity, host);
        }
        if !encoded.cached {
            let (kind, work) = (WorkKind::Encoding(method.clone()), (encoded.computing_s, encoded.operations as f64));
            let now = self.loss.now;
            self.loss.hosts.at_mut(host).pace.note(now, kind, work);
        }
        let (computing_s, waiting_s) = (encoded.computing_s, encoded.seconds - encoded.computing_s);
        if moves {
            let how = if encoded.cached { "transferred" } else { "encoded" };
            self.loss.out.push(SupervisorCommand::Observe(Observation::ShardMoved { how }));
        }
        match encoded.cached {
            true if moves => {}
            true => {
                let tokens = context.plan().shards[block].block_tokens();
                let cached = Observation::ShardCached { host: name, tokens };
                self.loss.out.push(SupervisorCommand::Observe(cached));
            }
            false => {
                self.loss.contexts.learn_speed(seconds, tokens);
                let encoded =
                    Observation::ShardEncoded { host: name, method, seconds: (computing_s, waiting_s), tokens };
                self.loss.out.push(SupervisorCommand::Observe(encoded));
            }
        }
        if moves {
            return Draining { loss: self.loss.reborrow() }.moved(host, encoded);
        }
        self.loss.contexts.note_encoded(number, block, encoded);
    }

    pub fn on_token(&mut self, host: usize, number: u64, token: (u32, AnswerToken)) {
        let (index, (id, text, logprobs)) = token;
        let Some(job) = self.loss.jobs.running_mut(number).filter(|job| job.query_host == Some(host)) else { return };
        match job.progress.tokens.get(index as usize) {
            Some(&known) if known != id => {
                drop(job);
                let message =
                    format!("gone through again, token {index} of the answer is {id} and was {known}; submit it again");
                return self.loss.teardown().fail(number, "replay_mismatch", message);
            }
            Some(_) => return,
            // Tokens in between were said while nobody listened: all are said again when the host is reminded.
            None if job.progress.tokens.len() != index as usize => return,
            None if index >= job.question.choice.max_tokens => return,
            None => {}
        }
        drop(job);
        self.loss.resume(number);
        let Some(mut job) = self.loss.jobs.get_mut(number) else { return };
        job.stalls = Default::default();
        if job.enter(self.loss.now, JobPhase::Decoding) {
            let event = JobEvent::Phase { phase: JobPhase::Decoding };
            self.loss.out.push(SupervisorCommand::Publish { job: number, event });
        }
        let first = job.numerics.is_none() && self.loss.hosts.at(host).numerics.is_some();
        if first {
            job.numerics.clone_from(&self.loss.hosts.at(host).numerics);
        }
        job.progress.tokens.push(id);
        job.progress.text.push_str(&text);
        let logprobs = job.question.reported(logprobs);
        job.progress.logprobs.extend(logprobs.as_deref().cloned());
        let kept = first.then(|| record::job(&job));
        drop(job);
        self.loss.out.push(SupervisorCommand::Publish { job: number, event: JobEvent::Token { id, text, logprobs } });
        // Whoever goes on with it after another supervisor's start computes the same.
        self.loss.out.extend(kept.map(SupervisorCommand::Persist));
    }

    /// What holding an answer to its form took: a mask for each token, and for its end.
    pub fn on_masked(&mut self, host: usize, number: u64, masks: Box<DurationHistogram>) {
        let Some(job) = self.loss.jobs.running_mut(number).filter(|job| job.query_host == Some(host)) else { return };
        let (tokens, method) = (job.progress.tokens.len() as u64, job.facts.method.clone());
        drop(job);
        if masks.is_of(tokens + 1) {
            let host = self.loss.hosts.name(host).to_string();
            self.loss.out.push(SupervisorCommand::Observe(Observation::Masked { host, method, masks }));
        }
    }

    pub fn on_generated(&mut self, host: usize, number: u64, end: (u32, bool, String, Box<Phase2Times>)) {
        let (tokens, stopped, text, times) = end;
        let Some(mut job) = self.loss.jobs.running_mut(number).filter(|job| job.query_host == Some(host)) else {
            return;
        };
        if job.progress.tokens.len() != tokens as usize {
            drop(job);
            return self.loss.orders().remind(host);
        }
        job.progress.text.push_str(&text);
        let (method, model) = (job.facts.method.clone(), job.facts.model.clone());
        let accused = std::mem::take(&mut job.accused);
        drop(job);
        if times.are_of(tokens) {
            let host = self.loss.hosts.name(host).to_string();
            self.loss.out.push(SupervisorCommand::Observe(Observation::Phase2 { host, method, model, times }));
        }
        self.loss.resume(number);
        self.loss.teardown().end(number, Outcome::Answered { stopped });
        Accusations { loss: self.loss.reborrow() }.convict(host, accused);
    }
}

/// Seconds that a host says it took, or none where nothing can have taken so long.
fn possible(seconds: f64) -> f64 {
    if (0.0..=LONGEST_ENCODE_S).contains(&seconds) { seconds } else { 0.0 }
}
