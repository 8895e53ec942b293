//! The maximum over neighbouring scores (APB's released code). Selects nothing.

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
    fn neighbours_share_their_maximum() {
        assert_eq!(max_pool(&[0.0, 5.0, 1.0, 0.0, 2.0], 3), [5.0, 5.0, 5.0, 2.0, 2.0]);
        assert_eq!(max_pool(&[1.0, 2.0], 1), [1.0, 2.0]);
        assert!(max_pool(&[], 5).is_empty());
    }
}
