//! Simulated clusters under seeded faults: the real state machines of supervisor and hosts, a toy model, a fake clock. No
//! process, socket or thread of a cluster is started.
//!
//! `cargo test -p tests --release faults` runs 3,000 schedules; `-- --schedules 100000` more, `-- --seed N` one, with its
//! trace.

#[path = "faults/checks.rs"]
mod checks;
#[path = "faults/client.rs"]
mod client;
#[path = "faults/clock.rs"]
mod clock;
#[path = "faults/coverage.rs"]
mod coverage;
#[path = "faults/desk.rs"]
mod desk;
#[path = "faults/draw.rs"]
mod draw;
#[path = "faults/encoder.rs"]
mod encoder;
#[path = "faults/generation.rs"]
mod generation;
#[path = "faults/host.rs"]
mod host;
#[path = "faults/inject.rs"]
mod inject;
#[path = "faults/network.rs"]
mod network;
#[path = "faults/node.rs"]
mod node;
#[path = "faults/scenario.rs"]
mod scenario;
#[path = "faults/supervisor.rs"]
mod supervisor;
#[path = "faults/toy.rs"]
mod toy;
#[path = "faults/world.rs"]
mod world;

use std::{process::ExitCode, time::Instant};

use coverage::Coverage;
use world::{Report, World};

/// Schedules of a release build, after which every fault has met every role in every phase; and those of a debug build.
const SCHEDULES: (u64, u64) = (3000, 200);
/// Events shown of a schedule that failed.
const SHOWN: usize = 80;

struct Arguments {
    seed: Option<u64>,
    first: u64,
    schedules: u64,
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
        println!("faults: test\n\n1 test, 0 benchmarks");
        return ExitCode::SUCCESS;
    }
    match arguments.seed {
        Some(seed) => run_one(seed),
        None => run_many(&arguments),
    }
}

/// What a test harness is passed beside ours is taken and means nothing here.
fn read_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let schedules = if cfg!(debug_assertions) { SCHEDULES.1 } else { SCHEDULES.0 };
    let mut read = Arguments { seed: None, first: 0, schedules, list: false };
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().ok_or_else(|| format!("{argument} needs a number"))?;
            value.parse::<u64>().map_err(|error| format!("{argument} {value}: {error}"))
        };
        match argument.as_str() {
            "--seed" => read.seed = Some(number()?),
            "--first" => read.first = number()?,
            "--schedules" => read.schedules = number()?,
            "--list" => read.list = true,
            _ => {}
        }
    }
    Ok(read)
}

fn run_one(seed: u64) -> ExitCode {
    let Report { failure, trace, faults, .. } = World::new(seed, true).run();
    trace.iter().for_each(|event| println!("{event}"));
    println!("seed {seed}, faults\n  {faults}");
    match failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run_many(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let mut coverage = Coverage::default();
    let mut failed = Vec::new();
    for seed in arguments.first..arguments.first + arguments.schedules {
        let report = World::new(seed, false).run();
        coverage.add(&report.coverage);
        if let Some(failure) = report.failure {
            if failed.is_empty() {
                show_failure(seed, &failure);
            }
            failed.push((seed, failure));
        }
    }
    let (count, seconds) = (arguments.schedules, began.elapsed().as_secs_f64());
    println!("{}", coverage.table());
    println!("{count} schedules in {seconds:.1} s, {:.0} a minute", 60.0 * count as f64 / seconds);
    for (seed, failure) in &failed {
        println!("seed {seed} failed: {}", failure.lines().next().unwrap_or_default());
    }
    let missing = coverage.missing();
    if count >= SCHEDULES.0 && !missing.is_empty() {
        println!("never happened: {}", missing.join("; "));
        return ExitCode::FAILURE;
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a schedule again to show how it failed.
fn show_failure(seed: u64, failure: &str) {
    let Report { trace, faults, .. } = World::new(seed, true).run();
    let skipped = trace.len().saturating_sub(SHOWN);
    trace.iter().skip(skipped).for_each(|event| println!("{event}"));
    println!("seed {seed}, faults\n  {faults}\nFAILED: {failure}");
    println!("repeat it: cargo test -p tests --release --test faults -- --seed {seed}");
}
