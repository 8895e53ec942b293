//! How a token is chosen of a row of logits, and what is told of the row besides: the reference that kernels are held to. Draws no random
//! numbers: who asks brings them.

/// What is asked of a row of logits.
#[derive(Clone, Debug, PartialEq)]
pub struct RowChoice {
    /// The token.
    pub token: TokenChoice,
    /// What changes the logits that it is chosen of; what is told besides is of logits as they are.
    pub shape: Option<RowShape>,
    /// So many of the likeliest tokens are told besides.
    pub top: usize,
}

/// What changes a row of logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowShape {
    /// No two of the same token. Those of tokens that there are not change nothing.
    pub changes: Vec<LogitChange>,
    /// A bit of each token, set where it may be chosen, the lowest of the first word the first; absent: all may.
    pub allowed: Option<Vec<u32>>,
}

/// What changes the logit of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitChange {
    /// The token.
    pub token: u32,
    /// Added first.
    pub bias: f32,
    /// Then divides what is positive, and multiplies what is not.
    pub repetition: f32,
    /// Then both are taken off, this one first; infinite: the token is not to come.
    pub presence: f32,
    /// As often as the token was said.
    pub frequency: f32,
}

impl LogitChange {
    /// That of a token whose logit stays as it is.
    pub fn none(token: u32) -> Self {
        Self { token, bias: 0.0, repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }

    fn of(&self, logit: f32) -> f32 {
        let logit = logit + self.bias;
        let logit = if logit > 0.0 { logit / self.repetition } else { logit * self.repetition };
        logit - self.presence - self.frequency
    }
}

impl RowShape {
    /// `logits (vocab)`, changed: negative infinity where a token may not be chosen.
    pub fn of(&self, logits: &[f32]) -> Vec<f32> {
        let mut shaped = logits.to_vec();
        for (at, logits) in shaped.chunks_mut(32).enumerate() {
            let Some(allowed) = &self.allowed else { break };
            let allowed = allowed.get(at).copied().unwrap_or(0);
            let forbidden = logits.iter_mut().enumerate().filter(|(bit, _)| allowed >> bit & 1 == 0);
            forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
        for change in &self.changes {
            if let Some(logit) = shaped.get_mut(change.token as usize) {
                *logit = change.of(*logit);
            }
        }
        shaped
    }

    /// The first token that may be chosen, however unlikely.
    fn first(&self) -> Option<u32> {
        let words = (0u32..).step_by(32).zip(self.allowed.iter().flatten());
        words.filter(|(_, word)| **word != 0).map(|(first, word)| first + word.trailing_zeros()).next()
    }
}

/// Which token of a row is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenChoice {
    /// The one with the largest logit, the lowest of equal ones.
    Likeliest,
    /// One that is known.
    Known(u32),
    /// Of those that are left, in the order of falling logits and, of equal ones, of rising ids, the one at this part (`0..1`) of what they
    /// have together.
    Drawn(NucleusCut, f64),
}

/// What tokens weigh, and which of them are left to draw from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NucleusCut {
    /// Divides the logits; above 0.
    pub temperature: f32,
    /// As many of the likeliest are left; 0: all.
    pub top_k: u32,
    /// Of these, the fewest that have at least this part of what they have together.
    pub top_p: f32,
    /// Before both, those with at least this part of the likeliest one's weight.
    pub min_p: f32,
}

/// A token of a row of logits, and what is told of the row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowToken {
    /// The token.
    pub token: u32,
    /// Its logit; no number where there is no such token.
    pub logit: f32,
    /// The largest logit of the row.
    pub largest: f32,
    /// The sum of the powers of e of all logits less the largest one.
    pub sum: f64,
    /// Whether all logits are finite numbers.
    pub is_finite: bool,
    /// Ids and logits of the likeliest tokens, likeliest first and of equal ones the lower id first.
    pub top: Vec<(u32, f32)>,
}

