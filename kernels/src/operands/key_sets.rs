//! Which keys each query head and each group of query rows sees, as key ranges, stored exactly. Selects and computes nothing.

use std::ops::Range;

use crate::KernelError;

/// For each query head and each group of `rows` consecutive query rows a sorted list of disjoint ranges of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySets {
    heads: usize,
    groups: usize,
    rows: usize,
    /// Where the ranges of `(head, group)` begin, `heads * groups + 1` of them.
    offsets: Box<[usize]>,
    ranges: Box<[Range<u32>]>,
}

impl KeySets {
    /// One list of ranges for each `(head, group)`, head by head, ascending and disjoint. Empty ranges are dropped and adjacent ones
    /// joined. A group is `rows` query rows, the last perhaps fewer.
    ///
    /// # Errors
    /// [`KernelError::Shape`] when the lists cannot be dealt to `heads` heads, `rows` is 0, or a list is out of order.
    pub fn new(heads: usize, rows: usize, lists: &[Vec<Range<u32>>]) -> Result<Self, KernelError> {
        if heads == 0 || rows == 0 || !lists.len().is_multiple_of(heads) {
            let expected = "lists for every group of at least one head and one row".into();
            let got = format!("{} lists for {heads} heads, groups of {rows} rows", lists.len());
            return Err(KernelError::Shape { operation: "key_sets", expected, got });
        }
        let mut offsets = Vec::with_capacity(lists.len() + 1);
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for list in lists {
            let first = ranges.len();
            offsets.push(first);
            for range in list.iter().filter(|range| !range.is_empty()) {
                let before = ranges[first..].last().map_or(0, |before| before.end);
                if range.start < before {
                    let got = format!("{range:?} after a range that ends at {before}");
                    let expected = "ascending, disjoint ranges".into();
                    return Err(KernelError::Shape { operation: "key_sets", expected, got });
                }
                match ranges[first..].last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => ranges.push(range.clone()),
                }
            }
        }
        offsets.push(ranges.len());
        let groups = lists.len() / heads;
        Ok(Self { heads, groups, rows, offsets: offsets.into(), ranges: ranges.into() })
    }

    /// As [`KeySets::new`], with each list as ascending, distinct keys.
    ///
    /// # Errors
    /// As [`KeySets::new`].
    pub fn from_keys(heads: usize, rows: usize, lists: &[Vec<u32>]) -> Result<Self, KernelError> {
        let lists: Vec<Vec<Range<u32>>> =
            lists.iter().map(|keys| keys.iter().map(|key| *key..key + 1).collect()).collect();
        Self::new(heads, rows, &lists)
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Groups of query rows of a head.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Query rows of a group.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The ranges of a head's group: ascending, disjoint, not adjacent, not empty.
    pub fn ranges(&self, head: usize, group: usize) -> &[Range<u32>] {
        assert!(group < self.groups, "group {group} of {}", self.groups);
        let at = head * self.groups + group;
        &self.ranges[self.offsets[at]..self.offsets[at + 1]]
    }

    /// The keys of a head's group, ascending.
    pub fn keys(&self, head: usize, group: usize) -> impl Iterator<Item = u32> + '_ {
        self.ranges(head, group).iter().cloned().flatten()
    }

    /// How many keys a head's group has.
    pub fn count(&self, head: usize, group: usize) -> usize {
        self.ranges(head, group).iter().map(|range| range.len()).sum()
    }

    /// Pairs of a row and a listed key that does not come after it, over all heads, of a causal sequence of `queries`.
    pub fn pairs(&self, queries: usize) -> u64 {
        let of_group = |head: usize, group: usize| {
            let rows = (group * self.rows).min(queries)..((group + 1) * self.rows).min(queries);
            self.ranges(head, group).iter().map(|range| pairs(range, &rows)).sum::<u64>()
        };
        (0..self.heads)
            .flat_map(|head| (0..self.groups).map(move |group| (head, group)))
            .map(|(h, g)| of_group(h, g))
            .sum()
    }

    /// Those of some heads.
    pub(crate) fn of_heads(&self, heads: Range<usize>) -> Self {
        let count = heads.len();
        let lists: Vec<Vec<Range<u32>>> =
            heads.flat_map(|head| (0..self.groups).map(move |group| self.ranges(head, group).to_vec())).collect();
        Self::new(count, self.rows, &lists).expect("lists that were in order are")
    }

    /// Those of all heads of the first, then of the next, of the same groups.
    fn joined(all: &[Self]) -> Result<Self, KernelError> {
        let heads = all.iter().map(|sets| sets.heads).sum();
        let of = |sets: &Self| {
            let lists = 0..sets.heads * sets.groups;
            lists.map(|list| sets.ranges(list / sets.groups, list % sets.groups).to_vec()).collect::<Vec<_>>()
        };
        Self::new(heads, all.first().map_or(0, |sets| sets.rows), &all.iter().flat_map(of).collect::<Vec<_>>())
    }

    /// One past the last key of any list.
    pub(crate) fn end(&self) -> usize {
        self.ranges.iter().map(|range| range.end as usize).max().unwrap_or(0)
    }
}

