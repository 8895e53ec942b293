//! Needles in a haystack: magic numbers or uuids for keys, some of which are asked for (RULER's niah family).

use rand::{Rng, rngs::StdRng, seq::SliceRandom};

use super::{
    draft::Draft,
    haystack::{Haystack, depths},
    prose::{ADJECTIVES, NOUNS},
};
use crate::eval::EvalError;

/// Where needles hide.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hay {
    /// Lines of noise.
    Noise,
    /// Sentences of prose.
    Prose,
    /// Lines like the needles, for other keys.
    Needles,
}

/// What a key or a value looks like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NeedleKind {
    /// Two words.
    Words,
    /// Seven digits.
    Number,
    /// A random uuid.
    Uuid,
}

/// One member of the family.
#[derive(Clone, Copy)]
pub(crate) struct Needles {
    pub(crate) hay: Hay,
    pub(crate) key: NeedleKind,
    pub(crate) value: NeedleKind,
    /// Keys hidden, asked for or not.
    pub(crate) keys: usize,
    /// Values of a key.
    pub(crate) values: usize,
    /// Keys asked for.
    pub(crate) queries: usize,
}

impl Needles {
    /// Draws keys and values, and depths unless one is given; the haystack grows with the units asked for.
    pub(crate) fn draft(self, rng: &mut StdRng, text: Option<&str>, depth: Option<f64>) -> Result<Draft, EvalError> {
        let keys = self.distinct_keys(rng);
        let mut needles: Vec<(usize, String)> =
            (0..self.keys * self.values).map(|index| (index / self.values, draw(rng, self.value))).collect();
        needles.shuffle(rng);
        let depths = depth.map_or_else(|| depths(rng, needles.len()), |depth| vec![depth; needles.len()]);
        let facts: Vec<(f64, String)> = depths
            .into_iter()
            .zip(&needles)
            .map(|(depth, (key, value))| (depth, self.line(&keys[*key], value)))
            .collect();
        // Values of one key in the order of the text, keys in the order of the question.
        let gold: Vec<&str> = (0..self.queries)
            .flat_map(|asked| needles.iter().filter(move |(key, _)| *key == asked).map(|(_, value)| value.as_str()))
            .collect();
        let answer = gold.join(", ");
        let query = self.question(&keys[..self.queries]);
        let instruction = format!(
            "Some special magic {0} are hidden within the following text. Make sure to memorize it. I will quiz you about \
             the {0} afterwards.",
            self.plural()
        );
        let mut haystack = self.haystack(rng, keys, text)?;
        let context = move |units| format!("{instruction}\n{}\n", haystack.hide(units, &facts));
        Ok(Draft { query, answer: Box::new(move |_| answer.clone()), context: Box::new(context) })
    }

    fn distinct_keys(&self, rng: &mut StdRng) -> Vec<String> {
        let mut keys: Vec<String> = Vec::new();
        while keys.len() < self.keys {
            let key = draw(rng, self.key);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    fn haystack(self, rng: &mut StdRng, keys: Vec<String>, text: Option<&str>) -> Result<Haystack, EvalError> {
        match self.hay {
            Hay::Noise => Ok(Haystack::noise()),
            Hay::Prose => Haystack::prose(rng, text),
            Hay::Needles => {
                let mut rng = rng.clone();
                Ok(Haystack::lines(move || {
                    let key = std::iter::repeat_with(|| draw(&mut rng, self.key)).find(|key| !keys.contains(key));
                    self.line(&key.expect("an endless iterator finds"), &draw(&mut rng, self.value))
                }))
            }
        }
    }

    fn line(&self, key: &str, value: &str) -> String {
        format!("One of the special magic {} for {key} is: {value}.", self.plural())
    }

    /// The question and the start of its answer.
    fn question(&self, keys: &[String]) -> String {
        let asked = match keys {
            [one] => one.clone(),
            [most @ .., last] => format!("{}, and {last}", most.join(", ")),
            [] => unreachable!("every member of the family asks for a key"),
        };
        let (what, things, are) = match self.queries * self.values {
            1 => ("What is the", self.singular(), "is"),
            _ => ("What are all the", self.plural(), "are"),
        };
        format!(
            "{what} special magic {things} for {asked} mentioned in the provided text? The special magic {things} for \
             {asked} mentioned in the provided text {are}"
        )
    }

    fn singular(&self) -> &'static str {
        if self.value == NeedleKind::Uuid { "uuid" } else { "number" }
    }

    fn plural(&self) -> &'static str {
        if self.value == NeedleKind::Uuid { "uuids" } else { "numbers" }
    }
}

fn draw(rng: &mut StdRng, kind: NeedleKind) -> String {
    match kind {
        NeedleKind::Number => rng.random_range(1_000_000..10_000_000).to_string(),
        NeedleKind::Uuid => uuid::Builder::from_random_bytes(rng.random()).into_uuid().to_string(),
        NeedleKind::Words => {
            let (adjective, noun) = (rng.random_range(0..ADJECTIVES.len()), rng.random_range(0..NOUNS.len()));
            format!("{}-{}", ADJECTIVES[adjective], NOUNS[noun])
        }
    }
}
