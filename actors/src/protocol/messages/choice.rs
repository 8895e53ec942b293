//! How the tokens of an answer are chosen, as the supervisor tells a query host. Chooses none.

use asterism_models::Sampling;
use rkyv::{Archive, Deserialize, Serialize};

/// How tokens are chosen and when generation ends.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize)]
pub struct TokenChoice {
    /// Most tokens, those of `scored` among them.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// Nucleus.
    pub top_p: f32,
    /// Seed of the sampler.
    pub seed: u64,
    /// What else is said about it, where something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaping: Option<Box<TokenShaping>>,
    /// Strings that end the answer.
    pub stop: Vec<String>,
    /// Go on after end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Whether it is said how likely tokens were, and how many of the likeliest beside each.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// The rest of a prompt that is nothing but a question: these tokens stand before the answer's, and it is said how likely they
    /// were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored: Option<Vec<u32>>,
}

/// [`Sampling`] beside temperature, nucleus and seed.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize, serde::Serialize, serde::Deserialize)]
pub struct TokenShaping {
    /// As many of the likeliest tokens; 0: all.
    pub top_k: u32,
    /// Part of the likeliest one's probability.
    pub min_p: f32,
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// Of tokens that the answer has.
    pub presence_penalty: f32,
    /// Of each time that it has them.
    pub frequency_penalty: f32,
    /// Tokens before which it does not end.
    pub min_tokens: u32,
    /// What is added to logits, by id.
    pub logit_bias: Vec<(u32, f32)>,
    /// The form that the answer has, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
}

impl TokenShaping {
    /// What of `sampling` it has; nothing where that changes nothing.
    pub fn of(sampling: &Sampling) -> Option<Box<Self>> {
        let Sampling { temperature, top_p, seed, .. } = *sampling;
        let plain = Sampling { temperature, top_p, seed, ..Sampling::default() };
        (*sampling != plain).then(|| {
            Box::new(Self {
                top_k: sampling.top_k,
                min_p: sampling.min_p,
                repetition_penalty: sampling.repetition_penalty,
                presence_penalty: sampling.presence_penalty,
                frequency_penalty: sampling.frequency_penalty,
                min_tokens: sampling.min_tokens,
                logit_bias: sampling.logit_bias.iter().map(|(id, bias)| (*id, *bias)).collect(),
                constraint: sampling
                    .constraint
                    .as_ref()
                    .map(|form| serde_json::to_string(form).expect("plain values are JSON")),
            })
        })
    }
}

impl TokenChoice {
    /// What the sampler is told.
    pub fn sampling(&self) -> Sampling {
        let Self { temperature, top_p, seed, .. } = *self;
        let plain = Sampling { temperature, top_p, seed, ..Sampling::default() };
        match &self.shaping {
            None => plain,
            Some(shaping) => Sampling {
                top_k: shaping.top_k,
                min_p: shaping.min_p,
                repetition_penalty: shaping.repetition_penalty,
                presence_penalty: shaping.presence_penalty,
                frequency_penalty: shaping.frequency_penalty,
                min_tokens: shaping.min_tokens,
                logit_bias: shaping.logit_bias.iter().copied().collect(),
                constraint: shaping.constraint.as_deref().and_then(|form| serde_json::from_str(form).ok()),
                ..plain
            },
        }
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        let form = self.shaping.as_ref().and_then(|shaping| shaping.constraint.as_ref()).map_or(0, String::len);
        4 * self.scored_tokens() + self.stop.iter().map(String::len).sum::<usize>() + form
    }

    /// Tokens of the prompt before those of the answer.
    pub fn scored_tokens(&self) -> usize {
        self.scored.as_ref().map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests {
    use asterism_models::Constraint;

    use super::*;

    #[test]
    fn a_query_host_samples_as_was_asked() {
        let plain = Sampling { temperature: 0.5, top_p: 0.9, seed: 3, ..Sampling::default() };
        let constraint = Some(Constraint::Choice(vec!["yes".into(), "no".into()]));
        let shaped = Sampling { top_k: 4, logit_bias: [(7, -1.5)].into(), constraint, ..plain.clone() };
        for (sampling, is_shaped) in [(plain, false), (shaped, true)] {
            let Sampling { temperature, top_p, seed, .. } = sampling;
            let shaping = TokenShaping::of(&sampling);
            assert_eq!(shaping.is_some(), is_shaped);
            let choice = TokenChoice { temperature, top_p, seed, shaping, ..TokenChoice::default() };
            assert_eq!(choice.sampling(), sampling);
        }
    }
}
