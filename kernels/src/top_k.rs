//! The largest of a list of scores. Ties go to the earliest, so results do not depend on how they were found.

/// Indices of the `k` largest scores, ties to the smallest index, ascending; all of them when there are fewer.
pub fn top_k(scores: &[f32], k: usize) -> Vec<usize> {
    if k >= scores.len() {
        return (0..scores.len()).collect();
    }
    let mut ranks = ranks(scores);
    ranks.select_nth_unstable(k);
    ranks.truncate(k);
    let mut order: Vec<usize> = ranks.into_iter().map(index).collect();
    order.sort_unstable();
    order
}

/// A number for each score, the smaller the larger the score (by `f32::total_cmp`), and among equals the earlier it stands.
pub(crate) fn ranks(scores: &[f32]) -> Vec<u64> {
    assert!(scores.len() <= u32::MAX as usize, "indices of four bytes");
    scores.iter().enumerate().map(|(index, score)| u64::from(descending(*score)) << 32 | index as u64).collect()
}

/// A number the smaller the larger the score.
fn descending(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

/// The scores, the largest first.
pub(crate) fn sorted(scores: impl Iterator<Item = f32>) -> impl Iterator<Item = f32> {
    let mut numbers: Vec<u32> = scores.map(descending).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| f32::from_bits(if number >> 31 == 0 { !number & !(1 << 31) } else { number }))
}

/// The index that a rank is of.
pub(crate) fn index(rank: u64) -> usize {
    rank as u32 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_of_equals_wins() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 2), [1, 2]);
        assert_eq!(top_k(&[1.0, 3.0], 5), [0, 1]);
        assert_eq!(top_k(&[1.0, 3.0], 0), [0_usize; 0]);
        assert_eq!(top_k(&[0.0, -0.0, -1.0], 1), [0]);
    }

    #[test]
    fn scores_are_sorted_by_their_total_order() {
        let scores = [1.5, -0.0, f32::NEG_INFINITY, f32::NAN, 0.0, -2.5, f32::INFINITY, 1e-40, 1.5];
        let mut expected = scores;
        expected.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(sorted(scores.into_iter()).map(f32::to_bits).collect::<Vec<_>>(), expected.map(f32::to_bits));
        let mut ranked = ranks(&scores);
        ranked.sort_unstable();
        assert_eq!(ranked.into_iter().map(index).collect::<Vec<_>>(), [3, 6, 0, 8, 7, 4, 1, 5, 2]);
    }
}
