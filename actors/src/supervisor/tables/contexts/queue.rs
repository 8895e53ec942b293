//! In which order contexts begin: keys take turns, and so does what each asked for. Begins none.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::supervisor::tables::prepared::TenantKey;

/// When keys had their last turns.
#[derive(Debug, Default)]
pub struct KeyTurns {
    last: BTreeMap<TenantKey, u64>,
    taken: u64,
}

impl KeyTurns {
    /// When a key had its last turn; one that had nothing to do since then has had none.
    pub fn last(&self, key: &TenantKey) -> u64 {
        self.last.get(key).copied().unwrap_or(0)
    }

    /// A key had a turn. `is_here`: whether a key has anything to do.
    pub fn took(&mut self, key: &TenantKey, is_here: impl Fn(&TenantKey) -> bool) {
        self.taken += 1;
        self.last.insert(key.clone(), self.taken);
        self.last.retain(|key, _| is_here(key));
    }
}

/// Contexts whose turn has not come: first come, first served among those of about the same work, of which there are few kinds.
#[derive(Debug, Default, PartialEq)]
pub struct ContextQueue(BTreeMap<u64, BTreeSet<(Duration, u64)>>);

impl ContextQueue {
    /// When the one would be done that would be first, and which it is.
    pub fn first(&self, token_seconds: f64) -> Option<(Duration, u64)> {
        let heads = self.0.iter().filter_map(|(work, line)| Some((*work, line.first()?)));
        heads.map(|(work, (taken, number))| (taken.saturating_add(encode_time(work, token_seconds)), *number)).min()
    }

    /// How many would be done before one that would be done then.
    pub fn before(&self, done: (Duration, u64), token_seconds: f64) -> usize {
        let earlier = |(work, line): (&u64, &BTreeSet<(Duration, u64)>)| {
            let takes = encode_time(*work, token_seconds);
            line.iter().take_while(|(taken, other)| (taken.saturating_add(takes), *other) < done).count()
        };
        self.0.iter().map(earlier).sum()
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one in, with its work and when it came.
    pub fn insert(&mut self, work: u64, place: (Duration, u64)) {
        self.0.entry(work).or_default().insert(place);
    }

    /// Takes one out.
    pub fn remove(&mut self, work: u64, place: (Duration, u64)) {
        if let Some(line) = self.0.get_mut(&work) {
            line.remove(&place);
            if line.is_empty() {
                self.0.remove(&work);
            }
        }
    }
}

/// How long work takes.
pub fn encode_time(work: u64, token_seconds: f64) -> Duration {
    Duration::try_from_secs_f64(work as f64 * token_seconds).unwrap_or(Duration::MAX)
}

/// Work rounded up to three bits behind the first, so that there are few kinds of it.
pub fn kind_of_work(work: u64) -> u64 {
    let rest = (u64::BITS - work.leading_zeros()).saturating_sub(4);
    work.div_ceil(1 << rest) << rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_few_kinds_and_none_is_smaller_than_it() {
        let kinds: BTreeSet<u64> = (0..1_000_000).map(kind_of_work).collect();
        assert!(kinds.len() < 160, "{}", kinds.len());
        assert!((0..1_000_000).all(|work| kind_of_work(work) >= work && kind_of_work(work) <= work + work.div_ceil(8)));
    }
}
