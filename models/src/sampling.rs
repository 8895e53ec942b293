//! The next token from logits: greedy, or drawn with temperature and nucleus from an own seeded generator. What changes logits
//! before that is `shaping`.

mod guide;
mod logprobs;
mod next_tokens;
mod parameters;
mod shaping;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub use guide::{Constraint, Guide, Guides, TokenMask};
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
        let shaped = self.shaper.as_ref().map(|shaper| shaper.shaped(logits));
        let logits = shaped.as_deref().unwrap_or(logits);
        if self.sampling.temperature == 0.0 {
            return likeliest(logits);
        }
        let draw: f64 = self.random.random();
        let mut nucleus = match mask {
            None => self.nucleus((0..).zip(logits.iter().copied())),
            Some(mask) => self.nucleus(mask.of(logits)),
        };
        nucleus.drawn(draw).unwrap_or_else(|| likeliest(logits))
    }

    /// Whether the next token is the likeliest, whatever was drawn before.
    pub fn is_greedy(&self) -> bool {
        self.shaper.is_none() && self.sampling.temperature == 0.0
    }

    /// The answer goes on with this token, whichever was drawn.
    pub fn accept(&mut self, id: u32) {
        self.shaper.iter_mut().for_each(|shaper| shaper.accept(id));
    }

    /// What is drawn from: cut at `min_p`, `top_k` and `top_p`.
    fn nucleus(&self, logits: impl Iterator<Item = (u32, f32)> + Clone) -> Nucleus {
        let scale = f64::from(self.sampling.temperature);
        let most = f64::from(logits.clone().map(|(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max));
        let weight = |logit: f32| ((f64::from(logit) - most) / scale).exp();
        // The likeliest has weight 1.
        let least = f64::from(self.sampling.min_p);
        let weights: Vec<(u32, f64)> = logits
            .map(|(id, logit)| (id, weight(logit)))
            .filter(|(_, weight)| *weight > 0.0 && *weight >= least)
            .collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        let mut nucleus = Nucleus { count: weights.len(), weights, sorted: 0, total };
        if self.sampling.top_k > 0 && (self.sampling.top_k as usize) < nucleus.count {
            nucleus.cut(self.sampling.top_k as usize);
        }
        if self.sampling.top_p < 1.0 {
            nucleus.cover(f64::from(self.sampling.top_p) * nucleus.total);
        }
        nucleus
    }
}

/// Tokens to draw from, with their unnormalised probabilities. Sorted, most likely first, as far as they are looked at: most draws are
/// among the first few of a hundred thousand.
struct Nucleus {
    weights: Vec<(u32, f64)>,
    /// How many are sorted.
    sorted: usize,
    /// How many there are to draw from, of those that are likeliest.
    count: usize,
    /// The sum of these.
    total: f64,
}

/// Tokens that are sorted at first, and by which factor there are more each time.
const SORTED_FIRST: (usize, usize) = (64, 8);

impl Nucleus {
    /// The next likeliest, with its weight.
    fn at(&mut self, at: usize) -> (u32, f64) {
        let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        while at >= self.sorted {
            let (first, factor) = SORTED_FIRST;
            let end = (self.sorted * factor).clamp(first, self.weights.len().max(first)).min(self.weights.len());
            let rest = &mut self.weights[self.sorted..];
            let more = end - self.sorted;
            if more < rest.len() {
                rest.select_nth_unstable_by(more, order);
            }
            rest[..more].sort_unstable_by(order);
            self.sorted = end;
        }
        self.weights[at]
    }

    /// Leaves so many.
    fn cut(&mut self, count: usize) {
        self.count = count;
        self.total = (0..count).map(|at| self.at(at).1).sum();
    }

    /// Leaves as many as have so much together.
    fn cover(&mut self, wanted: f64) {
        let (mut count, mut covered) = (0, 0.0);
        while count < self.count && covered < wanted {
            covered += self.at(count).1;
            count += 1;
        }
        (self.count, self.total) = (count, covered);
    }

    /// The token at this part of what they have together; none where there is none.
    fn drawn(&mut self, part: f64) -> Option<u32> {
        let mut left = part * self.total;
        for at in 0..self.count {
            let (id, weight) = self.at(at);
            left -= weight;
            if left < 0.0 {
                return Some(id);
            }
        }
        self.count.checked_sub(1).map(|last| self.at(last).0)
    }
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
    fn what_is_sorted_as_far_as_it_is_looked_at_is_what_all_sorted_is() {
        let mut random = StdRng::seed_from_u64(11);
        for (vocab, top_k, top_p) in [(5000, 0, 1.0), (5000, 0, 0.7), (5000, 700, 1.0), (5000, 90, 0.5), (50, 60, 0.9)]
        {
            let logits: Vec<f32> = (0..vocab).map(|_| random.random_range(-40..40) as f32 / 10.0).collect();
            let sampler =
                Sampler::new(Sampling { temperature: 1.0, top_k, top_p, min_p: 0.001, ..Sampling::default() });
            let mut all: Vec<(u32, f64)> = (0u32..).zip(logits.iter().map(|logit| f64::from(*logit))).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let mut nucleus = sampler.nucleus((0..).zip(logits.iter().copied()));
            assert!(nucleus.count > 0 && (top_k == 0 || nucleus.count <= top_k as usize));
            for part in [0.0, 0.2, 0.5, 0.9, 0.999] {
                let drawn = nucleus.drawn(part).unwrap();
                let at = all.iter().position(|(id, _)| *id == drawn).unwrap();
                let weights: Vec<f64> =
                    all[..nucleus.count].iter().map(|(_, logit)| (logit - all[0].1).exp()).collect();
                let (before, total) = (weights[..at].iter().sum::<f64>(), weights.iter().sum::<f64>());
                let (low, high) = (before / total, (before + weights[at]) / total);
                assert!(low - 1e-9 <= part && part <= high + 1e-9, "{vocab} {top_k} {top_p}: {low} {part} {high}");
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
