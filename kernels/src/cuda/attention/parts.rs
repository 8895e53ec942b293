//! Long calls in parts, so that other work comes between them: by KV heads, then by rows. Cuts alike whatever else there is, so that
//! the same call has the same bits again.

use std::ops::Range;

use crate::Mask;

/// Prefill rows, and keys that all of them see, go to cuDNN in multiples of this, so that lengths share plans; the own kernel
/// takes the rest.
pub const ROUNDED: usize = 512;
/// Stretches of a call beyond which it is cut.
const MOST_STRETCHES: f64 = 1.5;

/// A part of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct CallPart {
    /// Of KV heads.
    pub heads: Range<usize>,
    pub rows: Range<usize>,
}

/// The first run of keys of a call without a mask, where it is cut: more keys than rows, as where a context grows turn by turn, each of
/// whose calls would want a plan of its own. Runs are powers of two times [`ROUNDED`] keys, the longest first, so that calls over any
/// number of keys share as many plans as the longest has bits.
pub fn first_run(rows: usize, keys: usize) -> Option<usize> {
    let run = ROUNDED << (keys / ROUNDED).checked_ilog2()?;
    (keys > rows && run < keys).then_some(run)
}

/// Pairs of a row and a key.
pub fn pairs(rows: usize, keys: usize, mask: Mask) -> f64 {
    let (count, keys) = (rows as f64, keys as f64);
    if mask == Mask::Causal && keys >= count { count * (keys - count / 2.0) } else { count * keys }
}

/// Of which a call of so many quanta is queued.
pub fn parts(kv: usize, (rows, keys): (usize, usize), mask: Mask, quanta: f64) -> Vec<CallPart> {
    let fits = |count: &usize| kv.is_multiple_of(*count) && quanta / *count as f64 <= MOST_STRETCHES;
    let by_heads = (1..kv).find(fits).unwrap_or(kv);
    let cuts = mask == Mask::None || (mask == Mask::Causal && keys >= rows);
    let by_rows = if cuts { ((quanta / by_heads as f64).round() as usize).max(1) } else { 1 };
    // Causal rows see the more keys the later they are: as much work in each part.
    let before = if mask == Mask::Causal { keys.saturating_sub(rows) as f64 } else { f64::from(u32::MAX) };
    let end = |part: usize| {
        let work = pairs(rows, before as usize + rows, Mask::Causal) * part as f64 / by_rows as f64;
        let end = 2.0 * work / (before + (before * before + 2.0 * work).sqrt());
        if part == by_rows { rows } else { end as usize / ROUNDED * ROUNDED }
    };
    let rows: Vec<_> = (0..by_rows).map(|part| end(part)..end(part + 1)).filter(|rows| !rows.is_empty()).collect();
    let each = kv / by_heads;
    let of_heads = |part: usize| rows.iter().map(move |rows| (part * each..(part + 1) * each, rows.clone()));
    (0..by_heads).flat_map(of_heads).map(|(heads, rows)| CallPart { heads, rows }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::device::QUANTUM_OPERATIONS;
    use super::*;

    const KV: usize = 8;

    /// Parts of a call of an 8B model, and how many quanta each takes.
    fn cut(rows: usize, keys: usize, mask: Mask) -> (Vec<CallPart>, Vec<f64>) {
        let quanta = |kv: usize, rows, keys| 4.0 * (128 * 4 * kv) as f64 * pairs(rows, keys, mask) / QUANTUM_OPERATIONS;
        let parts = parts(KV, (rows, keys), mask, quanta(KV, rows, keys));
        let seen = |end: usize| if mask == Mask::Causal { keys - (rows - end) } else { keys };
        let each = parts.iter().map(|CallPart { heads, rows }| quanta(heads.len(), rows.len(), seen(rows.end)));
        let each = each.collect();
        (parts, each)
    }

    #[test]
    fn few_rows_over_many_keys_share_plans() {
        let runs = |rows, mut keys: usize| {
            let mut runs = Vec::new();
            while let Some(run) = first_run(rows, keys) {
                (keys, _) = (keys - run, runs.push(run));
            }
            (runs, keys)
        };
        assert_eq!(runs(1024, 150 << 10), (vec![128 << 10, 16 << 10, 4 << 10], 2 << 10));
        assert_eq!(runs(1024, 131 << 10), (vec![128 << 10, 2 << 10], 1 << 10));
        assert_eq!(runs(1024, 128 << 10), (vec![], 128 << 10), "one run");
        assert_eq!(runs(8192, 7 << 10), (vec![], 7 << 10), "as many rows");
        assert_eq!(runs(0, 0), (vec![], 0));
    }

    #[test]
    fn long_calls_are_queued_in_parts_of_a_stretch_and_short_ones_whole() {
        let thousand = 1024;
        let whole = |rows| CallPart { heads: 0..KV, rows: 0..rows };
        for rows in [513, 8 * thousand, 32 * thousand] {
            assert_eq!(cut(rows, rows, Mask::Causal).0, [whole(rows)]);
        }
        assert_eq!(cut(600, 1, Mask::Causal).0, [whole(600)], "a row may see no key");
        let window = Mask::Streaming { sink: 4, window: 100, first_row: 0, first_key: 0 };
        assert_eq!(cut(1 << 20, 1 << 20, window).0.len(), KV, "by heads alone");
        for (rows, keys) in [(128, 128), (400, 400), (1024, 1024), (64, 1000), (200, 333)] {
            for mask in [Mask::None, Mask::Causal] {
                let (rows, keys) = (rows * thousand + 77, keys * thousand + 77);
                let (parts, each) = cut(rows, keys, mask);
                let most = each.iter().fold(0.0, |most: f64, each| most.max(*each));
                assert!(most <= 1.1 * MOST_STRETCHES, "{rows} on {keys}, {mask:?}: {each:?}");
                let of_head = |head: usize| parts.iter().filter(move |part| part.heads.contains(&head));
                for head in 0..KV {
                    let ends =
                        of_head(head).scan(0, |end, part| (*end == part.rows.start).then(|| *end = part.rows.end));
                    assert_eq!(ends.count(), of_head(head).count(), "rows follow each other");
                    assert_eq!(of_head(head).next_back().map(|part| part.rows.end), Some(rows));
                }
                let cuts = parts.iter().flat_map(|part| [part.rows.start, part.rows.end]);
                assert!(cuts.filter(|cut| *cut != rows).all(|cut| cut.is_multiple_of(ROUNDED)));
            }
        }
    }
}
