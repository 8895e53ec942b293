//! `metadata`: pairs of texts that clients keep beside what they ask for, as many and as long as OpenAI publishes. Means nothing here.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, Visitor},
};

/// Most pairs.
const PAIRS: usize = 16;
/// Most characters of a key and of a value.
const KEY_CHARS: usize = 64;
const VALUE_CHARS: usize = 512;

/// Such pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    let long = |text: &str, most: usize| text.chars().nth(most).is_some();
                    if pairs.len() == PAIRS || long(&key, KEY_CHARS) || long(&value, VALUE_CHARS) {
                        return Err(A::Error::custom(format!(
                            "metadata has too much in it, expected at most {PAIRS} pairs of {KEY_CHARS} and {VALUE_CHARS} characters"
                        )));
                    }
                    if pairs.insert(key, value).is_some() {
                        return Err(A::Error::custom("a key of metadata stands there twice"));
                    }
                }
                Ok(Metadata(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_as_many_and_as_long_as_published() {
        let read = |text: &str| serde_json::from_str::<Metadata>(text);
        let pairs = |count: usize| {
            let pairs: Vec<String> = (0..count).map(|at| format!("\"k{at}\": \"v\"")).collect();
            format!("{{{}}}", pairs.join(","))
        };
        let most = format!(r#"{{"{}": "{}"}}"#, "é".repeat(64), "é".repeat(512));
        assert!(read(&pairs(16)).is_ok() && read(&most).is_ok());
        assert_eq!(serde_json::to_string(&read(r#"{"b": "1", "a": ""}"#).unwrap()).unwrap(), r#"{"a":"","b":"1"}"#);
        let long = |key: usize, value: usize| format!(r#"{{"{}": "{}"}}"#, "k".repeat(key), "v".repeat(value));
        for wrong in
            [&pairs(17), &long(65, 1), &long(1, 513), r#"{"a": 3}"#, r#"{"a": {}}"#, "[]", r#"{"a": "", "a": ""}"#]
        {
            assert!(read(wrong).is_err(), "{wrong:.80}");
        }
    }
}
