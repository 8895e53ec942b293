//! JSON as Python writes and reads it: with `NaN`, `Infinity` and `-Infinity`, which no other reader takes.

use std::borrow::Cow;

use serde::de::DeserializeOwned;

use crate::ModelError;

/// Reads JSON. The numbers that only Python has become strings of their names: whoever wants a number there refuses them, and
/// nobody is bothered by those of a key that is not read.
pub(crate) fn parse<T: DeserializeOwned>(path: &str, bytes: &[u8]) -> Result<T, ModelError> {
    serde_json::from_slice(&plain(bytes))
        .map_err(|error| ModelError::Malformed { path: path.to_owned(), cause: error.to_string() })
}

const NAMED_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

fn plain(bytes: &[u8]) -> Cow<'_, [u8]> {
    let (mut plain, mut copied, mut at, mut in_string) = (Vec::new(), 0, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'I' | b'N' if !in_string => {
                if let Some(name) = NAMED_NUMBERS.iter().find(|name| bytes[at..].starts_with(name.as_bytes())) {
                    plain.extend_from_slice(&bytes[copied..at]);
                    plain.extend_from_slice(format!("\"{name}\"").as_bytes());
                    copied = at + name.len();
                    at = copied;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    match copied {
        0 => Cow::Borrowed(bytes),
        _ => {
            plain.extend_from_slice(&bytes[copied..]);
            Cow::Owned(plain)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_that_only_python_has_are_names() {
        let read = |text: &str| parse::<Value>("config.json", text.as_bytes());
        let text = r#"{"a": Infinity, "b": [-Infinity, NaN, -1], "c": "NaN \" Infinity \\", "d": NaN}"#;
        let expected = json!({"a": "Infinity", "b": ["-Infinity", "NaN", -1], "c": "NaN \" Infinity \\", "d": "NaN"});
        assert_eq!(read(text).unwrap(), expected);
        assert!(read(r#"{"a": Infinite}"#).is_err());
        assert!(read(r#"{"a": -"#).is_err() && read("\"a\\").is_err());
    }
}
