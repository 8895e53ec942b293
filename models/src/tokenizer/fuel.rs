//! What a tokenizer.json can make of a text before any of it is tokenised: how many times as long its normalizers and
//! pre-tokenizers make it, and whether its patterns end in time. Tokenises nothing.
//!
//! Each step is bounded by what it may do to one byte, steps in a row by the product. A step that is not known here is refused.

use serde_json::Value;

/// Most times that a text may become as long.
const MOST_GROWTH: usize = 1024;
/// Bytes that a step writes at most for each that it reads (the Unicode Consortium's FAQ on normalization, in UTF-8).
const CANONICAL: usize = 3;
const COMPATIBLE: usize = 11;
/// A lower-case letter, a byte as a character, spaces around a character of three bytes, a mark in the place of a space.
const LOWERCASE: usize = 2;
const BYTE: usize = 2;
const SPACED: usize = 3;
const MARK_GROWTH: usize = 4;

/// How many times as long texts become at most; the error says which step makes too much of them, or does not end in time.
pub fn growth(json: &[u8]) -> Result<usize, String> {
    let form: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let normalized = step(&form["normalizer"], "normalizer")?;
    let split = step(&form["pre_tokenizer"], "pre_tokenizer")?;
    bounded(normalized.saturating_mul(split), "normalizer and pre_tokenizer")
}

fn step(step: &Value, place: &str) -> Result<usize, String> {
    let kind = match (step, step["type"].as_str()) {
        (Value::Null, _) => return Ok(1),
        (_, Some(kind)) => kind,
        (_, None) => return Err(format!("{place} has no type")),
    };
    let growth = match kind {
        "Sequence" => {
            let steps = step.get("normalizers").or_else(|| step.get("pretokenizers")).and_then(Value::as_array);
            let steps = steps.ok_or_else(|| format!("{place}: a Sequence has no steps"))?;
            let grown = |grown: usize, (at, step): (usize, &Value)| -> Result<usize, String> {
                let place = format!("{place}[{at}]");
                bounded(grown.saturating_mul(self::step(step, &place)?), &place)
            };
            steps.iter().enumerate().try_fold(1, grown)?
        }
        "Replace" => replaced(step, place)?,
        "Prepend" => 1 + length(&step["prepend"]),
        "NFC" | "NFD" => CANONICAL,
        "NFKC" | "NFKD" => COMPATIBLE,
        "Lowercase" => LOWERCASE,
        "BertNormalizer" => CANONICAL * SPACED * LOWERCASE,
        "Precompiled" => longest_of_map(&step["precompiled_charsmap"]),
        "ByteLevel" => BYTE,
        "Metaspace" => MARK_GROWTH,
        "Split" => {
            pattern(&step["pattern"], place)?;
            1
        }
        "Strip" | "StripAccents" | "Nmt" | "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" | "Punctuation"
        | "Digits" | "UnicodeScripts" | "CharDelimiterSplit" | "FixedLength" => 1,
        other => return Err(format!("{place} is {other}, and what that makes of a text is not known here")),
    };
    bounded(growth, place)
}

fn bounded(growth: usize, place: &str) -> Result<usize, String> {
    match growth <= MOST_GROWTH {
        true => Ok(growth),
        false => Err(format!("{place} may make a text {growth} times as long, expected at most {MOST_GROWTH}")),
    }
}

/// A text in the place of another has a known length; one in the place of a pattern may come before every byte, and once more.
fn replaced(step: &Value, place: &str) -> Result<usize, String> {
    let content = length(&step["content"]);
    Ok(match step["pattern"]["String"].as_str() {
        Some("") => 1 + content,
        Some(replaced) => content.div_ceil(replaced.len()).max(1),
        None => {
            pattern(&step["pattern"], place)?;
            1 + content
        }
    })
}

fn length(text: &Value) -> usize {
    text.as_str().map_or(0, str::len)
}

/// The longest text that a map of SentencePiece's can put in the place of a character: what lies behind its trie, whose length
/// in bytes comes first, is texts with zeros behind them.
fn longest_of_map(map: &Value) -> usize {
    let Some(bytes) = map.as_str().and_then(from_base64) else { return 1 };
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return 1 };
    let texts = rest.get(u32::from_le_bytes(*length) as usize..).unwrap_or_default();
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(1).max(1)
}

