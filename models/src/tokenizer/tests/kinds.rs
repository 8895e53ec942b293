//! Small tokenizers of many kinds, for tests.

use std::{fs, path::Path, sync::Arc};

use serde_json::{Value, json};

use super::super::Tokenizer;
use super::super::joints::{Joints, pattern_text};
use super::super::recent::RecentParts;
use crate::Checkpoint;

/// A small tokenizer, and the library's own of the same file.
pub struct Kind {
    pub name: &'static str,
    pub tokenizer: Tokenizer,
    pub library: tokenizers::Tokenizer,
    /// The same, to which every special token's name is text.
    pub blind: tokenizers::Tokenizer,
    /// Whether it is known where its texts can be cut.
    pub is_cut: bool,
}

impl Kind {
    fn new(name: &'static str, form: &Value, is_cut: bool) -> Self {
        let json = serde_json::to_vec(form).unwrap();
        let library = tokenizers::Tokenizer::from_bytes(&json).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut blind = library.clone();
        blind.set_encode_special_tokens(true);
        let mut tokenizer = Tokenizer::from_files(&json, Default::default(), ("llama", name)).unwrap();
        assert_eq!(tokenizer.joints.is_some(), is_cut, "{name}");
        let joints = tokenizer.joints.take().and_then(Arc::into_inner);
        tokenizer.joints = joints.map(|joints: Joints| Arc::new(joints.with_sizes(24, 1 << 12)));
        // Texts are made of few pieces, so that most parts have come before.
        tokenizer.recent = Arc::new(RecentParts::of((1, 1 << 14)));
        Self { name, tokenizer, library, blind, is_cut }
    }

    /// What the library makes of a text.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        self.library.encode_fast(text, false).unwrap().get_ids().to_vec()
    }
}

/// Every kind.
pub fn all() -> Vec<Kind> {
    [by_bytes(), by_marks(), by_others()].into_iter().flatten().collect()
}

fn embedded() -> Value {
    serde_json::from_slice(Checkpoint::embedded().unwrap().tokenizer_json()).unwrap()
}

fn fixture(name: &str) -> Value {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/models");
    serde_json::from_slice(&fs::read(golden.join(name).join("tokenizer.json")).unwrap()).unwrap()
}

/// The embedded model's tokenizer, some of it replaced.
fn edited(edits: &[(&str, Value)]) -> Value {
    let mut form = embedded();
    edits.iter().for_each(|(key, value)| form[*key] = value.clone());
    form
}

fn byte_level(prefix: bool, regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex})
}

fn behind(first: Value, regex: bool) -> Value {
    json!({"type": "Sequence", "pretokenizers": [first, byte_level(false, regex)]})
}

fn split(pattern: usize) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern_text(pattern)}, "behavior": "Isolated", "invert": false})
}

fn added(id: u32, content: &str, flags: &[&str]) -> Value {
    let mut token = json!({"id": id, "content": content});
    for flag in ["single_word", "lstrip", "rstrip", "normalized", "special"] {
        token[flag] = json!(flags.contains(&flag));
    }
    token
}

/// Those that split by a pattern and go on with bytes.
fn by_bytes() -> Vec<Kind> {
    let pre = |pre_tokenizer: Value| edited(&[("pre_tokenizer", pre_tokenizer)]);
    let nfc = json!({"type": "NFC"});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let mut flagged = embedded();
    let tokens = [
        ("<mask>", &["lstrip", "special"][..]),
        ("<end>", &["rstrip", "special"]),
        ("word", &["single_word"]),
        ("</think>", &[]),
        ("Whale<b>", &["normalized"]),
        ("<|eot_id|>!", &["special"]),
    ];
    let many = tokens.iter().enumerate().map(|(at, (name, flags))| added(20_000 + at as u32, name, flags));
    flagged["added_tokens"].as_array_mut().unwrap().extend(many);
    vec![
        Kind::new("embedded", &embedded(), true),
        Kind::new("tiny-llama", &fixture("tiny-llama"), true),
        Kind::new("tiny-qwen2", &fixture("tiny-qwen2"), true),
        Kind::new("gpt-2", &pre(byte_level(false, true)), true),
        Kind::new("prefix space", &pre(byte_level(true, true)), true),
        Kind::new("llama-3", &pre(behind(split(1), false)), true),
        Kind::new("qwen2", &edited(&[("pre_tokenizer", behind(split(2), false)), ("normalizer", nfc.clone())]), true),
        Kind::new("qwen3.5", &edited(&[("pre_tokenizer", behind(split(3), false)), ("normalizer", nfc.clone())]), true),
        Kind::new("tekken", &pre(behind(split(4), false)), true),
        Kind::new("gpt-4o", &pre(behind(split(5), false)), true),
        Kind::new("smollm2", &pre(behind(digits, true)), true),
        Kind::new("flagged", &flagged, true),
        Kind::new(
            "flagged nfc",
            &{
                let mut form = flagged.clone();
                form["normalizer"] = nfc;
                form
            },
            true,
        ),
        Kind::new(
            "lower case",
            &{
                let mut form = flagged;
                form["normalizer"] =
                    json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]});
                form
            },
            true,
        ),
        Kind::new(
            "unknown pattern",
            &pre(behind(
                json!({"type": "Split", "pattern": {"Regex": r"\w+ ?|\W"}, "behavior": "Isolated", "invert": false}),
                false,
            )),
            false,
        ),
    ]
}

