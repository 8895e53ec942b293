//! A line of a batch's input file: a request. Answers none.

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::api::openai::requests::fields::Fields;

/// Longest `custom_id`, in characters.
const ID_CHARS: usize = 512;

/// A request, whose other fields are not kept.
#[derive(Debug, Deserialize)]
pub struct BatchLine {
    #[serde(deserialize_with = "custom_id")]
    pub custom_id: String,
    pub method: String,
    pub url: String,
    pub body: Fields,
}

fn custom_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let id = String::deserialize(deserializer)?;
    match id.chars().nth(ID_CHARS) {
        Some(_) => Err(D::Error::custom(format!("custom_id has more than {ID_CHARS} characters"))),
        None => Ok(id),
    }
}
