//! How the next token is chosen, as a request says it, and the bounds of that. Chooses nothing.

use std::collections::BTreeMap;

use asterism_kernels::NucleusCut;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::guide::Constraint;
use crate::ModelError;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    #[schemars(range(min = 0.0, max = HOTTEST))]
    pub temperature: f32,
    /// Draws from the smallest set of tokens with at least this probability; 1 is all of them.
    #[schemars(extend("exclusiveMinimum" = 0.0), range(max = 1.0))]
    pub top_p: f32,
    /// The same seed over the same logits draws the same tokens.
    pub seed: u64,
    /// Draws from so many of the likeliest tokens; 0 is all of them.
    pub top_k: u32,
    /// Draws from tokens that have at least this part of the likeliest one's probability; 0 is all of them.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_p: f32,
    /// Divides positive logits of tokens that the question or the answer has, and multiplies negative ones; 1 changes nothing.
    #[schemars(extend("exclusiveMinimum" = 0.0), range(max = STRONGEST_REPETITION))]
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens that the answer has.
    #[schemars(range(min = -STRONGEST_PENALTY, max = STRONGEST_PENALTY))]
    pub presence_penalty: f32,
    /// Taken off the logit of a token as often as the answer has it.
    #[schemars(range(min = -STRONGEST_PENALTY, max = STRONGEST_PENALTY))]
    pub frequency_penalty: f32,
    /// Tokens that an answer has at least: before them no end-of-sequence token is chosen.
    pub min_tokens: u32,
    /// What is added to the logits of tokens, by id.
    pub logit_bias: BTreeMap<u32, f32>,
    /// The form that the answer has, if it is held to one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Constraint>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            min_tokens: 0,
            logit_bias: BTreeMap::new(),
            constraint: None,
        }
    }
}

/// Above it every draw is as good as blind.
const HOTTEST: f32 = 100.0;
/// Bounds of penalties, and of a bias either way.
const STRONGEST_PENALTY: f32 = 2.0;
const STRONGEST_REPETITION: f32 = 10.0;
const STRONGEST_BIAS: f32 = 100.0;
/// Most tokens that are biased.
const MOST_BIASED: usize = 1024;

impl Sampling {
    /// What tokens weigh, and which are left to draw from.
    pub fn nucleus_cut(&self) -> NucleusCut {
        let Self { temperature, top_k, top_p, min_p, .. } = *self;
        NucleusCut { temperature, top_k, top_p, min_p }
    }

    /// Refuses parameters out of range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let refused = |field, allowed, got| Err(ModelError::Sampling { field, allowed, got });
        let penalty = |got: f32| (-STRONGEST_PENALTY..=STRONGEST_PENALTY).contains(&got);
        if !(0.0..=HOTTEST).contains(&self.temperature) {
            return refused("temperature", "from 0 (greedy) to 100", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refused("top_p", "above 0 and at most 1", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refused("min_p", "from 0 (all tokens) to 1", self.min_p);
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= STRONGEST_REPETITION) {
            return refused("repetition_penalty", "above 0 and at most 10", self.repetition_penalty);
        }
        if !penalty(self.presence_penalty) {
            return refused("presence_penalty", "from -2 to 2", self.presence_penalty);
        }
        if !penalty(self.frequency_penalty) {
            return refused("frequency_penalty", "from -2 to 2", self.frequency_penalty);
        }
        if self.logit_bias.len() > MOST_BIASED {
            return refused("logit_bias", "of at most 1024 tokens", self.logit_bias.len() as f32);
        }
        match self.logit_bias.values().find(|bias| !(-STRONGEST_BIAS..=STRONGEST_BIAS).contains(*bias)) {
            Some(bias) => refused("logit_bias", "from -100 to 100", *bias),
            None => Ok(()),
        }
    }
}
