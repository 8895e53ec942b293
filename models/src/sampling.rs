//! The next token from logits: greedy, or drawn with temperature and nucleus from an own seeded generator. What changes logits
//! before that is `shaping`.

mod closing;
mod endless;
mod guide;
mod logprobs;
mod next_tokens;
mod parameters;
mod schema;
mod shaping;

use asterism_kernels::{Nucleus, RowChoice, RowShape, TokenChoice};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use guide::{CLOSES_WITHIN, Constraint, Guide, Guides, TokenMask};
pub use logprobs::Logprobs;
pub use parameters::Sampling;
use shaping::Shaper;

/// Chooses tokens one after another.
pub struct Sampler {
    sampling: Sampling,
    random: StdRng,
    /// What changes logits first, where something does.
    shaper: Option<Shaper>,
}

impl Sampler {
    /// Starts from the seed.
    pub fn new(sampling: Sampling) -> Self {
        Self::asked(sampling, &[], &[])
    }

    /// Starts from the seed, behind the question of these tokens, for a model that ends answers with `eos`.
    pub fn asked(sampling: Sampling, question: &[u32], eos: &[u32]) -> Self {
        let shaper = Shaper::of(&sampling, question, eos);
        Self { random: StdRng::seed_from_u64(sampling.seed), sampling, shaper }
    }

    /// The next token of `logits (vocab)`. Greedy takes the lowest id on an exact tie. NaN is never chosen.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        self.choose(logits, None)
    }

    /// The next token of those that may come, as if there were no others.
    pub fn next_within(&mut self, logits: &[f32], mask: &TokenMask) -> u32 {
        self.choose(logits, Some(mask))
    }

    fn choose(&mut self, logits: &[f32], mask: Option<&TokenMask>) -> u32 {
        let likeliest = |logits: &[f32]| match mask {
            None => greedy(logits),
            Some(mask) => likeliest_within(logits, mask),
        };
        let shaped = shape_by(self.shaper.as_ref()).map(|shape| shape.of(logits));
        let logits = shaped.as_deref().unwrap_or(logits);
        if self.sampling.temperature == 0.0 {
            return likeliest(logits);
        }
        let draw: f64 = self.random.random();
        let cut = self.sampling.nucleus_cut();
        let mut nucleus = match mask {
            None => Nucleus::of((0..).zip(logits.iter().copied()), &cut),
            Some(mask) => Nucleus::of(mask.of(logits), &cut),
        };
        nucleus.drawn(draw).unwrap_or_else(|| likeliest(logits))
    }

    /// The answer goes on with this token, whichever was drawn.
    pub fn accept(&mut self, id: u32) {
        self.shaper.iter_mut().for_each(|shaper| shaper.accept(id));
    }

    /// What the next token is chosen by, and those behind each of `guesses` where it and all before it are right.
    pub fn choices(&self, guesses: &[u32]) -> Vec<RowChoice> {
        let mut random = self.random.clone();
        let mut next = |shaper: Option<&Shaper>| {
            let token = match self.sampling.temperature {
                0.0 => TokenChoice::Likeliest,
                _ => TokenChoice::Drawn(self.sampling.nucleus_cut(), random.random()),
            };
            RowChoice { token, shape: shape_by(shaper), top: 0 }
        };
        let mut choices = vec![next(self.shaper.as_ref())];
        let mut ahead = self.shaper.as_ref().filter(|_| !guesses.is_empty()).cloned();
        for guess in guesses {
            ahead.iter_mut().for_each(|shaper| shaper.accept(*guess));
            choices.push(next(ahead.as_ref()));
        }
        choices
    }

    /// The next token was chosen by the first of [`Self::choices`].
    pub fn chose(&mut self) {
        if self.sampling.temperature != 0.0 {
            let _: f64 = self.random.random();
        }
    }
}

fn shape_by(shaper: Option<&Shaper>) -> Option<RowShape> {
    shaper.map(|shaper| RowShape { changes: shaper.changes(), allowed: None })
}

/// The likeliest of those that may come. Where those are many, the likeliest of all is one of them mostly.
fn likeliest_within(logits: &[f32], mask: &TokenMask) -> u32 {
    if mask.is_dense() {
        let best = greedy(logits);
        if mask.allows(best) && logits.get(best as usize).is_some_and(|logit| *logit > f32::NEG_INFINITY) {
            return best;
        }
    }
    mask.likeliest(logits).unwrap_or_default()
}

