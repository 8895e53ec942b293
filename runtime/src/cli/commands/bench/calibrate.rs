//! `bench calibrate`: how fast this machine is at the cluster's model, written down for `plan`.

pub(crate) mod measure;
pub(crate) mod steps;
pub(crate) mod wire;

use crate::{
    cli::output,
    cluster::size::{bytes, count, duration},
    error::{CliError, Exit},
    globals::{Format, Globals},
    processes::{
        calibration::{self, Calibrated, CalibrationSetup, MachineProfile},
        checkpoint,
    },
};

/// Measures, writes the file, shows what came out.
pub fn run(globals: &Globals) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    let no_room = |error| {
        CliError::usage(format!("cannot write to data_dir {}: {error}", cluster.data_dir.display()))
            .hint("set [cluster] data_dir to a folder this user may write")
    };
    calibration::can_be_saved(&cluster.data_dir).map_err(no_room)?;
    let model = checkpoint::checkpoint_of(&cluster.model).map_err(|error| {
        CliError::usage(format!("the model cannot be used: {error}")).hint("correct [model] in the cluster file")
    })?;
    let machine = MachineProfile::here();
    let setup = CalibrationSetup::of(&cluster, model.name(), &machine);
    if let Some(load) = MachineProfile::load().filter(|load| *load > machine.cores as f64 / 4.0) {
        globals.note(format_args!(
            "this machine is busy (load {load:.1} on {} cores): times will be too long; calibrate again when it is idle",
            machine.cores
        ));
    }
    let speeds = measure::measure(globals, &setup, &model)?;
    let calibrated = Calibrated::new(machine, setup, speeds);
    calibrated.save(&cluster.data_dir).map_err(no_room)?;
    match globals.format {
        Format::Table => output::print(&table(&calibrated, model.config().heads.dim))?,
        format => output::print_json(&calibrated, format)?,
    }
    globals.note(format_args!("written to {}", calibration::path(&cluster.data_dir).display()));
    Ok(Exit::Success)
}

fn table(Calibrated { machine, setup, speeds, .. }: &Calibrated, head_dim: usize) -> String {
    let gflops = |s_per_flop: f64| format!("{:.1} GFLOP/s a host", 1e-9 / s_per_flop);
    let lines = [
        ("machine", format!("{}, {}", machine.processor, count(machine.cores, "core"))),
        ("model", format!("{} in {:?}", setup.model, setup.dtype)),
        (
            "hosts",
            format!(
                "{} of {} ({} alone), query host of {}",
                setup.context_hosts,
                count(setup.threads, "thread"),
                setup.threads_alone,
                setup.query_threads
            ),
        ),
        ("linear", gflops(speeds.linear_s_per_flop)),
        ("attention", gflops(speeds.attention_s_per_pair / (4 * head_dim) as f64)),
        ("layer", format!("{} more for each layer of a shard", duration(speeds.layer_s))),
        (
            "at once",
            format!(
                "{:.2} hosts encode at full speed, {:.2} answer",
                speeds.full_speed_hosts, speeds.full_speed_answers
            ),
        ),
        ("start", format!("{} from phase 1 to phase 2", duration(speeds.start_s))),
        (
            "step",
            format!("{}, and {} for each row more", duration(speeds.step.one_row), duration(speeds.step.further_row)),
        ),
        (
            "1k keys",
            format!(
                "{}, and {} for each row more",
                duration(1024.0 * speeds.key.one_row),
                duration(1024.0 * speeds.key.further_row)
            ),
        ),
        (
            "wire",
            format!("{}/s, {} there and back", bytes(speeds.wire_bytes_per_s as u64), duration(speeds.round_trip_s)),
        ),
    ];
    lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}
