//! The library's steps from a text to ids, one section of it at a time: what lies between two added tokens is normalised, split
//! and tokenised as within the whole. Adds no special token and cuts nothing.

use std::ops::Range;

use tokenizers::normalizer::Range as Bytes;
use tokenizers::{Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer, Token};

use super::{names::AddedTokenNames, place::TextPlace};
use crate::ModelError;

/// What stands for an added token before a text. The library treats the first section of a text apart.
const TOKEN_BEFORE: &str = "x";

/// A tokenizer's steps.
pub struct Steps {
    inner: tokenizers::Tokenizer,
    /// Added tokens that texts are searched for as they are, and once they are normalised.
    pub raw: AddedTokenNames,
    pub normalized: AddedTokenNames,
    /// Whether a section can be taken up within only behind the character before.
    pub anchored: bool,
}

impl Steps {
    /// Those of a tokenizer.
    pub fn new(inner: tokenizers::Tokenizer) -> Result<Self, tokenizers::Error> {
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        let mut added: Vec<_> = inner.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(id, _)| *id);
        for (id, token) in added.into_iter().filter(|(_, token)| !token.content.is_empty()) {
            if token.normalized {
                let mut name = NormalizedString::from(token.content.as_str());
                inner.get_normalizer().map(|normalizer| normalizer.normalize(&mut name)).transpose()?;
                normalized.push((id, name.get().to_owned(), token));
            } else {
                raw.push((id, token.content.clone(), token));
            }
        }
        normalized.retain(|(_, name, _)| !name.is_empty());
        let (raw, normalized) = (AddedTokenNames::new(raw)?, AddedTokenNames::new(normalized)?);
        Ok(Self { inner, raw, normalized, anchored: false })
    }

    /// The library's tokenizer.
    pub fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// The ids of `text`, a section or a part of one, which begins at `place`. `is_text`: whether no special token is named
    /// in a range of it.
    pub fn ids(
        &self,
        text: &str,
        place: TextPlace,
        is_text: impl Fn(Range<usize>) -> bool,
    ) -> Result<Vec<u32>, ModelError> {
        let lead = match place.before {
            Some(before) if place.inside && self.anchored => Lead::Text(before),
            Some(_) if !place.inside => Lead::Token,
            _ => Lead::None,
        };
        let string = match lead {
            Lead::Text(before) => format!("{before}{text}"),
            Lead::Token => [TOKEN_BEFORE, text].concat(),
            Lead::None => text.to_owned(),
        };
        let lead_bytes = string.len() - text.len();
        let is_text =
            |range: Range<usize>| is_text(range.start.saturating_sub(lead_bytes)..range.end.saturating_sub(lead_bytes));
        self.run(string, (lead, lead_bytes), is_text).map_err(refused)
    }

    fn run(
        &self,
        string: String,
        (lead, lead_bytes): (Lead, usize),
        is_text: impl Fn(Range<usize>) -> bool,
    ) -> Result<Vec<u32>, tokenizers::Error> {
        let mut string = PreTokenizedString::from(string);
        if let Lead::Token = lead {
            string.split(|_, text| {
                let rest = text.slice(Bytes::Original(lead_bytes..)).expect("the lead is whole characters");
                let lead = text.slice(Bytes::Original(..lead_bytes)).expect("the lead is whole characters");
                let token = Token::new(0, TOKEN_BEFORE.to_owned(), (0, lead_bytes));
                Ok([(lead, Some(vec![token])), (rest, None)])
            })?;
        }
        string.split(|_, mut text| {
            self.normalize(&mut text)?;
            Ok(self.split(text, &is_text))
        })?;
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut string)?;
        }
        string.tokenize(|text| self.inner.get_model().tokenize(text.get()))?;
        Ok(match lead {
            Lead::None => string.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec(),
            Lead::Token => string.into_encoding(None, 0, OffsetType::None)?.get_ids()[1..].to_vec(),
            Lead::Text(_) => {
                let encoding = string.into_encoding(None, 0, OffsetType::Byte)?;
                let behind = encoding.get_offsets().iter().take_while(|(_, end)| *end <= lead_bytes).count();
                encoding.get_ids()[behind..].to_vec()
            }
        })
    }

    fn normalize(&self, text: &mut NormalizedString) -> Result<(), tokenizers::Error> {
        self.inner.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(text))
    }

    /// A normalised section, split at the added tokens that are searched for in it.
    fn split(
        &self,
        text: NormalizedString,
        is_text: &impl Fn(Range<usize>) -> bool,
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let begins = text.offsets_original().0;
        let original = |range: Range<usize>| {
            let original = text.convert_offsets(Bytes::Normalized(range)).unwrap_or(0..0);
            begins + original.start..begins + original.end
        };
        let slice = |range: Range<usize>| text.slice(Bytes::Normalized(range)).expect("names are whole characters");
        let (mut splits, mut taken) = (Vec::new(), 0);
        for found in self.normalized.found(text.get(), None, |range| is_text(original(range))) {
            if taken < found.range.start {
                splits.push((slice(taken..found.range.start), None));
            }
            let token = Token::new(found.id, String::new(), (0, found.range.len()));
            splits.push((slice(found.range.clone()), Some(vec![token])));
            taken = found.range.end;
        }
        if splits.is_empty() {
            return vec![(text, None)];
        }
        if taken < text.get().len() {
            splits.push((slice(taken..text.get().len()), None));
        }
        splits
    }
}

/// What is put before a text so that it is not the first of all.
#[derive(Clone, Copy)]
enum Lead {
    None,
    Token,
    Text(char),
}

/// What the library reports.
pub fn refused(error: tokenizers::Error) -> ModelError {
    ModelError::Tokenizer { cause: error.to_string() }
}
