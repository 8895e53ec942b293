//! What changes logits before a token is chosen of them: a bias, penalties for what was said already, and no end before its time.
//! Chooses nothing.

use std::collections::{BTreeMap, BTreeSet};

use asterism_kernels::LogitChange;

use super::parameters::Sampling;

/// Changes the logits of one answer.
#[derive(Clone)]
pub struct Shaper {
    bias: BTreeMap<u32, f32>,
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// Tokens that are not to be chosen before so many.
    eos: Vec<u32>,
    min_tokens: usize,
    /// Tokens of the question.
    asked: BTreeSet<u32>,
    /// How often the answer has a token.
    said: BTreeMap<u32, u32>,
    tokens: usize,
    /// By token.
    changes: BTreeMap<u32, LogitChange>,
}

impl Shaper {
    /// That of an answer to the question of these tokens; nothing where logits stay as they are.
    pub fn of(sampling: &Sampling, question: &[u32], eos: &[u32]) -> Option<Self> {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, min_tokens, .. } = *sampling;
        let neutral = repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0;
        if neutral && min_tokens == 0 && sampling.logit_bias.is_empty() {
            return None;
        }
        let mut shaper = Self {
            bias: sampling.logit_bias.clone(),
            repetition: repetition_penalty,
            presence: presence_penalty,
            frequency: frequency_penalty,
            eos: if min_tokens == 0 { Vec::new() } else { eos.to_vec() },
            min_tokens: min_tokens as usize,
            asked: if repetition_penalty == 1.0 { BTreeSet::new() } else { question.iter().copied().collect() },
            said: BTreeMap::new(),
            tokens: 0,
            changes: BTreeMap::new(),
        };
        let changed: Vec<u32> = shaper.bias.keys().chain(&shaper.asked).chain(&shaper.eos).copied().collect();
        changed.into_iter().for_each(|token| shaper.change(token));
        Some(shaper)
    }

    /// The answer has a further token.
    pub fn accept(&mut self, id: u32) {
        *self.said.entry(id).or_default() += 1;
        self.tokens += 1;
        self.change(id);
        if self.tokens == self.min_tokens {
            self.eos.clone().into_iter().for_each(|token| self.change(token));
        }
    }

    /// What changes logits.
    pub fn changes(&self) -> Vec<LogitChange> {
        self.changes.values().copied().collect()
    }

    /// Notes what changes the logit of a token.
    fn change(&mut self, token: u32) {
        let mut change = LogitChange::none(token);
        change.bias = self.bias.get(&token).copied().unwrap_or(change.bias);
        let said = self.said.get(&token);
        if said.is_some() || self.asked.contains(&token) {
            change.repetition = self.repetition;
        }
        if let Some(times) = said {
            (change.presence, change.frequency) = (self.presence, self.frequency * *times as f32);
        }
        if self.tokens < self.min_tokens && self.eos.contains(&token) {
            change.presence = f32::INFINITY;
        }
        // Such as of what an answer says that has no penalties.
        if change != LogitChange::none(token) {
            self.changes.insert(token, change);
        } else {
            self.changes.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use asterism_kernels::RowShape;

    use super::*;

    fn shaped(shaper: &Shaper, logits: &[f32]) -> Vec<f32> {
        RowShape { changes: shaper.changes(), allowed: None }.of(logits)
    }

    fn shaper(sampling: Sampling) -> Shaper {
        Shaper::of(&sampling, &[1], &[4]).expect("something is changed")
    }

    #[test]
    fn nothing_is_changed_where_nothing_is_asked() {
        assert!(Shaper::of(&Sampling { top_k: 3, min_p: 0.5, ..Sampling::default() }, &[1], &[4]).is_none());
    }

    #[test]
    fn penalties_are_for_what_was_said() {
        let logits = [1.0, 2.0, -2.0, 4.0, 8.0];
        let mut repeats = shaper(Sampling { repetition_penalty: 2.0, ..Sampling::default() });
        repeats.accept(2);
        assert_eq!(shaped(&repeats, &logits), [1.0, 1.0, -4.0, 4.0, 8.0], "of the question, too");
        let mut said = shaper(Sampling { presence_penalty: 0.5, frequency_penalty: 1.0, ..Sampling::default() });
        [3, 3, 0].into_iter().for_each(|id| said.accept(id));
        assert_eq!(shaped(&said, &logits), [-0.5, 2.0, -2.0, 1.5, 8.0]);
    }

    #[test]
    fn an_answer_does_not_end_before_its_time_and_a_bias_is_added() {
        let bias = BTreeMap::from([(0, 100.0), (9, 1.0)]);
        let mut shaper = shaper(Sampling { min_tokens: 1, logit_bias: bias, ..Sampling::default() });
        assert_eq!(shaped(&shaper, &[0.0, 0.0, 0.0, 0.0, 8.0]), [100.0, 0.0, 0.0, 0.0, f32::NEG_INFINITY]);
        shaper.accept(0);
        assert_eq!(shaped(&shaper, &[0.0, 0.0, 0.0, 0.0, 8.0]), [100.0, 0.0, 0.0, 0.0, 8.0]);
        shaper.accept(1);
        let changed: Vec<u32> = shaper.changes().iter().map(|change| change.token).collect();
        assert_eq!(changed, [0, 9], "what stays as it is, is not told");
    }
}
