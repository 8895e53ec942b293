//! Frequent words (RULER's fwe): coded words whose counts fall with the square of their rank; the first three are asked for.

use rand::{Rng, rngs::StdRng, seq::SliceRandom};

use super::draft::Draft;

/// Letters of a coded word.
const WORD_LETTERS: usize = 6;
/// Distinct words by size of the record: one for so many tokens.
const TOKENS_PER_WORD: usize = 50;
/// Distinct words at least.
const LEAST_WORDS: usize = 10;
/// Below this the third and the fourth word could come equally often.
const LEAST_LENGTH: usize = 60;
/// Coded words to each run of dots.
const WORDS_PER_DOTS: usize = 4;

/// Draws the words for a record of about `tokens`; a unit is one word, after the first `LEAST_LENGTH`.
pub(crate) fn draft(rng: &mut StdRng, tokens: usize) -> Draft {
    let mut words: Vec<String> = Vec::new();
    while words.len() < (tokens / TOKENS_PER_WORD).max(LEAST_WORDS) {
        let word: String = (0..WORD_LETTERS).map(|_| rng.random_range('a'..='z')).collect();
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let answer = words[..3].join(" ");
    let rng = rng.clone();
    let context = move |units| {
        let mut text = coded(&words, LEAST_LENGTH - 1 + units);
        text.shuffle(&mut rng.clone());
        format!(
            "Read the following coded text and track the frequency of each coded word. Find the three most frequently \
             appeared coded words.\n{}\n",
            text.join(" ")
        )
    };
    let query = "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most \
                 frequently appeared words in the above coded text? Answer: According to the coded text above, the three \
                 most frequently appeared words are:"
        .to_owned();
    Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) }
}

/// About `length` words in order of rank, and dots behind them.
fn coded(words: &[String], length: usize) -> Vec<&str> {
    let weight = |rank: usize| 1.0 / (rank * rank) as f64;
    let total: f64 = (1..=words.len()).map(weight).sum();
    let count = |rank| (length as f64 * weight(rank) / total).round() as usize;
    let ranked = words.iter().zip(1..).flat_map(|(word, rank)| std::iter::repeat_n(word.as_str(), count(rank)));
    ranked.chain(std::iter::repeat_n("...", length / WORDS_PER_DOTS)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_three_are_the_most_frequent() {
        let words: Vec<String> = (0..40).map(|word| format!("word{word:02}")).collect();
        for length in LEAST_LENGTH..2000 {
            let text = coded(&words, length);
            let count = |word: &str| text.iter().filter(|other| **other == word).count();
            let counts: Vec<_> = words[..4].iter().map(|word| count(word)).collect();
            assert!(counts.is_sorted_by(|a, b| a > b), "{length}: {counts:?}");
        }
    }
}
