//! Runs of tokens by their numbers: what a shard reads of its context, and the ids and positions that follow from that.
//! Chooses nothing.

// The archived twins that rkyv derives carry no docs of their own.
#![allow(missing_docs)]

use std::{collections::BTreeMap, ops::Range};

use rkyv::Archive;
use serde::{Deserialize, Serialize};

/// Tokens one after the other, at positions one after the other. Tokens are numbered from the first of the context; the
/// plan's extra ids follow behind its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Archive, rkyv::Serialize, rkyv::Deserialize)]
pub struct Span {
    /// Number of the first token.
    pub start: u32,
    /// How many there are.
    pub tokens: u32,
    /// Position id of the first.
    pub position: u32,
}

impl Span {
    /// Tokens of the context where they stand.
    pub fn in_place(range: Range<usize>) -> Self {
        Self { start: range.start as u32, tokens: range.len() as u32, position: range.start as u32 }
    }

    /// Numbers of its tokens.
    pub fn range(self) -> Range<u64> {
        u64::from(self.start)..u64::from(self.start) + u64::from(self.tokens)
    }

    /// The position behind its last token.
    pub fn past(self) -> u64 {
        u64::from(self.position) + u64::from(self.tokens)
    }

    /// Its first tokens, at most all of them.
    pub fn first(self, tokens: usize) -> Self {
        Self { tokens: self.tokens.min(u32::try_from(tokens).unwrap_or(u32::MAX)), ..self }
    }

    /// Adds it behind others: where it goes on from the last one, that becomes longer.
    pub fn push_to(self, spans: &mut Vec<Self>) {
        match spans.last_mut() {
            _ if self.tokens == 0 => {}
            Some(last) if last.range().end == u64::from(self.start) && last.past() == u64::from(self.position) => {
                last.tokens += self.tokens;
            }
            _ => spans.push(self),
        }
    }

    /// Tokens at positions, one by one, as the fewest runs.
    pub fn runs(tokens: impl IntoIterator<Item = (u32, u32)>) -> Vec<Self> {
        let mut spans = Vec::new();
        tokens.into_iter().for_each(|(start, position)| Self { start, tokens: 1, position }.push_to(&mut spans));
        spans
    }
}

/// Rows of some spans.
pub(crate) fn rows(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.tokens as usize).sum()
}

/// What a shard's pass reads, row by row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Position ids.
    pub positions: Vec<u32>,
    /// Ids of the tokens that stand behind it in a chain: not read, but what its keys and values depend on.
    pub behind: Vec<u32>,
}

impl Input {
    /// The rows of `spans`, or the first span of which ids are not known.
    ///
    /// # Errors
    /// That span.
    pub fn of(spans: impl IntoIterator<Item = Span>, known: &(impl TokenIds + ?Sized)) -> Result<Self, Span> {
        let mut input = Self::default();
        for span in spans {
            let ids = known.ids(span.start, span.tokens).ok_or(span)?;
            let past = u32::try_from(span.past()).map_err(|_| span)?;
            input.ids.extend_from_slice(ids);
            input.positions.extend(span.position..past);
        }
        Ok(input)
    }
}

impl Input {
    /// What an earlier shard of the chain reads, of what stands behind this one.
    pub fn earlier(&self, own: Span) -> Self {
        let range = own.start as usize..own.range().end as usize;
        let positions = (own.position..).take(range.len()).collect();
        Self { behind: self.behind[..range.start].to_vec(), ids: self.behind[range].to_vec(), positions }
    }

    /// The rows of `spans` whose ids are given one after the other; none where there are more or fewer.
    pub fn in_order(spans: impl IntoIterator<Item = Span>, ids: Vec<u32>) -> Option<Self> {
        let mut positions = Vec::with_capacity(ids.len());
        for span in spans {
            if span.tokens as usize > ids.len() - positions.len() {
                return None;
            }
            positions.extend(span.position..u32::try_from(span.past()).ok()?);
        }
        (positions.len() == ids.len()).then_some(Self { ids, positions, behind: Vec::new() })
    }
}

/// Ids of tokens by number.
pub trait TokenIds {
    /// The ids of `tokens` tokens from number `start`, if all are known.
    fn ids(&self, start: u32, tokens: u32) -> Option<&[u32]>;
}

impl TokenIds for [u32] {
    fn ids(&self, start: u32, tokens: u32) -> Option<&[u32]> {
        let start = start as usize;
        self.get(start..start.checked_add(tokens as usize)?)
    }
}

/// Ids of parts of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownIds(BTreeMap<u32, Vec<u32>>);

