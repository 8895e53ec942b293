//! Common words (RULER's cwe): a numbered list of words, ten of which come more often than the others and are asked for.
//!
//! Frequencies are the benchmark's 30 and 3, and its 6 and 1 below 4,096 tokens. Its worked example is left out, and its
//! word lists are replaced by pairs of this crate's own.

use rand::{Rng, rngs::StdRng, seq::SliceRandom};

use super::{
    draft::Draft,
    prose::{ADJECTIVES, NOUNS},
};

/// Words asked for.
const COMMON: usize = 10;
/// Below this many tokens the list is the short one.
const SHORT_BELOW: usize = 4096;

/// Draws the words; a unit is one more word that is not asked for.
pub(crate) fn draft(rng: &mut StdRng, tokens: usize) -> Draft {
    let (often, seldom) = if tokens < SHORT_BELOW { (6, 1) } else { (30, 3) };
    let mut pairs: Vec<usize> = (0..ADJECTIVES.len() * NOUNS.len()).collect();
    pairs.shuffle(rng);
    let answer = (0..COMMON).map(|index| word(&pairs, index)).collect::<Vec<_>>().join(" ");
    let seed: u64 = rng.random();
    let context = move |units| {
        let repeats = |index| if index < COMMON { often } else { seldom };
        let mut list: Vec<String> =
            (0..COMMON + units).flat_map(|index| std::iter::repeat_n(word(&pairs, index), repeats(index))).collect();
        list.shuffle(&mut <StdRng as rand::SeedableRng>::seed_from_u64(seed));
        let list: Vec<String> = list.iter().zip(1..).map(|(word, number)| format!("{number}. {word}")).collect();
        format!(
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones \
             that appear most often.\n{}\n",
            list.join(" ")
        )
    };
    let query =
        "Question: What are the 10 most common words in the above list? Answer: The top 10 words that appear most \
                 often in the list are:"
            .to_owned();
    Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) }
}

/// Word `index` of a draw: a pair, and behind the last pair longer ones.
fn word(pairs: &[usize], index: usize) -> String {
    let pair = pairs[index % pairs.len()];
    let word = format!("{}-{}", ADJECTIVES[pair / NOUNS.len()], NOUNS[pair % NOUNS.len()]);
    match index / pairs.len() {
        0 => word,
        round => format!("{}-{}", word, NOUNS[(pair + round) % NOUNS.len()]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::SeedableRng;

    use super::*;

    fn counts(tokens: usize, units: usize) -> (Vec<String>, BTreeMap<String, usize>) {
        let mut draft = draft(&mut StdRng::seed_from_u64(1), tokens);
        let text = (draft.context)(units);
        let mut counts = BTreeMap::new();
        for word in text.lines().nth(1).unwrap().split(' ').filter(|word| !word.ends_with('.')) {
            *counts.entry(word.to_owned()).or_default() += 1;
        }
        ((draft.answer)(units).split(' ').map(str::to_owned).collect(), counts)
    }

    #[test]
    fn ten_words_come_thirty_times_and_the_others_three() {
        for (tokens, units, often, seldom) in [(8192, 200, 30, 3), (2048, 50, 6, 1), (1 << 20, 20_000, 30, 3)] {
            let (gold, counts) = counts(tokens, units);
            assert_eq!((gold.len(), counts.len()), (10, 10 + units));
            assert!(counts.iter().all(|(word, n)| *n == if gold.contains(word) { often } else { seldom }));
        }
    }
}
