//! The events that an operator reads, and the one line of the log that each makes: ids, counts and durations, no text of any
//! user. Nothing here is said per token or per layer. Decides nothing.

mod event;
mod seconds;

use std::{borrow::Cow, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use event::{ClusterEvent, EventId, NoEventId};

use crate::api::{JobState, Role, Scheduling, Timings};

/// Something that happened to a job, a session, a host or shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ClusterEventKind {
    /// A job was taken in.
    JobSubmitted {
        /// Which.
        #[serde(flatten)]
        job: JobName,
        /// The context that it asks.
        context: u64,
        /// The session of that context, if it is one's.
        session: Option<String>,
        /// Method by name.
        method: String,
        /// Tokens of the context.
        context_tokens: usize,
        /// Tokens of the query.
        query_tokens: usize,
    },
    /// Hosts work on it.
    JobStarted {
        /// Which.
        #[serde(flatten)]
        job: JobName,
        /// Seconds since it was taken in.
        queue_s: f64,
    },
    /// A job is over.
    JobEnded {
        /// Which.
        #[serde(flatten)]
        job: JobName,
        /// How.
        state: JobState,
        /// Stable code of its error.
        code: Option<String>,
        /// Tokens generated.
        tokens: usize,
        /// What took how long.
        timings: Timings,
    },
    /// A session was taken in.
    SessionCreated {
        /// Its name.
        session: String,
        /// Its context.
        context: u64,
        /// Method by name.
        method: String,
        /// Context tokens.
        tokens: usize,
        /// Seconds that it lives.
        ttl_s: f64,
    },
    /// It can be asked.
    SessionReady {
        /// Its name.
        session: String,
        /// Its context.
        context: u64,
        /// Seconds of phase 1.
        encode_s: f64,
    },
    /// Its context came to nothing.
    SessionFailed {
        /// Its name.
        session: String,
        /// Stable code.
        code: String,
    },
    /// What was to be appended to it came to nothing.
    AppendFailed {
        /// Its name.
        session: String,
        /// Stable code.
        code: String,
    },
    /// It is over.
    SessionEnded {
        /// Its name.
        session: String,
        /// Its context.
        context: u64,
        /// By itself, rather than dropped.
        expired: bool,
        /// Questions that were asked.
        hits: u64,
    },
    /// A node agent connected.
    NodeJoined {
        /// Its node.
        node: String,
    },
    /// A process of a host connected for the first time.
    HostJoined {
        /// The host.
        host: String,
        /// What it does.
        role: Role,
        /// Which of the host's lives it is.
        incarnation: u64,
        /// Process id.
        pid: u32,
    },
    /// It has loaded its model.
    HostReady {
        /// The host.
        host: String,
    },
    /// Nothing is heard of it.
    HostSuspect {
        /// The host.
        host: String,
        /// Seconds since its last message.
        silent_s: f64,
        /// Why, as far as that is known.
        cause: String,
    },
    /// A suspect is heard again.
    HostBack {
        /// The host.
        host: String,
        /// Seconds that it was silent.
        silent_s: f64,
    },
    /// It is declared dead.
    HostLost {
        /// The host.
        host: String,
        /// From a short list.
        reason: Cow<'static, str>,
        /// Seconds since its last message.
        silent_s: f64,
        /// Why.
        cause: String,
    },
    /// It ended as it was asked to, and is started again unless it takes no work.
    HostLeft {
        /// The host.
        host: String,
    },
    /// It computes slower than its equals, or than before.
    HostSlow {
        /// The host.
        host: String,
        /// What it is slow at.
        work: String,
        /// How many times longer that takes.
        times: f64,
        /// Than what.
        than: String,
    },
    /// It does not any more, or has done nothing for some minutes.
    HostNoLongerSlow {
        /// The host.
        host: String,
    },
    /// It takes new work, or none, or gives what it has to others.
    HostScheduled {
        /// The host.
        host: String,
        /// Which of these.
        scheduling: Scheduling,
    },
    /// A spare has its place.
    HostReplaced {
        /// The host.
        host: String,
        /// The spare.
        spare: String,
    },
    /// Hosts work on something whose results differ in their last bits.
    NumericsMixed {
        /// What: a context or a job.
        what: String,
        /// The host that differs.
        host: String,
        /// What the others compute with.
        wanted: String,
    },
    /// All shards that a loss took are encoded again.
    ShardsReencoded {
        /// Of which context.
        context: u64,
        /// How many were.
        shards: usize,
        /// Since the loss.
        #[serde(rename = "took_s", with = "seconds")]
        #[schemars(with = "f64")]
        took: Duration,
    },
    /// All shards that were to move are where they moved to.
    ShardsMoved {
        /// Of which context.
        context: u64,
        /// How many.
        shards: usize,
        /// Since the first began to.
        #[serde(rename = "took_s", with = "seconds")]
        #[schemars(with = "f64")]
        took: Duration,
    },
    /// A context host holds shards that it encoded.
    ShardsEncoded {
        /// Of which context.
        context: u64,
        /// How many.
        shards: usize,
        /// Tokens kept.
        tokens: u64,
        /// Bytes kept.
        kv_bytes: u64,
        /// Wall clock, waits for other hosts included.
        encode_s: f64,
    },
    /// A query host begins an answer.
    GenerationStarted {
        /// Number of the job.
        number: u64,
        /// The context that it asks.
        context: u64,
        /// Query tokens.
        query_tokens: usize,
        /// Tokens of the answer that were there before.
        generated: usize,
    },
    /// A query host is done with an answer.
    GenerationEnded {
        /// Number of the job.
        number: u64,
        /// How: `answered`, `stopped` or the code of an error.
        how: String,
        /// Tokens of the answer.
        tokens: usize,
        /// Since it began.
        #[serde(rename = "took_s", with = "seconds")]
        #[schemars(with = "f64")]
        took: Duration,
    },
    /// Happens to a listener alone: some of what it has not heard is kept no more.
    EventsMissed,
}

