//! Text of generated tokens as it becomes certain. Generates none.

use super::Tokenizer;
use crate::ModelError;

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
    use crate::{Checkpoint, Written};

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
