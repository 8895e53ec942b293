//! The next token from logits: greedy, or drawn with temperature and nucleus from an own seeded generator. What changes logits
//! before that is `shaping`.

mod guide;
mod logprobs;
mod parameters;
mod shaping;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use guide::{Constraint, Guide, Guides};
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
        let shaped = self.shaper.as_ref().map(|shaper| shaper.shaped(logits));
        let logits = shaped.as_deref().unwrap_or(logits);
        if self.sampling.temperature == 0.0 {
            return greedy(logits);
        }
        let draw: f64 = self.random.random();
        let weights = self.nucleus(logits);
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let mut left = draw * total;
        for (id, weight) in &weights {
            left -= weight;
            if left < 0.0 {
                return *id;
            }
        }
        weights.last().map_or_else(|| greedy(logits), |(id, _)| *id)
    }

    /// Whether the next token is the likeliest, whatever was drawn before.
    pub fn is_greedy(&self) -> bool {
        self.shaper.is_none() && self.sampling.temperature == 0.0
    }

    /// The answer goes on with this token, whichever was drawn.
    pub fn accept(&mut self, id: u32) {
        self.shaper.iter_mut().for_each(|shaper| shaper.accept(id));
    }

    /// Ids with their unnormalised probabilities, most likely first, cut at `min_p`, `top_k` and `top_p`.
    fn nucleus(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let scale = f64::from(self.sampling.temperature);
        let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let weight = |logit: f32| ((f64::from(logit) - most) / scale).exp();
        // The likeliest has weight 1.
        let least = f64::from(self.sampling.min_p);
        let mut weights: Vec<(u32, f64)> = (0u32..)
            .zip(logits)
            .map(|(id, logit)| (id, weight(*logit)))
            .filter(|(_, weight)| *weight > 0.0 && *weight >= least)
            .collect();
        weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.sampling.top_k > 0 {
            weights.truncate(self.sampling.top_k as usize);
        }
        let wanted = f64::from(self.sampling.top_p) * weights.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut covered = 0.0;
        let kept = weights.iter().take_while(|(_, weight)| {
            let open = covered < wanted;
            covered += weight;
            open
        });
        let kept = kept.count();
        weights.truncate(kept);
        weights
    }
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
