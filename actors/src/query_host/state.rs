//! The query host's rules: one generation at a time, in order. No I/O, no clock, no tensor.

use std::{collections::VecDeque, time::Duration};

use crate::messages::{Generate, HostCommand, HostMessage};

/// What happens to a query host.
#[derive(Debug)]
pub enum Event {
    /// The supervisor wants something.
    Command(HostCommand),
    /// The generation running ended.
    Ended {
        /// Job.
        job: u64,
        /// How.
        end: GenerationEnd,
    },
}

/// How a generation ends.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerationEnd {
    /// With an answer; `text` is what was held back for a stop string.
    Answered {
        /// End of sequence or stop string, rather than the token limit.
        stopped: bool,
        /// Text not yet told.
        text: String,
    },
    /// It was told to stop.
    Stopped,
    /// With an error.
    Failed {
        /// Stable code.
        code: String,
        /// What, where, what to do.
        message: String,
    },
}

/// What a query host wants done.
#[derive(Debug, PartialEq)]
pub enum Command {
    /// Generate; [`Event::Ended`] follows.
    Generate(Generate),
    /// Stop the generation running; [`Event::Ended`] follows.
    Stop,
    /// Tell the supervisor.
    Tell(HostMessage),
}

/// The state.
#[derive(Default)]
pub struct QueryHostState {
    waiting: VecDeque<Generate>,
    running: Option<u64>,
}

impl QueryHostState {
    /// Applies one event.
    pub fn handle(&mut self, _now: Duration, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Command(HostCommand::Generate(generate)) => self.waiting.push_back(generate),
            Event::Command(HostCommand::Release { job }) => {
                self.waiting.retain(|generate| generate.job != job);
                if self.running == Some(job) {
                    commands.push(Command::Stop);
                }
            }
            Event::Command(_) => {}
            Event::Ended { job, end } => {
                self.running = None;
                commands.extend(match end {
                    GenerationEnd::Answered { stopped, text } => {
                        Some(Command::Tell(HostMessage::Generated { job, stopped, text }))
                    }
                    GenerationEnd::Stopped => None,
                    GenerationEnd::Failed { code, message } => {
                        Some(Command::Tell(HostMessage::Failed { job, code, message }))
                    }
                });
            }
        }
        if self.running.is_none()
            && let Some(next) = self.waiting.pop_front()
        {
            self.running = Some(next.job);
            commands.push(Command::Generate(next));
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::TokenChoice;

    fn generate(job: u64) -> Generate {
        Generate {
            job,
            query_ids: vec![7],
            query_start: 3,
            context_keys: 3,
            view: Default::default(),
            holders: Vec::new(),
            choice: TokenChoice {
                max_tokens: 4,
                temperature: 0.0,
                top_p: 1.0,
                seed: 0,
                stop: Vec::new(),
                ignore_eos: false,
            },
        }
    }

    #[test]
    fn a_second_job_waits_for_the_first() {
        let mut state = QueryHostState::default();
        let order = |job| Event::Command(HostCommand::Generate(generate(job)));
        assert_eq!(state.handle(Duration::ZERO, order(1)), [Command::Generate(generate(1))]);
        assert_eq!(state.handle(Duration::ZERO, order(2)), []);
        let end = GenerationEnd::Answered { stopped: true, text: "x".into() };
        let told = HostMessage::Generated { job: 1, stopped: true, text: "x".into() };
        let ended = Event::Ended { job: 1, end };
        assert_eq!(state.handle(Duration::ZERO, ended), [Command::Tell(told), Command::Generate(generate(2))]);
    }

    #[test]
    fn a_release_stops_the_job_running_and_drops_one_waiting() {
        let mut state = QueryHostState::default();
        for job in [1, 2] {
            state.handle(Duration::ZERO, Event::Command(HostCommand::Generate(generate(job))));
        }
        let release = |job| Event::Command(HostCommand::Release { job });
        assert_eq!(state.handle(Duration::ZERO, release(2)), []);
        assert_eq!(state.handle(Duration::ZERO, release(1)), [Command::Stop]);
        let ended = Event::Ended { job: 1, end: GenerationEnd::Stopped };
        assert_eq!(state.handle(Duration::ZERO, ended), []);
    }
}
