//! A context's token ids on their way to the hosts that encode parts of it.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use std::ops::Range;

use rkyv::{Archive, Deserialize, Serialize};

/// Most ids in one message: 4 MiB, a small part of what a frame may have.
const MOST_IDS: usize = 1 << 20;

/// Ids of tokens of a context, for the orders that follow. What is said again is the same.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct ContextIds {
    /// Context.
    pub context: u64,
    /// Which tokens, by number: runs that follow each other in `ids`.
    pub runs: Vec<IdRun>,
    /// Their ids.
    pub ids: Vec<u32>,
}

/// Tokens one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct IdRun {
    /// Number of the first.
    pub start: u32,
    /// How many.
    pub tokens: u32,
}

impl ContextIds {
    /// The ids of some tokens out of all of a context, in as many messages as they need.
    pub fn of(context: u64, all: &[u32], tokens: impl IntoIterator<Item = Range<u64>>) -> Vec<Self> {
        let mut messages: Vec<Self> = Vec::new();
        for range in tokens {
            let mut start = range.start as usize;
            while start < range.end as usize {
                if messages.last().is_none_or(|last| last.ids.len() >= MOST_IDS) {
                    messages.push(Self { context, ..Self::default() });
                }
                let last = messages.last_mut().expect("it was added");
                let end = (range.end as usize).min(start + MOST_IDS - last.ids.len());
                last.ids.extend_from_slice(&all[start..end]);
                last.runs.push(IdRun { start: start as u32, tokens: (end - start) as u32 });
                start = end;
            }
        }
        messages
    }

    /// Each run with its ids; none where they do not add up.
    pub fn parts(&self) -> Option<Vec<(u32, &[u32])>> {
        let (mut rest, mut parts) = (self.ids.as_slice(), Vec::with_capacity(self.runs.len()));
        for run in &self.runs {
            let (ids, later) = rest.split_at_checked(run.tokens as usize)?;
            run.start.checked_add(run.tokens)?;
            parts.push((run.start, ids));
            rest = later;
        }
        rest.is_empty().then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_in_messages_of_a_bounded_size() {
        let all: Vec<u32> = (0..3 * MOST_IDS as u32).map(|token| token * 7).collect();
        let wanted = [5..9, 100..2 * MOST_IDS as u64 + 100];
        let messages = ContextIds::of(3, &all, wanted.clone());
        assert_eq!(messages.iter().map(|message| message.ids.len()).collect::<Vec<_>>(), [MOST_IDS, MOST_IDS, 4]);
        let parts = messages.iter().flat_map(|message| message.parts().expect("they add up"));
        let tokens: Vec<(u64, u32)> =
            parts.flat_map(|(start, ids)| (u64::from(start)..).zip(ids.iter().copied()).collect::<Vec<_>>()).collect();
        let expected: Vec<(u64, u32)> =
            wanted.into_iter().flatten().map(|token| (token, all[token as usize])).collect();
        assert_eq!(tokens, expected);
    }

    #[test]
    fn runs_that_do_not_add_up_are_nothing() {
        let stated = |runs: &[(u32, u32)], ids: usize| {
            let runs = runs.iter().map(|&(start, tokens)| IdRun { start, tokens }).collect();
            ContextIds { context: 1, runs, ids: vec![0; ids] }.parts().is_some()
        };
        assert!(stated(&[(0, 2), (7, 1)], 3) && stated(&[], 0));
        assert!(!stated(&[(0, 2)], 3) && !stated(&[(0, 2), (4, 2)], 3) && !stated(&[(u32::MAX, 2)], 2));
    }
}
