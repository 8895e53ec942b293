//! Text of generated tokens as it becomes certain. Generates none.

use super::Tokenizer;
use crate::ModelError;

/// Text of generated tokens as it becomes certain: whole characters only, ending before the first stop string. A character of which an
/// answer has the first bytes alone is no part of its text; the bytes of its tokens have them.
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

    /// Ends the answer; returns the text held back, without a character that was begun.
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
        let after = if end && after.ends_with(char::REPLACEMENT_CHARACTER) { self.whole_characters()? } else { after };
        if after.len() <= before.len() || (after.ends_with(char::REPLACEMENT_CHARACTER) && !end) {
            return Ok(());
        }
        self.text.push_str(after.strip_prefix(&before).unwrap_or_default());
        self.window.drain(..self.settled);
        self.settled = self.window.len();
        Ok(())
    }

    /// Text of the window up to a character that its last bytes only begin. Bytes that begin none stay what decoders put in their place.
    fn whole_characters(&self) -> Result<String, ModelError> {
        let bytes: Vec<Vec<u8>> =
            self.window[self.settled..].iter().map(|id| self.tokenizer.plain_bytes(*id)).collect();
        let mut begun = begun_character(&bytes.concat());
        let whole = bytes.iter().rev().take_while(|bytes| {
            let within = begun > 0 && bytes.len() <= begun;
            begun -= if within { bytes.len() } else { 0 };
            within
        });
        let dropped = whole.count();
        let text = self.tokenizer.decode_plain(&self.window[..self.window.len() - dropped])?;
        // What is left of it stands in a token behind the end of another character.
        Ok(match text.strip_suffix(char::REPLACEMENT_CHARACTER) {
            Some(text) if begun > 0 => text.to_owned(),
            _ => text,
        })
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

/// Bytes at the end of `bytes` that begin a character without completing it.
fn begun_character(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map_or(&[][..], |chunk| chunk.invalid());
    match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() => last.len(),
        _ => 0,
    }
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

    /// What a stream of these tokens comes to.
    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
        let mut stream = TextStream::new(tokenizer.clone(), Vec::new());
        let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        pieces.concat() + &stream.finish().unwrap()
    }

    /// The longest whole characters of a text's first bytes.
    fn whole(text: &str, bytes: usize) -> &str {
        let end = (0..=bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap();
        &text[..end]
    }

    /// A tokenizer that writes out every byte, but for some letters.
    fn by_written_bytes() -> Tokenizer {
        let names =
            ["<unk>", "a", "▁"].map(str::to_owned).into_iter().chain((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        let vocabulary: serde_json::Map<String, serde_json::Value> =
            names.enumerate().map(|(id, name)| (name, id.into())).collect();
        let form = serde_json::json!({
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true, "vocab": vocabulary, "merges": []},
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            ]},
        });
        Tokenizer::from_files(form.to_string().as_bytes(), Default::default(), ("llama", "bytes")).unwrap()
    }

    #[test]
    fn a_character_that_is_cut_is_left_out_wherever_the_answer_ends() {
        for tokenizer in [tokenizer(), by_written_bytes()] {
            for text in ["a 你好a😀", "你", "é a", "aaé\u{1f40b}"] {
                let ids = tokenizer.encode(text).unwrap();
                for cut in 0..=ids.len() {
                    let bytes: usize = ids[..cut].iter().map(|id| tokenizer.bytes(*id).unwrap().len()).sum();
                    assert_eq!(streamed(&tokenizer, &ids[..cut]), whole(text, bytes), "{cut} tokens of {text}");
                }
            }
            let bytes = |text: &str| -> Vec<u8> {
                tokenizer.encode(text).unwrap().iter().flat_map(|id| tokenizer.bytes(*id).unwrap()).collect()
            };
            assert_eq!(bytes("a你"), "a你".as_bytes(), "the bytes of tokens stay what they are");
        }
    }

    #[test]
    fn only_what_begins_a_character_is_left_out() {
        let tokenizer = tokenizer();
        let byte = |byte: u8| (0..4096).find(|id| tokenizer.bytes(*id).is_some_and(|bytes| bytes == [byte])).unwrap();
        let of = |bytes: &[u8]| streamed(&tokenizer, &bytes.iter().map(|one| byte(*one)).collect::<Vec<_>>());
        assert_eq!(of(b"a\x80"), "a\u{fffd}", "no character begins so");
        assert_eq!(of(b"a\xe4\xbd"), "a");
        assert_eq!(of(b"a\xe4b"), "a\u{fffd}b", "it is known to be none");
        assert_eq!(of(b"a\x80\xe4"), "a\u{fffd}");
        assert_eq!(of("a\u{fffd}".as_bytes()), "a\u{fffd}", "a model may write it");
        for (bytes, begun) in
            [(&b""[..], 0), (b"a", 0), (b"\xf0\x9f\x90", 3), (b"a\xe4", 1), (b"\xe4\xe4", 1), (b"\xff", 0)]
        {
            assert_eq!(begun_character(bytes), begun, "{bytes:?}");
        }
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
