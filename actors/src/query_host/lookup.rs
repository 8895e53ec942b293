//! What a job's next tokens may be: what followed the same tokens before, in its prompt or in its answer. Guesses only: chooses no
//! token, and no clock.

use std::ops::Range;

/// Fewest tokens that have to be the same.
const SAME: usize = 2;
/// As many tokens that are the same tell as much as more do.
const TELLING: usize = 9;
/// Tokens that are searched together.
const TOGETHER: usize = 64;
/// What is left of what a guess taught at the next one of its kind.
const KEPT: f64 = 0.95;
/// Guesses that a rate is supposed to have been learnt from, and how many of them were right.
const SUPPOSED: [f64; 2] = [2.0, 1.0];

/// The tokens of a job so far, and how often guesses from them are right.
#[derive(Debug, Default)]
pub struct Lookup {
    tokens: Vec<u32>,
    guess: Option<Guess>,
    rates: [Rate; TELLING - SAME + 1],
}

/// Where the tokens go on that the latest ones are the same as.
#[derive(Clone, Copy, Debug)]
struct Guess {
    /// The token that would be next.
    next: usize,
    /// How many before it are the same.
    same: usize,
}

/// Guesses of one kind, the later ones the most: how many, and how many were right.
#[derive(Clone, Copy, Debug, Default)]
struct Rate([f64; 2]);

impl Rate {
    fn learn(&mut self, right: bool) {
        let Self([all, hits]) = self;
        *all = KEPT * *all + 1.0;
        *hits = KEPT * *hits + f64::from(u8::from(right));
    }

    fn of(self) -> f64 {
        let (Self([all, hits]), [supposed, supposed_hits]) = (self, SUPPOSED);
        (hits + supposed_hits) / (all + supposed)
    }
}

impl Lookup {
    /// Behind a prompt.
    pub fn new(prompt: Vec<u32>) -> Self {
        let mut lookup = Self { tokens: prompt, ..Self::default() };
        lookup.search();
        lookup
    }

    /// The next token is this one, whatever was guessed.
    pub fn push(&mut self, id: u32) {
        if let Some(Guess { next, same }) = &mut self.guess {
            let right = self.tokens[*next] == id;
            self.rates[kind(*same)].learn(right);
            (*next, *same) = (*next + 1, *same + 1);
            if !right {
                self.guess = None;
            }
        }
        self.tokens.push(id);
        if self.guess.is_none() {
            self.search();
        }
    }

    /// How likely the guess of the next token is right, 0 where there is none.
    pub fn chance(&self) -> f64 {
        self.guess.map_or(0.0, |Guess { same, .. }| self.rates[kind(same)].of())
    }

    /// Guesses of the tokens `range` from the next on.
    pub fn guesses(&self, range: Range<usize>) -> impl Iterator<Item = u32> {
        // What reaches the end goes on as it began.
        let of_guess = |Guess { next, .. }| {
            let period = self.tokens.len() - next;
            range.map(move |at| self.tokens[next + at % period])
        };
        self.guess.map(of_guess).into_iter().flatten()
    }

    /// Where the most tokens before the end are the same as the latest; the last such place.
    fn search(&mut self) {
        let tokens = &self.tokens[..];
        let [.., before, last] = tokens else { return };
        let mut best: Option<Guess> = None;
        for at in places(tokens, *last).filter(|at| *at > 0 && tokens[at - 1] == *before) {
            let alike = tokens[..=at].iter().rev().zip(tokens.iter().rev());
            let same = alike.take(TELLING).take_while(|(one, other)| one == other).count();
            if best.is_none_or(|best| same > best.same) {
                best = Some(Guess { next: at + 1, same });
            }
            if same == TELLING {
                break;
            }
        }
        self.guess = best;
    }
}

/// Where a token is before the last one, the latest place first.
fn places(tokens: &[u32], token: u32) -> impl Iterator<Item = usize> {
    let before = &tokens[..tokens.len().saturating_sub(1)];
    // Most of a long text does not have it: many are looked at together.
    let has = move |part: &&[u32]| part.iter().fold(false, |has, one| has | (*one == token));
    let (end, chunks) = (before.len(), before.rchunks(TOGETHER));
    let starts = (0..).map(move |chunk| end.saturating_sub((chunk + 1) * TOGETHER));
    let having = chunks.zip(starts).filter(move |(part, _)| has(part));
    having.flat_map(move |(part, start)| {
        (0..part.len()).rev().filter(move |at| part[*at] == token).map(move |at| start + at)
    })
}

/// Which rate is that of guesses behind so many tokens that are the same.
fn kind(same: usize) -> usize {
    same.clamp(SAME, TELLING) - SAME
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn guessed(lookup: &Lookup, count: usize) -> Vec<u32> {
        lookup.guesses(0..count).collect()
    }

    #[test]
    fn what_followed_the_same_tokens_is_guessed() {
        let lookup = Lookup::new(vec![1, 2, 3, 4, 9, 9, 2, 3, 5, 7, 1, 2, 3]);
        assert_eq!(guessed(&lookup, 3), [4, 9, 9], "three that are the same rather than the latest two");
        let lookup = Lookup::new(vec![1, 2, 3, 4, 9, 9, 2, 3, 5, 7, 2, 3]);
        assert_eq!(guessed(&lookup, 2), [5, 7], "of two places the latest");
        for prompt in [vec![], vec![1], vec![1, 2], vec![1, 2, 3, 1], vec![1, 2, 3, 4]] {
            let lookup = Lookup::new(prompt);
            assert_eq!((guessed(&lookup, 2), lookup.chance()), (vec![], 0.0));
        }
    }

    #[test]
    fn what_repeats_goes_on_to_repeat() {
        let lookup = Lookup::new(vec![8, 1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!(guessed(&lookup, 7), [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(lookup.guesses(2..4).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn rates_are_learnt_of_every_token_whether_it_was_asked_for_or_not() {
        let text: Vec<u32> = (0..200).collect();
        let (mut copying, mut wandering) = (Lookup::new(text.clone()), Lookup::new(text));
        [50, 51].into_iter().for_each(|id| copying.push(id));
        let unknown = copying.chance();
        (52..150).for_each(|id| copying.push(id));
        assert!((unknown - 0.5).abs() < 1e-9 && copying.chance() > 0.9, "{unknown} {}", copying.chance());
        assert_eq!(guessed(&copying, 2), [150, 151]);
        (0..100).for_each(|at| [at, at + 1].into_iter().for_each(|id| wandering.push(id)));
        wandering.push(7);
        wandering.push(8);
        assert!(wandering.chance() < 0.1, "{}", wandering.chance());
    }

    proptest! {
        /// A guess is what a search over all places finds.
        #[test]
        fn a_search_finds_the_longest_and_then_the_latest(tokens in vec(0..4_u32, 0..60)) {
            let lookup = Lookup::new(tokens.clone());
            let same = |next: usize| {
                (1..=next.min(TELLING)).take_while(|back| tokens[next - back] == tokens[tokens.len() - back]).count()
            };
            let best = (1..tokens.len()).filter(|next| same(*next) >= SAME).max_by_key(|next| (same(*next), *next));
            prop_assert_eq!(guessed(&lookup, 1), best.map(|next| tokens[next]).into_iter().collect::<Vec<_>>());
        }
    }
}
