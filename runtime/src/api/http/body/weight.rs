//! What JSON takes in memory at most while it is read and once it has been, counted over its bytes before anything is built. Reads
//! no value.

/// Each byte: as it came, what a text has while it grows, and the text.
const A_BYTE: usize = 3;
/// A number behind another: an id in a list that grows.
const A_NUMBER: usize = 16;
/// Any other value in a list, or a field behind another.
const A_VALUE: usize = 160;
/// A list or an object: one field alone takes a node of a tree.
const A_BRACKET: usize = 704;
/// Everything beside.
const AT_LEAST: usize = 16 << 10;

/// Bytes that so many bytes of a body take before they are looked at.
pub fn unread(bytes: usize) -> usize {
    bytes.saturating_mul(A_BYTE)
}

/// Bytes that `json` takes beside [`unread`].
pub fn structure(json: &[u8]) -> usize {
    let (mut at, mut weight) = (0, AT_LEAST);
    while at < json.len() {
        weight += match json[at] {
            b'"' => {
                at = end_of_text(json, at + 1);
                0
            }
            b'{' | b'[' => A_BRACKET,
            b',' => match json[at + 1..].iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'0'..=b'9' | b'-') => A_NUMBER,
                _ => A_VALUE,
            },
            _ => 0,
        };
        at += 1;
    }
    weight
}

/// Where the text ends that begins at `at`.
fn end_of_text(json: &[u8], mut at: usize) -> usize {
    while at < json.len() && json[at] != b'"' {
        at += if json[at] == b'\\' { 2 } else { 1 };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_finely_weighs_more_than_its_bytes() {
        assert_eq!(structure(b""), AT_LEAST);
        assert_eq!(
            structure(br#"["a,[{\"", 1, 2,"b" , {"c":0}]"#),
            AT_LEAST + 2 * A_BRACKET + 2 * A_NUMBER + 2 * A_VALUE
        );
        assert_eq!(structure(br#"{"a": "\\", "b": 0}"#), AT_LEAST + A_BRACKET + A_VALUE);
        for broken in [&b"\""[..], b"\"\\", b",", b"[,", b",\xff"] {
            assert!(structure(broken) >= AT_LEAST);
        }
        let attack = format!("{{\"messages\":[{}0]}}", "{\"\":0},".repeat(200_000));
        assert!(structure(attack.as_bytes()) > 100 * attack.len() / 2);
    }

    /// Spaces are looked at once, however many stand behind a comma.
    #[test]
    fn white_space_costs_no_time() {
        let text = format!("[1{}]", format!(",{}", " ".repeat(1 << 10)).repeat(1 << 10));
        assert!(structure(text.as_bytes()) < 1 << 20);
    }
}
