//! Values of the metadata by name, in the types that they must have. Knows no key.

use super::{
    header::{Field, Header},
    refusal::refused,
};
use crate::ModelError;

/// The metadata of a model, which stands in its first file.
#[derive(Clone, Copy)]
pub(super) struct Metadata<'a> {
    pub path: &'a str,
    header: &'a Header<'a>,
}

impl<'a> Metadata<'a> {
    pub fn new(path: &'a str, header: &'a Header<'a>) -> Self {
        Self { path, header }
    }

    /// Why a key is not as it must be.
    pub fn refuses(&self, key: &str, got: impl Into<String>, expected: impl Into<String>) -> ModelError {
        refused(self.path, key, got, expected)
    }

    /// Names of all that is there.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.header.metadata.keys().copied()
    }

    pub fn field(&self, key: &str) -> Option<Field<'a>> {
        self.header.metadata.get(key).copied()
    }

    /// What is there, or an error that names it.
    pub fn needed<T>(&self, key: &str, found: Option<T>) -> Result<T, ModelError> {
        found.ok_or_else(|| self.refuses(key, "missing", "a model converted by llama.cpp, which writes it"))
    }

    /// A number from 0 to `most`.
    pub fn count(&self, key: &str, most: u64) -> Result<Option<u64>, ModelError> {
        let wrong = |got: Field<'_>| self.refuses(key, got.shown(), format!("a number from 0 to {most}"));
        match self.field(key) {
            None => Ok(None),
            Some(Field::Unsigned(number)) if number <= most => Ok(Some(number)),
            Some(Field::Signed(number)) if u64::try_from(number).is_ok_and(|number| number <= most) => {
                Ok(Some(number as u64))
            }
            // One for each layer: all are alike, or it is no model that is computed.
            Some(list @ Field::Array(..)) => {
                let mut numbers = list.numbers().ok_or_else(|| wrong(list))?;
                let first = numbers.next().filter(|first| *first >= 0.0 && *first <= most as f64);
                match first {
                    Some(first) if numbers.all(|number| number == first) => Ok(Some(first as u64)),
                    _ => Err(self.refuses(key, "a list of different numbers", "the same for all layers")),
                }
            }
            Some(other) => Err(wrong(other)),
        }
    }

    /// A finite number.
    pub fn float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.field(key) {
            None => Ok(None),
            Some(Field::Float(number)) if number.is_finite() => Ok(Some(number)),
            Some(Field::Unsigned(number)) => Ok(Some(number as f64)),
            Some(other) => Err(self.refuses(key, other.shown(), "a finite number")),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.field(key) {
            None => Ok(None),
            Some(Field::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(self.refuses(key, other.shown(), "true or false")),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.field(key) {
            None => Ok(None),
            Some(Field::Text(text)) => {
                let text = std::str::from_utf8(text);
                text.map(Some).map_err(|_| self.refuses(key, "a text that is no UTF-8", "UTF-8"))
            }
            Some(other) => Err(self.refuses(key, other.shown(), "a text")),
        }
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        let Some(field) = self.field(key) else { return Ok(None) };
        let texts = field.texts().ok_or_else(|| self.refuses(key, field.shown(), "a list of texts"))?;
        let text = |(at, text): (usize, &'a [u8])| {
            std::str::from_utf8(text).map_err(|_| self.refuses(key, format!("no UTF-8 at number {at}"), "UTF-8"))
        };
        texts.enumerate().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// A list of numbers.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ModelError> {
        let Some(field) = self.field(key) else { return Ok(None) };
        let numbers = field.numbers().ok_or_else(|| self.refuses(key, field.shown(), "a list of numbers"))?;
        Ok(Some(numbers.collect()))
    }
}
