//! The query host's rules: which generations run, and what was said of each. No I/O, no clock, no tensor.
//!
//! What was said is kept until the supervisor stops the job, and said again whenever it orders the job again.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    messages::{AnswerToken, Generate, HostCommand, HostMessage, ShardHolder},
    readings::{DurationHistogram, Phase2Times},
    ticket::Ticket,
};

/// What happens to a query host.
#[derive(Debug)]
pub enum QueryHostEvent {
    /// The supervisor wants something.
    Command(HostCommand),
    /// A generation made its next token, or went through one that another host made.
    Token {
        /// Job.
        job: u64,
        /// It.
        token: AnswerToken,
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
    /// A generation whose answer is held to a form is about to end.
    Masked {
        /// Job.
        job: u64,
        /// What the masks took.
        masks: Box<DurationHistogram>,
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
pub enum QueryHostCommand {
    /// Generate; [`QueryHostEvent::Ended`] follows.
    Generate(Generate),
    /// Stop a generation; [`QueryHostEvent::Ended`] follows.
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
    Report(HostMessage),
}

/// The state.
#[derive(Default)]
pub struct QueryHostState {
    jobs: BTreeMap<u64, GenerationRecord>,
}

/// A generation that runs or has ended.
#[derive(Default)]
struct GenerationRecord {
    /// What opens its context.
    ticket: Ticket,
    /// Tokens of the answer that the supervisor had with the order.
    known: usize,
    tokens: Vec<AnswerToken>,
    phase: GenerationPhase,
}

#[derive(Default)]
enum GenerationPhase {
    #[default]
    Running,
    /// Ordered to stop; what was ordered meanwhile begins when it has.
    Stopping(Option<Box<Generate>>),
    /// Ended, having said this.
    Ended(HostMessage),
}

impl QueryHostState {
    /// Applies one event.
    pub fn handle(&mut self, _now: Duration, event: QueryHostEvent) -> Vec<QueryHostCommand> {
        let mut commands = Vec::new();
        match event {
            QueryHostEvent::Command(HostCommand::Generate(generate)) => self.order(generate, &mut commands),
            QueryHostEvent::Command(HostCommand::Holders { job, holders }) => {
                let running = self.jobs.get(&job).is_some_and(|job| matches!(job.phase, GenerationPhase::Running));
                commands.extend(running.then_some(QueryHostCommand::Holders { job, holders }));
            }
            QueryHostEvent::Command(HostCommand::Stop { job }) => self.stop(job, &mut commands),
            QueryHostEvent::Command(_) => {}
            QueryHostEvent::Token { job, token } => self.token(job, token, &mut commands),
            QueryHostEvent::Stalled { job, host, wrong, cause } => {
                let running = self.jobs.get(&job).is_some_and(|job| matches!(job.phase, GenerationPhase::Running));
                commands.extend(running.then_some(QueryHostCommand::Report(HostMessage::Stalled {
                    job,
                    host,
                    wrong,
                    cause,
                })));
            }
            QueryHostEvent::Masked { job, masks } => {
                let running = self.jobs.get(&job).is_some_and(|job| matches!(job.phase, GenerationPhase::Running));
                commands.extend(running.then_some(QueryHostCommand::Report(HostMessage::Masked { job, masks })));
            }
            QueryHostEvent::Ended { job, end } => self.ended(job, end, &mut commands),
        }
        commands
    }

    /// Jobs it generates for or has an answer of, and what opens their contexts.
    pub fn jobs(&self) -> Vec<(u64, Ticket)> {
        let wanted = |record: &GenerationRecord| !matches!(record.phase, GenerationPhase::Stopping(None));
        self.jobs.iter().filter(|(_, record)| wanted(record)).map(|(job, record)| (*job, record.ticket)).collect()
    }

    fn order(&mut self, generate: Generate, commands: &mut Vec<QueryHostCommand>) {
        let (job, ticket, known) = (generate.job, generate.ticket, generate.generated.len());
        let Some(record) = self.jobs.get_mut(&job) else {
            self.jobs.insert(job, GenerationRecord { ticket, known, ..GenerationRecord::default() });
            return commands.push(QueryHostCommand::Generate(generate));
        };
        if let GenerationPhase::Stopping(next) = &mut record.phase {
            *next = Some(Box::new(generate));
            return;
        }
        // A supervisor that came back may know less than the one that ordered it first.
        record.known = record.known.min(known);
        commands.extend(
            (record.known..record.tokens.len()).map(|index| QueryHostCommand::Report(record.stated(job, index))),
        );
        match &record.phase {
            GenerationPhase::Ended(stated) => commands.push(QueryHostCommand::Report(stated.clone())),
            _ => commands.push(QueryHostCommand::Holders { job, holders: generate.holders }),
        }
    }

    fn stop(&mut self, job: u64, commands: &mut Vec<QueryHostCommand>) {
        let Some(record) = self.jobs.get_mut(&job) else { return };
        match &mut record.phase {
            GenerationPhase::Running => {
                record.phase = GenerationPhase::Stopping(None);
                commands.push(QueryHostCommand::Stop { job });
            }
            GenerationPhase::Stopping(next) => *next = None,
            GenerationPhase::Ended(_) => drop(self.jobs.remove(&job)),
        }
    }

    fn token(&mut self, job: u64, token: AnswerToken, commands: &mut Vec<QueryHostCommand>) {
        let Some(record) = self.jobs.get_mut(&job).filter(|record| matches!(record.phase, GenerationPhase::Running))
        else {
            return;
        };
        let index = record.tokens.len();
        record.tokens.push(token);
        if index >= record.known {
            commands.push(QueryHostCommand::Report(record.stated(job, index)));
        }
    }

    fn ended(&mut self, job: u64, end: GenerationEnd, commands: &mut Vec<QueryHostCommand>) {
        let Some(record) = self.jobs.get_mut(&job) else { return };
        let stated = match (&mut record.phase, end) {
            (GenerationPhase::Stopping(next), _) => {
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
        commands.push(QueryHostCommand::Report(stated.clone()));
        record.phase = GenerationPhase::Ended(stated);
    }
}

impl GenerationRecord {
    fn stated(&self, job: u64, index: usize) -> HostMessage {
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
            tenant: 0,
            context: 9,
            query_ids: vec![7],
            generated: generated.to_vec(),
            query_start: 3,
            shards: Vec::new(),
            refresh_order: None,
            lookup: None,
            fan_in: 32,
            view: Default::default(),
            holders: Vec::new(),
            choice: Box::new(TokenChoice { max_tokens: 4, top_p: 1.0, ..TokenChoice::default() }),
            ticket: Default::default(),
            trace: None,
        }
    }

    fn order(state: &mut QueryHostState, job: u64, generated: &[u32]) -> Vec<QueryHostCommand> {
        state.handle(Duration::ZERO, QueryHostEvent::Command(HostCommand::Generate(generate(job, generated))))
    }

    fn stop(state: &mut QueryHostState, job: u64) -> Vec<QueryHostCommand> {
        state.handle(Duration::ZERO, QueryHostEvent::Command(HostCommand::Stop { job }))
    }

    fn token(state: &mut QueryHostState, job: u64, id: u32) -> Vec<QueryHostCommand> {
        state.handle(Duration::ZERO, QueryHostEvent::Token { job, token: (id, id.to_string(), None) })
    }

    fn stated(job: u64, index: u32, id: u32) -> QueryHostCommand {
        QueryHostCommand::Report(HostMessage::Token { job, index, id, text: id.to_string(), logprobs: None })
    }

    fn ended(state: &mut QueryHostState, job: u64, end: GenerationEnd) -> Vec<QueryHostCommand> {
        state.handle(Duration::ZERO, QueryHostEvent::Ended { job, end })
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

    fn try_holders(job: u64) -> QueryHostCommand {
        QueryHostCommand::Holders { job, holders: Vec::new() }
    }

    #[test]
    fn generations_run_side_by_side_and_repeat_what_they_said() {
        let mut state = QueryHostState::default();
        assert_eq!(order(&mut state, 1, &[]), [QueryHostCommand::Generate(generate(1, &[]))]);
        assert_eq!(order(&mut state, 2, &[]), [QueryHostCommand::Generate(generate(2, &[]))]);
        assert_eq!(token(&mut state, 1, 5), [stated(1, 0, 5)]);
        assert_eq!(order(&mut state, 1, &[]), [stated(1, 0, 5), try_holders(1)]);
        let (text, stopped) = ("x".to_string(), true);
        let stated_all = HostMessage::Generated { job: 1, tokens: 2, stopped, text, times: times() };
        token(&mut state, 1, 6);
        assert_eq!(ended(&mut state, 1, answered()), [QueryHostCommand::Report(stated_all.clone())]);
        assert_eq!(order(&mut state, 1, &[]), [stated(1, 0, 5), stated(1, 1, 6), QueryHostCommand::Report(stated_all)]);
        assert_eq!(jobs(&state), [1, 2]);
        assert_eq!(stop(&mut state, 1), []);
        assert_eq!(jobs(&state), [2]);
    }

    #[test]
    fn what_masks_took_is_told_of_a_job_that_runs() {
        let mut state = QueryHostState::default();
        let masks = Box::new(times().step.clone());
        let masked = || QueryHostEvent::Masked { job: 1, masks: masks.clone() };
        order(&mut state, 1, &[]);
        let told = HostMessage::Masked { job: 1, masks: masks.clone() };
        assert_eq!(state.handle(Duration::ZERO, masked()), [QueryHostCommand::Report(told)]);
        stop(&mut state, 1);
        assert_eq!(state.handle(Duration::ZERO, masked()), []);
    }

    #[test]
    fn tokens_of_another_host_are_told_only_to_a_supervisor_that_lacks_them() {
        let mut state = QueryHostState::default();
        order(&mut state, 1, &[5, 6]);
        assert_eq!(token(&mut state, 1, 5), []);
        assert_eq!(token(&mut state, 1, 6), []);
        assert_eq!(token(&mut state, 1, 7), [stated(1, 2, 7)]);
        assert_eq!(order(&mut state, 1, &[5, 6]), [stated(1, 2, 7), try_holders(1)]);
        assert_eq!(order(&mut state, 1, &[5]), [stated(1, 1, 6), stated(1, 2, 7), try_holders(1)]);
    }

    #[test]
    fn a_stopped_job_says_nothing_more_and_may_begin_anew() {
        let mut state = QueryHostState::default();
        order(&mut state, 1, &[]);
        assert_eq!(stop(&mut state, 1), [QueryHostCommand::Stop { job: 1 }]);
        assert_eq!(token(&mut state, 1, 5), []);
        assert!(state.jobs().is_empty());
        assert_eq!(order(&mut state, 1, &[]), []);
        assert_eq!(ended(&mut state, 1, GenerationEnd::Stopped), [QueryHostCommand::Generate(generate(1, &[]))]);
        assert_eq!(token(&mut state, 1, 5), [stated(1, 0, 5)]);
        let failed = GenerationEnd::Failed { code: "kernel".into(), message: "no".into() };
        let reported =
            || QueryHostCommand::Report(HostMessage::Failed { job: 1, code: "kernel".into(), message: "no".into() });
        assert_eq!(ended(&mut state, 1, failed), [reported()]);
        assert_eq!(order(&mut state, 1, &[]), [stated(1, 0, 5), reported()]);
    }
}
