//! Shards of sessions that lie where they were only put for want of something better: they move back when it is quiet. A shard
//! leaves a host of another role, such as a query host that stood in, and a context host that holds two more than another.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use crate::{
    api::Role,
    supervisor::{
        rules::host_selection::HostSelection,
        tables::context::{Context, ContextOwner},
    },
};

/// Nothing moves so soon after hosts came or work was dealt.
pub const QUIET_FOR: Duration = Duration::from_secs(5);

/// Shards of a context, and the hosts that they go to.
#[derive(Debug, PartialEq, Eq)]
pub struct Rebalance {
    pub context: u64,
    pub blocks: Vec<usize>,
    pub targets: Vec<usize>,
}

/// What moves next, if anything is to: of one context at a time, and only while nothing is encoded or under way.
pub fn next(selection: &HostSelection) -> Option<Rebalance> {
    let contexts = selection.contexts;
    if !contexts.incomplete().is_empty() {
        return None;
    }
    let sessions =
        || contexts.numbers().into_iter().filter_map(|number| contexts.get(number)).filter(|one| is_settled(one));
    let is_busy = |one: &Context| one.is_placed() && !(one.is_ready() && one.migration_targets().is_empty());
    if contexts.numbers().into_iter().filter_map(|number| contexts.get(number)).any(is_busy) {
        return None;
    }
    sessions().find_map(|context| back_home(selection, context)).or_else(|| {
        let of = |label: &str| sessions().filter(|one| one.prepared.model() == label).collect::<Vec<_>>();
        selection.config.models.iter().find_map(|model| evened(selection, &model.label, &of(&model.label)))
    })
}

/// A session's context of which every shard is held, and can be encoded elsewhere alone.
fn is_settled(context: &Context) -> bool {
    matches!(context.owner, ContextOwner::Session(_)) && context.is_ready() && context.moves_alone()
}

/// Whether a host encodes by its role, rather than in another's place.
fn is_own(selection: &HostSelection, host: usize) -> bool {
    selection.hosts.at(host).rank(Role::Context, selection.config.recovery) == Some(0)
}

/// Shards on hosts of another role, where hosts of the right one have room.
fn back_home(selection: &HostSelection, context: &Context) -> Option<Rebalance> {
    let away = context.hosts().into_iter().find(|host| !is_own(selection, *host))?;
    let blocks = context.held_by(away);
    let fit = |host: usize| is_own(selection, host) && !context.avoid.contains(&host);
    let targets = selection.find_among(context, &blocks, fit).ok()?;
    Some(Rebalance { context: context.number, blocks, targets })
}

/// One shard of the context host of a model that has the most to the one that has the fewest, where that makes both more alike.
fn evened(selection: &HostSelection, model: &str, sessions: &[&Context]) -> Option<Rebalance> {
    let avoided = |host: usize| selection.config.avoid_stragglers && selection.hosts.at(host).pace.is_slow();
    let takes = |host: &usize| is_own(selection, *host) && selection.hosts.at(*host).takes_work() && !avoided(*host);
    let is_of = |host: &usize| selection.hosts.at(*host).spec.model() == model;
    let able: Vec<usize> = (0..selection.config.hosts.len()).filter(|host| is_of(host) && takes(host)).collect();
    // Those of jobs come and go.
    let shards = |host: usize| sessions.iter().map(|context| context.shards_on(host)).sum::<usize>();
    let least = able.iter().copied().min_by_key(|host| (shards(*host), *host))?;
    let mut most: Vec<usize> = able.into_iter().filter(|host| shards(*host) >= shards(least) + 2).collect();
    most.sort_by_key(|host| Reverse(shards(*host)));
    let held: BTreeMap<usize, Vec<&Context>> = most
        .iter()
        .map(|host| (*host, sessions.iter().copied().filter(|one| one.shards_on(*host) > 0).collect()))
        .collect();
    most.into_iter().find_map(|host| {
        // Of a chain one host holds all: elsewhere a shard of it would be encoded behind all the others.
        let alone = |context: &&&Context| !context.plan().is_chain() && !context.avoid.contains(&least);
        held[&host].iter().filter(alone).find_map(|context| {
            let blocks = vec![context.held_by(host).pop()?];
            let targets = selection.find_among(context, &blocks, |other| other == least).ok()?;
            Some(Rebalance { context: context.number, blocks, targets })
        })
    })
}
