//! The query host's rules: which generations run, and what was said of each. No I/O, no clock, no tensor.
//!
//! What was said is kept until the supervisor stops the job, and said again whenever it orders the job again.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    messages::{Generate, HostCommand, HostMessage, Phase2Times, SaidToken, ShardHolder},
    ticket::Ticket,
};

/// What happens to a query host.
#[derive(Debug)]
pub enum Event {
    /// The supervisor wants something.
    Command(HostCommand),
    /// A generation made its next token, or went through one that another host made.
    Token {
        /// Job.
        job: u64,
        /// It.
        token: SaidToken,
    },
    /// A generation waits: shards of a host do not answer.
    Stalled {
        /// Job.
        job: u64,
        /// Host.
        host: String,
        /// Whether they answered what cannot be right.
        wrong: bool,
        /// What was observed.
        cause: String,
    },
    /// A generation ended.
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
        /// Where its seconds went.
        times: Box<Phase2Times>,
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
    /// Stop a generation; [`Event::Ended`] follows.
    Stop {
        /// Job.
        job: u64,
    },
    /// Tell a generation where shards are.
    Holders {
        /// Job.
        job: u64,
        /// Who holds which shards.
        holders: Vec<ShardHolder>,
    },
    /// Tell the supervisor.
    Tell(HostMessage),
}

/// The state.
#[derive(Default)]
pub struct QueryHostState {
    jobs: BTreeMap<u64, Job>,
}

/// A generation that runs or has ended.
#[derive(Default)]
struct Job {
    /// What opens its context.
    ticket: Ticket,
    /// Tokens of the answer that the supervisor had with the order.
    known: usize,
    tokens: Vec<SaidToken>,
    phase: Phase,
}

#[derive(Default)]
enum Phase {
    #[default]
    Running,
    /// Told to stop; what was ordered meanwhile begins when it has.
    Stopping(Option<Box<Generate>>),
    /// Ended, having said this.
    Ended(HostMessage),
}

impl QueryHostState {
    /// Applies one event.
    pub fn handle(&mut self, _now: Duration, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        match event {
            Event::Command(HostCommand::Generate(generate)) => self.order(generate, &mut commands),
            Event::Command(HostCommand::Holders { job, holders }) => {
                let running = self.jobs.get(&job).is_some_and(|job| matches!(job.phase, Phase::Running));
                commands.extend(running.then_some(Command::Holders { job, holders }));
            }
            Event::Command(HostCommand::Stop { job }) => self.stop(job, &mut commands),
            Event::Command(_) => {}
            Event::Token { job, token } => self.token(job, token, &mut commands),
            Event::Stalled { job, host, wrong, cause } => {
                let running = self.jobs.get(&job).is_some_and(|job| matches!(job.phase, Phase::Running));
                commands.extend(running.then_some(Command::Tell(HostMessage::Stalled { job, host, wrong, cause })));
            }
            Event::Ended { job, end } => self.ended(job, end, &mut commands),
        }
        commands
    }

    /// Jobs it generates for or has an answer of, and what opens their contexts.
    pub fn jobs(&self) -> Vec<(u64, Ticket)> {
        let wanted = |record: &Job| !matches!(record.phase, Phase::Stopping(None));
        self.jobs.iter().filter(|(_, record)| wanted(record)).map(|(job, record)| (*job, record.ticket)).collect()
    }

    fn order(&mut self, generate: Generate, commands: &mut Vec<Command>) {
        let (job, ticket, known) = (generate.job, generate.ticket, generate.generated.len());
        let Some(record) = self.jobs.get_mut(&job) else {
            self.jobs.insert(job, Job { ticket, known, ..Job::default() });
            return commands.push(Command::Generate(generate));
        };
        if let Phase::Stopping(next) = &mut record.phase {
            *next = Some(Box::new(generate));
            return;
        }
        // A supervisor that came back may know less than the one that ordered it first.
        record.known = record.known.min(known);
        commands.extend((record.known..record.tokens.len()).map(|index| Command::Tell(record.said(job, index))));
        match &record.phase {
            Phase::Ended(said) => commands.push(Command::Tell(said.clone())),
            _ => commands.push(Command::Holders { job, holders: generate.holders }),
        }
    }

    fn stop(&mut self, job: u64, commands: &mut Vec<Command>) {
        let Some(record) = self.jobs.get_mut(&job) else { return };
        match &mut record.phase {
            Phase::Running => {
                record.phase = Phase::Stopping(None);
                commands.push(Command::Stop { job });
            }
            Phase::Stopping(next) => *next = None,
            Phase::Ended(_) => drop(self.jobs.remove(&job)),
        }
    }

    fn token(&mut self, job: u64, token: SaidToken, commands: &mut Vec<Command>) {
        let Some(record) = self.jobs.get_mut(&job).filter(|record| matches!(record.phase, Phase::Running)) else {
            return;
        };
        let index = record.tokens.len();
        record.tokens.push(token);
        if index >= record.known {
            commands.push(Command::Tell(record.said(job, index)));
        }
    }

    fn ended(&mut self, job: u64, end: GenerationEnd, commands: &mut Vec<Command>) {
        let Some(record) = self.jobs.get_mut(&job) else { return };
        let said = match (&mut record.phase, end) {
            (Phase::Stopping(next), _) => {
                let next = next.take();
                self.jobs.remove(&job);
                return next.into_iter().for_each(|next| self.order(*next, commands));
            }
            (_, GenerationEnd::Answered { stopped, text, times }) => {
                let tokens = record.tokens.len() as u32;
                HostMessage::Generated { job, tokens, stopped, text, times }
            }
            (_, GenerationEnd::Failed { code, message }) => HostMessage::Failed { job, code, message },
            (_, GenerationEnd::Stopped) => return drop(self.jobs.remove(&job)),
        };
        commands.push(Command::Tell(said.clone()));
        record.phase = Phase::Ended(said);
    }
}

