//! A part of a prompt that remembers what in it is of messages. Tokenises nothing.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Text of a prompt. What a special token is called is that token where a template writes it, or in a raw text; in a message,
/// which may be anybody's document, it is text like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    text: String,
    /// Bytes of `text`, in order and apart.
    messages: Vec<Range<usize>>,
}

impl From<String> for Written {
    /// Raw text: none of it is of a message.
    fn from(text: String) -> Self {
        Self { text, messages: Vec::new() }
    }
}

impl Written {
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

    /// The bytes of [`Written::text`] that are of messages, in order.
    pub fn messages(&self) -> &[Range<usize>] {
        &self.messages
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
        other.messages.into_iter().for_each(|message| self.note(message.start + begins..message.end + begins));
    }

    /// Takes off what stands from byte `at` on, where a character begins.
    pub fn split_off(&mut self, at: usize) -> Self {
        let (before, behind) = self.messages.iter().cloned().partition::<Vec<_>, _>(|message| message.start < at);
        let mut rest = Self::from(self.text.split_off(at));
        self.messages.clear();
        for message in before {
            self.note(message.start..message.end.min(at));
            rest.note(0..message.end.saturating_sub(at));
        }
        behind.into_iter().for_each(|message| rest.note(message.start - at..message.end - at));
        rest
    }

    /// Messages that touch are one, so that equal parts are equal however they were put together.
    fn note(&mut self, message: Range<usize>) {
        match self.messages.last_mut() {
            _ if message.is_empty() => {}
            Some(last) if last.end == message.start => last.end = message.end,
            _ => self.messages.push(message),
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
            prop_assert_eq!(whole.messages().iter().map(Range::len).sum::<usize>(), of_messages);
            let at = (0..=at.min(whole.text().len())).rev().find(|at| whole.text().is_char_boundary(*at)).unwrap();
            let mut begins = whole.clone();
            let rest = begins.split_off(at);
            prop_assert_eq!(begins.text().len(), at);
            prop_assert!(rest.messages().iter().chain(begins.messages()).all(|message| !message.is_empty()));
            begins.append(rest);
            prop_assert_eq!(begins, whole);
        }
    }
}
