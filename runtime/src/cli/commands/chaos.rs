//! `chaos`: processes of a running cluster killed and stopped at named points of a job, and its answer compared.

mod fault;
mod round;

use asterism_actors::api::JobRequest;
use clap::Args;
use serde::Serialize;

use super::evaluate::{TokenCounter, question};
use crate::{
    cli::output::{self, Table},
    client::Client,
    cluster::{
        Cluster,
        file::Role,
        size::{Tokens, count},
    },
    data_dir,
    error::{CliError, Exit},
    eval::Task,
    globals::{Format, Globals},
    observe::logging,
    processes::{checkpoint, local_hosts},
};
use fault::{Blow, Fault, Moment, Victim, matrix};
use round::{ChaosRound, Reference, RoundOutcome, Target};

/// Tokens of every answer.
const CHAOS_ANSWER_TOKENS: usize = 64;
/// Tokens left for the question and the chat template.
const QUESTION_TOKENS: usize = 192;

/// `asterism chaos`
#[derive(Args, Debug)]
pub struct ChaosArgs {
    /// Faults; 30 are one of every kind
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Only this signal [default: each in turn]
    #[arg(long, value_enum, ignore_case = true)]
    pub signal: Option<Blow>,
    /// Only this role [default: each in turn]
    #[arg(long, value_enum)]
    pub role: Option<Victim>,
    /// Only at this point of a job [default: each in turn]
    #[arg(long, value_enum)]
    pub phase: Option<Moment>,
    /// Tokens of the document [default: the most that the model takes]
    #[arg(long, value_name = "TOKENS")]
    pub tokens: Option<Tokens>,
}

/// How long the document of all rounds is, in tokens.
#[derive(Clone, Copy, Debug)]
struct DocumentLength {
    asked: usize,
    /// With its question and its answer the model takes no longer one.
    most: usize,
}

impl DocumentLength {
    /// What makes the moments of a job last longer, so that faults come in time.
    fn advice(self) -> String {
        match self {
            Self { asked, most } if asked < most => format!("give a longer document with --tokens, at most {most}"),
            Self { most, .. } => format!("the document is as long as the model takes ({most}): name another --phase"),
        }
    }
}

/// What `-o json` prints.
#[derive(Serialize)]
struct ChaosReport<'a> {
    reference: &'a Reference,
    rounds: &'a [ChaosRound],
}

/// Runs the rounds; exit 8 when an answer differs, a job fails, or no fault came in time.
pub fn run(globals: &Globals, args: &ChaosArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let cluster = globals.cluster()?;
    let faults = matrix(args.phase, args.role, args.signal);
    refuse_other_machines(&cluster, &faults)?;
    data_dir::look(&cluster.data_dir)?;
    if data_dir::running(&cluster.data_dir).is_none() {
        return Err(CliError::unreachable(format!("cluster '{}' is not running on this machine", cluster.name))
            .hint("start it with `asterism up --detach`"));
    }
    let client = Client::find(globals)?;
    let length = length(&cluster, args)?;
    let target = Target::new(&client, &cluster.data_dir, request(globals, length.asked)?);
    let reference = target.reference()?;
    globals.note(format_args!(
        "without a fault: {} of context, {} generated, {:.2} s",
        count(reference.context_tokens, "token"),
        reference.tokens.len(),
        reference.total_s
    ));
    let mut rounds = Vec::new();
    let mut stopped = None;
    for (round, &fault) in (1..=args.rounds as usize).zip(faults.iter().cycle()) {
        match target.round(round, fault, &reference) {
            Ok(done) => {
                globals.note(line(&done, args.rounds));
                rounds.push(done);
            }
            Err(error) => {
                stopped = Some(error);
                break;
            }
        }
    }
    show(globals, &reference, &rounds)?;
    match stopped {
        Some(error) => Err(error),
        None => verdict(globals, &rounds, length),
    }
}

