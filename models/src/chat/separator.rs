//! What stands between a context and a question about it: a short text that belongs to the question. Joins nothing.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Text before a question, a part of what is asked: a context is the same whatever that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(extend("maxLength" = Self::MAX_BYTES))]
pub struct QuerySeparator(Cow<'static, str>);

impl QuerySeparator {
    /// A blank line, as between two paragraphs.
    pub const PARAGRAPH: Self = Self(Cow::Borrowed("\n\n"));
    /// For texts that bring their own joint.
    pub const NONE: Self = Self(Cow::Borrowed(""));
    /// Most bytes of one.
    pub const MAX_BYTES: usize = 256;

    /// Nothing stands between the two.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// `query` behind it.
    pub fn before(&self, query: &str) -> String {
        format!("{}{query}", self.0)
    }
}

impl Default for QuerySeparator {
    fn default() -> Self {
        Self::PARAGRAPH
    }
}

impl fmt::Display for QuerySeparator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A separator that is longer than one may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the query separator has {got} bytes, at most {} are taken; put a longer text into the context or the query",
    QuerySeparator::MAX_BYTES
)]
pub struct LongSeparator {
    /// Its bytes.
    pub got: usize,
}

impl TryFrom<String> for QuerySeparator {
    type Error = LongSeparator;

    fn try_from(text: String) -> Result<Self, LongSeparator> {
        match text.len() {
            got if got > Self::MAX_BYTES => Err(LongSeparator { got }),
            _ => Ok(Self(Cow::Owned(text))),
        }
    }
}

impl FromStr for QuerySeparator {
    type Err = LongSeparator;

    fn from_str(text: &str) -> Result<Self, LongSeparator> {
        text.to_owned().try_into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_separator_is_short_text_of_any_kind() {
        for text in ["", " ", "\n---\n", "</doc>\n"] {
            let separator: QuerySeparator = text.parse().unwrap();
            assert_eq!((separator.before("why?"), separator.is_none()), (format!("{text}why?"), text.is_empty()));
            let json = serde_json::to_string(&separator).unwrap();
            assert_eq!(serde_json::from_str::<QuerySeparator>(&json).unwrap(), separator);
        }
        assert!("x".repeat(QuerySeparator::MAX_BYTES).parse::<QuerySeparator>().is_ok());
        let long = serde_json::to_string(&"x".repeat(257)).unwrap();
        let error = serde_json::from_str::<QuerySeparator>(&long).unwrap_err().to_string();
        assert!(error.starts_with("the query separator has 257 bytes, at most 256 are taken"), "{error}");
    }
}
