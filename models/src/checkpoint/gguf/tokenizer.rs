//! The tokenizer and the chat template of a model in GGUF, in the words of tokenizer.json and tokenizer_config.json. Tokenises nothing.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{metadata::Metadata, patterns::Splitting};
use crate::ModelError;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const SCORES: &str = "tokenizer.ggml.scores";

/// Kinds of tokens that stand for themselves in texts: control ones are special.
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;

/// What stands for a space in the vocabularies of SentencePiece.
const MARK: &str = "\u{2581}";

/// Tokens that end a turn or a text, whatever the file calls the end.
const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|return|>",
];

/// Special tokens by what tokenizer_config.json and the metadata call them.
const NAMED: [(&str, &str); 7] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("cls_token", "tokenizer.ggml.cls_token_id"),
    ("mask_token", "tokenizer.ggml.mask_token_id"),
];

/// The ids that end a generation: those that the file names, and control tokens that models end turns and texts with.
pub(super) fn ends(metadata: &Metadata<'_>) -> Result<Value, ModelError> {
    let mut ids = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ids.extend(metadata.count(&format!("tokenizer.ggml.{key}"), u64::from(u32::MAX))?);
    }
    let (tokens, kinds) = (metadata.texts(TOKENS)?.unwrap_or_default(), metadata.numbers(KINDS)?.unwrap_or_default());
    let control = tokens.iter().zip(kinds).enumerate().filter(|(_, (_, kind))| *kind == CONTROL);
    ids.extend(control.filter(|(_, (token, _))| ENDS.contains(token)).map(|(id, _)| id as u64));
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(if ids.is_empty() { Value::Null } else { json!(ids) })
}

/// The vocabulary.
struct Vocabulary<'a> {
    metadata: &'a Metadata<'a>,
    tokens: Vec<&'a str>,
    kinds: Vec<f64>,
    ids: HashMap<&'a str, usize>,
}

