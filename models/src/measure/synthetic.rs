//! Prompts for timing: token ids that any other program can make too. They mean nothing.

/// `tokens` ids: 0, then `8 + (state >> 33) % (vocab - 8)` for the states of the generator
/// `state = state * 6364136223846793005 + 1442695040888963407 (mod 2^64)` from 0. The first eight ids, where the special
/// tokens of the embedded model are, do not occur again.
///
/// # Panics
/// When `vocab` is 8 or less.
pub fn synthetic_prompt(tokens: usize, vocab: usize) -> Vec<u32> {
    let words = (vocab as u64).checked_sub(8).filter(|words| *words > 0).expect("a vocabulary of more than 8 tokens");
    let mut state = 0u64;
    let mut ids = vec![0; tokens];
    for id in ids.iter_mut().skip(1) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *id = 8 + ((state >> 33) % words) as u32;
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_script_beside_the_model() {
        assert_eq!(synthetic_prompt(6, 4096), [0, 423, 3208, 3353, 2012, 21]);
        assert!(synthetic_prompt(0, 4096).is_empty());
    }
}
