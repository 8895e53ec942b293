//! tokenizer.json: text to ids and back, whole or token by token. Adds special tokens only where it is asked for those that the
//! tokenizer puts around every text. Renders nothing.

pub(crate) mod border;
mod bytes;
mod class;
mod fuel;
mod joints;
mod names;
mod place;
mod recent;
mod steps;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
mod vocabulary;
mod written;

use std::{ops::Range, sync::Arc};

use tokenizers::{Encoding, PostProcessor, Token};

use class::{Config, Largest};
use joints::{Joints, WHOLE};
use place::TextPlace;
use recent::RecentParts;
use steps::{Steps, refused};

use crate::config::parse;
use crate::{Checkpoint, ModelError};
pub use place::Passage;
pub use written::Written;

/// A checkpoint's tokenizer; clones share it.
#[derive(Clone)]
pub struct Tokenizer {
    steps: Arc<Steps>,
    /// Where texts can be cut, if anywhere.
    joints: Option<Arc<Joints>>,
    around: Arc<Around>,
    /// Characters of the longest entry of the vocabulary.
    longest: usize,
    /// Most bytes of a text that can only be tokenised whole.
    whole: usize,
    /// The token of tokenizer.json with the largest id.
    largest: Option<Largest>,
    recent: Arc<RecentParts>,
}

/// Bytes of what may become of a text that is tokenised whole, on the way.
const GROWN: usize = 16 << 20;

/// Tokens that the tokenizer puts around every text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Around {
    /// Before it.
    pub before: Vec<u32>,
    /// Behind it.
    pub behind: Vec<u32>,
}

