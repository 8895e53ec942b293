//! Which hosts get shards and generations: those that compute the same bits as what a job has already. Orders nothing.

use std::collections::BTreeSet;

use crate::{
    api::Role,
    error::JobError,
    metric::Observation,
    news::News,
    supervisor::{
        placement::{Candidate, Demand, MixedNumerics, PlacementRefusal, place, place_among_equals},
        state::{Command, SupervisorState},
        tables::{context::Context, contexts::Load, prepared::PreparedContext},
    },
};

/// Most generations of a query host at once.
const GENERATIONS: usize = 32;
/// Most bytes of what a host says that it computes with.
const NUMERICS_BYTES: usize = 160;

/// Refuses words that say nothing, or too much.
pub(in crate::supervisor) fn check_numerics(said: &str) -> Result<(), String> {
    let plain = said.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match plain && !said.trim().is_empty() && said.len() <= NUMERICS_BYTES {
        true => Ok(()),
        false => Err(format!(
            "it says that it computes with {} bytes of something, expected 1 to {NUMERICS_BYTES} printable characters; run \
             the same version of asterism on every host",
            said.len()
        )),
    }
}

/// Where a job is generated.
pub(in crate::supervisor) enum Choice {
    /// There.
    Host(usize),
    /// Hosts that compute what its tokens were computed with have all they take, or there are none.
    NoEqual { up: bool },
    /// The one that it names takes none, which others need not wait for.
    NotNow,
    /// Nobody generates, or all have all they take.
    Nobody,
}

impl SupervisorState {
    /// Whether a context could be placed at all, beside what sessions hold.
    ///
    /// # Errors
    /// [`JobError::Placement`] with the numbers when it could not, whatever else ends.
    pub(in crate::supervisor) fn check_room(
        &self,
        prepared: &PreparedContext,
        lent: &BTreeSet<usize>,
    ) -> Result<(), JobError> {
        let candidates = self.candidates(|load| load.pinned_bytes, |_| true);
        let blocks: Vec<usize> = (0..prepared.plan.shards.len()).collect();
        let (demands, policy) = (demands(prepared, lent, &blocks), &prepared.placement);
        let placed = match self.config.mixed_numerics {
            MixedNumerics::Refuse => place_among_equals(&demands, &candidates, policy, None),
            MixedNumerics::Mark => place(&demands, &candidates, policy),
        };
        placed.map(drop).map_err(JobError::Placement)
    }