/// Words of which vocabularies are made, each by merging from its beginning.
const WORDS: [&str; 14] =
    ["▁the", "▁Whale", "hale", "▁a", "▁▁", "▁▁▁▁", "don", "ll", "12", "...", "ing", "▁.", "..", "Who"];

/// A byte pair encoding over words with marks, of single characters and of bytes.
fn marked(normalizer: Value, pre_tokenizer: Value, by_bytes: bool) -> Value {
    let (mut entries, mut merges) = (vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()], Vec::new());
    let mut add = |entry: String| {
        if !entries.contains(&entry) {
            entries.push(entry)
        }
    };
    if by_bytes {
        (0..=255).for_each(|byte| add(format!("<0x{byte:02X}>")));
    }
    for word in WORDS {
        word.chars().for_each(|c| add(c.to_string()));
        for (at, c) in word.char_indices().skip(1) {
            let merge = format!("{} {c}", &word[..at]);
            if !merges.contains(&merge) {
                merges.push(merge);
            }
            add(word[..at + c.len_utf8()].to_owned());
        }
    }
    "bcdfgjkmpqrsuvwxyzABCDEFG?!,é\n".chars().for_each(|c| add(c.to_string()));
    let next = entries.len() as u32;
    let vocabulary: serde_json::Map<String, Value> =
        entries.into_iter().enumerate().map(|(id, entry)| (entry, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null, "decoder": null,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "added_tokens": [
            added(0, "<unk>", &["special"]), added(1, "<s>", &["special"]), added(2, "</s>", &["special", "rstrip"]),
            added(next, "[INST]", &["special"]), added(next + 1, "<mask>", &["special", "lstrip"]), added(next + 2, "Whole", &["single_word"]),
            added(next + 3, "\n\n", &[]),
        ],
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": by_bytes, "ignore_merges": false, "vocab": vocabulary, "merges": merges},
    })
}

fn metaspace(scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
}

/// Those whose spaces become marks.
fn by_marks() -> Vec<Kind> {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let legacy = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace.clone()]});
    let merged =
        json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
    let mut normalized = marked(legacy.clone(), Value::Null, true);
    for at in [1, 2, 3, 5] {
        normalized["added_tokens"][at]["normalized"] = json!(true);
    }
    let folded = json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]});
    vec![
        Kind::new("first", &marked(Value::Null, metaspace("first", true), true), true),
        Kind::new("always", &marked(Value::Null, metaspace("always", true), false), true),
        Kind::new("never", &marked(Value::Null, metaspace("never", true), true), true),
        Kind::new("first, whole", &marked(Value::Null, metaspace("first", false), true), true),
        Kind::new("always, whole", &marked(Value::Null, metaspace("always", false), true), true),
        Kind::new("never, whole", &marked(Value::Null, metaspace("never", false), false), true),
        Kind::new("legacy", &marked(legacy.clone(), Value::Null, true), true),
        Kind::new("legacy, unknown", &marked(legacy, Value::Null, false), true),
        Kind::new("legacy, normalized names", &normalized, true),
        Kind::new("gemma", &marked(replace, merged, true), true),
        Kind::new("folded", &marked(folded, metaspace("first", false), true), true),
    ]
}

/// Those of other models.
fn by_others() -> Vec<Kind> {
    let base = marked(Value::Null, metaspace("first", true), false);
    let entries: Vec<String> = base["model"]["vocab"].as_object().unwrap().keys().cloned().collect();
    let scored: Vec<Value> = ["<unk>", "<s>", "</s>"]
        .into_iter()
        .map(|entry| json!([entry, 0.0]))
        .chain(
            entries
                .iter()
                .filter(|entry| !entry.starts_with('<'))
                .enumerate()
                .map(|(at, entry)| json!([entry, -8.0 - at as f64 / 16.0 + 2.0 * entry.chars().count() as f64])),
        )
        .collect();
    let with = |model: Value, pre_tokenizer: Value| {
        let mut form = base.clone();
        (form["model"], form["pre_tokenizer"]) = (model, pre_tokenizer);
        let count = 300;
        for (at, token) in form["added_tokens"].as_array_mut().unwrap().iter_mut().enumerate().skip(3) {
            token["id"] = json!(count + at);
        }
        form
    };
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": scored, "byte_fallback": false});
    let mut words: serde_json::Map<String, Value> = base["model"]["vocab"].as_object().unwrap().clone();
    words.extend((0..3).map(|at| (format!("word{at}"), json!(200 + at))));
    let words = json!({"type": "WordLevel", "unk_token": "<unk>", "vocab": words});
    vec![
        Kind::new("unigram", &with(unigram.clone(), metaspace("always", true)), true),
        Kind::new("unigram, whole", &with(unigram, metaspace("first", false)), false),
        Kind::new("words", &with(words, json!({"type": "Whitespace"})), true),
    ]
}
