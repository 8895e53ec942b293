//! The largest of a list of scores, and the maximum over neighbours. Ties go to the earliest, so results do not depend on
//! how they were found.

/// Indices of the `k` largest scores, ties to the smallest index, ascending.
pub fn top_k(scores: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    if k < order.len() {
        order.select_nth_unstable_by(k, |&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
        order.truncate(k);
        order.sort_unstable();
    }
    order
}

/// The maximum of each score and its `pool / 2` neighbours on either side.
pub fn max_pool(scores: &[f32], pool: usize) -> Vec<f32> {
    let reach = pool / 2;
    let window = |at: usize| &scores[at.saturating_sub(reach)..scores.len().min(at + reach + 1)];
    (0..scores.len()).map(|at| window(at).iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_of_equals_wins() {
        assert_eq!(top_k(&[1.0, 3.0, 3.0, 2.0, 3.0], 2), [1, 2]);
        assert_eq!(top_k(&[1.0, 3.0], 5), [0, 1]);
        assert_eq!(top_k(&[1.0, 3.0], 0), [0_u32; 0]);
        assert_eq!(top_k(&[0.0, -0.0, -1.0], 1), [0]);
    }

    #[test]
    fn neighbours_share_their_maximum() {
        assert_eq!(max_pool(&[0.0, 5.0, 1.0, 0.0, 2.0], 3), [5.0, 5.0, 5.0, 2.0, 2.0]);
        assert_eq!(max_pool(&[1.0, 2.0], 1), [1.0, 2.0]);
        assert!(max_pool(&[], 5).is_empty());
    }
}
