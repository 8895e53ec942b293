//! A text from some place of a longer one on: what of the longer one decides how it is tokenised. Tokenises nothing.

use serde::{Deserialize, Serialize};

use crate::Written;

/// Where a text begins within a longer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextPlace {
    /// The character before it; none at the beginning.
    pub(super) before: Option<char>,
    /// No added token ends before it: the text goes on.
    pub(super) inside: bool,
}

/// A text that goes on from some place of a longer one, which is at hand no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    pub(super) written: Written,
    pub(super) place: TextPlace,
}

impl From<Written> for Passage {
    /// A whole text.
    fn from(written: Written) -> Self {
        Self { written, place: TextPlace::default() }
    }
}

impl Passage {
    /// The text.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// With more behind it.
    pub fn followed_by(mut self, more: Written) -> Self {
        self.written.append(more);
        self
    }
}
