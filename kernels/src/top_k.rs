//! The largest of a list of scores. Ties go to the earliest, so results do not depend on how they were found.

/// Indices of the `k` largest scores, ties to the smallest index, ascending; all of them when there are fewer.
pub fn top_k(scores: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if k < order.len() {
        order.select_nth_unstable_by(k, |a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        order.truncate(k);
        order.sort_unstable();
    }
    order
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
}
