//! tokenizer.json: text to ids and back, whole or token by token. Adds no special token of its own accord.

mod bytes;
mod cuts;
mod fuel;
mod specials;

use std::sync::Arc;

use cuts::Cuts;
use specials::Specials;

use crate::{Checkpoint, ModelError, Written};

/// A checkpoint's tokenizer; clones share it.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// Where texts can be cut, if anywhere.
    cuts: Option<Arc<Cuts>>,
    specials: Arc<Specials>,
    /// Most bytes of text that a token stands for.
    token_bytes: usize,
    /// Most bytes of a text that can only be tokenised whole.
    whole_bytes: usize,
}

/// Most bytes of a text that can only be tokenised whole, and of what may become of it on the way.
const WHOLE_BYTES: usize = 2 << 20;
const GROWN_BYTES: usize = 16 << 20;

impl Tokenizer {
    /// Reads the checkpoint's tokenizer.json.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, ModelError> {
        let tokenizer = Self::from_json(checkpoint.tokenizer_json(), checkpoint.name())?;
        tokenizer.check_vocabulary(checkpoint.config().vocab, checkpoint.name())?;
        Ok(tokenizer)
    }

    /// Refuses tokens of the model's own vocabulary that the model has no embedding of. Added tokens may stand for what other
    /// inputs than texts have.
    fn check_vocabulary(&self, vocab: usize, name: &str) -> Result<(), ModelError> {
        let beyond =
            self.inner.get_vocab(false).into_iter().filter(|(_, id)| *id as usize >= vocab).max_by_key(|(_, id)| *id);
        match beyond {
            None => Ok(()),
            Some((token, id)) => Err(ModelError::Malformed {
                path: format!("{name}/tokenizer.json"),
                cause: format!("token {token:?} has id {id}, but config.json says vocab_size = {vocab}"),
            }),
        }
    }

    fn from_json(json: &[u8], name: &str) -> Result<Self, ModelError> {
        let malformed = |error: tokenizers::Error| ModelError::Malformed {
            path: format!("{name}/tokenizer.json"),
            cause: error.to_string(),
        };
        let growth = fuel::growth(json).map_err(|cause| malformed(cause.into()))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(malformed)?;
        // A context is never cut short or filled up unasked.
        inner.with_padding(None).with_truncation(None).map_err(malformed)?;
        let cuts = Cuts::of(json).map(Arc::new);
        // A character of a byte-level vocabulary is a byte.
        let longest = inner.get_vocab(true).keys().map(|token| token.chars().count()).max().unwrap_or(1);
        let token_bytes = cuts.as_ref().map_or(longest, |cuts| cuts.token_bytes(longest));
        let specials = Arc::new(Specials::of(json).map_err(malformed)?);
        let whole_bytes = WHOLE_BYTES.min(GROWN_BYTES / growth);
        Ok(Self { inner: Arc::new(inner), cuts, specials, token_bytes, whole_bytes })
    }

    /// Most bytes of text that can come to `tokens` tokens, or that are tokenised at all.
    pub fn most_bytes(&self, tokens: usize) -> usize {
        match self.cuts {
            Some(_) => self.token_bytes.saturating_mul(tokens),
            None => self.whole_bytes,
        }
    }

    /// As [`Tokenizer::encode`], but that messages name no special token; in slices and no further than to `most` tokens, so
    /// that a text that does not fit costs little.
    ///
    /// # Errors
    /// [`ModelError::TooManyBytes`], [`ModelError::TooManyTokens`] or [`ModelError::Uncut`], all with code
    /// `context_too_long`.
    pub fn encode_most(&self, written: &Written, most: usize) -> Result<Vec<u32>, ModelError> {
        let bytes = written.text().len();
        if bytes > self.most_bytes(most) {
            return Err(ModelError::TooManyBytes { bytes, most: self.most_bytes(most) });
        }
        let mut ids = Vec::new();
        for mut rest in self.specials.apart(written) {
            while !rest.is_empty() {
                let part = match &self.cuts {
                    Some(cuts) => cuts.part(rest).map_err(|most| ModelError::Uncut { most })?,
                    None => rest,
                };
                ids.extend_from_slice(self.inner.encode_fast(part, false).map_err(refused)?.get_ids());
                if ids.len() > most {
                    return Err(ModelError::TooManyTokens { most });
                }
                rest = &rest[part.len()..];
            }
        }
        Ok(ids)
    }

    /// Ids of `text`. Special tokens written out in it are recognised; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        Ok(self.inner.encode_fast(text, false).map_err(refused)?.get_ids().to_vec())
    }

    /// Text of `ids`, special tokens written out.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.inner.decode(ids, false).map_err(refused)
    }

    /// Text of `ids` without the special tokens.
    pub fn decode_plain(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.inner.decode(ids, true).map_err(refused)
    }

    /// The bytes that one token stands for within a text, a special token's as it is written; none where there is no such token.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let written = self.inner.id_to_token(id)?;
        if bytes::is_by_bytes(self.inner.get_decoder()) {
            return Some(bytes::of(&written).unwrap_or_else(|| written.into_bytes()));
        }
        // Decoders may treat the first token of a text apart: what it adds behind itself is what it stands for.
        let (one, two) = (self.decode(&[id]).ok()?, self.decode(&[id, id]).ok()?);
        Some(two.strip_prefix(&one).unwrap_or(&one).as_bytes().to_vec())
    }

    /// Text of one token as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }
}