/// tokenizer.json and tokenizer_config.json of a model with so many rows in its table.
pub(super) fn files(metadata: &Metadata<'_>, rows: usize) -> Result<(Value, Value), ModelError> {
    let vocabulary = Vocabulary::read(metadata, rows)?;
    let model = metadata.needed(MODEL, metadata.text(MODEL)?)?;
    let tokenizer = match model {
        "gpt2" => vocabulary.by_bytes()?,
        "llama" => vocabulary.by_scores()?,
        other => return Err(metadata.refuses(MODEL, other, "gpt2 (BPE of bytes) or llama (SentencePiece)")),
    };
    let mut config = Map::new();
    for (name, key) in NAMED {
        config.extend(vocabulary.token(key)?.map(|token| (name.to_owned(), Value::from(token))));
    }
    let template = metadata.text("tokenizer.chat_template")?;
    config.extend(template.map(|template| ("chat_template".to_owned(), Value::from(template))));
    Ok((tokenizer, Value::Object(config)))
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata<'a>, rows: usize) -> Result<Self, ModelError> {
        let tokens = metadata.needed(TOKENS, metadata.texts(TOKENS)?)?;
        if tokens.len() > rows || tokens.is_empty() {
            let expected = format!("1 to {rows}, the rows of token_embd.weight");
            return Err(metadata.refuses(TOKENS, format!("{} tokens", tokens.len()), expected));
        }
        let kinds = metadata.numbers(KINDS)?.unwrap_or_else(|| vec![1.0; tokens.len()]);
        if kinds.len() != tokens.len() {
            let expected = format!("{}, one for each of {TOKENS}", tokens.len());
            return Err(metadata.refuses(KINDS, format!("{} kinds", kinds.len()), expected));
        }
        // The first of a name is the one that texts have.
        let ids = tokens.iter().enumerate().rev().map(|(id, token)| (*token, id)).collect();
        Ok(Self { metadata, tokens, kinds, ids })
    }

    /// The token whose id a key has.
    fn token(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(id) = self.metadata.count(key, u64::from(u32::MAX))? else { return Ok(None) };
        let token = self.tokens.get(id as usize).copied();
        token.map(Some).ok_or_else(|| {
            self.metadata.refuses(
                key,
                id.to_string(),
                format!("an id below {}, the tokens that there are", self.tokens.len()),
            )
        })
    }

    fn flag(&self, name: &str, otherwise: bool) -> Result<bool, ModelError> {
        Ok(self.metadata.flag(&format!("tokenizer.ggml.{name}"))?.unwrap_or(otherwise))
    }

    /// BPE of bytes, whose merges the file has.
    fn by_bytes(&self) -> Result<Value, ModelError> {
        let pre = self.metadata.text(PRE)?;
        let splitting = Splitting::named(pre)
            .map_err(|known| self.metadata.refuses(PRE, pre.unwrap_or_default(), format!("one of {known}")))?;
        let merges = self.metadata.needed(MERGES, self.metadata.texts(MERGES)?)?;
        let merges = merges.into_iter().enumerate().map(|(at, merge)| self.merge(at, merge));
        let merges = merges.collect::<Result<Vec<_>, _>>()?;
        let decoder = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        let mut file = self.file(splitting.adds_beginning)?;
        file["normalizer"] = splitting.normalizer();
        file["pre_tokenizer"] = splitting.pre_tokenizer();
        file["decoder"] = decoder;
        file["model"] = self.bpe(merges);
        file["model"]["ignore_merges"] = splitting.ignores_merges.into();
        Ok(file)
    }

    /// Two tokens whose join is one, by their texts.
    fn merge(&self, at: usize, merge: &'a str) -> Result<(&'a str, &'a str), ModelError> {
        let wrong =
            |got: String, expected: &str| self.metadata.refuses(MERGES, format!("{got} at number {at}"), expected);
        // A token may begin with a space, and have no other.
        let space = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
        let Some(space) = space else {
            return Err(wrong(format!("{merge:?}"), "two tokens with a space between them"));
        };
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        let joined = [left, right].concat();
        match [left, right, &joined].into_iter().find(|token| !self.ids.contains_key(*token)) {
            Some(lacks) => Err(wrong(format!("{merge:?}"), &format!("tokens of {TOKENS}, which lacks {lacks:?}"))),
            None => Ok((left, right)),
        }
    }

    /// SentencePiece's BPE: pieces are joined by the scores of what they come to.
    fn by_scores(&self) -> Result<Value, ModelError> {
        let scores = self.metadata.needed(SCORES, self.metadata.numbers(SCORES)?)?;
        if scores.len() != self.tokens.len() {
            let expected = format!("{}, one for each of {TOKENS}", self.tokens.len());
            return Err(self.metadata.refuses(SCORES, format!("{} scores", scores.len()), expected));
        }
        let prefix = self.flag("add_space_prefix", true)?;
        let mut file = self.file(true)?;
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": MARK});
        let steps = prefix.then(|| json!({"type": "Prepend", "prepend": MARK})).into_iter().chain([spaces]);
        file["normalizer"] = json!({"type": "Sequence", "normalizers": steps.collect::<Vec<_>>()});
        let mut decoders = vec![
            json!({"type": "Replace", "pattern": {"String": MARK}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        decoders.extend(prefix.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
        file["decoder"] = json!({"type": "Sequence", "decoders": decoders});
        file["model"] = self.bpe(self.merges_by(&scores));
        let unknown = self.token("tokenizer.ggml.unknown_token_id")?;
        let unknown = unknown.or_else(|| self.kinds.iter().position(|kind| *kind == UNKNOWN).map(|id| self.tokens[id]));
        for (key, value) in [("unk_token", json!(unknown)), ("fuse_unk", json!(true)), ("byte_fallback", json!(true))] {
            file["model"][key] = value;
        }
        Ok(file)
    }

    /// Every way to join two tokens to one, the best score first: as transformers makes merges of a vocabulary with scores.
    fn merges_by(&self, scores: &[f64]) -> Vec<(&'a str, &'a str)> {
        let mut merges = Vec::new();
        for (token, score) in self.tokens.iter().zip(scores) {
            let cuts = token.char_indices().skip(1).map(|(at, _)| (&token[..at], &token[at..]));
            let known = cuts.filter_map(|(left, right)| Some((self.ids.get(left)?, self.ids.get(right)?, left, right)));
            let mut local: Vec<_> = known.collect();
            local.sort_by_key(|(left, right, ..)| (**left, **right));
            merges.extend(local.into_iter().map(|(_, _, left, right)| (*score, left, right)));
        }
        let lengths = |left: &str, right: &str| (left.chars().count(), right.chars().count());
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| lengths(b.1, b.2).cmp(&lengths(a.1, a.2))));
        merges.into_iter().map(|(_, left, right)| (left, right)).collect()
    }

    fn bpe(&self, merges: Vec<(&str, &str)>) -> Value {
        let vocabulary: Map<String, Value> =
            self.tokens.iter().map(|token| ((*token).to_owned(), self.ids[token].into())).collect();
        json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges,
        })
    }

    /// What every tokenizer.json has: added tokens, and what stands around every text.
    fn file(&self, adds_beginning: bool) -> Result<Value, ModelError> {
        let added = |(id, kind): (usize, &f64)| {
            let special = match *kind {
                CONTROL | UNKNOWN => true,
                USER_DEFINED => false,
                _ => return None,
            };
            Some(json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }))
        };
        let added: Vec<Value> = self.kinds.iter().enumerate().filter_map(added).collect();
        let around = |flag: &str, otherwise, key: &str| -> Result<Option<&'a str>, ModelError> {
            let adds = self.flag(flag, otherwise)?;
            let token = self.token(key)?;
            if adds && token.is_none() && self.metadata.field(&format!("tokenizer.ggml.{flag}")).is_some() {
                return Err(self.metadata.refuses(
                    key,
                    "missing",
                    format!("an id, since tokenizer.ggml.{flag} is true"),
                ));
            }
            Ok(token.filter(|_| adds))
        };
        let begin = around("add_bos_token", adds_beginning, "tokenizer.ggml.bos_token_id")?;
        let end = around("add_eos_token", false, "tokenizer.ggml.eos_token_id")?;
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": null, "post_processor": self.processor(begin, end), "decoder": null,
        }))
    }

    fn processor(&self, begin: Option<&str>, end: Option<&str>) -> Value {
        if begin.is_none() && end.is_none() {
            return Value::Null;
        }
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let token = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let around = |texts: &[&str]| -> Vec<Value> {
            texts.iter().flat_map(|id| begin.map(token).into_iter().chain([text(id)]).chain(end.map(token))).collect()
        };
        let named = |name: &str| (name.to_owned(), json!({"id": name, "ids": [self.ids[name]], "tokens": [name]}));
        let special: Map<String, Value> = begin.into_iter().chain(end).map(named).collect();
        json!({"type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]), "special_tokens": special})
    }
}
