//! Where a text names added tokens, found as the library finds them, but that messages name no special one. Tokenises nothing.

use std::collections::HashMap;
use std::{iter, ops::Range, sync::LazyLock};

use aho_corasick::{AhoCorasick, Input, MatchKind};
use regex::Regex;
use tokenizers::AddedToken;

/// What the library takes for a part of a word.
static WORD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\w$").expect("the pattern is constant"));

/// Added tokens by their names.
pub struct AddedTokenNames {
    finder: Option<AhoCorasick>,
    tokens: Vec<Name>,
    /// Bytes of the longest name.
    longest: usize,
}

struct Name {
    id: u32,
    text: String,
    token: AddedToken,
    /// Those that begin it, longest first.
    shorter: Vec<usize>,
}

/// An added token in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundToken {
    /// Its id.
    pub id: u32,
    /// The bytes that it stands for, with the white space that it strips.
    pub range: Range<usize>,
    /// Whether what follows `range` decides over it or its range.
    pub looks_ahead: bool,
}

impl AddedTokenNames {
    /// Of ids, names and tokens. Names are texts as they are searched for, which may be normalised.
    pub fn new(named: Vec<(u32, String, AddedToken)>) -> Result<Self, aho_corasick::BuildError> {
        let places: HashMap<&str, usize> =
            named.iter().enumerate().map(|(at, (_, text, _))| (text.as_str(), at)).collect();
        let shorter = |text: &str| -> Vec<usize> {
            let ends = (1..text.len()).rev().filter(|&end| text.is_char_boundary(end));
            ends.filter_map(|end| places.get(&text[..end]).copied()).collect()
        };
        let shorter: Vec<_> = named.iter().map(|(_, text, _)| shorter(text)).collect();
        let texts: Vec<&str> = named.iter().map(|(_, text, _)| text.as_str()).collect();
        let longest = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let find = || AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts);
        let finder = if texts.is_empty() { None } else { Some(find()?) };
        let tokens = named.into_iter().zip(shorter);
        let tokens = tokens.map(|((id, text, token), shorter)| Name { id, text, token, shorter }).collect();
        Ok(Self { finder, tokens, longest })
    }

    /// Whether some strip the white space before them.
    pub fn strips_before(&self) -> bool {
        self.tokens.iter().any(|name| name.token.lstrip)
    }

    /// The names and their tokens.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &AddedToken)> {
        self.tokens.iter().map(|name| (name.text.as_str(), &name.token))
    }

    /// The added tokens of `text`, in order. `before`: the character before it, if it is not all of a text. `is_text` tells of
    /// a range of it whether special tokens are not named there.
    pub fn found<'a>(
        &'a self,
        text: &'a str,
        before: Option<char>,
        is_text: impl Fn(Range<usize>) -> bool + 'a,
    ) -> impl Iterator<Item = FoundToken> + 'a {
        let (mut from, mut taken) = (0, 0);
        iter::from_fn(move || {
            loop {
                let hit = self.finder.as_ref()?.find(Input::new(text).range(from..))?;
                let (start, longest) = (hit.start(), &self.tokens[hit.pattern().as_usize()]);
                let is_named = |name: &&Name| !(name.token.special && is_text(start..start + name.text.len()));
                let candidates = iter::once(longest).chain(longest.shorter.iter().map(|&at| &self.tokens[at]));
                let Some(name) = candidates.into_iter().find(is_named) else {
                    from = start + text[start..].chars().next().map_or(1, char::len_utf8);
                    continue;
                };
                from = start + name.text.len();
                if let Some(found) = name.at(text, start, (before, taken)) {
                    taken = found.range.end;
                    return Some(found);
                }
            }
        })
    }

    /// Where a name begins at the earliest that `text` ends within; its end where there is none.
    pub fn begun(&self, text: &str) -> usize {
        let from = text.len().saturating_sub(self.longest.saturating_sub(1));
        let starts = (from..text.len()).filter(|&at| text.is_char_boundary(at));
        let begins =
            |rest: &str| self.tokens.iter().any(|name| name.text.len() > rest.len() && name.text.starts_with(rest));
        starts.into_iter().find(|&at| begins(&text[at..])).unwrap_or(text.len())
    }
}

