//! `simulate`: what a cluster of any size would do with a long document while hosts fail, before there is one.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use asterism_actors::{api::JobState, supervisor::ServedModel};
use clap::Args;

use super::{arguments::MethodArgs, plan::Planner};
use crate::{
    cli::output::{self, Table},
    cluster::size::{Tokens, count, duration, grouped, up_to},
    data_dir::private,
    error::{CliError, Exit},
    globals::Globals,
    observe::logging,
    simulation::{Asked, Happened, LostHost, Pace, Room, Run, Simulation, Stage, prepared, svg, sweep},
};

/// Hosts of a simulation.
const MOST_HOSTS: usize = 16_384;
/// Operations in a second of a GPU and of a CPU host, where nothing was measured or said: an H100's in bf16, and some cores'.
const GPU_TFLOPS: f64 = 400.0;
const CPU_TFLOPS: f64 = 0.1;
/// Simulated time after which a job is given up.
const LONGEST_SIMULATED: Duration = Duration::from_secs(7 * 86_400);
/// Who waits for longer hears how far it is.
const SAID_EVERY: Duration = Duration::from_secs(2);

/// `asterism simulate`
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// Tokens of the context, such as 10m
    #[arg(long, value_name = "TOKENS")]
    pub tokens: Tokens,
    /// Context hosts: those of the cluster file as often as needed, on further nodes [default: the file's]
    #[arg(long, value_name = "COUNT", value_parser = up_to::<MOST_HOSTS>)]
    pub hosts: Option<usize>,
    /// Context hosts that fail meanwhile
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub failures: usize,
    /// What draws which hosts fail, when, and how; the same seed gives the same run
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    pub seed: u64,
    /// Tflop/s of a host [default: what `bench calibrate` measured, or 400 of a GPU and 0.1 of a CPU]
    #[arg(long, value_name = "NUMBER", value_parser = tflops)]
    pub tflops: Option<f64>,
    /// Tokens of the query
    #[arg(long, value_name = "TOKENS", default_value = "64")]
    pub query_tokens: Tokens,
    /// Tokens of the answer
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = up_to::<65_536>)]
    pub answer_tokens: usize,
    /// Attention
    #[command(flatten)]
    pub method: MethodArgs,
    /// Where the picture goes
    #[arg(long, value_name = "FILE.svg", default_value = "simulation.svg")]
    pub svg: PathBuf,
}

fn tflops(text: &str) -> Result<f64, String> {
    let refused = || format!("'{text}' is not a number of Tflop/s above 0 and up to 100000");
    text.parse().ok().filter(|tflops| *tflops > 0.0 && *tflops <= 1e5).ok_or_else(refused)
}

/// Runs the simulation.
pub fn run(globals: &Globals, args: &SimulateArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let planner = Planner::of(globals, None)?;
    let (room, words) = room(&planner, args);
    let contexts = room.config.context_hosts().count;
    if args.tokens.0 == 0 || args.query_tokens.0 == 0 {
        return Err(CliError::usage(format!(
            "--tokens {} --query-tokens {}: expected at least 1 each",
            args.tokens, args.query_tokens
        )));
    }
    if args.failures > contexts {
        return Err(CliError::usage(format!(
            "--failures {}: there are {contexts} context hosts, expected no more failures than that",
            args.failures
        ))
        .hint("nothing was simulated; ask for more --hosts, or for fewer failures"));
    }
    words.into_iter().for_each(|words| globals.note(words));
    let mut said = Said { globals, last: Instant::now() };
    let asked = Asked {
        query_tokens: args.query_tokens.0,
        answer_tokens: args.answer_tokens as u32,
        failures: args.failures,
        seed: args.seed,
    };
    let method = args.method.resolve()?.unwrap_or_else(|| planner.method().clone());
    let ids: Vec<u32> = (0..args.tokens.0 as u32).map(|at| at.wrapping_mul(2_654_435_761) % 50_000).collect();
    let planning = Instant::now();
    said.say(|| format!("planning {} for {}", count(args.tokens.0, "token"), count(contexts, "host")));
    let refused =
        |error: asterism_plan::PlanError| CliError::of_code(error.code(), &error).hint("nothing was simulated");
    let by_length = sweep(&ids, &method, &room).map_err(refused)?;
    let context = prepared(ids, &method, &room).map_err(refused)?;
    let planned = planning.elapsed();
    let (shards, name) = (context.plan.shards.len(), context.plan.method.name.clone());
    let mut simulation = Simulation::new(&room, &context, &asked);
    let decided = simulation.submit(context, &asked).map_err(|error| CliError::of_code(error.code(), &error))?;
    let (before, placing) = (resident_bytes(), Instant::now());
    simulation.place(decided);
    let (placed, grown) = (placing.elapsed(), resident_bytes().saturating_sub(before));
    let simulated = Instant::now();
    let run = simulation.run(LONGEST_SIMULATED, |stage: Stage| {
        said.say(|| {
            format!("{:.1} s are simulated, {} events", stage.at.as_secs_f64(), grouped(stage.events as usize))
        });
    });
    let names: Vec<String> = room.config.hosts.iter().map(|host| host.name.clone()).collect();
    let picture = svg(&run, &names, &by_length);
    fs::write(&args.svg, picture).map_err(|error| private::refused(&args.svg, "write", &error))?;
    output::print_rows(&run.timeline, globals.format, table)?;
    globals.note(format_args!(
        "{name}: {} in {} on {}; planned in {}, placed in {} with {:.1} MB more in memory; {} events in {}, \
         {:.1} MB of journal",
        count(args.tokens.0, "token"),
        count(shards, "shard"),
        count(contexts, "host"),
        duration(planned.as_secs_f64()),
        duration(placed.as_secs_f64()),
        grown as f64 / 1e6,
        grouped(run.events as usize),
        duration(simulated.elapsed().as_secs_f64()),
        run.journal_bytes as f64 / 1e6,
    ));
    by_length.iter().for_each(|(length, seconds)| {
        globals.note(format_args!(
            "phase 1 at {}: {:.3} us a token, of all hosts",
            count(*length, "token"),
            seconds * 1e6
        ));
    });
    run.failures.iter().for_each(|failure| globals.note(failed(failure)));
    globals.note(format_args!("picture: {}", args.svg.display()));
    verdict(&run)
}

