//! Simulated clusters under seeded faults: supervisor, context hosts and query hosts as they run in their processes, over the
//! simulated network, in one single-threaded runtime with a paused clock; a tiny model on the CPU's kernels. No process and no
//! socket is there, and of the actors nothing is imitated: what is made up is what lies around them, the nodes that start
//! hosts, the clients, the disk.
//!
//! What repeats: a seed decides the cluster, the jobs, the faults, and by [`asterism_actors::machine`] the order in which all
//! threads and tasks go on, so that a schedule is the same to the last event; `--twice` compares. What would not repeat and is
//! therefore not watched: who signs (tickets are of a random secret) and what /proc says of this process.
//!
//! `cargo test --release --workspace --test simulation` runs 1,000 schedules; `-- --schedules 10000` more, `-- --seed N` one,
//! with its trace.

mod checks;
mod client;
mod cluster;
mod disk;
mod faults;
mod misreading;
mod model;
mod node;
mod scenario;

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use checks::Report;

/// Schedules of a release build and of a debug build.
const SCHEDULES: (u64, u64) = (1000, 60);
/// Events shown of a schedule that failed.
const SHOWN: usize = 120;

struct Arguments {
    seed: Option<u64>,
    first: u64,
    schedules: u64,
    threads: usize,
    twice: bool,
    list: bool,
}

fn main() -> ExitCode {
    let arguments = match read_arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(cause) => {
            eprintln!("{cause}");
            return ExitCode::from(2);
        }
    };
    if arguments.list {
        println!("simulation: test\n\n1 test, 0 benchmarks");
        return ExitCode::SUCCESS;
    }
    match arguments.seed {
        Some(seed) => run_one(seed, arguments.twice),
        None => run_many(&arguments),
    }
}

/// What a test harness is passed beside ours is taken and means nothing here.
fn read_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let schedules = if cfg!(debug_assertions) { SCHEDULES.1 } else { SCHEDULES.0 };
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let mut read = Arguments { seed: None, first: 0, schedules, threads, twice: false, list: false };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
            value.parse::<u64>().map_err(|error| format!("{argument} {value}: {error}"))
        };
        match argument.as_str() {
            "--seed" => read.seed = Some(number()?),
            "--first" => read.first = number()?,
            "--schedules" => read.schedules = number()?,
            "--threads" => read.threads = number()?.max(1) as usize,
            "--twice" => read.twice = true,
            "--list" => read.list = true,
            _ => {}
        }
    }
    Ok(read)
}

fn run_one(seed: u64, twice: bool) -> ExitCode {
    let report = checks::run(seed, true);
    report.trace.iter().for_each(|event| println!("{event}"));
    println!("seed {seed}, faults\n  {}", report.planned);
    if twice {
        let again = checks::run(seed, true);
        let both = report.trace.iter().zip(&again.trace).enumerate();
        match both.into_iter().find(|(_, (first, second))| first != second) {
            Some((at, (first, second))) => println!("DIFFERS at event {at}:\n  {first}\n  {second}"),
            None => println!("the same again: {} and {} events", report.trace.len(), again.trace.len()),
        }
    }
    match report.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs schedules side by side, each on a thread of its own.
fn run_many(arguments: &Arguments) -> ExitCode {
    let (began, next) = (Instant::now(), AtomicU64::new(arguments.first));
    let end = arguments.first + arguments.schedules;
    let reports: Mutex<Vec<(u64, Report)>> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let mut report = checks::run(seed, false);
            if arguments.twice && checks::run(seed, false).fingerprint != report.fingerprint {
                report.failure.get_or_insert_with(|| "it does not repeat".into());
            }
            if let Some(failure) = &report.failure {
                println!("seed {seed} failed: {}", failure.lines().next().unwrap_or_default());
            }
            reports.lock().expect("no holder panics").push((seed, report));
        }
    };
    std::thread::scope(|scope| (0..arguments.threads).for_each(|_| drop(scope.spawn(work))));
    let mut reports = reports.into_inner().expect("no holder panics");
    reports.sort_by_key(|(seed, _)| *seed);
    let failed: Vec<&(u64, Report)> = reports.iter().filter(|(_, report)| report.failure.is_some()).collect();
    if let Some((seed, _)) = failed.first() {
        show_failure(*seed);
    }
    println!("{}", faults::table(reports.iter().map(|(_, report)| &report.met)));
    let (count, seconds) = (arguments.schedules, began.elapsed().as_secs_f64());
    let simulated: f64 = reports.iter().map(|(_, report)| report.simulated_s).sum();
    println!(
        "{count} schedules, {simulated:.0} simulated seconds, in {seconds:.1} s: {:.0} a minute on {} threads",
        60.0 * count as f64 / seconds,
        arguments.threads
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a schedule again to show how it failed.
fn show_failure(seed: u64) {
    let report = checks::run(seed, true);
    let skipped = report.trace.len().saturating_sub(SHOWN);
    report.trace.iter().skip(skipped).for_each(|event| println!("{event}"));
    let failure = report.failure.unwrap_or_else(|| "it does not fail again".into());
    println!("seed {seed}, faults\n  {}\nFAILED: {failure}", report.planned);
    println!("repeat it: cargo test --release --workspace --test simulation -- --seed {seed}");
}
