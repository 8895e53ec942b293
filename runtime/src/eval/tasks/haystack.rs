//! What facts are hidden in: lines of noise, lines like needles, or sentences of prose. Hides, and knows no question.

use rand::{Rng, rngs::StdRng};

use super::prose;
use crate::eval::EvalError;

const NOISE: &str = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// A supply of lines or sentences that never runs out; the first `n` are the same however often they are asked for.
pub(crate) struct Haystack {
    made: Vec<String>,
    make: Box<dyn FnMut() -> String>,
    separator: &'static str,
}

impl Haystack {
    /// The benchmark's line of noise, again and again.
    pub(crate) fn noise() -> Self {
        Self::of("\n", || NOISE.to_owned())
    }

    /// Lines from `make`.
    pub(crate) fn lines(make: impl FnMut() -> String + 'static) -> Self {
        Self::of("\n", make)
    }

    /// Sentences of `text` from a random one on, and over again; of generated prose without a text.
    pub(crate) fn prose(rng: &mut StdRng, text: Option<&str>) -> Result<Self, EvalError> {
        let Some(text) = text else {
            let mut rng = rng.clone();
            return Ok(Self::of(" ", move || prose::sentence(&mut rng)));
        };
        let sentences = sentences(text);
        if sentences.is_empty() {
            return Err(EvalError::EmptyHaystack);
        }
        let mut next = rng.random_range(0..sentences.len());
        Ok(Self::of(" ", move || {
            next = (next + 1) % sentences.len();
            sentences[next].clone()
        }))
    }

    fn of(separator: &'static str, make: impl FnMut() -> String + 'static) -> Self {
        Self { made: Vec::new(), make: Box::new(make), separator }
    }

    /// Line or sentence `at`.
    pub(crate) fn unit(&mut self, at: usize) -> &str {
        self.supply(at + 1);
        &self.made[at]
    }

    fn supply(&mut self, units: usize) {
        while self.made.len() < units {
            self.made.push((self.make)());
        }
    }

    /// The first `units` with `facts` between them. A fact is a depth, from 0 (first) to 1 (last), and its text; facts
    /// come in order of depth.
    pub(crate) fn hide(&mut self, units: usize, facts: &[(f64, String)]) -> String {
        self.supply(units);
        let mut text = String::new();
        let mut facts = facts.iter().peekable();
        let mut add = |unit: &str| {
            text.push_str(unit);
            text.push_str(self.separator);
        };
        for (index, unit) in self.made[..units].iter().enumerate() {
            while let Some((_, fact)) = facts.next_if(|(depth, _)| depth * units as f64 <= index as f64) {
                add(fact);
            }
            add(unit);
        }
        facts.for_each(|(_, fact)| add(fact));
        text.truncate(text.len() - self.separator.len());
        text
    }
}

/// `count` depths in rising order.
pub(crate) fn depths(rng: &mut StdRng, count: usize) -> Vec<f64> {
    let mut depths: Vec<f64> = (0..count).map(|_| rng.random()).collect();
    depths.sort_by(f64::total_cmp);
    depths
}

/// `text` cut behind '.', '!' and '?' (and the quotes and brackets that close them), white space made single spaces.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for word in text.split_whitespace() {
        let sentence = sentences.last_mut().expect("starts with one, and only grows");
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        if ends_sentence(word) {
            sentences.push(String::new());
        }
    }
    // The tail has no end: a cut-off sentence, or nothing.
    sentences.pop();
    sentences
}

fn ends_sentence(word: &str) -> bool {
    const TITLES: [&str; 5] = ["Mr.", "Mrs.", "Ms.", "Dr.", "St."];
    let bare = word.trim_matches(['"', '\'', '(', ')', '[', ']', '“', '”', '‘', '’']);
    bare.ends_with(['.', '!', '?']) && !TITLES.contains(&bare)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn facts_stand_at_their_depths() {
        let mut number = 0;
        let mut haystack = Haystack::lines(move || {
            number += 1;
            number.to_string()
        });
        let facts = [(0.0, "a".to_owned()), (0.5, "b".to_owned()), (0.5, "c".to_owned()), (1.0, "d".to_owned())];
        assert_eq!(haystack.hide(4, &facts), "a\n1\n2\nb\nc\n3\n4\nd");
        assert_eq!(haystack.hide(2, &facts), "a\n1\nb\nc\n2\nd");
    }

    #[test]
    fn prose_is_cut_at_sentence_ends() {
        let text = "It rained.  \"Who goes\nthere?\" Mr. Brown (the\tbaker!) said so. And then";
        assert_eq!(sentences(text), ["It rained.", "\"Who goes there?\"", "Mr. Brown (the baker!)", "said so."]);
    }

    #[test]
    fn a_short_text_starts_over() {
        let mut haystack = Haystack::prose(&mut StdRng::seed_from_u64(1), Some("One. Two. Three.")).unwrap();
        let text = haystack.hide(7, &[]);
        assert_eq!(text.matches("One.").count() + text.matches("Two.").count() + text.matches("Three.").count(), 7);
        let empty = Haystack::prose(&mut StdRng::seed_from_u64(1), Some(" no end "));
        assert!(matches!(empty, Err(EvalError::EmptyHaystack)));
    }
}