    /// Hosts that could take shards, beside what is `held` of what they have.
    pub(in crate::supervisor) fn candidates(
        &self,
        held: impl Fn(&Load) -> u64,
        fit: impl Fn(usize) -> bool,
    ) -> Vec<Candidate<'_>> {
        let candidate = |host: usize| {
            let record = self.hosts.at(host);
            let rank = record.rank(Role::Context, self.config.recovery)?;
            let load = self.contexts.load(host);
            let taken = record.spec.weight_bytes + held(&load);
            let free_bytes = record.spec.memory_limit.map(|limit| limit.saturating_sub(taken));
            let (node, labels, numerics) = (record.spec.node.as_str(), &record.spec.labels, record.numerics.as_deref());
            Some(Candidate { host, node, labels, rank, free_bytes, busy: load.unready, numerics })
        };
        (0..self.config.hosts.len()).filter(|&host| fit(host)).filter_map(candidate).collect()
    }

    /// Hosts for `blocks` of a context now, or why there are none: of equal numerics, and where there are none such, any if
    /// that is allowed.
    pub(in crate::supervisor) fn find_hosts(
        &self,
        context: &Context,
        blocks: &[usize],
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let found = self.find_equals(context, blocks);
        if self.config.mixed_numerics == MixedNumerics::Mark
            && matches!(found, Err(PlacementRefusal::UnequalNumerics { .. }))
        {
            return self.find(context, |candidates| {
                place(&demands(&context.prepared, &context.lent, blocks), candidates, &context.prepared.placement)
            });
        }
        found
    }

    /// Hosts of equal numerics for `blocks` of a context now.
    pub(in crate::supervisor) fn find_equals(
        &self,
        context: &Context,
        blocks: &[usize],
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let wanted = self.wanted(context, blocks);
        self.find(context, |candidates| {
            let demands = demands(&context.prepared, &context.lent, blocks);
            let policy = &context.prepared.placement;
            place_among_equals(&demands, candidates, policy, wanted.as_deref())
        })
    }

    /// Those that others could not reach are better than none.
    fn find(
        &self,
        context: &Context,
        place: impl Fn(&[Candidate]) -> Result<Vec<usize>, PlacementRefusal>,
    ) -> Result<Vec<usize>, PlacementRefusal> {
        let find = |fit: &dyn Fn(usize) -> bool| {
            let takes = |host| self.hosts.at(host).takes_work() && fit(host);
            place(&self.candidates(|load| load.kv_bytes, takes))
        };
        find(&|host| !context.avoid.contains(&host)).or_else(|_| find(&|_| true))
    }

    /// What `blocks` of a context are to be encoded with: anything, where nothing else is left of it that they must fit.
    fn wanted(&self, context: &Context, blocks: &[usize]) -> Option<String> {
        let decodes = |number: &u64| self.jobs.get(*number).is_some_and(|job| job.numerics.is_some());
        let whole = blocks.len() == context.plan().shards.len();
        match whole && !self.jobs.of_context(context.number).iter().any(decodes) {
            true => None,
            false => context.numerics.clone(),
        }
    }

    /// Shards of a context go to these hosts: what they are encoded with from now on, and whether that is no longer one thing.
    pub(in crate::supervisor) fn note_numerics(
        &mut self,
        number: u64,
        blocks: &[usize],
        hosts: &[usize],
        commands: &mut Vec<Command>,
    ) {
        let (records, wanted) = (&self.hosts, self.wanted(&self.contexts[number], blocks));
        let Some(first) = hosts.iter().find_map(|host| records.at(*host).numerics.clone()) else { return };
        let wanted = wanted.unwrap_or(first);
        let other = hosts.iter().find(|host| records.at(**host).numerics.as_ref().is_some_and(|has| *has != wanted));
        let other = other.map(|host| records.name(*host).to_string());
        let mut context = self.contexts.get_mut(number).expect("it was there");
        let whole = blocks.len() == context.plan().shards.len();
        let before = context.mixed_numerics && !whole;
        context.mixed_numerics = before || other.is_some();
        context.numerics = Some(wanted.clone());
        drop(context);
        if let Some(host) = other.filter(|_| !before) {
            commands.push(Command::Observe(Observation::NumericsMixed));
            commands.push(Command::Tell(News::NumericsMixed { what: format!("context {number}"), host, wanted }));
        }
    }

    /// Where a job is generated next.
    pub(in crate::supervisor) fn choose_query_host(&self, number: u64) -> Choice {
        let Some(job) = self.jobs.get(number) else { return Choice::Nobody };
        let named = self.contexts.get(job.context).and_then(|context| context.prepared.placement.query_host.as_ref());
        let able = |host: &usize| {
            let record = self.hosts.at(*host);
            named.is_none_or(|named| *named == record.spec.name).then_some(())?;
            Some((record.rank(Role::Query, self.config.recovery).filter(|_| record.takes_work())?, *host))
        };
        let able: Vec<(u8, usize)> = (0..self.config.hosts.len()).filter_map(|host| able(&host)).collect();
        let is_equal = |host: usize| job.numerics.is_none() || self.hosts.at(host).numerics == job.numerics;
        let up = able.iter().any(|&(_, host)| is_equal(host));
        if !up && !able.is_empty() && self.config.mixed_numerics == MixedNumerics::Refuse {
            return Choice::NoEqual { up };
        }
        let generations = |host: usize| self.jobs.count_on(host);
        let takes = |(_, host): &&(u8, usize)| (!up || is_equal(*host)) && generations(*host) < GENERATIONS;
        let ranked = able.iter().filter(takes);
        match ranked.min_by_key(|&&(rank, host)| (job.avoid.contains(&host), rank, generations(host), host)) {
            Some(&(_, host)) => Choice::Host(host),
            None if job.numerics.is_some() && up => Choice::NoEqual { up },
            None if named.is_some() => Choice::NotNow,
            None => Choice::Nobody,
        }
    }

    /// Why nobody goes on with a job, where only hosts of other numerics could.
    pub(in crate::supervisor) fn lacks_equal(&self, number: u64) -> Option<String> {
        let wanted = self.jobs.get(number)?.numerics.clone()?;
        let lacks = matches!(self.choose_query_host(number), Choice::NoEqual { up: false });
        lacks.then(|| format!("its tokens were made on {wanted}, and no such query host is there"))
    }
}

/// What blocks ask of hosts; those that are lent take no room that is not taken already.
pub(in crate::supervisor) fn demands(
    prepared: &PreparedContext,
    lent: &BTreeSet<usize>,
    blocks: &[usize],
) -> Vec<Demand> {
    let demand = |&block: &usize| Demand {
        block,
        logical: prepared.plan.shards[block].host,
        kv_bytes: if lent.contains(&block) { 0 } else { prepared.kv_bytes(block) },
    };
    blocks.iter().map(demand).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numerics_are_a_few_plain_words() {
        assert!(check_numerics("cpu avx2 f32 0a1b2c3d").is_ok());
        for said in ["", " ", "cpu\n", "cpü", &"x".repeat(NUMERICS_BYTES + 1)] {
            assert!(check_numerics(said).is_err(), "{said}");
        }
    }
}
