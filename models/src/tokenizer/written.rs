//! A part of a prompt that remembers where in it the names of special tokens are text. Tokenises nothing.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Text of a prompt. What a special token is called is that token where a template writes it, or in a raw text; in a message,
/// which may be anybody's document, it is text like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts")]
pub struct Written {
    text: String,
    /// Bytes of `text`, in order and apart.
    literals: Vec<Range<usize>>,
}

/// A [`Written`] that nobody has checked yet.
#[derive(Deserialize)]
struct Parts {
    text: String,
    literals: Vec<Range<usize>>,
}

impl TryFrom<Parts> for Written {
    type Error = &'static str;

    fn try_from(Parts { text, literals }: Parts) -> Result<Self, Self::Error> {
        let mut before = 0;
        for literal in &literals {
            let begins = before <= literal.start && literal.start < literal.end;
            if !begins || !text.is_char_boundary(literal.start) || !text.is_char_boundary(literal.end) {
                return Err("literals are not characters of the text, in order and apart");
            }
            before = literal.end;
        }
        Ok(Self { text, literals })
    }
}

impl From<String> for Written {
    /// Raw text: none of it is of a message.
    fn from(text: String) -> Self {
        Self { text, literals: Vec::new() }
    }
}

impl Written {
    /// Whether some of a range is of a message.
    pub(super) fn has_text_of_messages(&self, range: &Range<usize>) -> bool {
        let at = self.literals.partition_point(|literal| literal.end <= range.start);
        self.literals.get(at).is_some_and(|literal| literal.start < range.end)
    }

    /// A message and nothing else.
    pub fn message(text: &str) -> Self {
        let mut message = Self::default();
        message.push_message(text);
        message
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The bytes of [`Written::text`] that name nothing, in order and apart: the name of a special token that has some of them is
    /// text. They are whole messages, or no more than the names in them.
    pub fn literals(&self) -> &[Range<usize>] {
        &self.literals
    }

    /// Text with its literals, which are in order and apart.
    pub(crate) fn with_literals(text: String, literals: Vec<Range<usize>>) -> Self {
        let mut written = Self { text, literals: Vec::with_capacity(literals.len()) };
        literals.into_iter().for_each(|literal| written.note(literal));
        written
    }

    /// Adds what is no message.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds a message.
    pub fn push_message(&mut self, text: &str) {
        let begins = self.text.len();
        self.text.push_str(text);
        self.note(begins..self.text.len());
    }

    /// Adds another part.
    pub fn append(&mut self, other: Self) {
        let begins = self.text.len();
        self.text.push_str(&other.text);
        other.literals.into_iter().for_each(|literal| self.note(literal.start + begins..literal.end + begins));
    }

    /// Takes off what stands from byte `at` on, where a character begins.
    pub fn split_off(&mut self, at: usize) -> Self {
        let (before, behind) = self.literals.iter().cloned().partition::<Vec<_>, _>(|literal| literal.start < at);
        let mut rest = Self::from(self.text.split_off(at));
        self.literals.clear();
        for literal in before {
            self.note(literal.start..literal.end.min(at));
            rest.note(0..literal.end.saturating_sub(at));
        }
        behind.into_iter().for_each(|literal| rest.note(literal.start - at..literal.end - at));
        rest
    }

    /// Literals that touch are one, so that equal parts are equal however they were put together.
    fn note(&mut self, literal: Range<usize>) {
        match self.literals.last_mut() {
            _ if literal.is_empty() => {}
            Some(last) if last.end == literal.start => last.end = literal.end,
            _ => self.literals.push(literal),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Which bytes are of messages stays so, wherever a part is cut and joined again.
        #[test]
        fn a_part_that_is_cut_and_joined_is_what_it_was(parts in prop::collection::vec((any::<bool>(), "[aé]{0,3}"), 0..6), at in 0..20usize) {
            let mut whole = Written::default();
            for (message, text) in &parts {
                if *message { whole.push_message(text) } else { whole.push(text) }
            }
            let of_messages: usize = parts.iter().filter(|part| part.0).map(|part| part.1.len()).sum();
            prop_assert_eq!(whole.literals().iter().map(Range::len).sum::<usize>(), of_messages);
            let at = (0..=at.min(whole.text().len())).rev().find(|at| whole.text().is_char_boundary(*at)).unwrap();
            let mut begins = whole.clone();
            let rest = begins.split_off(at);
            prop_assert_eq!(begins.text().len(), at);
            prop_assert!(rest.literals().iter().chain(begins.literals()).all(|literal| !literal.is_empty()));
            begins.append(rest);
            prop_assert_eq!(begins, whole);
        }
    }
}
