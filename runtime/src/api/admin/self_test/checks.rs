//! Which canaries a self-test has, by the hosts that there are. Asks nobody.

use std::collections::BTreeSet;

use asterism_actors::api::{HostHealth, HostStatus, JobRequest, Role, Scheduling};
use asterism_plan::{
    MethodConfig,
    methods::{DenseConfig, RingConfig},
};

use super::canary::Canary;
use crate::cluster::NAME_LABEL;

/// What a canary shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// Dense on one context host: all must agree.
    Alone,
    /// The same context asked by another query host.
    Asked,
    /// The same words, encoded by a query host itself.
    Whole,
    /// An exact method over all context hosts.
    Split,
    /// Dense on one host, long enough for the default method.
    LongAlone,
    /// The default method, where the cluster places it.
    Default {
        /// Whether its tokens must be dense's.
        exact: bool,
    },
}

impl CheckKind {
    /// A word for a job's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Asked => "asked",
            Self::Whole => "whole",
            Self::Split => "split",
            Self::LongAlone => "long",
            Self::Default { .. } => "default",
        }
    }

    /// Whether it is of the long canary.
    pub fn is_long(self) -> bool {
        matches!(self, Self::LongAlone | Self::Default { .. })
    }
}

/// One canary, ready to be asked.
#[derive(Clone, Debug)]
pub struct Check {
    /// What is tried, in a few words.
    pub name: String,
    /// What it shows.
    pub kind: CheckKind,
    /// What may decide its bits: the numerics of every host that may work on it.
    pub numerics: BTreeSet<String>,
    /// Hosts that it is for; a query host last.
    pub hosts: Vec<String>,
    /// What an answer must hold.
    pub gold: Option<String>,
    /// What is asked.
    pub request: JobRequest,
}

/// Every canary for hosts that work now.
///
/// # Errors
/// Who is missing, where nothing can be tried.
pub fn all(
    hosts: &[HostStatus],
    default: &MethodConfig,
    (short, long): (Canary, Option<Canary>),
) -> Result<Vec<Check>, String> {
    let of = |role| -> Vec<&HostStatus> {
        let works = |host: &&HostStatus| {
            host.role == role && host.health == HostHealth::Ready && host.scheduling == Scheduling::Open
        };
        hosts.iter().filter(works).collect()
    };
    let (contexts, queries) = (of(Role::Context), of(Role::Query));
    let (Some(first), Some(query)) = (contexts.first().copied(), queries.first().copied()) else {
        return Err("no context host or no query host is ready".into());
    };
    let dense = || Some(MethodConfig::Dense(DenseConfig {}));
    let one = |canary: &Canary, host, query, kind, name| {
        placed(canary.request(dense()), canary, (&[host], query), kind, name)
    };
    let mut checks = Vec::new();
    for host in &contexts {
        checks.push(one(&short, host, query, CheckKind::Alone, format!("dense on {}", host.name)));
    }
    for other in &queries[1..] {
        checks.push(one(
            &short,
            first,
            other,
            CheckKind::Asked,
            format!("dense on {}, asked by {}", first.name, other.name),
        ));
    }
    let whole = short.asked_whole();
    for query in &queries {
        checks.push(one(&whole, first, query, CheckKind::Whole, format!("all of it on {}", query.name)));
    }
    if contexts.len() > 1 {
        let ring = Some(MethodConfig::Ring(RingConfig::default()));
        let name = format!("ring over {} hosts", contexts.len());
        checks.push(anywhere(short.request(ring), &short, (&contexts, query), CheckKind::Split, name));
    }
    let exact = ["dense", "ring", "ulysses", "chain"].contains(&default.name());
    if let Some(long) = long.filter(|_| default.name() != "dense") {
        checks.push(one(&long, first, query, CheckKind::LongAlone, format!("dense on {}, longer", first.name)));
        let name = format!("the default, {}", default.name());
        checks.push(anywhere(long.request(None), &long, (&contexts, query), CheckKind::Default { exact }, name));
    }
    Ok(checks)
}

/// On these hosts and no other.
fn placed(
    mut request: JobRequest,
    canary: &Canary,
    (contexts, query): (&[&HostStatus], &HostStatus),
    kind: CheckKind,
    name: String,
) -> Check {
    let label = |host: &&HostStatus| (NAME_LABEL.to_owned(), host.name.clone());
    request.placement.labels = contexts.iter().map(label).collect();
    anywhere(request, canary, (contexts, query), kind, name)
}

/// Where the cluster places it, asked by this host.
fn anywhere(
    mut request: JobRequest,
    canary: &Canary,
    (contexts, query): (&[&HostStatus], &HostStatus),
    kind: CheckKind,
    name: String,
) -> Check {
    request.placement.query_host = Some(query.name.clone());
    let hosts = || contexts.iter().chain([&query]);
    Check {
        name,
        kind,
        numerics: hosts().filter_map(|host| host.numerics.clone()).collect(),
        hosts: hosts().map(|host| host.name.clone()).collect(),
        gold: canary.gold.clone(),
        request,
    }
}