/// The bytes that a text in base64 (RFC 4648) stands for.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.trim_end_matches('=').bytes();
    let digits: Vec<u32> = digits
        .map(|digit| DIGITS.iter().position(|known| *known == digit).map(|place| place as u32))
        .collect::<Option<_>>()?;
    let three = |four: &[u32]| {
        let bits = four.iter().enumerate().fold(0, |bits, (at, digit)| bits | digit << (18 - 6 * at));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    Some(digits.chunks(4).flat_map(three).collect())
}

/// A pattern that looks around or back is tried place by place; a repeated group in it that repeats within takes time that
/// doubles with each character. All other patterns take time in proportion to the text.
fn pattern(pattern: &Value, place: &str) -> Result<(), String> {
    let Some(regex) = pattern["Regex"].as_str() else { return Ok(()) };
    let looks = ["(?=", "(?!", "(?<=", "(?<!", "\\k", "(?>", "(?("].iter().any(|sign| regex.contains(sign));
    let refers_back = regex.as_bytes().windows(2).any(|pair| pair[0] == b'\\' && pair[1].is_ascii_digit());
    match (looks || refers_back) && repeats_within_repeats(regex) {
        true => Err(format!(
            "{place}: the pattern {regex:?} repeats a group that repeats within and looks around: it may never end"
        )),
        false => Ok(()),
    }
}

fn repeats_within_repeats(regex: &str) -> bool {
    // Whether each open group has something in it that repeats without end.
    let mut open = vec![false];
    let (mut chars, mut in_class) = (regex.chars().peekable(), false);
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            _ if in_class => {}
            '(' => open.push(false),
            ')' => {
                let repeats = open.pop().unwrap_or_default();
                let again = matches!(chars.peek(), Some('*' | '+' | '{'));
                if repeats && again {
                    return true;
                }
                if let Some(around) = open.last_mut() {
                    *around |= repeats || again;
                }
            }
            '*' | '+' | '{' => *open.last_mut().unwrap_or(&mut false) = true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(normalizer: Value, pre_tokenizer: Value) -> Result<usize, String> {
        growth(json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer}).to_string().as_bytes())
    }

    fn thousand_for_a() -> Value {
        json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)})
    }

    #[test]
    fn steps_that_multiply_a_text_are_refused_however_they_are_nested() {
        let steps = [(); 4].map(|()| thousand_for_a());
        let nested = json!({"type": "Sequence", "normalizers": [steps[0], {"type": "Sequence", "normalizers": steps}]});
        for normalizer in [json!({"type": "Sequence", "normalizers": steps}), nested] {
            let words = of(normalizer, Value::Null).unwrap_err();
            assert!(words.contains("normalizer[1]") && words.contains("times as long"), "{words}");
        }
        let bytes = vec![json!({"type": "ByteLevel"}); 30];
        assert!(of(Value::Null, json!({"type": "Sequence", "pretokenizers": bytes})).is_err());
        let between = json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "x".repeat(2000)});
        assert!(of(between, Value::Null).is_err());
        assert!(of(json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)}), Value::Null).is_err());
        assert!(of(json!({"type": "Unheard"}), Value::Null).unwrap_err().contains("not known"));
    }

    #[test]
    fn what_published_tokenizers_do_is_small() {
        let llama = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
        ]});
        assert_eq!(of(llama, Value::Null), Ok(12));
        let regex = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let qwen = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]});
        assert_eq!(of(json!({"type": "NFC"}), qwen), Ok(6));
        assert_eq!(of(Value::Null, Value::Null), Ok(1));
    }

    #[test]
    fn a_map_of_characters_is_as_long_as_its_longest_text() {
        // A trie of no bytes, "ab" and "cdef".
        assert_eq!(from_base64("AAAAAGFiAGNkZWYA").unwrap(), b"\0\0\0\0ab\0cdef\0");
        let map = json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAGFiAGNkZWYA"});
        assert_eq!(of(map, Value::Null), Ok(4));
    }

    #[test]
    fn patterns_that_may_never_end_are_refused() {
        let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"});
        for regex in ["(a+)+$(?!b)", "(?=x)((a|b)*c)*", r"(\p{L}+\s*)+(?<=q)", r"((a)\2*)+"] {
            assert!(of(Value::Null, split(regex)).unwrap_err().contains("never end"), "{regex}");
        }
        assert_eq!(of(Value::Null, split("(a+)+$")), Ok(1), "without looking around it takes linear time");
    }
}
