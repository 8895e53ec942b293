//! Judgments of this machine and of what a cluster file needs of it: each is fine, or says what to do. Prints nothing.

mod certificates;
mod clocks;
mod model;
mod network;
mod ports;

use asterism_kernels::{DType, KernelChoice};
use serde::Serialize;

use crate::{
    api::http::limits,
    cluster::Cluster,
    error::CliError,
    globals::Globals,
    observe::version::Version,
    processes::{node::local_hosts, wiring},
};

/// Open files with which a process can take as many connections as it is made for, and without which it can hardly work.
const FILES: (usize, usize) = (16_384, 512);

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The cluster works, slower or not for long.
    Warning,
    /// Something will not work.
    Error,
}

/// One look at one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgment {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do, where it is not as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Judgment {
    fn ok(what: impl Into<String>, found: impl Into<String>) -> Self {
        Self { what: what.into(), verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    fn warning(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { what: what.into(), verdict: Verdict::Warning, found: found.into(), remedy }
    }

    fn error(what: impl Into<String>, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Error, ..Self::warning(what, found, remedy) }
    }
}

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
    match (FILES, open) {
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