/// A job for people, and for hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobName {
    /// As clients know it.
    #[serde(rename = "job")]
    pub id: String,
    /// As hosts know it.
    pub number: u64,
}

impl ClusterEventKind {
    /// Writes its line.
    pub fn log(&self) {
        match self {
            Self::JobSubmitted { .. } | Self::JobStarted { .. } | Self::JobEnded { .. } => self.log_job(),
            Self::SessionCreated { .. }
            | Self::SessionReady { .. }
            | Self::SessionFailed { .. }
            | Self::AppendFailed { .. }
            | Self::SessionEnded { .. } => self.log_session(),
            Self::ShardsReencoded { .. }
            | Self::ShardsMoved { .. }
            | Self::ShardsEncoded { .. }
            | Self::GenerationStarted { .. }
            | Self::GenerationEnded { .. } => self.log_work(),
            Self::EventsMissed => {}
            Self::NodeJoined { node } => tracing::info!(node, "node joined"),
            Self::HostJoined { host, role, incarnation, pid } => {
                tracing::info!(host, role = lower(role), incarnation, pid, "host joined");
            }
            Self::HostReady { host } => tracing::info!(host, "host ready"),
            Self::NumericsMixed { what, host, wanted } => {
                tracing::warn!(what, host, wanted, "hosts of different numerics share it");
            }
            Self::HostSuspect { host, silent_s, cause } => {
                tracing::info!(host, silent_s = ms(*silent_s), cause, "host suspect");
            }
            Self::HostBack { host, silent_s } => tracing::info!(host, silent_s = ms(*silent_s), "host back"),
            Self::HostLost { host, reason, silent_s, cause } => {
                tracing::info!(host, reason = &**reason, silent_s = ms(*silent_s), cause, "host lost");
            }
            Self::HostLeft { host } => tracing::info!(host, "host left, as it was asked to"),
            Self::HostSlow { host, work, times, than } => tracing::warn!(host, work, times, than, "host is slow"),
            Self::HostNoLongerSlow { host } => tracing::info!(host, "host is no longer slow"),
            Self::HostScheduled { host, scheduling } => {
                tracing::info!(host, scheduling = lower(scheduling), "host scheduled");
            }
            Self::HostReplaced { host, spare } => tracing::info!(host, spare, "host replaced"),
        }
    }

