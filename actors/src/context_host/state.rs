//! The context host's rules: one shard at a time, in order; a released job leaves nothing. No I/O, no clock, no tensor.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::messages::{EncodeShards, Encoded, HostCommand, HostMessage};

/// What happens to a context host.
#[derive(Debug)]
pub enum Event {
    /// The supervisor wants something.
    Command(HostCommand),
    /// The encoder finished a layer.
    Layer {
        /// Job.
        job: u64,
        /// Shard.
        block: u32,
        /// Layers done.
        layers: u32,
        /// Layers in all.
        of: u32,
    },
    /// The encoder stored shards.
    Encoded {
        /// Job.
        job: u64,
        /// Those it encoded together.
        encoded: Vec<Encoded>,
    },
    /// The encoder stopped without a shard: cancelled, or with an error (code, message).
    Stopped {
        /// Job.
        job: u64,
        /// Why, unless it was told to.
        error: Option<(String, String)>,
    },
}

/// What a context host wants done.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Encode and store shards.
    Encode(EncodeShards),
    /// Stop encoding; [`Event::Stopped`] or [`Event::Encoded`] follows.
    Stop,
    /// Free a job's shards and what others sent for it.
    Forget {
        /// Job.
        job: u64,
    },
    /// Tell the supervisor.
    Tell(HostMessage),
    /// Tell the supervisor with the next heartbeats how many bytes are held.
    Held {
        /// Bytes of KV.
        bytes: u64,
    },
}

/// The state.
#[derive(Default)]
pub struct ContextHostState {
    waiting: VecDeque<EncodeShards>,
    /// The job being encoded.
    encoding: Option<u64>,
    /// Whether the job being encoded was released meanwhile.
    abandoned: bool,
    held: BTreeMap<(u64, u32), u64>,
}

impl ContextHostState {
    /// Applies one event.
    pub fn handle(&mut self, _now: Duration, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Command(HostCommand::Encode(order)) => self.waiting.push_back(order),
            Event::Command(HostCommand::Release { job }) => self.release(job, &mut commands),
            Event::Command(_) => {}
            Event::Layer { job, block, layers, of } if !self.abandoned => {
                commands.push(Command::Tell(HostMessage::Progress { job, block, layers, of }));
            }
            Event::Layer { .. } => {}
            Event::Encoded { job, encoded } => self.stored(job, encoded, &mut commands),
            Event::Stopped { job, error } => {
                let told = self.abandoned;
                self.idle();
                if let Some((code, message)) = error.filter(|_| !told) {
                    self.waiting.retain(|order| order.job != job);
                    commands.push(Command::Tell(HostMessage::Failed { job, code, message }));
                }
            }
        }
        if self.encoding.is_none()
            && let Some(next) = self.waiting.pop_front()
        {
            self.encoding = Some(next.job);
            commands.push(Command::Encode(next));
        }
        commands
    }

    fn idle(&mut self) {
        self.encoding = None;
        self.abandoned = false;
    }

    fn stored(&mut self, job: u64, encoded: Vec<Encoded>, commands: &mut Vec<Command>) {
        let abandoned = self.abandoned;
        self.idle();
        if abandoned {
            return commands.push(Command::Forget { job });
        }
        self.held.extend(encoded.iter().map(|shard| ((job, shard.block), shard.kv_bytes)));
        commands.push(self.report());
        commands.extend(encoded.into_iter().map(|shard| Command::Tell(HostMessage::Encoded(shard))));
    }

    fn release(&mut self, job: u64, commands: &mut Vec<Command>) {
        self.waiting.retain(|order| order.job != job);
        if self.encoding == Some(job) && !self.abandoned {
            self.abandoned = true;
            commands.push(Command::Stop);
        }
        self.held.retain(|&(held, _), _| held != job);
        commands.push(Command::Forget { job });
        commands.push(self.report());
    }

    fn report(&self) -> Command {
        Command::Held { bytes: self.held.values().sum() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use asterism_plan::{Exchange, LocalAttention, Shard};

    fn shard(job: u64, block: u32) -> EncodeShards {
        let shard = Shard {
            block: block as usize,
            host: 0,
            input_ids: vec![1, 2],
            position_ids: vec![0, 1],
            prefix: 0,
            keep_from: 0,
            attention: LocalAttention::Causal,
        };
        EncodeShards { job, shards: vec![shard], blocks: 2, exchange: Exchange::None, peers: Vec::new() }
    }

    fn encoded(job: u64, block: u32) -> Event {
        let (kept_tokens, kv_bytes, seconds) = (2, 8, 0.1);
        let encoded = Encoded { job, block, kept_tokens, kv_bytes, seconds, pairs: 3, exchange_bytes: 0 };
        Event::Encoded { job, encoded: vec![encoded] }
    }

    fn order(state: &mut ContextHostState, command: HostCommand) -> Vec<Command> {
        state.handle(Duration::ZERO, Event::Command(command))
    }

    #[test]
    fn encodes_one_shard_at_a_time_in_order() {
        let mut state = ContextHostState::default();
        assert_eq!(order(&mut state, HostCommand::Encode(shard(1, 0))), [Command::Encode(shard(1, 0))]);
        assert_eq!(order(&mut state, HostCommand::Encode(shard(1, 1))), []);
        let commands = state.handle(Duration::ZERO, encoded(1, 0));
        assert!(commands.contains(&Command::Encode(shard(1, 1))), "{commands:?}");
        assert!(commands.contains(&Command::Held { bytes: 8 }), "{commands:?}");
    }

    #[test]
    fn a_release_stops_the_shard_being_encoded_and_keeps_nothing() {
        let mut state = ContextHostState::default();
        order(&mut state, HostCommand::Encode(shard(1, 0)));
        order(&mut state, HostCommand::Encode(shard(1, 1)));
        order(&mut state, HostCommand::Encode(shard(2, 0)));
        let commands = order(&mut state, HostCommand::Release { job: 1 });
        assert!(commands.contains(&Command::Stop), "{commands:?}");
        // The encoder was past its last check: the shard comes all the same and must not stay.
        let commands = state.handle(Duration::ZERO, encoded(1, 0));
        assert_eq!(commands, [Command::Forget { job: 1 }, Command::Encode(shard(2, 0))]);
    }

    #[test]
    fn a_failed_shard_drops_the_rest_of_its_job() {
        let mut state = ContextHostState::default();
        order(&mut state, HostCommand::Encode(shard(1, 0)));
        order(&mut state, HostCommand::Encode(shard(1, 1)));
        let error = Some(("kernel".to_string(), "out of memory".to_string()));
        let commands = state.handle(Duration::ZERO, Event::Stopped { job: 1, error });
        let [Command::Tell(HostMessage::Failed { job: 1, code, .. })] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!(code, "kernel");
    }
}