impl Job {
    fn said(&self, job: u64, index: usize) -> HostMessage {
        let (id, text, logprobs) = self.tokens[index].clone();
        HostMessage::Token { job, index: index as u32, id, text, logprobs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::TokenChoice;

    fn jobs(state: &QueryHostState) -> Vec<u64> {
        state.jobs().into_iter().map(|(job, _)| job).collect()
    }

    fn generate(job: u64, generated: &[u32]) -> Generate {
        Generate {
            job,
            context: 9,
            query_ids: vec![7],
            generated: generated.to_vec(),
            query_start: 3,
            shards: Vec::new(),
            anew: None,
            fan_in: 32,
            view: Default::default(),
            holders: Vec::new(),
            choice: TokenChoice {
                max_tokens: 4,
                temperature: 0.0,
                top_p: 1.0,
                seed: 0,
                stop: Vec::new(),
                ignore_eos: false,
                logprobs: None,
            },
            ticket: Default::default(),
            trace: None,
        }
    }

    fn order(state: &mut QueryHostState, job: u64, generated: &[u32]) -> Vec<Command> {
        state.handle(Duration::ZERO, Event::Command(HostCommand::Generate(generate(job, generated))))
    }

    fn stop(state: &mut QueryHostState, job: u64) -> Vec<Command> {
        state.handle(Duration::ZERO, Event::Command(HostCommand::Stop { job }))
    }

    fn token(state: &mut QueryHostState, job: u64, id: u32) -> Vec<Command> {
        state.handle(Duration::ZERO, Event::Token { job, token: (id, id.to_string(), None) })
    }

    fn said(job: u64, index: u32, id: u32) -> Command {
        Command::Tell(HostMessage::Token { job, index, id, text: id.to_string(), logprobs: None })
    }

    fn ended(state: &mut QueryHostState, job: u64, end: GenerationEnd) -> Vec<Command> {
        state.handle(Duration::ZERO, Event::Ended { job, end })
    }

    /// Of one step.
    fn times() -> Box<Phase2Times> {
        let mut times = Box::<Phase2Times>::default();
        times.step.add(Duration::from_millis(3));
        times
    }

    fn answered() -> GenerationEnd {
        GenerationEnd::Answered { stopped: true, text: "x".into(), times: times() }
    }

    fn try_holders(job: u64) -> Command {
        Command::Holders { job, holders: Vec::new() }
    }

    #[test]
    fn generations_run_side_by_side_and_repeat_what_they_said() {
        let mut state = QueryHostState::default();
        assert_eq!(order(&mut state, 1, &[]), [Command::Generate(generate(1, &[]))]);
        assert_eq!(order(&mut state, 2, &[]), [Command::Generate(generate(2, &[]))]);
        assert_eq!(token(&mut state, 1, 5), [said(1, 0, 5)]);
        assert_eq!(order(&mut state, 1, &[]), [said(1, 0, 5), try_holders(1)]);
        let (text, stopped) = ("x".to_string(), true);
        let said_all = HostMessage::Generated { job: 1, tokens: 2, stopped, text, times: times() };
        token(&mut state, 1, 6);
        assert_eq!(ended(&mut state, 1, answered()), [Command::Tell(said_all.clone())]);
        assert_eq!(order(&mut state, 1, &[]), [said(1, 0, 5), said(1, 1, 6), Command::Tell(said_all)]);
        assert_eq!(jobs(&state), [1, 2]);
        assert_eq!(stop(&mut state, 1), []);
        assert_eq!(jobs(&state), [2]);
    }

    #[test]
    fn tokens_of_another_host_are_told_only_to_a_supervisor_that_lacks_them() {
        let mut state = QueryHostState::default();
        order(&mut state, 1, &[5, 6]);
        assert_eq!(token(&mut state, 1, 5), []);
        assert_eq!(token(&mut state, 1, 6), []);
        assert_eq!(token(&mut state, 1, 7), [said(1, 2, 7)]);
        assert_eq!(order(&mut state, 1, &[5, 6]), [said(1, 2, 7), try_holders(1)]);
        assert_eq!(order(&mut state, 1, &[5]), [said(1, 1, 6), said(1, 2, 7), try_holders(1)]);
    }

    #[test]
    fn a_stopped_job_says_nothing_more_and_may_begin_anew() {
        let mut state = QueryHostState::default();
        order(&mut state, 1, &[]);
        assert_eq!(stop(&mut state, 1), [Command::Stop { job: 1 }]);
        assert_eq!(token(&mut state, 1, 5), []);
        assert!(state.jobs().is_empty());
        assert_eq!(order(&mut state, 1, &[]), []);
        assert_eq!(ended(&mut state, 1, GenerationEnd::Stopped), [Command::Generate(generate(1, &[]))]);
        assert_eq!(token(&mut state, 1, 5), [said(1, 0, 5)]);
        let failed = GenerationEnd::Failed { code: "kernel".into(), message: "no".into() };
        let told = || Command::Tell(HostMessage::Failed { job: 1, code: "kernel".into(), message: "no".into() });
        assert_eq!(ended(&mut state, 1, failed), [told()]);
        assert_eq!(order(&mut state, 1, &[]), [said(1, 0, 5), told()]);
    }
}