/// Keys that were selected for a causal sequence, wherever their lists are.
pub struct Selection<'a> {
    pairs: u64,
    lists: Box<dyn Fn() -> Result<KeySets, KernelError> + 'a>,
}

impl<'a> Selection<'a> {
    /// Of so many pairs, with what gives the lists.
    pub(crate) fn new(pairs: u64, lists: impl Fn() -> Result<KeySets, KernelError> + 'a) -> Self {
        Self { pairs, lists: Box::new(lists) }
    }

    /// Lists of a sequence of so many queries that are there.
    pub(crate) fn of(keys: KeySets, queries: usize) -> Self {
        Self::new(keys.pairs(queries), move || Ok(keys.clone()))
    }

    /// Of all heads of the first, then of the next.
    pub(crate) fn joined(all: Vec<Self>) -> Self {
        let pairs = all.iter().map(|selection| selection.pairs).sum();
        Self::new(pairs, move || KeySets::joined(&all.iter().map(Self::lists).collect::<Result<Vec<_>, _>>()?))
    }

    /// Pairs of a row and a selected key that does not come after it, over all heads.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// The keys, brought here from where they are.
    ///
    /// # Errors
    /// Whatever the device says.
    pub fn lists(&self) -> Result<KeySets, KernelError> {
        (self.lists)()
    }
}

/// Pairs of a row of `rows` and a key of `keys` that does not come after it.
fn pairs(keys: &Range<u32>, rows: &Range<usize>) -> u64 {
    let triangle = |n: usize| n as u64 * (n as u64 + 1) / 2;
    // Pairs with the keys below `end`: a row before it sees as many as it has come to, any other all of them.
    let below = |end: u32| {
        let cut = (end as usize).clamp(rows.start, rows.end);
        triangle(cut) - triangle(rows.start) + (rows.end - cut) as u64 * u64::from(end)
    };
    below(keys.end) - below(keys.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_counted() {
        let sets = KeySets::new(1, 4, &[vec![0..2, 2..3, 5..5], vec![], vec![1..2, 6..12]]).unwrap();
        assert_eq!((sets.heads(), sets.groups(), sets.rows()), (1, 3, 4));
        assert!(matches!(sets.ranges(0, 0), [Range { start: 0, end: 3 }]));
        assert_eq!(sets.keys(0, 2).collect::<Vec<_>>(), [1, 6, 7, 8, 9, 10, 11]);
        assert_eq!((sets.count(0, 1), sets.count(0, 2)), (0, 7));
        let slow = |queries: usize| {
            let of_row = |row: usize| sets.keys(0, row / 4).filter(|key| *key as usize <= row).count() as u64;
            (0..queries).map(of_row).sum::<u64>()
        };
        for queries in [0, 1, 3, 4, 9, 12] {
            assert_eq!(sets.pairs(queries), slow(queries), "{queries} rows");
        }
        let keys = [vec![0, 1, 2], vec![], vec![1, 6, 7, 8, 9, 10, 11]];
        assert_eq!(KeySets::from_keys(1, 4, &keys).unwrap(), sets);
    }

    #[test]
    fn lists_out_of_order_are_refused() {
        for (heads, rows, lists) in [(1, 1, vec![vec![3..4, 2..3]]), (2, 1, vec![Vec::new()]), (1, 0, vec![])] {
            assert_eq!(KeySets::new(heads, rows, &lists).unwrap_err().code(), "kernel_shape");
        }
        let message = KeySets::from_keys(1, 8, &[vec![4, 4]]).unwrap_err().to_string();
        assert_eq!(message, "key_sets: expected ascending, disjoint ranges, got 4..5 after a range that ends at 5");
    }
}
