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

/// What `-o json` prints.
#[derive(Serialize)]
struct ChaosReport<'a> {
    reference: &'a Reference,
    rounds: &'a [ChaosRound],
}

/// Runs the rounds; exit 8 when an answer differs or a job fails.
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
    let target = Target::new(&client, &cluster.data_dir, request(globals, &cluster, args)?);
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
        None => verdict(globals, &rounds),
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

fn request(globals: &Globals, cluster: &Cluster, args: &ChaosArgs) -> Result<JobRequest, CliError> {
    let most =
        checkpoint::model_front(&cluster.model)?.max_tokens.saturating_sub(CHAOS_ANSWER_TOKENS + QUESTION_TOKENS);
    let tokens = args.tokens.map_or(most, |tokens| tokens.0);
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

fn verdict(globals: &Globals, rounds: &[ChaosRound]) -> Result<Exit, CliError> {
    let count = |wanted: fn(&RoundOutcome) -> bool| rounds.iter().filter(|round| wanted(&round.outcome)).count();
    let same = count(|outcome| *outcome == RoundOutcome::Same);
    let missed = count(|outcome| *outcome == RoundOutcome::Missed);
    if missed > 0 {
        globals
            .note(format_args!("{missed} faults came too late: their jobs were over; give longer ones with --tokens"));
    }
    if same + missed == rounds.len() {
        globals.note(format_args!("{same} of {} answers are the same; next: asterism host list", rounds.len()));
        return Ok(Exit::Success);
    }
    let bad = rounds.len() - same - missed;
    Err(CliError::new(Exit::BelowThreshold, format!("{bad} of {} answers differ or are missing", rounds.len()))
        .hint("`asterism job list` shows the jobs; -o json has the cause of each failure"))
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
    use super::*;

    #[test]
    fn the_table_fits_100_columns() {
        let round = |round, phase, outcome| ChaosRound {
            round,
            fault: Fault { phase, role: Victim::Context, signal: Blow::Stop },
            victim: "context-10".into(),
            detected_s: Some(1.987),
            recovered_s: (round == 1).then_some(0.5),
            total_s: 12.345,
            outcome,
        };
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
