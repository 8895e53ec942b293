//! What `bench calibrate` measured, as a file of data_dir: for which machine, model and hosts. Measures nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread::available_parallelism,
};

use asterism_plan::Calibration;
use serde::{Deserialize, Serialize};

use crate::{
    cluster::{
        Cluster, Host,
        file::{DType, Role},
        size::count,
    },
    data_dir::private,
    processes::local_hosts,
};

/// Version of the file.
const VERSION: u32 = 3;

/// What was measured, and on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibrated {
    version: u32,
    /// The machine.
    pub machine: MachineProfile,
    /// What ran on it.
    pub setup: CalibrationSetup,
    /// What came out.
    pub speeds: Calibration,
}

/// A machine, as far as speed goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineProfile {
    /// Processor by name.
    pub processor: String,
    /// Cores.
    pub cores: usize,
}

/// What a calibration holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibrationSetup {
    /// Model by name.
    pub model: String,
    /// Type of weights and products.
    pub dtype: DType,
    /// Context hosts on the machine.
    pub context_hosts: usize,
    /// Threads of one that computes alone.
    pub threads_alone: usize,
    /// Threads of each when all compute.
    pub threads: usize,
    /// Threads of the query host.
    pub query_threads: usize,
}

impl MachineProfile {
    /// This one.
    pub fn here() -> Self {
        let described = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = described.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            processor: name.map_or(std::env::consts::ARCH, |(_, name)| name).to_owned(),
            cores: available_parallelism().map_or(1, |cores| cores.get()),
        }
    }

    /// Processes that wanted to run in the last minute, on average, where the system tells.
    pub fn load() -> Option<f64> {
        fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
    }
}

impl CalibrationSetup {
    /// What `cluster` runs on the machine of its first context host here; on that of its first, if none is here.
    pub fn of(cluster: &Cluster, model: &str, machine: &MachineProfile) -> Self {
        let first = |role| {
            let here = local_hosts(cluster).into_iter().find(|host| host.role == role);
            here.or_else(|| cluster.with_role(role).next()).expect("a resolved cluster has context and query hosts")
        };
        let (context, query) = (first(Role::Context), first(Role::Query));
        let beside = |host: &&Host| host.node == context.node;
        Self {
            model: model.to_owned(),
            dtype: cluster.model.dtype,
            context_hosts: cluster.with_role(Role::Context).filter(beside).count(),
            threads_alone: context.threads.unwrap_or(machine.cores),
            threads: cluster.threads_of(context, machine.cores),
            query_threads: cluster.threads_of(query, machine.cores),
        }
    }
}

/// Whether a calibration could be written: asked before a minute of measuring.
pub fn can_be_saved(data_dir: &Path) -> io::Result<()> {
    private::make(data_dir)?;
    tempfile::tempfile_in(data_dir).map(drop)
}

/// Where the calibration of a cluster lies.
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("calibration.json")
}

impl Calibrated {
    /// Of these speeds.
    pub fn new(machine: MachineProfile, setup: CalibrationSetup, speeds: Calibration) -> Self {
        Self { version: VERSION, machine, setup, speeds }
    }

    /// Writes the file of `data_dir`, whole or not at all.
    pub fn save(&self, data_dir: &Path) -> io::Result<()> {
        private::make(data_dir)?;
        private::replace(&path(data_dir), &serde_json::to_vec_pretty(self)?)
    }
}