fn greedy(logits: &[f32]) -> u32 {
    // The maximum by lanes first: this many comparisons are dear one after the other.
    let more = |most: f32, logit: f32| if logit > most { logit } else { most };
    let (chunks, rest) = logits.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(most, logit)| *most = more(*most, *logit));
    }
    let most = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, more);
    // Where there is nothing above minus infinity, the first.
    let best = if most == f32::NEG_INFINITY { None } else { logits.iter().position(|logit| *logit == most) };
    best.unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn draws(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling);
        (0..count).map(|_| sampler.next(logits)).collect()
    }

    #[test]
    fn greedy_takes_the_lowest_id_on_a_tie_and_never_nan() {
        assert_eq!(draws(Sampling::default(), &[0.0, 3.0, f32::NAN, 3.0], 1), [1]);
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32 / 3.0).collect();
        let hot = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
        assert_eq!(draws(hot(7), &logits, 64), draws(hot(7), &logits, 64));
        assert_ne!(draws(hot(7), &logits, 64), draws(hot(8), &logits, 64));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0, -1.0];
        let drawn = draws(Sampling { temperature: 0.7, ..Sampling::default() }, &logits, 40_000);
        let total: f64 = logits.iter().map(|l| (f64::from(*l) / 0.7).exp()).sum();
        for (id, logit) in (0u32..).zip(logits) {
            let expected = (f64::from(logit) / 0.7).exp() / total;
            let got = drawn.iter().filter(|d| **d == id).count() as f64 / drawn.len() as f64;
            assert!((expected - got).abs() < 0.01, "token {id}: expected {expected}, got {got}");
        }
    }

    #[test]
    fn the_nucleus_is_the_smallest_set_that_covers_top_p() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let drawn = |top_p| {
            let sampling = Sampling { temperature: 1.0, top_p, seed: 1, ..Sampling::default() };
            let mut ids = draws(sampling, &logits, 500);
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(drawn(0.4), [0]);
        assert_eq!(drawn(0.6), [0, 1]);
        assert_eq!(drawn(1.0), [0, 1, 2]);
    }

    #[test]
    fn top_k_and_min_p_leave_the_likeliest() {
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let drawn = |top_k, min_p| {
            let sampling = Sampling { temperature: 1.0, seed: 1, top_k, min_p, ..Sampling::default() };
            let mut ids = draws(sampling, &logits, 500);
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!((drawn(1, 0.0), drawn(2, 0.0), drawn(9, 0.0)), (vec![0], vec![0, 1], vec![0, 1, 2]));
        assert_eq!((drawn(0, 1.0), drawn(0, 0.5), drawn(0, 0.3)), (vec![0], vec![0, 1], vec![0, 1, 2]));
    }

    #[test]
    fn choices_draw_what_the_sampler_draws() {
        let logits: Vec<f32> = (0..300).map(|i| (i * 7919 % 64) as f32 / 9.0).collect();
        for (temperature, top_k, top_p, min_p) in
            [(0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 40, 0.9, 0.0), (1.3, 0, 0.8, 0.05)]
        {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed: 5, ..Sampling::default() };
            let mut sampler = Sampler::new(sampling.clone());
            let drawn = draws(sampling, &logits, 40);
            for (at, ahead) in [(0, 1), (1, 16), (17, 3), (20, 20)] {
                let choices = sampler.choices(&vec![0; ahead - 1]);
                let drawn_ahead: Vec<u32> = choices.iter().map(|choice| choice.of(&logits).token).collect();
                assert_eq!(drawn_ahead, drawn[at..at + ahead], "{temperature}");
                (0..ahead).for_each(|_| sampler.chose());
            }
        }
    }

    #[test]
    fn choices_behind_guesses_are_what_the_sampler_takes_once_they_are_right() {
        let logits: Vec<f32> = (0..80).map(|i| (i * 7919 % 64) as f32 / 9.0 - 3.0).collect();
        for temperature in [0.0, 0.9] {
            let sampling = Sampling {
                temperature,
                repetition_penalty: 1.3,
                presence_penalty: 0.4,
                frequency_penalty: 0.7,
                min_tokens: 6,
                logit_bias: [(63, 1.5), (5, -1.0)].into(),
                seed: 9,
                ..Sampling::default()
            };
            let (question, eos) = ([3, 63, 12], [61, 200]);
            let mut sampler = Sampler::asked(sampling.clone(), &question, &eos);
            let mut answer = Vec::new();
            for _ in 0..24 {
                let id = sampler.next(&logits);
                sampler.accept(id);
                answer.push(id);
            }
            assert!(temperature > 0.0 || answer[..6].iter().all(|id| *id != 61));
            let mut sampler = Sampler::asked(sampling, &question, &eos);
            for (at, ahead) in [(0, 8), (8, 1), (9, 15)] {
                let choices = sampler.choices(&answer[at..at + ahead - 1]);
                let chosen: Vec<u32> = choices.iter().map(|choice| choice.of(&logits).token).collect();
                assert_eq!(chosen, answer[at..at + ahead]);
                for id in chosen {
                    sampler.chose();
                    sampler.accept(id);
                }
            }
        }
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (1.0, 0.0), (1.0, 1.5)] {
            Sampling { temperature, top_p, ..Sampling::default() }.validate().unwrap_err();
        }
        Sampling::default().validate().unwrap();
        for (field, value) in [
            ("min_p", json!(-0.1)),
            ("repetition_penalty", json!(0.0)),
            ("presence_penalty", json!(2.5)),
            ("frequency_penalty", json!(-2.5)),
            ("logit_bias", json!({"3": 101.0})),
        ] {
            let sampling: Sampling = serde_json::from_value(json!({ field: value })).unwrap();
            let refused = sampling.validate().unwrap_err().to_string();
            assert!(refused.starts_with(&format!("sampling: {field} must be")), "{refused}");
        }
        serde_json::from_str::<Sampling>(r#"{"temprature": 1.0}"#).unwrap_err();
    }
}
