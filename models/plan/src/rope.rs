//! Rotary embeddings whose frequencies depend on the length of the sequence: which lengths share them. Computes no frequency.

use serde::{Deserialize, Serialize};

/// How a model's rotary frequencies depend on the length of the sequence that a pass belongs to: its prompt, and what was generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeLength {
    /// They do not.
    #[default]
    Any,
    /// One set up to so many tokens, another beyond (LongRoPE).
    Switched(u32),
    /// One set up to so many tokens, beyond that a set for each length (dynamic NTK).
    Growing(u32),
}

impl RopeLength {
    /// The one length that stands for all with the frequencies of `tokens`; 0 for those of the shortest. Keys and queries of two
    /// lengths that the same stands for belong together.
    pub fn stands_for(self, tokens: u64) -> u32 {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        match self {
            Self::Any => 0,
            Self::Switched(most) | Self::Growing(most) if tokens <= most => 0,
            Self::Switched(most) => most.saturating_add(1),
            Self::Growing(_) => tokens,
        }
    }

    /// The most tokens of the shortest set, where there are others.
    pub fn threshold(self) -> Option<u32> {
        match self {
            Self::Any => None,
            Self::Switched(most) | Self::Growing(most) => Some(most),
        }
    }

    /// Whether the frequencies do not depend on the length at all.
    pub fn is_fixed(&self) -> bool {
        *self == Self::Any
    }

    /// Whether a length stands for the shortest, or for all.
    pub(crate) fn is_any(length: &u32) -> bool {
        *length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_the_same_frequencies_share_one() {
        let of = |rope: RopeLength| [1, 64, 65, 66].map(|tokens| rope.stands_for(tokens));
        assert_eq!(of(RopeLength::Any), [0; 4]);
        assert_eq!(of(RopeLength::Switched(64)), [0, 0, 65, 65]);
        assert_eq!(of(RopeLength::Growing(64)), [0, 0, 65, 66]);
    }
}