/// The cluster of the file with as many hosts as asked for, and what is to be said of its speed.
fn room(planner: &Planner, args: &SimulateArgs) -> (Room, Option<String>) {
    let (config, shape, measured) = planner.to_simulate();
    let on_gpu = config.hosts.iter().any(|host| host.device.contains("cuda"));
    let assumed = args.tflops.unwrap_or(if on_gpu { GPU_TFLOPS } else { CPU_TFLOPS });
    let pace = Pace { flops_per_s: assumed * 1e12 };
    let (speeds, words) = match measured.filter(|_| args.tflops.is_none()) {
        Some(speeds) => (speeds, None),
        None if args.tflops.is_some() => (pace.speeds(&shape), None),
        None => {
            let words =
                format!("nothing was measured (`asterism bench calibrate`): {assumed} Tflop/s a host are assumed");
            (pace.speeds(&shape), Some(words))
        }
    };
    let mut room = Room { config, shape, speeds };
    if let Some(count) = args.hosts {
        room.grow(count);
    }
    room.config.models.iter_mut().for_each(|model: &mut ServedModel| model.speeds = Some(speeds));
    (room, words)
}

/// What is said while somebody waits.
struct Said<'a> {
    globals: &'a Globals,
    last: Instant,
}

impl Said<'_> {
    fn say(&mut self, words: impl FnOnce() -> String) {
        if self.last.elapsed() >= SAID_EVERY {
            self.last = Instant::now();
            self.globals.note(words());
        }
    }
}

fn failed(failure: &LostHost) -> String {
    let LostHost { host, at_s, noticed_s, shards, recovered_s, bound_s, .. } = failure;
    let after = |time: &Option<f64>| time.map_or("never".into(), |time| format!("{:.2} s after", time - at_s));
    let held = if failure.is_within_bound() { "within" } else { "BEYOND" };
    match shards {
        0 => format!("{host} failed at {at_s:.2} s with nothing of the job"),
        _ => format!(
            "{host} failed at {at_s:.2} s with {}: known {}, encoded elsewhere {}, {held} its bound of {bound_s:.2} s",
            count(*shards, "shard"),
            after(noticed_s),
            after(recovered_s),
        ),
    }
}

/// Whether the job was answered, and every loss was made good in time.
fn verdict(run: &Run) -> Result<Exit, CliError> {
    let late = run.failures.iter().filter(|failure| !failure.is_within_bound()).count();
    match &run.ended {
        Some((_, JobState::Succeeded)) if late == 0 => Ok(Exit::Success),
        Some((_, JobState::Succeeded)) => Err(CliError::new(
            Exit::BelowThreshold,
            format!("{late} of {} losses took longer than their bound", run.failures.len()),
        )),
        Some((at, state)) => {
            Err(CliError::new(Exit::JobFailed, format!("the job was {} after {at:.1} s", output::lower(state))))
        }
        None => Err(CliError::new(Exit::JobFailed, "the job has no answer after a week of simulated time")),
    }
}

fn table(timeline: &[Happened]) -> Table {
    let mut table = Table::new(["SECONDS", "WHAT"]);
    for happened in timeline {
        table.row([format!("{:.3}", happened.at_s), happened.what.clone()]);
    }
    table
}

/// Bytes of this process that are in memory; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
