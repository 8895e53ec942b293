//! How much two texts have in common: F1 of their words, ROUGE-L, and likeness of code. What is common, not what it is worth.

use std::collections::HashSet;

/// F1 of tokens, each counted as often as it is there.
pub(crate) fn f1<T: PartialEq>(answer: &[T], gold: &[T]) -> f64 {
    let mut rest: Vec<&T> = gold.iter().collect();
    let taken = |word: &&T| rest.iter().position(|other| *other == *word).map(|at| rest.swap_remove(at)).is_some();
    let common = answer.iter().filter(taken).count() as f64;
    if common == 0.0 { 0.0 } else { 2.0 * common / (answer.len() + gold.len()) as f64 }
}

/// Lower case, no punctuation, no articles.
pub(crate) fn words(text: &str) -> Vec<String> {
    let plain: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    plain.split_whitespace().filter(|word| !["a", "an", "the"].contains(word)).map(str::to_owned).collect()
}

/// The same for a script that has no spaces between words.
pub(crate) fn characters(text: &str) -> Vec<char> {
    let kept = |c: &char| !c.is_whitespace() && !c.is_ascii_punctuation() && !PUNCTUATION.contains(*c);
    text.to_lowercase().chars().filter(kept).collect()
}

/// What stands beside ASCII's in Chinese text, as LongBench and InfiniteBench have it.
const PUNCTUATION: &str = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏";

/// ROUGE-L's F of two texts in sentences that end in a full stop, as the package `rouge` has it: of words that differ, those in a
/// longest common subsequence of any two sentences.
pub(crate) fn rouge(answer: &str, gold: &str) -> f64 {
    let (answer, gold) = (sentences(answer), sentences(gold));
    let distinct = |sentences: &[Vec<String>]| sentences.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let common: HashSet<&String> =
        gold.iter().flat_map(|gold| answer.iter().flat_map(move |answer| common(gold, answer))).collect();
    let (precision, recall) = (common.len() as f64 / distinct(&answer), common.len() as f64 / distinct(&gold));
    if common.is_empty() { 0.0 } else { 2.0 * precision * recall / (precision + recall + 1e-8) }
}

fn sentences(text: &str) -> Vec<Vec<String>> {
    let words = |sentence: &str| match sentence.trim() {
        // The package counts an empty word there.
        "" => vec![String::new()],
        sentence => sentence.split_whitespace().map(str::to_owned).collect(),
    };
    text.split('.').filter(|sentence| !sentence.is_empty()).map(words).collect()
}

/// A longest common subsequence, of several that which the package finds.
fn common<'a, T: PartialEq>(one: &'a [T], other: &'a [T]) -> Vec<&'a T> {
    let lengths = lengths(one, other);
    let (mut i, mut j, mut found) = (one.len(), other.len(), Vec::new());
    while i > 0 && j > 0 {
        if one[i - 1] == other[j - 1] {
            (i, j) = (i - 1, j - 1);
            found.push(&one[i]);
        } else if lengths[i - 1][j] > lengths[i][j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    found
}

/// Of the first `i` of one and the first `j` of the other: the longest common subsequence's length.
fn lengths<T: PartialEq>(one: &[T], other: &[T]) -> Vec<Vec<u32>> {
    let mut table = vec![vec![0; other.len() + 1]; one.len() + 1];
    for (i, a) in one.iter().enumerate() {
        for (j, b) in other.iter().enumerate() {
            table[i + 1][j + 1] = if a == b { table[i][j] + 1 } else { table[i][j + 1].max(table[i + 1][j]) };
        }
    }
    table
}

/// Likeness of the answer's first line of code to the gold one, in whole percent: what they have in common of both's characters.
pub(crate) fn code(answer: &str, gold: &str) -> f64 {
    let comment = |line: &&str| ["`", "#", "//"].iter().any(|mark| line.contains(mark));
    let line = answer.trim_start_matches('\n').split('\n').find(|line| !comment(line)).unwrap_or_default();
    let [line, gold] = [line, gold].map(|text| text.chars().collect::<Vec<char>>());
    let both = line.len() + gold.len();
    let common = lengths(&line, &gold)[line.len()][gold.len()];
    if both == 0 { 0.0 } else { (200.0 * f64::from(common) / both as f64).round() / 100.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are those of the packages rouge 1.0.1 and python-Levenshtein.
    #[test]
    fn overlaps_are_those_of_the_benchmarks_packages() {
        for (answer, gold, expected) in [
            ("the cat sat. on the mat.", "the cat is on the mat", 0.799_999_995),
            ("a b c d e", "a c e. b d.", 0.999_999_995),
            ("Police killed the gunman", "The gunman was killed by police. It rained.", 0.166_666_662),
            ("x", "y", 0.0),
            ("", "y", 0.0),
        ] {
            assert!((rouge(answer, gold) - expected).abs() < 1e-8, "{answer}: {}", rouge(answer, gold));
        }
        for (answer, gold, expected) in
            [("x = foo(1)", "x = foo(2)", 0.9), ("\n# a comment\nreturn a", "    return a+b", 0.73), ("", "abc", 0.0)]
        {
            assert_eq!(code(answer, gold), expected);
        }
        assert_eq!(f1(&characters("北京。"), &characters("在北京")), 0.8);
    }
}