impl RowChoice {
    /// The likeliest token, and nothing besides.
    pub fn likeliest() -> Self {
        Self { token: TokenChoice::Likeliest, shape: None, top: 0 }
    }

    /// Of `logits (vocab)`. NaN is never chosen, unless it is known.
    pub fn of(&self, logits: &[f32]) -> RowToken {
        let largest = likeliest(logits).map_or(f32::NEG_INFINITY, |(_, logit)| logit);
        let token = match (self.token, &self.shape) {
            (TokenChoice::Known(token), _) => token,
            (token, None) => token.of(logits).unwrap_or(0),
            (token, Some(shape)) => token.of(&shape.of(logits)).or_else(|| shape.first()).unwrap_or(0),
        };
        let above = |logit: &f32| (f64::from(*logit) - f64::from(largest)).exp();
        RowToken {
            token,
            logit: logits.get(token as usize).copied().unwrap_or(f32::NAN),
            largest,
            sum: logits.iter().filter(|logit| !logit.is_nan()).map(above).sum(),
            is_finite: logits.iter().all(|logit| logit.is_finite()),
            top: largest_of(logits, self.top),
        }
    }
}

impl TokenChoice {
    /// Of `logits (vocab)`; none where no logit is above negative infinity.
    fn of(&self, logits: &[f32]) -> Option<u32> {
        match self {
            Self::Known(token) => Some(*token),
            Self::Likeliest => likeliest(logits).map(|(token, _)| token),
            Self::Drawn(cut, part) => Nucleus::of((0..).zip(logits.iter().copied()), cut).drawn(*part),
        }
    }
}

/// The token of the largest logit, the lowest of equal ones, and that logit.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let more = |most: Option<(u32, f32)>, (token, &logit): (u32, &f32)| match most {
        Some((_, least)) if logit <= least => most,
        _ if logit > f32::NEG_INFINITY => Some((token, logit)),
        _ => most,
    };
    (0u32..).zip(logits).fold(None, more)
}

impl RowToken {
    /// The natural logarithm of the probability of a token with this logit, among all tokens of the row.
    pub fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.largest) - self.sum.ln()
    }
}

/// Ids and logits of the largest, in order. One pass, as `most` is small beside a vocabulary.
fn largest_of(logits: &[f32], most: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(most + 1);
    for (id, &logit) in (0u32..).zip(logits) {
        let is_wanted = match top.last() {
            Some((_, least)) if top.len() == most => logit > *least,
            _ => most > 0 && !logit.is_nan(),
        };
        if is_wanted {
            let at = top.partition_point(|(_, other)| *other >= logit);
            top.insert(at, (id, logit));
            top.truncate(most);
        }
    }
    top
}

/// Tokens to draw from, with their unnormalised probabilities. Sorted, most likely first, as far as they are looked at: most draws are
/// among the first few of a hundred thousand.
pub struct Nucleus {
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
    /// What is drawn from of tokens and their logits.
    pub fn of(logits: impl Iterator<Item = (u32, f32)> + Clone, cut: &NucleusCut) -> Self {
        let scale = f64::from(cut.temperature);
        let most = f64::from(logits.clone().map(|(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max));
        let weight = |logit: f32| ((f64::from(logit) - most) / scale).exp();
        // The likeliest has weight 1.
        let least = f64::from(cut.min_p);
        let weights: Vec<(u32, f64)> = logits
            .map(|(id, logit)| (id, weight(logit)))
            .filter(|(_, weight)| *weight > 0.0 && *weight >= least)
            .collect();
        let total = weights.iter().map(|(_, weight)| weight).sum();
        let mut nucleus = Self { count: weights.len(), weights, sorted: 0, total };
        if cut.top_k > 0 && (cut.top_k as usize) < nucleus.count {
            nucleus.cut(cut.top_k as usize);
        }
        if cut.top_p < 1.0 {
            nucleus.cover(f64::from(cut.top_p) * nucleus.total);
        }
        nucleus
    }

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
    pub fn drawn(&mut self, part: f64) -> Option<u32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Many equal ones among them.
    fn logits(count: usize) -> Vec<f32> {
        let mut state = 11_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 80
        };
        (0..count).map(|_| next() as f32 / 10.0 - 4.0).collect()
    }