fn refused(error: tokenizers::Error) -> ModelError {
    ModelError::Tokenizer { cause: error.to_string() }
}

/// Text of generated tokens as it becomes certain: whole characters only, ending before the first stop string.
pub struct TextStream {
    tokenizer: Tokenizer,
    stop: Vec<String>,
    /// Tokens from the last clean boundary on; the first `settled` of them are already in `text`.
    window: Vec<u32>,
    settled: usize,
    /// Decoded, not yet handed out: it could begin a stop string.
    text: String,
    stopped: bool,
}

impl TextStream {
    /// Starts an answer that ends before any of `stop`; empty stop strings are ignored.
    pub fn new(tokenizer: Tokenizer, stop: Vec<String>) -> Self {
        let stop = stop.into_iter().filter(|s| !s.is_empty()).collect();
        Self { tokenizer, stop, window: Vec::new(), settled: 0, text: String::new(), stopped: false }
    }

    /// Takes a token; returns the text that is now certain, possibly none.
    pub fn push(&mut self, id: u32) -> Result<String, ModelError> {
        self.window.push(id);
        self.settle(false)?;
        Ok(self.release(false))
    }

    /// Ends the answer; returns the text held back.
    pub fn finish(&mut self) -> Result<String, ModelError> {
        self.settle(true)?;
        Ok(self.release(true))
    }

    /// A stop string was reached: what follows yields nothing.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Moves new text of the window to `text`. Decoding starts a few tokens back, at a boundary that is already out, since
    /// a decoder may treat the first token of a text apart; a replacement character at the end is half a character.
    fn settle(&mut self, end: bool) -> Result<(), ModelError> {
        let before = self.tokenizer.decode_plain(&self.window[..self.settled])?;
        let after = self.tokenizer.decode_plain(&self.window)?;
        if after.len() <= before.len() || (after.ends_with(char::REPLACEMENT_CHARACTER) && !end) {
            return Ok(());
        }
        self.text.push_str(after.strip_prefix(&before).unwrap_or_default());
        self.window.drain(..self.settled);
        self.settled = self.window.len();
        Ok(())
    }

    fn release(&mut self, end: bool) -> String {
        if self.stopped {
            return String::new();
        }
        if let Some(at) = self.stop.iter().filter_map(|stop| self.text.find(stop.as_str())).min() {
            self.stopped = true;
            self.text.truncate(at);
            return std::mem::take(&mut self.text);
        }
        let held = if end { 0 } else { self.stop.iter().map(|stop| begun(&self.text, stop)).max().unwrap_or(0) };
        let rest = self.text.split_off(self.text.len() - held);
        std::mem::replace(&mut self.text, rest)
    }
}

