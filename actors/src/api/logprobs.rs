//! How likely tokens were, as clients see it and as query hosts say it: plain values.

use asterism_models::Logprobs;
use rkyv::Archive;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How likely a token of an answer was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Archive, rkyv::Serialize, rkyv::Deserialize)]
#[rkyv(attr(allow(missing_docs)))]
pub struct TokenLogprobs {
    /// Logarithm of its probability among all tokens, whatever temperature and nucleus it was drawn with.
    pub logprob: f32,
    /// The likeliest tokens at its place, as many as were asked for, likeliest first.
    pub top: Vec<TopLogprob>,
}

impl From<Logprobs> for TokenLogprobs {
    fn from(Logprobs { chosen, top }: Logprobs) -> Self {
        Self { logprob: chosen, top: top.into_iter().map(|(id, logprob)| TopLogprob { id, logprob }).collect() }
    }
}

/// A token that was likely.
#[derive(
    Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Archive, rkyv::Serialize, rkyv::Deserialize,
)]
#[rkyv(attr(allow(missing_docs)))]
pub struct TopLogprob {
    /// Its id.
    pub id: u32,
    /// Logarithm of its probability.
    pub logprob: f32,
}

impl TokenLogprobs {
    /// Of the token `id` among `logits`, with the `most` likeliest.
    pub fn of(logits: &[f32], id: u32, most: u32) -> Self {
        Logprobs::of(logits, id, most as usize).into()
    }

    /// Bytes that it takes, about.
    pub fn bytes(&self) -> usize {
        size_of_val(self) + size_of_val(&self.top[..])
    }
}