    #[test]
    fn what_is_sorted_as_far_as_it_is_looked_at_is_what_all_sorted_is() {
        for (vocab, top_k, top_p) in [(5000, 0, 1.0), (5000, 0, 0.7), (5000, 700, 1.0), (5000, 90, 0.5), (50, 60, 0.9)]
        {
            let logits = logits(vocab);
            let mut all: Vec<(u32, f64)> = (0u32..).zip(logits.iter().map(|logit| f64::from(*logit))).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let cut = NucleusCut { temperature: 1.0, top_k, top_p, min_p: 0.001 };
            let mut nucleus = Nucleus::of((0..).zip(logits.iter().copied()), &cut);
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
    fn probabilities_are_the_softmax_of_all_logits() {
        let logits = [1.5f32, -2.0, 4.0, 4.0, 0.25, -30.0];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        for top in 0..=8 {
            for known in 0..logits.len() {
                let row = RowChoice { token: TokenChoice::Known(known as u32), shape: None, top }.of(&logits);
                assert_eq!(
                    (row.token, row.logit, row.largest, row.is_finite),
                    (known as u32, logits[known], 4.0, true)
                );
                assert!((row.log_probability(row.logit) - (f64::from(logits[known]).exp() / sum).ln()).abs() < 1e-12);
                let ids: Vec<u32> = row.top.iter().map(|(id, _)| *id).collect();
                assert_eq!(ids, [2, 3, 0, 4, 1, 5][..top.min(6)]);
            }
        }
    }

    #[test]
    fn nan_is_never_the_likeliest_and_no_token_has_no_logit() {
        let row = RowChoice::likeliest().of(&[0.0, 3.0, f32::NAN, 3.0]);
        assert_eq!((row.token, row.logit, row.is_finite), (1, 3.0, false));
        assert!(RowChoice { token: TokenChoice::Known(4), shape: None, top: 1 }.of(&[1.0]).logit.is_nan());
    }

    #[test]
    fn what_may_not_come_is_not_chosen_and_is_told_as_it_is() {
        let logits = [5.0f32, 4.0, 3.0, 2.0];
        let all = |bits: u32, changes: &[LogitChange]| RowChoice {
            shape: Some(RowShape { changes: changes.to_vec(), allowed: Some(vec![bits]) }),
            top: 2,
            ..RowChoice::likeliest()
        };
        let less = LogitChange { presence: 2.5, ..LogitChange::none(1) };
        for (bits, changes, token) in [
            (0b1111, vec![], 0),
            (0b1110, vec![], 1),
            (0b1110, vec![less], 2),
            (0b1010, vec![LogitChange { bias: 9.0, ..less }], 1),
            // Nothing is left of it: the first that may come all the same.
            (0b1000, vec![LogitChange { presence: f32::INFINITY, ..LogitChange::none(3) }], 3),
        ] {
            let row = all(bits, &changes).of(&logits);
            assert_eq!((row.token, row.logit, row.largest), (token, logits[token as usize], 5.0), "{bits:b}");
            assert_eq!(row.top, [(0, 5.0), (1, 4.0)]);
            let cut = NucleusCut { temperature: 1.0, top_k: 3, top_p: 0.01, min_p: 0.0 };
            let drawn = RowChoice { token: TokenChoice::Drawn(cut, 0.5), ..all(bits, &changes) };
            assert_eq!(drawn.of(&logits).token, token);
        }
        // A mask that is too short allows nothing behind its end.
        let short = RowShape { allowed: Some(vec![1 << 31]), ..RowShape::default() };
        assert_eq!(short.of(&[0.0; 34])[31..], [0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
    }
}