/// Bytes at the end of `text` that begin `stop` without completing it.
fn begun(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(at, _)| at).filter(|at| *at > 0);
    starts.rev().find(|at| text.ends_with(&stop[..*at])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_checkpoint(&Checkpoint::embedded().unwrap()).unwrap()
    }

    /// Pieces of the stream, the last one from `finish`.
    fn pieces(text: &str, stop: &[&str]) -> (Vec<String>, bool) {
        let tokenizer = tokenizer();
        let mut stream = TextStream::new(tokenizer.clone(), stop.iter().map(|s| s.to_string()).collect());
        let ids = tokenizer.encode(text).unwrap();
        let mut pieces: Vec<String> = ids.into_iter().map(|id| stream.push(id).unwrap()).collect();
        pieces.push(stream.finish().unwrap());
        (pieces, stream.stopped())
    }

    #[test]
    fn a_tokenizer_that_multiplies_texts_or_exceeds_its_model_is_refused_when_it_is_read() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let mut json: serde_json::Value = serde_json::from_slice(checkpoint.tokenizer_json()).unwrap();
        let step = serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)});
        json["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": vec![step; 4]});
        let refused = Tokenizer::from_json(json.to_string().as_bytes(), "stranger").map(drop).unwrap_err();
        assert_eq!(refused.code(), "model_file_malformed");
        assert!(refused.to_string().contains("times as long"), "{refused}");
        let own = tokenizer();
        own.check_vocabulary(checkpoint.config().vocab, "own").unwrap();
        let refused = own.check_vocabulary(300, "own").unwrap_err().to_string();
        assert!(refused.contains("vocab_size = 300"), "{refused}");
    }

    #[test]
    fn the_bytes_of_tokens_are_those_of_their_text() {
        let tokenizer = tokenizer();
        for text in ["The whale is white.", "é€\u{1f40b} and\n\n\ttabs  4817263", "<|begin_of_text|>a<|eot_id|>"] {
            let ids = tokenizer.encode(text).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.bytes(*id).unwrap()).collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), text);
        }
        assert_eq!(tokenizer.bytes(u32::MAX), None);
    }

    #[test]
    fn special_tokens_in_text_are_recognised_and_none_is_added() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("<|begin_of_text|>context<|eot_id|>").unwrap();
        assert_eq!((ids[0], ids[ids.len() - 1]), (0, 2));
        assert_eq!(tokenizer.decode(&ids).unwrap(), "<|begin_of_text|>context<|eot_id|>");
        assert_eq!(tokenizer.decode_plain(&ids).unwrap(), "context");
        assert_eq!(tokenizer.encode("").unwrap(), Vec::<u32>::new());
    }

    #[test]
    fn characters_of_several_tokens_come_whole() {
        let text = "naïve 你好 😀 end";
        let (pieces, stopped) = pieces(text, &[]);
        assert_eq!(pieces.concat(), text);
        assert!(!stopped && pieces.iter().all(|piece| !piece.contains(char::REPLACEMENT_CHARACTER)));
    }

    #[test]
    fn text_never_contains_a_stop_string_and_a_begun_one_is_given_back() {
        let (stopped_at, stopped) = pieces("one two STOP three", &["STOP", "never"]);
        assert_eq!((stopped_at.concat().as_str(), stopped), ("one two ", true));
        let (begun, stopped) = pieces("one two STO", &["STOP"]);
        assert_eq!((begun.concat().as_str(), stopped), ("one two STO", false));
    }

    #[test]
    fn half_a_character_at_the_end_is_given_out_as_it_is() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("你").unwrap();
        let mut stream = TextStream::new(tokenizer, Vec::new());
        assert_eq!(stream.push(ids[0]).unwrap(), "");
        assert!(stream.finish().unwrap().contains(char::REPLACEMENT_CHARACTER));
    }

    #[test]
    fn a_template_names_special_tokens_and_a_message_none() {
        let tokenizer = tokenizer();
        let mut framed = Written::from("<|begin_of_text|>".to_owned());
        framed.push_message("<|eot_id|>");
        framed.push("<|eot_id|>");
        let ids = tokenizer.encode_most(&framed, 99).unwrap();
        assert_eq!(ids.iter().filter(|id| [0, 2].contains(*id)).collect::<Vec<_>>(), [&0, &2]);
        assert_eq!(tokenizer.decode(&ids).unwrap(), framed.text());
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_text_before_the_first_stop(text in "[ab xé]{0,24}", stop in "[ab x]{1,3}") {
            let (pieces, stopped) = pieces(&text, &[&stop]);
            let expected = text.split(stop.as_str()).next().unwrap_or_default();
            prop_assert_eq!(pieces.concat(), expected);
            prop_assert_eq!(stopped, text.contains(&stop));
        }
    }
}
