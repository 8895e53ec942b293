//! The bytes that one token stands for, be they whole characters or not. Decodes no text.

use tokenizers::DecoderWrapper;

/// Whether tokens of this decoder are written byte by byte, in characters of GPT-2's table.
pub fn is_by_bytes(decoder: Option<&DecoderWrapper>) -> bool {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => true,
        Some(DecoderWrapper::Sequence(steps)) => steps.get_decoders().iter().any(|step| is_by_bytes(Some(step))),
        _ => false,
    }
}

/// The bytes that a token is written for; none where a character is not of the table, as in special tokens.
pub fn of(written: &str) -> Option<Vec<u8>> {
    written.chars().map(byte).collect()
}

/// The byte of a token that writes it out, as `<0x0A>`.
pub fn written_out(written: &str) -> Option<u8> {
    let digits = written.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| plain)
}

/// The byte that a character stands for: itself where it can be seen, else the characters from 256 on, in the bytes' order.
fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => is_seen(byte).then_some(byte),
        Err(_) => (0..=u8::MAX).filter(|byte| !is_seen(*byte)).nth(code as usize - 256),
    }
}

fn is_seen(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let bytes: BTreeSet<u8> = ByteLevel::alphabet().into_iter().map(|c| byte(c).unwrap()).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(of("Ġthe").unwrap(), b" the");
        assert_eq!(of("Ċ").unwrap(), b"\n");
        assert_eq!(of("Ã©").unwrap(), "é".as_bytes());
        assert_eq!((of("a b"), of("\u{10ffff}")), (None, None));
    }

    #[test]
    fn bytes_that_are_written_out_are_read() {
        assert_eq!((written_out("<0x0A>"), written_out("<0xe4>")), (Some(0x0a), Some(0xe4)));
        for text in ["<0x0>", "<0x+A>", "<0x0AB>", "0x0A", "<0x0G>", "a"] {
            assert_eq!(written_out(text), None, "{text}");
        }
    }
}
