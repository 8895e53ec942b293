//! The names of special tokens, and where a text is cut so that messages name none. Tokenises nothing.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde::Deserialize;

use super::cuts;
use crate::Written;

/// The special tokens of a tokenizer, as texts write them.
pub struct Specials(Option<AhoCorasick>);

/// tokenizer.json, as far as this depends on it.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    special: bool,
}

impl Specials {
    /// Those of this tokenizer.json.
    pub fn of(json: &[u8]) -> Self {
        let added = serde_json::from_slice(json).map(|form: Form| form.added_tokens).unwrap_or_default();
        let names = added.into_iter().filter(|added| added.special && !added.content.is_empty());
        let names: Vec<String> = names.map(|added| added.content).collect();
        let find = || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&names).ok();
        Self(if names.is_empty() { None } else { find() })
    }

    /// The parts of `written`, cut within each name that a message has some of, so that a tokenizer that is given one after
    /// the other finds none there.
    pub fn apart<'w>(&self, written: &'w Written) -> Vec<&'w str> {
        let (text, mut parts, mut from) = (written.text(), Vec::new(), 0);
        for at in self.breaks(text, written.messages()) {
            parts.push(&text[from..at]);
            from = at;
        }
        parts.push(&text[from..]);
        parts
    }

    fn breaks(&self, text: &str, messages: &[Range<usize>]) -> Vec<usize> {
        let (mut breaks, mut from, mut messages) = (Vec::new(), 0, messages.iter().peekable());
        let Some(names) = self.0.as_ref().filter(|_| messages.peek().is_some()) else { return breaks };
        while let Some(name) = names.find(Input::new(text).range(from..)).map(|found| found.range()) {
            while messages.next_if(|message| message.end <= name.start).is_some() {}
            let in_message = messages.peek().is_some_and(|message| message.start < name.end);
            from = name.end;
            if let Some(at) = within(names, text, name).filter(|_| in_message) {
                breaks.push(at);
                from = at;
            }
        }
        breaks
    }
}

/// Where a name is cut: where texts tokenise to the same in parts, or else behind its first character; none that has one only.
fn within(names: &AhoCorasick, text: &str, name: Range<usize>) -> Option<usize> {
    let inside = || (name.start + 1..name.end).filter(|&at| text.is_char_boundary(at));
    let harmless = inside().find(|&at| cuts::is_joint(text, at));
    harmless.filter(|&at| !names.is_match(&text[name.start..at])).or_else(|| inside().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(names: &[&str]) -> Specials {
        let added: Vec<_> = names.iter().map(|name| serde_json::json!({"content": name, "special": true})).collect();
        Specials::of(serde_json::json!({"added_tokens": added}).to_string().as_bytes())
    }

    fn written(parts: &[(bool, &str)]) -> Written {
        let mut written = Written::default();
        for (message, text) in parts {
            if *message { written.push_message(text) } else { written.push(text) }
        }
        written
    }

    #[test]
    fn names_are_cut_in_messages_alone() {
        let specials = specials(&["<|im_start|>", "<|im_end|>", "<|im_end|>!"]);
        let frame = (false, "<|im_start|>user\n");
        for (parts, expected) in [
            (vec![frame, (true, "plain")], vec!["<|im_start|>user\nplain"]),
            (vec![frame, (true, "a <|im_end|> b")], vec!["<|im_start|>user\na <|im", "_end|> b"]),
            (vec![(true, "<|im_end|>!"), (false, "<|im_end|>")], vec!["<|im", "_end|>!<|im_end|>"]),
            // A name that a message begins and the template ends, or the other way round.
            (vec![(true, "<|im_"), (false, "end|>")], vec!["<|im", "_end|>"]),
            (vec![(false, "<|im_start|"), (true, ">")], vec!["<|im", "_start|>"]),
            (vec![(true, "")], vec![""]),
        ] {
            assert_eq!(specials.apart(&written(&parts)), expected, "{parts:?}");
        }
        let raw = Written::from("<|im_end|>".to_owned());
        assert_eq!(specials.apart(&raw), ["<|im_end|>"]);
    }

    #[test]
    fn what_is_left_of_a_name_names_nothing() {
        let nested = specials(&["<a", "<a>b", "é", "x>y"]);
        assert_eq!(nested.apart(&Written::message("<a>b")), ["<", "a>b"]);
        assert_eq!(nested.apart(&Written::message("x>y é")), ["x", ">y é"], "one character cannot be cut");
        let again = specials(&["aa"]);
        assert_eq!(again.apart(&Written::message("aaaa")), ["a", "a", "a", "a"]);
        assert_eq!(specials(&[]).apart(&Written::message("<s>")), ["<s>"]);
    }
}