    fn log_job(&self) {
        match self {
            Self::JobSubmitted {
                job: JobName { id, number },
                context,
                session,
                method,
                context_tokens,
                query_tokens,
            } => {
                tracing::info!(
                    job = id,
                    number,
                    context,
                    session,
                    method,
                    context_tokens,
                    query_tokens,
                    "job submitted"
                );
            }
            Self::JobStarted { job: JobName { id, number }, queue_s } => {
                tracing::info!(job = id, number, queue_s = ms(*queue_s), "job started");
            }
            Self::JobEnded { job: JobName { id, number }, state, code, tokens, timings } => {
                let Timings { queue_s, encode_s, query_s, decode_s, total_s, .. } = timings;
                let [queue_s, encode_s, query_s] = [queue_s, encode_s, query_s].map(|seconds| ms(*seconds));
                let (decode_s, total_s) = (ms(*decode_s), ms(*total_s));
                macro_rules! ended {
                    ($what:literal) => {
                        tracing::info!(
                            job = id,
                            number,
                            code,
                            generated_tokens = tokens,
                            queue_s,
                            encode_s,
                            query_s,
                            decode_s,
                            total_s,
                            $what
                        )
                    };
                }
                match state {
                    JobState::Succeeded => ended!("job answered"),
                    JobState::Cancelled => ended!("job cancelled"),
                    _ => ended!("job failed"),
                }
            }
            _ => {}
        }
    }

    fn log_session(&self) {
        match self {
            Self::SessionCreated { session, context, method, tokens, ttl_s } => {
                tracing::info!(session, context, method, context_tokens = tokens, ttl_s, "session created");
            }
            Self::SessionReady { session, context, encode_s } => {
                tracing::info!(session, context, encode_s = ms(*encode_s), "session ready");
            }
            Self::AppendFailed { session, code } => tracing::info!(session, code, "nothing was appended"),
            Self::SessionFailed { session, code } => tracing::info!(session, code, "session failed"),
            Self::SessionEnded { session, context, expired: true, hits } => {
                tracing::info!(session, context, hits, "session expired");
            }
            Self::SessionEnded { session, context, expired: false, hits } => {
                tracing::info!(session, context, hits, "session dropped");
            }
            _ => {}
        }
    }

    fn log_work(&self) {
        match self {
            Self::ShardsReencoded { context, shards, took } => {
                tracing::info!(context, shards, seconds = ms(took.as_secs_f64()), "shards encoded again");
            }
            Self::ShardsMoved { context, shards, took } => {
                tracing::info!(context, shards, seconds = ms(took.as_secs_f64()), "shards moved");
            }
            Self::ShardsEncoded { context, shards, tokens, kv_bytes, encode_s } => {
                tracing::info!(
                    context,
                    shards,
                    kept_tokens = tokens,
                    kv_bytes,
                    encode_s = ms(*encode_s),
                    "shards encoded"
                );
            }
            Self::GenerationStarted { number, context, query_tokens, generated } => {
                tracing::info!(number, context, query_tokens, generated_before = generated, "generation started");
            }
            Self::GenerationEnded { number, how, tokens, took } => {
                let seconds = ms(took.as_secs_f64());
                tracing::info!(number, how, generated_tokens = tokens, seconds, "generation ended");
            }
            _ => {}
        }
    }
}

fn lower(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// Seconds to the millisecond.
fn ms(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