/// Signals reach the processes of this machine alone.
fn refuse_other_machines(cluster: &Cluster, faults: &[Fault]) -> Result<(), CliError> {
    let local = local_hosts(cluster);
    let struck = |role: Role| {
        faults.iter().any(|fault| match fault.role {
            Victim::Context => role == Role::Context,
            Victim::Query => role == Role::Query,
            Victim::Supervisor => false,
        })
    };
    let far = cluster.hosts.iter().find(|host| struck(host.role) && !local.iter().any(|here| here.name == host.name));
    match far {
        None => Ok(()),
        Some(host) => Err(CliError::usage(format!(
            "host '{}' runs on node '{}', another machine ({}); chaos sends signals to processes of this one",
            host.name, host.node, host.address.place
        ))
        .hint("name a --role whose hosts are all here, or end that host's process on its own machine")),
    }
}

fn length(cluster: &Cluster, args: &ChaosArgs) -> Result<DocumentLength, CliError> {
    let most =
        checkpoint::model_front(&cluster.model)?.max_tokens.saturating_sub(CHAOS_ANSWER_TOKENS + QUESTION_TOKENS);
    Ok(DocumentLength { asked: args.tokens.map_or(most, |tokens| tokens.0), most })
}

fn request(globals: &Globals, tokens: usize) -> Result<JobRequest, CliError> {
    let record = TokenCounter::load(globals, None)?.generate(Task::NiahSingle1, tokens, 1, None)?;
    Ok(JobRequest { ignore_eos: true, ..question(&record, None, CHAOS_ANSWER_TOKENS) })
}

fn line(round: &ChaosRound, rounds: u32) -> String {
    let ChaosRound { round: number, fault, victim, total_s, outcome, .. } = round;
    let Fault { phase, signal, .. } = fault;
    let signal = format!("{signal:?}").to_uppercase();
    format!("{number}/{rounds}: {signal} {victim} at {}: {} after {total_s:.2} s", name(phase), outcome_text(outcome))
}

fn show(globals: &Globals, reference: &Reference, rounds: &[ChaosRound]) -> Result<(), CliError> {
    match globals.format {
        Format::Table => output::print(&table(rounds).to_string()),
        Format::Json => output::print_json(&ChaosReport { reference, rounds }, Format::Json),
        Format::Jsonl => rounds.iter().try_for_each(|round| output::print_json(round, Format::Jsonl)),
    }?;
    let most = |seconds: fn(&ChaosRound) -> Option<f64>| rounds.iter().filter_map(seconds).reduce(f64::max);
    let shown = |seconds: Option<f64>| seconds.map_or("-".into(), |seconds| format!("{seconds:.2} s"));
    globals.note(format_args!(
        "slowest detection {}, slowest recovery {}; a shard takes {:.2} s to encode",
        shown(most(|round| round.detected_s)),
        shown(most(|round| round.recovered_s)),
        reference.shard_s,
    ));
    Ok(())
}

fn verdict(globals: &Globals, rounds: &[ChaosRound], length: DocumentLength) -> Result<Exit, CliError> {
    let number = |wanted: fn(&RoundOutcome) -> bool| rounds.iter().filter(|round| wanted(&round.outcome)).count();
    let missed = number(|outcome| *outcome == RoundOutcome::Missed);
    let same = missed + number(|outcome| *outcome == RoundOutcome::Same);
    let bad = rounds.len() - same;
    if bad > 0 {
        return Err(CliError::new(
            Exit::BelowThreshold,
            format!("{bad} of {} answers differ or are missing", rounds.len()),
        )
        .hint("`asterism job list` shows the jobs; -o json has the cause of each failure"));
    }
    if missed == rounds.len() {
        let message = format!("{} came too late, so that nothing was tried", count(missed, "fault"));
        return Err(CliError::new(Exit::BelowThreshold, message).hint(length.advice()));
    }
    if missed > 0 {
        globals.note(format_args!("{} of {} faults came too late; {}", missed, rounds.len(), length.advice()));
    }
    globals.note(format_args!("{same} of {} answers are the same; next: asterism host list", rounds.len()));
    Ok(Exit::Success)
}