impl Tokenizer {
    /// Reads the checkpoint's tokenizer.json, and tokenizer_config.json as far as it decides over ids.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        let config = checkpoint.tokenizer_config_json().map(|json| parse("tokenizer_config.json", json)).transpose()?;
        let (json, name) = (checkpoint.tokenizer_json(), checkpoint.name());
        Self::from_files(json, config.unwrap_or_default(), (checkpoint.tokenizer_family(), name))
    }

    fn from_files(json: &[u8], config: Config, (family, name): (&str, &str)) -> Result<Self, ModelError> {
        let malformed = |error: tokenizers::Error| ModelError::Malformed {
            path: format!("{name}/tokenizer.json"),
            cause: error.to_string(),
        };
        let without = |got: &str| ModelError::Unfit {
            path: format!("{name}/tokenizer.json"),
            got: got.to_owned(),
            expected:
                "a tokenizer with its vocabulary: fetch the file again, or save it with transformers' save_pretrained"
                    .to_owned(),
        };
        if json.is_empty() {
            return Err(without("an empty file"));
        }
        let growth = fuel::growth(json).map_err(|cause| malformed(cause.into()))?;
        if !class::has_model(json) {
            return Err(without("without a model"));
        }
        let (mut inner, largest) = class::load(json, config, family).map_err(malformed)?;
        if inner.get_vocab_size(false) == 0 {
            return Err(without("without a vocabulary"));
        }
        // A context is never cut short or filled up unasked.
        inner.with_padding(None).with_truncation(None).map_err(malformed)?;
        let longest = inner.get_vocab(true).keys().map(|token| token.chars().count()).max().unwrap_or(1);
        let around = Around::of(&inner).map_err(malformed)?;
        let mut steps = Steps::new(inner).map_err(malformed)?;
        let joints = Joints::of(&steps);
        steps.anchored = joints.as_ref().is_some_and(Joints::needs_anchor);
        let (steps, joints, around) = (Arc::new(steps), joints.map(Arc::new), Arc::new(around));
        Ok(Self { steps, joints, around, longest, whole: WHOLE.min(GROWN / growth), largest, recent: Arc::default() })
    }

    /// Most bytes of text that can come to `tokens` tokens, or that are tokenised at all.
    pub fn most_bytes(&self, tokens: usize) -> usize {
        self.joints.as_ref().map_or(self.whole, |joints| joints.most_bytes(tokens, self.longest))
    }

    /// That a text of so many bytes cannot be one of `tokens` tokens.
    pub fn too_many_bytes(&self, bytes: usize, tokens: usize) -> ModelError {
        let least_tokens = self.joints.as_ref().map(|joints| joints.least_tokens(bytes, self.longest));
        ModelError::TooManyBytes { bytes, most: self.most_bytes(tokens), least_tokens }
    }

    /// The tokens that the tokenizer puts around every text, by its post-processor alone, as transformers has it.
    pub fn around(&self) -> &Around {
        &self.around
    }

    /// Names of special tokens.
    pub fn special_names(&self) -> impl Iterator<Item = &str> {
        let (raw, normalized) = (self.steps.raw.iter(), self.steps.normalized.iter());
        raw.chain(normalized).filter(|(_, token)| token.special).map(|(_, token)| token.content.as_str())
    }

    /// Ids of a whole text, as the library has them, but that messages name no special token. In parts and no further than to
    /// `most` tokens, so that a text that does not fit costs little.
    ///
    /// # Errors
    /// [`ModelError::TooManyBytes`], [`ModelError::TooManyTokens`] or [`ModelError::Uncut`], all with code
    /// `context_too_long`.
    pub fn encode_most(&self, written: &Written, most: usize) -> Result<Vec<u32>, ModelError> {
        self.encode_from((written, TextPlace::default()), usize::MAX, most).map(|(ids, _)| ids)
    }

    /// Ids of a text from some place of a longer one on, as within that.
    ///
    /// # Errors
    /// As for [`Tokenizer::encode_most`].
    pub fn encode_passage(&self, passage: &Passage, most: usize) -> Result<Vec<u32>, ModelError> {
        self.encode_from((&passage.written, passage.place), usize::MAX, most).map(|(ids, _)| ids)
    }

    /// Ids of a text that begins at `place`, and how many of them are of what stands before `border`.
    fn encode_from(
        &self,
        (written, place): (&Written, TextPlace),
        border: usize,
        most: usize,
    ) -> Result<(Vec<u32>, usize), ModelError> {
        let text = written.text();
        if text.len() > self.most_bytes(most) {
            return Err(self.too_many_bytes(text.len(), most));
        }
        let (mut ids, mut before, mut at) = (Vec::new(), 0, 0);
        for section in self.sections(written, place) {
            match section {
                Section::Token(id, _) => ids.push(id),
                Section::Text(Range { start, end }) => {
                    let mut from = start;
                    while from < end {
                        let to = if (from + 1..end).contains(&border) { border } else { end };
                        let to = self.part(text, from..to)?;
                        ids.extend_from_slice(&self.part_ids(
                            written,
                            from..to,
                            self.place(text, place, (start, from)),
                        )?);
                        if to <= border {
                            before = ids.len();
                        }
                        if ids.len() > most {
                            return Err(ModelError::TooManyTokens { most });
                        }
                        from = to;
                    }
                }
            }
            at = section.end();
            if at <= border {
                before = ids.len();
            }
            if ids.len() > most {
                return Err(ModelError::TooManyTokens { most });
            }
        }
        debug_assert!(at == text.len() || border == usize::MAX || at >= border);
        Ok((ids, before))
    }

    /// Where a part of a section ends.
    fn part(&self, text: &str, range: Range<usize>) -> Result<usize, ModelError> {
        match &self.joints {
            Some(joints) => joints.part(text, range).map_err(|most| ModelError::Uncut { most }),
            None => Ok(range.end),
        }
    }

    /// Ids of a part, which may be known from an earlier text.
    fn part_ids(&self, written: &Written, range: Range<usize>, place: TextPlace) -> Result<Arc<[u32]>, ModelError> {
        let hash = self.recent.hash((written.text(), written.literals()), &range, place);
        if let Some(known) = hash.and_then(|hash| self.recent.find(&hash)) {
            return Ok(known);
        }
        let is_text =
            |inner: Range<usize>| written.has_text_of_messages(&(range.start + inner.start..range.start + inner.end));
        let ids: Arc<[u32]> = self.steps.ids(&written.text()[range.clone()], place, is_text)?.into();
        if let Some(hash) = hash {
            self.recent.keep(hash, ids.clone());
        }
        Ok(ids)
    }

    /// Where a part begins that stands at `from` in a section from `start` on, of a text that begins at `place` itself.
    fn place(&self, text: &str, place: TextPlace, (start, from): (usize, usize)) -> TextPlace {
        match text[..from].chars().next_back() {
            None => place,
            before => TextPlace { before, inside: from > start || start == 0 && place.inside },
        }
    }

    /// The added tokens of a text, and what lies between them.
    fn sections<'a>(&'a self, written: &'a Written, place: TextPlace) -> impl Iterator<Item = Section> + 'a {
        let (text, mut taken) = (written.text(), 0);
        let mut found = self.steps.raw.found(text, place.before, |range| written.has_text_of_messages(&range));
        let mut next = None;
        std::iter::from_fn(move || {
            if let Some(token) = next.take() {
                return Some(token);
            }
            let (range, token) = match found.next() {
                Some(found) => (taken..found.range.start, Some(Section::Token(found.id, found.range))),
                None => (taken..text.len(), None),
            };
            taken = token.as_ref().map_or(text.len(), Section::end);
            if range.is_empty() {
                return token;
            }
            next = token;
            Some(Section::Text(range))
        })
    }

    /// Ids of `text`. Special tokens written out in it are recognised; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        Ok(self.steps.inner().encode_fast(text, false).map_err(refused)?.get_ids().to_vec())
    }

    /// Text of `ids`, special tokens written out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.steps.inner().decode(ids, false).map_err(refused)
    }

    /// Text of `ids` without the special tokens.
    pub fn decode_plain(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.steps.inner().decode(ids, true).map_err(refused)
    }

    /// The bytes that one token stands for within a text, a special token's as it is written, and of a byte that is written out, as
    /// `<0x0A>`, that byte; none where there is no such token.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let written = self.token(id)?;
        if bytes::is_by_bytes(self.steps.inner().get_decoder()) {
            return Some(bytes::of(&written).unwrap_or_else(|| written.into_bytes()));
        }
        if let Some(byte) = bytes::written_out(&written) {
            return Some(vec![byte]);
        }
        // Decoders may treat the first token of a text apart: what it adds behind itself is what it stands for.
        let (one, two) = (self.decode(&[id]).ok()?, self.decode(&[id, id]).ok()?);
        Some(two.strip_prefix(&one).unwrap_or(&one).as_bytes().to_vec())
    }

    /// The same for the parser of a form: a special token's stand behind a byte that no text has.
    pub(crate) fn guided_bytes(&self, id: u32) -> Vec<u8> {
        match self.token(id) {
            Some(written) if self.is_special(id) => [&[0xff], written.as_bytes()].concat(),
            _ => self.bytes(id).unwrap_or_default(),
        }
    }

    /// The same for a text without its special tokens, which have none.
    fn plain_bytes(&self, id: u32) -> Vec<u8> {
        if self.is_special(id) { Vec::new() } else { self.bytes(id).unwrap_or_default() }
    }

    fn is_special(&self, id: u32) -> bool {
        self.steps.inner().get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
    }

    /// Text of one token as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.steps.inner().id_to_token(id)
    }
}

/// A part of a text in which no added token is named, or one that is, with the bytes that it stands for.
#[derive(Clone, Debug)]
enum Section {
    Text(Range<usize>),
    Token(u32, Range<usize>),
}

impl Section {
    fn end(&self) -> usize {
        let (Self::Text(range) | Self::Token(_, range)) = self;
        range.end
    }
}

impl Around {
    /// What the post-processor of a tokenizer puts around any text.
    fn of(inner: &tokenizers::Tokenizer) -> Result<Self, tokenizers::Error> {
        let Some(processor) = inner.get_post_processor() else { return Ok(Self::default()) };
        // No vocabulary is as large.
        let text = u32::MAX;
        let encoding = Encoding::from_tokens(vec![Token::new(text, String::new(), (0, 0))], 0);
        let encoding = processor.process(encoding, None, true)?;
        let mut parts = encoding.get_ids().split(|id| *id == text);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(before), Some(behind), None) => Ok(Self { before: before.to_vec(), behind: behind.to_vec() }),
            _ => Err("its post_processor writes a text otherwise than once".into()),
        }
    }
}
