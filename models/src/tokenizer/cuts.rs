//! Where a text can be cut so that its parts tokenise, one after another, to what the whole does. Tokenises nothing.
//!
//! A cut is one of two places at which every pattern known here ends a piece, whatever stands before and after: behind what is
//! no space and before a space or tab, and behind a letter and before punctuation. No piece spans them, no pattern looks back,
//! and one that looks ahead finds at a cut the same as at the end of a text. A cut that some added token could span is none.
//! Characters that begin a part compose with nothing before them, so that NFC changes nothing either.

use serde::Deserialize;
use serde_json::Value;

/// Bytes that are tokenised at a time where the text allows.
const SLICE: usize = 64 << 10;
/// Most bytes that are tokenised at a time where it has no cut.
const STRETCH: usize = 256 << 10;

/// How many bytes NFC makes one of at most: three Hangul jamo of three bytes become a syllable of three.
const NFC_SHRINKS: usize = 3;

/// What lies between pieces in the tokenizers of GPT-2, Llama 3 and Qwen2, in the words of their files.
const PATTERNS: [&str; 3] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// The cuts of texts for one tokenizer.
pub struct Cuts {
    /// Texts of added tokens, none of which a cut may part.
    added: Vec<String>,
    /// Bytes of the longest of them.
    longest: usize,
    /// Whether texts are normalised, and so may become shorter.
    normalizes: bool,
    slice: usize,
    stretch: usize,
}

/// tokenizer.json, as far as cuts depend on it.
#[derive(Deserialize)]
struct Form {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    #[serde(default)]
    added_tokens: Vec<Added>,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    dropout: Option<f64>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
}

impl Cuts {
    /// The cuts for the tokenizer of this tokenizer.json; none where no place is known to be safe.
    pub fn of(json: &[u8]) -> Option<Self> {
        let form: Form = serde_json::from_slice(json).ok()?;
        let normalizes = match &form.normalizer {
            None => false,
            Some(normalizer) if normalizer["type"] == "NFC" => true,
            Some(_) => return None,
        };
        let plain = |added: &Added| {
            !(added.single_word
                || added.lstrip
                || added.rstrip
                || added.content.is_empty()
                || added.normalized && normalizes)
        };
        let splits = form.pre_tokenizer.as_ref().is_some_and(splits);
        if form.model.kind != "BPE" || form.model.dropout.is_some() || !splits || !form.added_tokens.iter().all(plain) {
            return None;
        }
        let added: Vec<String> = form.added_tokens.into_iter().map(|added| added.content).collect();
        let longest = added.iter().map(String::len).max().unwrap_or(0);
        Some(Self { added, longest, normalizes, slice: SLICE, stretch: STRETCH })
    }

    /// Most bytes of text that a token stands for, where the longest of the model's own stands for `own`.
    pub fn token_bytes(&self, own: usize) -> usize {
        let shrinks = if self.normalizes { NFC_SHRINKS } else { 1 };
        own.max(self.longest).saturating_mul(shrinks)
    }

    /// The first part of `text`: up to the last cut of a slice, or else up to the next one, or all. None where that is too
    /// much to tokenise at a time; then it is so many bytes.
    pub fn part<'t>(&self, text: &'t str) -> Result<&'t str, usize> {
        if text.len() <= self.slice {
            return Ok(text);
        }
        let ends = |from: usize, to: usize| (from..=to).filter(|&at| text.is_char_boundary(at));
        let found = ends(1, self.slice).rev().find(|&at| self.is_cut(text, at));
        let found = found.or_else(|| ends(self.slice, self.stretch.min(text.len())).find(|&at| self.is_cut(text, at)));
        match found {
            Some(at) => Ok(&text[..at]),
            None => Err(self.stretch),
        }
    }

    /// Whether `text` may be cut before byte `at`, where a character begins, or at its end.
    fn is_cut(&self, text: &str, at: usize) -> bool {
        is_joint(text, at) && !self.added.iter().any(|added| spans(added.as_bytes(), text.as_bytes(), at, self.longest))
    }
}

/// Whether pieces end at byte `at`, where a character begins, or at the end, and no added token spans it.
pub fn is_joint(text: &str, at: usize) -> bool {
    let Some(next) = text[at..].chars().next() else { return true };
    let Some(before) = text[..at].chars().next_back() else { return true };
    !before.is_whitespace() && matches!(next, ' ' | '\t') || is_letter(before) && is_punctuation(next)
}

