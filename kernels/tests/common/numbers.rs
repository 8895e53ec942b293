//! Numbers drawn from a seed, for tests and examples.

/// `n` numbers in [-1, 1).
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| draw()).collect()
}