fn table(rounds: &[ChaosRound]) -> Table {
    let mut table =
        Table::new(["ROUND", "PHASE", "VICTIM", "SIGNAL", "DETECTED S", "RECOVERED S", "TOTAL S", "ANSWER"]);
    let seconds = |seconds: Option<f64>| seconds.map_or("-".into(), |seconds| format!("{seconds:.2}"));
    for ChaosRound { round, fault, victim, detected_s, recovered_s, total_s, outcome } in rounds {
        table.row([
            round.to_string(),
            name(&fault.phase),
            victim.clone(),
            format!("{:?}", fault.signal).to_uppercase(),
            seconds(*detected_s),
            seconds(*recovered_s),
            format!("{total_s:.2}"),
            outcome_text(outcome),
        ]);
    }
    table
}

/// As it is typed.
fn name(moment: &Moment) -> String {
    clap::ValueEnum::to_possible_value(moment).map_or(String::new(), |value| value.get_name().to_owned())
}

fn outcome_text(outcome: &RoundOutcome) -> String {
    match outcome {
        RoundOutcome::Same => "same tokens".into(),
        RoundOutcome::Different { at } => format!("differs from token {at} on"),
        RoundOutcome::Failed { cause } => {
            let code = cause.split(':').next().unwrap_or(cause);
            format!("failed: {code}")
        }
        RoundOutcome::Missed => "fault came too late".into(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn round(round: usize, phase: Moment, outcome: RoundOutcome) -> ChaosRound {
        ChaosRound {
            round,
            fault: Fault { phase, role: Victim::Context, signal: Blow::Stop },
            victim: "context-10".into(),
            detected_s: Some(1.987),
            recovered_s: (round == 1).then_some(0.5),
            total_s: 12.345,
            outcome,
        }
    }

    /// What the rounds come to, in words where that is a failure.
    fn judged(outcomes: &[RoundOutcome], length: DocumentLength) -> Result<Exit, String> {
        let globals = Globals { quiet: true, ..Globals::resolve(&Cli::parse_from(["asterism", "doctor"]).global) };
        let rounds = outcomes.iter().enumerate();
        let rounds: Vec<_> = rounds.map(|(at, outcome)| round(at, Moment::Encoding, outcome.clone())).collect();
        verdict(&globals, &rounds, length)
            .map_err(|error| format!("{error} / {}", error.hint.clone().unwrap_or_default()))
    }

    #[test]
    fn faults_that_came_too_late_are_no_success_and_the_advice_can_be_followed() {
        use RoundOutcome::{Different, Missed, Same};
        let (short, longest) =
            (DocumentLength { asked: 4096, most: 16_128 }, DocumentLength { asked: 16_128, most: 16_128 });
        assert_eq!(judged(&[Same, Missed], short), Ok(Exit::Success));
        let none = judged(&[Missed, Missed], short).unwrap_err();
        assert_eq!(
            none,
            "2 faults came too late, so that nothing was tried / give a longer document with --tokens, at most 16128"
        );
        let none = judged(&[Missed], longest).unwrap_err();
        assert!(none.contains("1 fault came too late") && none.contains("name another --phase"), "{none}");
        assert!(judged(&[Missed, Different { at: 3 }], short).unwrap_err().starts_with("1 of 2 answers differ"));
    }

    #[test]
    fn the_table_fits_100_columns() {
        let failed = RoundOutcome::Failed { cause: "host_lost: host context-10 is lost".into() };
        let rounds = [round(1, Moment::MiddleToken, RoundOutcome::Same), round(30, Moment::Encoding, failed)];
        let text = table(&rounds).to_string();
        insta::assert_snapshot!(text, @r"
        ROUND  PHASE         VICTIM      SIGNAL  DETECTED S  RECOVERED S  TOTAL S  ANSWER
            1  middle-token  context-10  STOP          1.99         0.50    12.35  same tokens
           30  encoding      context-10  STOP          1.99            -    12.35  failed: host_lost
        ");
        assert!(text.lines().all(|line| line.chars().count() <= 100));
        assert_eq!(line(&rounds[0], 30), "1/30: STOP context-10 at middle-token: same tokens after 12.35 s");
    }
}
