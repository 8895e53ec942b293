//! The names of special tokens, and where a text is cut so that messages name none. Tokenises nothing.

use std::{iter, ops::Range};

use aho_corasick::{AhoCorasick, Input, MatchKind};
use serde::Deserialize;

use super::cuts;
use crate::Written;

/// The special tokens of a tokenizer, as texts write them.
pub struct Specials {
    find: Option<AhoCorasick>,
    /// What they are called; none is empty.
    pub names: Vec<String>,
}

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
    /// Those of this tokenizer.json. One whose names cannot be told is refused: messages could name them.
    pub fn of(json: &[u8]) -> Result<Self, tokenizers::Error> {
        let Form { added_tokens } = serde_json::from_slice(json)?;
        let names = added_tokens.into_iter().filter(|added| added.special && !added.content.is_empty());
        let names: Vec<String> = names.map(|added| added.content).collect();
        let find = || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&names);
        Ok(Self { find: if names.is_empty() { None } else { Some(find()?) }, names })
    }

    /// The parts of `written`, cut within each name that a message has some of, so that a tokenizer that is given one after
    /// the other finds none there. They are found as they are asked for.
    pub fn apart<'w>(&'w self, written: &'w Written) -> impl Iterator<Item = &'w str> {
        let (text, mut breaks, mut begins) = (written.text(), self.breaks(written), Some(0));
        iter::from_fn(move || {
            let from = begins?;
            begins = breaks.next();
            Some(&text[from..begins.unwrap_or(text.len())])
        })
    }

    fn breaks<'w>(&'w self, written: &'w Written) -> impl Iterator<Item = usize> + 'w {
        let (text, mut messages, mut from) = (written.text(), written.literals().iter().peekable(), 0);
        let names = self.find.as_ref().filter(|_| messages.peek().is_some());
        iter::from_fn(move || {
            loop {
                let name = names?.find(Input::new(text).range(from..))?.range();
                while messages.next_if(|message| message.end <= name.start).is_some() {}
                let in_message = messages.peek()?.start < name.end;
                from = name.end;
                if let Some(at) = within(names?, text, name).filter(|_| in_message) {
                    from = at;
                    return Some(at);
                }
            }
        })
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
        Specials::of(serde_json::json!({"added_tokens": added}).to_string().as_bytes()).unwrap()
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
            assert_eq!(specials.apart(&written(&parts)).collect::<Vec<_>>(), expected, "{parts:?}");
        }
        let raw = Written::from("<|im_end|>".to_owned());
        assert!(specials.apart(&raw).eq(["<|im_end|>"]));
    }

    #[test]
    fn what_is_left_of_a_name_names_nothing() {
        let nested = specials(&["<a", "<a>b", "é", "x>y"]);
        assert!(nested.apart(&Written::message("<a>b")).eq(["<", "a>b"]));
        assert!(nested.apart(&Written::message("x>y é")).eq(["x", ">y é"]), "one character cannot be cut");
        let again = specials(&["aa"]);
        assert!(again.apart(&Written::message("aaaa")).eq(["a", "a", "a", "a"]));
        assert!(specials(&[]).apart(&Written::message("<s>")).eq(["<s>"]));
        assert!(Specials::of(br#"{"added_tokens": [{"special": true}]}"#).is_err(), "a name that cannot be told");
    }
}