impl KnownIds {
    /// Learns the ids of tokens from number `start`. Parts that touch become one, and what is said again stands.
    pub fn learn(&mut self, start: u32, ids: &[u32]) {
        let end = u64::from(start) + ids.len() as u64;
        let reaches = |(from, known): &(&u32, &Vec<u32>)| u64::from(**from) + known.len() as u64 >= u64::from(start);
        let touching = self.0.range(..=u32::try_from(end).unwrap_or(u32::MAX)).rev().take_while(reaches);
        let mut touching: Vec<u32> = touching.map(|(from, _)| *from).collect();
        let (mut first, mut all) = (start, Vec::new());
        if let Some(before) = touching.pop_if(|from| *from <= start) {
            (first, all) = (before, self.0.remove(&before).expect("it was found"));
        }
        let reach = |all: &Vec<u32>| u64::from(first) + all.len() as u64;
        let known = (reach(&all).max(u64::from(start)) - u64::from(start)) as usize;
        all.extend_from_slice(ids.get(known..).unwrap_or_default());
        for from in touching.into_iter().rev() {
            let later = self.0.remove(&from).expect("it was found");
            let known = reach(&all).saturating_sub(u64::from(from)) as usize;
            all.extend_from_slice(later.get(known..).unwrap_or_default());
        }
        if !all.is_empty() {
            self.0.insert(first, all);
        }
    }
}

impl TokenIds for KnownIds {
    fn ids(&self, start: u32, tokens: u32) -> Option<&[u32]> {
        let (first, ids) = self.0.range(..=start).next_back()?;
        ids.as_slice().ids(start - first, tokens)
    }
}

/// Sets of token numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet(BTreeMap<u64, u64>);

impl TokenSet {
    /// Adds tokens; returns the runs of them that were not in it.
    pub fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        let touches = |(_, end): &(&u64, &u64)| **end >= range.start;
        let touching = self.0.range(..=range.end).rev().take_while(touches);
        let touching: Vec<Range<u64>> = touching.map(|(start, end)| *start..*end).collect();
        let (mut whole, mut missing, mut next) = (range.clone(), Vec::new(), range.start);
        for known in touching.into_iter().rev() {
            if known.start > next {
                missing.push(next..known.start.min(range.end));
            }
            next = next.max(known.end);
            whole = whole.start.min(known.start)..whole.end.max(known.end);
            self.0.remove(&known.start);
        }
        if next < range.end {
            missing.push(next..range.end);
        }
        self.0.insert(whole.start, whole.end);
        missing
    }

    /// How many there are.
    pub fn tokens(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_are_as_few_as_can_be() {
        let span = |start, tokens, position| Span { start, tokens, position };
        assert_eq!(
            Span::runs([(3, 3), (4, 4), (5, 5), (9, 6), (10, 7), (2, 8)]),
            [span(3, 3, 3), span(9, 2, 6), span(2, 1, 8)]
        );
        assert_eq!(Span::runs([]), []);
    }

    #[test]
    fn ids_and_positions_follow_from_spans() {
        let span = |start, tokens, position| Span { start, tokens, position };
        let ids: [u32; 5] = [50, 51, 52, 53, 54];
        let input = Input::of([span(3, 2, 0), span(0, 1, 9)], &ids[..]);
        assert_eq!(input, Ok(Input { ids: vec![53, 54, 50], positions: vec![0, 1, 9], behind: vec![] }));
        assert_eq!(Input::of([span(4, 2, 0)], &ids[..]), Err(span(4, 2, 0)));
        assert_eq!(Input::of([span(0, 2, u32::MAX - 1)], &ids[..]), Err(span(0, 2, u32::MAX - 1)));
    }

    proptest! {
        #[test]
        fn what_is_learnt_is_known(parts in prop::collection::vec((0_u32..60, 0_usize..12), 0..12)) {
            let all: Vec<u32> = (1000..1100).collect();
            let (mut known, mut set, mut expected) = (KnownIds::default(), TokenSet::default(), BTreeSet::new());
            for (start, tokens) in parts {
                let range = start as usize..start as usize + tokens;
                known.learn(start, &all[range.clone()]);
                let missing: Vec<u64> = set.add(range.start as u64..range.end as u64).into_iter().flatten().collect();
                let fresh: Vec<u64> = range.map(|token| token as u64).filter(|token| expected.insert(*token)).collect();
                prop_assert_eq!(missing, fresh);
            }
            for start in 0..70_u32 {
                for tokens in 1..20_u32 {
                    let there = (start..start + tokens).all(|token| expected.contains(&u64::from(token)));
                    let ids = there.then(|| &all[start as usize..(start + tokens) as usize]);
                    prop_assert_eq!(known.ids(start, tokens), ids);
                }
            }
            prop_assert_eq!(set.tokens(), expected.len() as u64);
        }
    }
}