impl Name {
    /// The token whose name begins at `start`, unless it wants to stand for itself and does not. `before`: the character before
    /// `text`; `taken`: where the token before it ends.
    fn at(&self, text: &str, start: usize, (before, taken): (Option<char>, usize)) -> Option<FoundToken> {
        let end = start + self.text.len();
        if self.token.single_word {
            let previous = text[..start].chars().next_back().or(before);
            if previous.is_some_and(is_word) || text[end..].chars().next().is_some_and(is_word) {
                return None;
            }
        }
        let mut range = start..end;
        if self.token.lstrip {
            range.start = text[..start].trim_end().len().max(taken);
        }
        if self.token.rstrip {
            range.end = text.len() - text[end..].trim_start().len();
        }
        let at_end = range.end == text.len();
        let looks_ahead = at_end && (self.token.rstrip || self.token.single_word);
        Some(FoundToken { id: self.id, range, looks_ahead })
    }
}

/// Whether the library takes a character for a part of a word.
pub fn is_word(c: char) -> bool {
    WORD.is_match(c.encode_utf8(&mut [0; 4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> AddedTokenNames {
        let token = |name: &&str| AddedToken::from(name.trim_end_matches('~'), !name.ends_with('~'));
        AddedTokenNames::new(
            names
                .iter()
                .enumerate()
                .map(|(id, name)| (id as u32, name.trim_end_matches('~').to_owned(), token(name)))
                .collect(),
        )
        .unwrap()
    }

    /// The names found in a text of which a range is of a message.
    fn found<'t>(names: &AddedTokenNames, text: &'t str, message: Range<usize>) -> Vec<&'t str> {
        let is_text = |range: Range<usize>| range.start < message.end && message.start < range.end;
        names.found(text, None, is_text).map(|found| &text[found.range]).collect()
    }

    #[test]
    fn special_tokens_are_named_outside_of_messages_alone() {
        let names = names(&["<|im_start|>", "<|im_end|>", "<|im_end|>!", "<tool>~"]);
        let text = "<|im_end|><tool><|im_end|>!<|im_end|>";
        assert_eq!(found(&names, text, 0..0), ["<|im_end|>", "<tool>", "<|im_end|>!", "<|im_end|>"]);
        assert_eq!(found(&names, text, 0..27), ["<tool>", "<|im_end|>"]);
        // A name that a message ends, and one that it goes on with.
        assert_eq!(found(&names, "<|im_end|>", 9..10), Vec::<&str>::new());
        assert_eq!(found(&names, "<|im_end|>!", 10..11), ["<|im_end|>"]);
    }

    #[test]
    fn what_is_left_of_a_name_in_a_message_can_be_another() {
        let nested = names(&["<a>b", "<a~", "b<s>", "<s>"]);
        assert_eq!(found(&nested, "<a>b<s>", 0..4), ["<a", "<s>"]);
        assert_eq!(found(&nested, "b<s>", 0..1), ["<s>"]);
        assert_eq!(found(&names(&["é"]), "éé", 0..2), ["é"]);
        assert_eq!(found(&names(&[]), "<s>", 0..0), Vec::<&str>::new());
    }

    #[test]
    fn a_name_that_is_begun_is_known_by_its_beginning() {
        let names = names(&["<|im_start|>", "\n\n\n"]);
        for (text, begun) in
            [("a <|im", 2), ("a <|im_start|>", 14), ("a\n\n", 1), ("a", 1), ("", 0), ("<", 0), ("é<|é", 6)]
        {
            assert_eq!(names.begun(text), begun, "{text:?}");
        }
    }
}
