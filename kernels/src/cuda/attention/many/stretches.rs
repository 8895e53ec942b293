//! Pieces of calls of few packed rows, dealt to blocks of threads in stretches of as many keys each. What is dealt to whom changes no
//! bit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::own::PIECE;
use super::rounds::Item;
use super::table::Table;

/// Packed rows of a call up to which its pieces are dealt out, as the kernel has it.
pub const FEW_PACKED: usize = 8;
/// Items of a stretch at most, as the kernel has it.
const STRETCH: usize = 24;
/// What an item costs beside its keys, in keys.
const ITEM_KEYS: usize = 128;

/// Stretches in the table of a step.
pub struct Stretches {
    pub count: usize,
    /// Where the table has the items, and where each stretch ends among them.
    pub places: [u64; 2],
}

impl Stretches {
    /// Items, each of a call of so many keys, to up to `most` stretches, or to more where these are too few. Those with the most keys
    /// are dealt first, each to whom has the least.
    pub fn of(items: &[Item], keys: impl Fn(&Item) -> usize, most: usize, table: &mut Table) -> Self {
        let size = |item: &Item| keys(item).saturating_sub(item.piece as usize * PIECE).min(PIECE) + ITEM_KEYS;
        let mut sized: Vec<(usize, &Item)> = items.iter().map(|item| (size(item), item)).collect();
        sized.sort_by_key(|(size, _)| Reverse(*size));
        let count = most.max(items.len().div_ceil(STRETCH)).min(items.len());
        let mut least: BinaryHeap<Reverse<(usize, usize)>> = (0..count).map(|stretch| Reverse((0, stretch))).collect();
        let mut dealt: Vec<Vec<Item>> = vec![Vec::new(); count];
        for (size, item) in sized {
            let Reverse((keys, stretch)) = least.pop().expect("stretches have room for all items");
            dealt[stretch].push(*item);
            if dealt[stretch].len() < STRETCH {
                least.push(Reverse((keys + size, stretch)));
            }
        }
        let ends = dealt.iter().scan(0, |end, items| {
            *end += items.len() as i32;
            Some(*end)
        });
        let ends: Vec<i32> = ends.collect();
        Self { count, places: [table.push(&dealt.concat()), table.push(&ends)] }
    }
}

/// Bytes of shared memory, as the kernel has them: queries, keys and values, and what is kept at hand.
pub fn stretch_bytes(dim: usize) -> usize {
    let queries = 2 * FEW_PACKED * dim * 2;
    let hand = 64 + 48 + STRETCH * (2 * 20 + FEW_PACKED * 12 + 8) + 2 * (dim / 4 + 2) * 32 * 4;
    queries + 6 * 64 * dim * 2 + hand.next_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(call: i32, piece: i32) -> Item {
        Item::of(call, piece)
    }

    #[test]
    fn every_item_is_dealt_once_and_stretches_are_alike() {
        let lengths = [2048, 5000, 300, 1, 0, 2047, 4096, 64];
        let items: Vec<Item> = (0..800)
            .flat_map(|call| {
                let pieces = lengths[call % 8usize].div_ceil(PIECE).max(1);
                (0..pieces as i32).map(move |piece| item(call as i32, piece))
            })
            .collect();
        for (given, most) in [(&items[..], 33), (&items[..5], 33), (&items[..40], 1)] {
            let mut table = Table::default();
            let dealt = Stretches::of(given, |item| lengths[item.call as usize % 8], most, &mut table);
            let words: Vec<i32> = table.0.as_chunks::<4>().0.iter().map(|word| i32::from_ne_bytes(*word)).collect();
            let [list, ends] = dealt.places.map(|at| at as usize / 4);
            let ends = &words[ends..ends + dealt.count];
            let mut found: Vec<(i32, i32)> =
                words[list..list + 4 * given.len()].chunks_exact(4).map(|item| (item[0], item[2])).collect();
            let size = |(call, piece): &(i32, i32)| {
                lengths[*call as usize % 8].saturating_sub(*piece as usize * PIECE).min(PIECE) + ITEM_KEYS
            };
            let starts = [0].into_iter().chain(ends.iter().copied());
            let sizes: Vec<usize> = starts
                .zip(ends)
                .map(|(start, end)| {
                    let stretch = &found[start as usize..*end as usize];
                    assert!(!stretch.is_empty() && stretch.len() <= STRETCH);
                    stretch.iter().map(size).sum()
                })
                .collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= PIECE + ITEM_KEYS, "{least} to {most} keys");
            found.sort_unstable();
            let mut expected: Vec<(i32, i32)> = given.iter().map(|item| (item.call, item.piece)).collect();
            expected.sort_unstable();
            assert_eq!(found, expected);
        }
    }
}