/// Whether `added` could stand around byte `at`.
fn spans(added: &[u8], text: &[u8], at: usize, longest: usize) -> bool {
    let first = (at + 1).saturating_sub(added.len().min(longest));
    (first..at).any(|start| text[start..].starts_with(added))
}

/// Whether this pre-tokenizer splits texts by one of the known patterns into bytes of their own.
fn splits(pre_tokenizer: &Value) -> bool {
    let bytes = |part: &Value, by_itself: bool| {
        part["type"] == "ByteLevel"
            && part["add_prefix_space"] == false
            && (!by_itself || part["use_regex"].as_bool().unwrap_or(true))
    };
    let pattern = |part: &Value| {
        part["type"] == "Split"
            && part["behavior"] == "Isolated"
            && part["invert"] == false
            && part["pattern"]["Regex"].as_str().is_some_and(|pattern| PATTERNS.contains(&pattern))
    };
    match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
        None => bytes(pre_tokenizer, true),
        Some([first, last]) if pre_tokenizer["type"] == "Sequence" => {
            pattern(first) && bytes(last, false) || first["type"] == "Digits" && bytes(last, true)
        }
        Some(_) => false,
    }
}

/// Letters of the scripts that write without spaces, and the plainest of the others. All are letters to the patterns.
fn is_letter(c: char) -> bool {
    matches!(c, 'a'..='z' | 'A'..='Z' | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' | '\u{4e00}'..='\u{9fd5}' | '\u{ac00}'..='\u{d7a3}')
}

/// Characters that no pattern takes for a letter or digit, and that nothing composes with.
fn is_punctuation(c: char) -> bool {
    c.is_ascii() && !c.is_ascii_alphanumeric()
        || matches!(c, '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{ff01}' | '\u{ff0c}' | '\u{ff1a}' | '\u{ff1b}' | '\u{ff1f}')
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::Arc};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{Checkpoint, ModelError, Tokenizer, Written};

    /// A name, its tokenizer, and the library's own that takes all of a text for text.
    type Form = (&'static str, Tokenizer, tokenizers::Tokenizer);

    /// Tokenizers of every known form: as the fixtures and the embedded model have them, and its vocabulary behind the
    /// pre-tokenizers of others. All cut texts every few bytes.
    fn tokenizers() -> Vec<Form> {
        let embedded = Checkpoint::embedded().unwrap().tokenizer_json().to_vec();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
        let fixture = |name: &str| fs::read(golden.join(name).join("tokenizer.json")).unwrap();
        let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
        let split = |pattern: usize| json!({"type": "Split", "pattern": {"Regex": PATTERNS[pattern]}, "behavior": "Isolated", "invert": false});
        let edited = |edit: &dyn Fn(&mut Value)| {
            let mut form: Value = serde_json::from_slice(&embedded).unwrap();
            edit(&mut form);
            serde_json::to_vec(&form).unwrap()
        };
        let sequence = |first: Value, regex: bool| {
            move |form: &mut Value| {
                form["pre_tokenizer"] =
                    json!({"type": "Sequence", "pretokenizers": [first.clone(), byte_level(regex)]});
            }
        };
        let digits = json!({"type": "Digits", "individual_digits": true});
        let forms = [
            ("embedded", embedded.clone()),
            ("tiny-llama", fixture("tiny-llama")),
            ("tiny-qwen2", fixture("tiny-qwen2")),
            ("gpt-2", edited(&|form| form["pre_tokenizer"] = byte_level(true))),
            ("llama-3", edited(&sequence(split(1), false))),
            ("smollm2", edited(&sequence(digits, true))),
            (
                "qwen2",
                edited(&|form| {
                    sequence(split(2), false)(form);
                    form["normalizer"] = json!({"type": "NFC"});
                }),
            ),
        ];
        let small = |(name, json): (&'static str, Vec<u8>)| {
            let mut tokenizer = Tokenizer::from_json(&json, name).unwrap();
            let cuts = tokenizer.cuts.as_mut().unwrap_or_else(|| panic!("{name} has no cuts"));
            let cuts = Arc::get_mut(cuts).unwrap();
            (cuts.slice, cuts.stretch) = (24, 1 << 12);
            let mut blind = (*tokenizer.inner).clone();
            blind.set_encode_special_tokens(true);
            (name, tokenizer, blind)
        };
        forms.into_iter().map(small).collect()
    }

    fn check(tokenizers: &[Form], text: &str) {
        for (name, tokenizer, blind) in tokenizers {
            let (whole, raw) = (tokenizer.encode(text).unwrap(), Written::from(text.to_owned()));
            let most = whole.len().max(text.len());
            assert_eq!(tokenizer.encode_most(&raw, most).unwrap(), whole, "{name}: {text:?}");
            // As the library does where it looks for no special token.
            let blind = blind.encode_fast(text, false).unwrap().get_ids().to_vec();
            assert_eq!(tokenizer.encode_most(&Written::message(text), most).unwrap(), blind, "{name}: {text:?}");
        }
    }

    /// What texts are made of, with what could go wrong at a cut.
    const PIECES: [&str; 44] = [
        "the",
        "Whale",
        " a",
        "don't",
        "we'll",
        "I'D",
        "\u{17f}",
        " ",
        "  ",
        "    ",
        "\t",
        "\n",
        "\r\n",
        "\n \n",
        " \n",
        "12",
        "1234567",
        " 3",
        ".",
        "...",
        "?!",
        "-",
        "\u{2014}",
        "\"",
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|eot",
        "_id|>",
        "<|",
        "begin_of",
        "\u{e9}",
        "e\u{301}",
        "\u{1100}\u{1161}\u{11a8}",
        "\u{d55c}",
        "\u{4f60}\u{597d}",
        "\u{3002}",
        "\u{304b}\u{3099}",
        "\u{e19}\u{e49}",
        "\u{644}\u{64e}",
        "\u{1f600}",
        "\u{a0}",
        "\u{2003}",
        "\u{301}",
        "\u{1}",
    ];

    proptest! {
        #[test]
        fn parts_tokenise_to_what_the_whole_does(pieces in prop::collection::vec(0..PIECES.len(), 0..60)) {
            thread_local!(static KEPT: Vec<Form> = tokenizers());
            let text: String = pieces.iter().map(|&piece| PIECES[piece]).collect();
            KEPT.with(|kept| check(kept, &text));
        }

        #[test]
        fn parts_of_any_characters_do(text in "\\PC{0,200}", spaces in "[ a\\n\t\r.,'0é한。]{0,200}") {
            thread_local!(static KEPT: Vec<Form> = tokenizers());
            KEPT.with(|kept| check(kept, &(text + &spaces)));
        }
    }

    #[test]
    fn long_runs_are_tokenised_whole_and_longer_ones_refused() {
        let tokenizers = tokenizers();
        for run in ["a", " ", "\n", ".", "7", "\u{4f60}", "\u{301}"] {
            check(&tokenizers, &run.repeat(1000));
            check(&tokenizers, &format!("before it {} and after", run.repeat(700)));
            let (_, tokenizer, _) = &tokenizers[0];
            let refused = tokenizer.encode_most(&run.repeat(5000).into(), 1 << 20).unwrap_err();
            assert!(matches!(refused, ModelError::Uncut { most: 4096 }), "{run:?}: {refused}");
        }
    }

    #[test]
    fn too_much_is_noticed_early() {
        let tokenizer = Tokenizer::from_checkpoint(&Checkpoint::embedded().unwrap()).unwrap();
        let most = tokenizer.most_bytes(1000);
        let many = tokenizer.encode_most(&"x ".repeat(most / 2).into(), 1000).unwrap_err();
        assert_eq!((many.code(), many.to_string().contains("1000 tokens")), ("context_too_long", true));
        let long = tokenizer.encode_most(&"x ".repeat(most).into(), 1000).unwrap_err();
        assert!(matches!(long, ModelError::TooManyBytes { .. }), "{long}");
        assert_eq!(tokenizer.encode_most(&Written::default(), 0).unwrap(), Vec::<u32>::new());
    }

    #[test]
    fn unknown_forms_have_no_cuts() {
        let embedded = Checkpoint::embedded().unwrap().tokenizer_json().to_vec();
        let with = |key: &str, value: Value| {
            let mut form: Value = serde_json::from_slice(&embedded).unwrap();
            form[key] = value;
            Cuts::of(&serde_json::to_vec(&form).unwrap())
        };
        assert!(with("version", json!("1.0")).is_some());
        assert!(with("normalizer", json!({"type": "Lowercase"})).is_none());
        assert!(with("pre_tokenizer", json!(null)).is_none());
        assert!(with("pre_tokenizer", json!({"type": "Metaspace", "replacement": "\u{2581}"})).is_none());
        assert!(with("pre_tokenizer", json!({"type": "ByteLevel", "add_prefix_space": true})).is_none());
        assert!(with("added_tokens", json!([{"id": 0, "content": "<s>", "rstrip": true}])).is_none());
    }
}
