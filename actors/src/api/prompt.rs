//! What a request brings to be read: text or token ids. Tokenises nothing.

use std::fmt;

use asterism_models::Written;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{SeqAccess, Visitor},
};

/// Text, or token ids that are taken as they are: no template, nothing added.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// UTF-8 text.
    Text(String),
    /// Token ids of the cluster's model.
    Tokens(Vec<u32>),
    /// Text that a chat template wrote around messages; requests never bring one.
    #[schemars(skip)]
    Written(Written),
}

/// By hand, since serde would hold every token of an untagged list several times over.
impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrTokens;
        impl<'de> Visitor<'de> for TextOrTokens {
            type Value = Prompt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of token ids")
            }

            fn visit_str<E>(self, text: &str) -> Result<Prompt, E> {
                Ok(Prompt::Text(text.to_string()))
            }

            fn visit_string<E>(self, text: String) -> Result<Prompt, E> {
                Ok(Prompt::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element()? {
                    ids.push(id);
                }
                Ok(Prompt::Tokens(ids))
            }
        }
        deserializer.deserialize_any(TextOrTokens)
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Written> for Prompt {
    fn from(written: Written) -> Self {
        Self::Written(written)
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_string())
    }
}

impl Prompt {
    /// Its text, if it has one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Written(written) => Some(written.text()),
            Self::Tokens(_) => None,
        }
    }

    /// Bytes of its text, or of its ids.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tokens(ids) => size_of_val(ids.as_slice()),
            _ => self.text().map_or(0, str::len),
        }
    }

    /// Whether there is nothing but white space in it.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Tokens(ids) => ids.is_empty(),
            _ => self.text().is_none_or(|text| text.trim().is_empty()),
        }
    }
}