/// Writes these speeds of links, a round trip in seconds and bytes in a second, in the place of those measured within this machine.
/// Says where, or why there is nothing to write them to.
pub fn with_wire(
    cluster: &Cluster,
    model: &str,
    (round_trip_s, wire_bytes_per_s): (f64, f64),
) -> Result<PathBuf, String> {
    let speeds = Calibration { round_trip_s, wire_bytes_per_s, ..find(cluster, model)? };
    let (machine, path) = (MachineProfile::here(), path(&cluster.data_dir));
    let calibrated = Calibrated::new(machine.clone(), CalibrationSetup::of(cluster, model, &machine), speeds);
    calibrated.save(&cluster.data_dir).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The speeds measured for what `cluster` is now, or why there are none.
pub fn find(cluster: &Cluster, model: &str) -> Result<Calibration, String> {
    const NEXT: &str = "run `asterism bench calibrate`";
    let path = path(&cluster.data_dir);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(format!("not calibrated: {NEXT}")),
        Err(error) => return Err(format!("the calibration {} cannot be read ({error}): {NEXT}", path.display())),
    };
    let found: Calibrated = serde_json::from_slice(&bytes)
        .map_err(|error| format!("the calibration {} is damaged ({error}): {NEXT}", path.display()))?;
    let machine = MachineProfile::here();
    let setup = CalibrationSetup::of(cluster, model, &machine);
    match found == Calibrated::new(machine, setup.clone(), found.speeds) {
        true => Ok(found.speeds),
        false => Err(format!(
            "calibrated for {}, and this is {}: {NEXT} again",
            found.setup.in_words(&found.machine),
            setup.in_words(&MachineProfile::here())
        )),
    }
}

impl CalibrationSetup {
    fn in_words(&self, machine: &MachineProfile) -> String {
        let Self { model, dtype, context_hosts, threads_alone, threads, query_threads } = self;
        let MachineProfile { processor, cores } = machine;
        format!(
            "{model} in {dtype:?} on {} of {} ({threads_alone} alone) and a query host of {query_threads} on {} of {processor}",
            count(*context_hosts, "context host"),
            count(*threads, "thread"),
            count(*cores, "core"),
        )
    }
}

#[cfg(test)]
mod tests {
    use asterism_plan::StepSeconds;

    use super::*;
    use crate::cluster::file::parse;

    const SPEEDS: Calibration = Calibration {
        linear_s_per_flop: 1e-11,
        attention_s_per_pair: 1e-9,
        layer_s: 1e-5,
        full_speed_hosts: 2.0,
        full_speed_answers: 2.0,
        start_s: 1e-3,
        step: StepSeconds { one_row: 1e-3, further_row: 1e-4 },
        key: StepSeconds { one_row: 1e-7, further_row: 1e-8 },
        wire_bytes_per_s: 1e9,
        round_trip_s: 1e-4,
    };

    #[test]
    fn a_calibration_holds_for_what_it_was_measured_on() {
        let folder = tempfile::tempdir().unwrap();
        let resolve = |text: &str| Cluster::resolve(&parse(text, []).unwrap(), folder.path()).unwrap();
        let sample = include_str!("../../../cluster.toml");
        let cluster = resolve(sample);
        assert_eq!(find(&cluster, "a").unwrap_err(), "not calibrated: run `asterism bench calibrate`");
        let machine = MachineProfile::here();
        let setup = CalibrationSetup::of(&cluster, "a", &machine);
        assert_eq!(setup.context_hosts, 4);
        Calibrated::new(machine, setup, SPEEDS).save(&cluster.data_dir).unwrap();
        assert_eq!(find(&cluster, "a"), Ok(SPEEDS));
        with_wire(&cluster, "a", (2e-4, 5e8)).unwrap();
        assert_eq!(find(&cluster, "a"), Ok(Calibration { round_trip_s: 2e-4, wire_bytes_per_s: 5e8, ..SPEEDS }));
        assert!(with_wire(&cluster, "b", (2e-4, 5e8)).unwrap_err().contains("calibrated for a"));
        let other = find(&cluster, "b").unwrap_err();
        assert!(other.contains("calibrated for a in F32 on 4") && other.contains("this is b in F32"), "{other}");
        let threads = resolve(&sample.replace("name = \"context-0\"", "name = \"context-0\"\nthreads = 3"));
        assert!(find(&threads, "a").unwrap_err().contains("of 3 threads"));
        fs::write(path(&cluster.data_dir), "{").unwrap();
        assert!(find(&cluster, "a").unwrap_err().contains("is damaged"));
    }
}
