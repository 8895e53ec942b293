//! What is looked at before a cluster starts, by `validate` and by `doctor`: one list for all. Each check is fine, or says what to
//! do. Prints nothing.

mod certificates;
mod clocks;
mod disk;
pub(crate) mod gpus;
pub(crate) mod judgment;
mod model;
mod names;
mod needed;
mod network;
mod ports;

use asterism_kernels::{DType, KernelChoice};

use crate::{
    api::http::limits,
    cluster::Cluster,
    error::CliError,
    globals::Globals,
    observe::version::Version,
    processes::{device, local_hosts, wiring},
};
pub use judgment::{Judgment, Verdict};

/// Open files with which a process can take as many connections as it is made for, and without which it can hardly work.
const OPEN_FILES: (usize, usize) = (16_384, 512);

/// Who wants something looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// `up` and `validate`, before anything starts: all that is missing is told at once.
    Start,
    /// `validate`, of what takes longer: the first that is wrong is told.
    Validate,
    /// `doctor`.
    Doctor,
}

/// What a check finds.
enum Check {
    /// That a cluster cannot be as its file says.
    Refuses(fn(&Cluster) -> Result<(), CliError>),
    /// How this machine is.
    Machine(fn() -> Vec<Judgment>),
    /// How what the cluster file needs of it is.
    Cluster(fn(&Globals, &Cluster) -> Vec<Judgment>),
}

/// Every check with those who ask for it, in the order in which it is told.
const CHECKS: &[(&[Asker], Check)] = &[
    (&[Asker::Start], Check::Refuses(needed::model)),
    (&[Asker::Start, Asker::Doctor], Check::Refuses(needed::devices)),
    (&[Asker::Start], Check::Refuses(needed::certificates)),
    (&[Asker::Start], Check::Refuses(needed::token)),
    (&[Asker::Start], Check::Refuses(needed::keys)),
    (&[Asker::Start, Asker::Doctor], Check::Refuses(device::known)),
    (&[Asker::Start], Check::Refuses(needed::transport)),
    (&[Asker::Doctor], Check::Refuses(needed::known_transport)),
    (&[Asker::Start], Check::Refuses(needed::api_tls)),
    (&[Asker::Start], Check::Refuses(needed::admin_tls)),
    (&[Asker::Start, Asker::Doctor], Check::Refuses(needed::standby)),
    (&[Asker::Validate], Check::Refuses(needed::weights)),
    (&[Asker::Validate], Check::Refuses(gpus::there)),
    (&[Asker::Validate], Check::Refuses(ports_are_free)),
    (&[Asker::Doctor], Check::Machine(|| vec![kernels()])),
    (&[Asker::Doctor], Check::Machine(|| vec![files(limits::raise_open_files())])),
    (&[Asker::Doctor], Check::Machine(network::look)),
    (&[Asker::Doctor], Check::Cluster(ucx)),
    (&[Asker::Doctor], Check::Cluster(|_, cluster| vec![model::look(cluster)])),
    (&[Asker::Doctor], Check::Cluster(|_, cluster| ports::look(cluster))),
    (&[Asker::Validate, Asker::Doctor], Check::Cluster(|_, cluster| names::look(cluster))),
    (&[Asker::Doctor], Check::Cluster(|_, cluster| disk::look(cluster))),
    (&[Asker::Doctor], Check::Cluster(|_, cluster| certificates::look(cluster))),
    (&[Asker::Doctor], Check::Cluster(clocks::look)),
];

fn asked_by(asker: Asker) -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().filter(move |(askers, _)| askers.contains(&asker)).map(|(_, check)| check)
}

/// Why a cluster cannot be as its file says.
pub fn refusals(asker: Asker, cluster: &Cluster) -> impl Iterator<Item = CliError> {
    asked_by(asker).filter_map(|check| match check {
        Check::Refuses(look) => look(cluster).err(),
        Check::Machine(_) | Check::Cluster(_) => None,
    })
}

/// Refuses a cluster that could not start here, with everything that is wrong at once.
pub fn fit_to_start(cluster: &Cluster) -> Result<(), CliError> {
    let joined = |all: CliError, next: CliError| CliError {
        message: format!("{}\nerror: {}", all.message, next.message),
        ..all
    };
    refusals(Asker::Start, cluster).reduce(joined).map_or(Ok(()), Err)
}

/// Refuses it for weights that hosts of this machine would refuse when they load them, and ports that another process has, too.
pub fn valid(cluster: &Cluster) -> Result<(), CliError> {
    fit_to_start(cluster)?;
    refusals(Asker::Validate, cluster).next().map_or(Ok(()), Err)
}

/// Looks at this machine, and at what the cluster file needs of it.
pub fn look(asker: Asker, globals: &Globals, cluster: Option<&Cluster>) -> Vec<Judgment> {
    let judged = |check: &Check| match (check, cluster) {
        (Check::Machine(look), _) => look(),
        (Check::Cluster(look), Some(cluster)) => look(globals, cluster),
        (Check::Cluster(_), None) | (Check::Refuses(_), _) => Vec::new(),
    };
    asked_by(asker).flat_map(judged).collect()
}

fn ucx(_: &Globals, cluster: &Cluster) -> Vec<Judgment> {
    let tried = wiring::try_ucx(cluster, &local_hosts(cluster));
    tried.map(|tried| network::judge_ucx(cluster, tried)).into_iter().collect()
}

/// Refuses addresses of this machine that cannot be listened on. A cluster that runs has its own.
fn ports_are_free(cluster: &Cluster) -> Result<(), CliError> {
    let taken = ports::look(cluster).into_iter().find(|judgment| judgment.verdict == Verdict::Error);
    taken.map_or(Ok(()), |Judgment { found, remedy, .. }| Err(CliError::usage(found).hint(remedy.unwrap_or_default())))
}

/// The fastest kernels that this processor has.
fn kernels() -> Judgment {
    let found = KernelChoice::best(DType::Bf16).name();
    match (found, Version::current().profile) {
        ("portable", _) => Judgment::warning(
            "kernels",
            "portable: this processor has neither AVX2 nor AVX-512",
            "expect a tenth of the speed, or run hosts elsewhere",
        ),
        (found, "debug") => Judgment::warning(
            "kernels",
            format!("{found}, in a debug build"),
            "use a release build to serve: `cargo build --release`",
        ),
        (found, _) => Judgment::ok("kernels", found),
    }
}

fn files(open: usize) -> Judgment {
    let found = format!("{open} may be open");
    let remedy = "raise the hard limit: `ulimit -Hn 65536`, or LimitNOFILE=65536 of the service";
    match (OPEN_FILES, open) {
        ((enough, _), open) if open >= enough => Judgment::ok("files", found),
        ((_, least), open) if open >= least => {
            Judgment::warning("files", format!("{found}; connections take a third of them"), remedy)
        }
        _ => Judgment::error("files", found, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_are_told() {
        let verdicts = [65_536, 16_384, 16_383, 512, 511, 0].map(|open| files(open).verdict);
        use Verdict::{Error, Ok, Warning};
        assert_eq!(verdicts, [Ok, Ok, Warning, Warning, Error, Error]);
        assert!(files(600).remedy.is_some() && files(65_536).remedy.is_none());
    }
}
