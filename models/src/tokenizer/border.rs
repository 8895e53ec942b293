//! Where a text is cut into what is the same whatever question follows, and the rest. Plans nothing.

use super::{Passage, Tokenizer, place::TextPlace};
use crate::{ModelError, Written};

/// Bytes between a border and a question, from which on it is guessed what of them stays the same.
const FAR: usize = 256;
/// Texts that could follow, to guess by.
const FOLLOWING: [&str; 3] = [" the", "\n\nWhy", "."];
/// Tokens before the first that differs which are left to the question as well.
const MARGIN: usize = 8;

/// A text tokenised, and cut before a question about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPrompt {
    /// The ids of the whole.
    pub ids: Vec<u32>,
    /// How many of them stand before the border: they are the same whatever follows the question's place.
    pub certain: usize,
    /// How many of them are expected to be the same, which is more where the border is far from the question.
    pub held: usize,
    /// The border, in bytes.
    border: usize,
    place: TextPlace,
}

impl CutPrompt {
    /// The text from the border to byte `at`, which is tokenised again with each question.
    pub fn rest(&self, mut passage: Passage, at: usize) -> Passage {
        passage.written.split_off(at);
        Passage { written: passage.written.split_off(self.border), place: self.place }
    }
}

impl Tokenizer {
    /// Tokenises a text in which a question begins at byte `at`.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode_most`].
    pub fn cut(&self, passage: &Passage, at: usize, most: usize) -> Result<CutPrompt, ModelError> {
        let Passage { written, place } = passage;
        let (border, found) = self.border(written, *place, at);
        let (ids, certain) = self.encode_from((written, *place), border, most)?;
        let mut cut = CutPrompt { ids, certain, held: certain, border, place: found };
        if at - border > FAR || certain == 0 {
            let rest = cut.rest(passage.clone(), at);
            let same = self.guess(&rest, most)?;
            let behind = cut.ids[certain..].iter();
            cut.held += behind.zip(&same).take_while(|(one, other)| one == other).count();
        }
        Ok(cut)
    }

    /// The last place up to byte `at` from which on a text can be tokenised by itself, and at which tokens end whatever stands
    /// behind `at`.
    fn border(&self, written: &Written, place: TextPlace, at: usize) -> (usize, TextPlace) {
        let text = &written.text()[..at];
        // An added token could be begun, or depend on what follows.
        let mut known = self.steps.raw.begun(text);
        let mut start = 0;
        for found in self.steps.raw.found(text, place.before, |range| written.has_text_of_messages(&range)) {
            if found.looks_ahead || found.range.end > known {
                known = known.min(found.range.start);
                break;
            }
            start = found.range.end;
        }
        // One that follows could strip the white space before it.
        let stripped = if self.steps.raw.strips_before() { text.trim_end().len() + 1 } else { at };
        let last = start..known.min(stripped).max(start);
        let joints = self.joints.as_ref();
        let border = joints.and_then(|joints| joints.last(text, last)).unwrap_or(start);
        (border, self.place(text, place, (start, border)))
    }

    /// The ids with which whatever goes on from `passage` most likely begins.
    fn guess(&self, passage: &Passage, most: usize) -> Result<Vec<u32>, ModelError> {
        let mut same: Option<Vec<u32>> = None;
        for following in FOLLOWING {
            let more = passage.clone().followed_by(Written::message(following));
            let ids = self.encode_passage(&more, most.saturating_add(MARGIN))?;
            same = Some(match same {
                None => ids,
                Some(same) => {
                    same.into_iter().zip(ids).take_while(|(one, other)| one == other).map(|(id, _)| id).collect()
                }
            });
        }
        let mut same = same.unwrap_or_default();
        same.truncate(same.len().saturating_sub(MARGIN));
        Ok(same)
    }
}
