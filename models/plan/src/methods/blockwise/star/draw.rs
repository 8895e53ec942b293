//! Numbers drawn from a seed, for the ablations that want random anchors. Not for cryptography.

/// A stream of numbers (SplitMix64, Steele et al., 2014).
pub struct Draw(u64);

impl Draw {
    /// The same seed draws the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// `count` numbers below `limit`, with replacement.
    pub fn below(&mut self, limit: usize, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.index(limit) as u32).collect()
    }

    /// `items` in another order (Fisher and Yates).
    pub fn shuffled(&mut self, items: &[u32]) -> Vec<u32> {
        let mut items = items.to_vec();
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
        items
    }

    fn index(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_numbers_within_the_limit() {
        let drawn = Draw::new(7).below(10, 1000);
        assert_eq!(drawn, Draw::new(7).below(10, 1000));
        assert_ne!(drawn, Draw::new(8).below(10, 1000));
        assert!((0..10).all(|value| drawn.contains(&value)) && drawn.iter().all(|value| *value < 10));
        let mut shuffled = Draw::new(1).shuffled(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_ne!(shuffled, [1, 2, 3, 4, 5, 6, 7, 8]);
        shuffled.sort_unstable();
        assert_eq!(shuffled, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
