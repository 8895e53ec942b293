//! Judgments of this machine and of what a cluster file needs of it: each is fine, or says what to do. Prints nothing.

mod certificates;
mod clocks;
pub(crate) mod judgment;
mod model;
mod network;
mod ports;

use asterism_kernels::{DType, KernelChoice};

use crate::{
    api::http::limits,
    cluster::Cluster,
    error::CliError,
    globals::Globals,
    observe::version::Version,
    processes::{local_hosts, wiring},
};
pub use judgment::{Judgment, Verdict};

/// Open files with which a process can take as many connections as it is made for, and without which it can hardly work.
const OPEN_FILES: (usize, usize) = (16_384, 512);

/// Looks at this machine, and at what the cluster file needs of it.
pub fn look(globals: &Globals, cluster: Option<&Cluster>) -> Vec<Judgment> {
    let mut judgments = vec![kernels(), files(limits::raise_open_files())];
    judgments.extend(network::look());
    if let Some(cluster) = cluster {
        judgments
            .extend(wiring::try_ucx(cluster, &local_hosts(cluster)).map(|tried| network::judge_ucx(cluster, tried)));
        judgments.push(model::look(cluster));
        judgments.extend(ports::look(cluster));
        judgments.extend(certificates::look(cluster));
        judgments.extend(clocks::look(globals, cluster));
    }
    judgments
}

/// Refuses addresses of this machine that cannot be listened on. A cluster that runs has its own.
pub fn ports_are_free(cluster: &Cluster) -> Result<(), CliError> {
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
