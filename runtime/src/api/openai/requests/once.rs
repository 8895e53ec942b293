//! Any small JSON, with no field twice in any object of it: which of them counts, readers do not agree on. What is not small is
//! refused before it is kept.

use std::{cell::Cell, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// Most values that the fields of a request beside its texts have, and bytes of texts in them.
const MOST_VALUES: usize = 16_384;
const MOST_JSON_BYTES: usize = 256 << 10;

/// What is left for the fields of a request.
#[derive(Debug)]
pub struct Budget {
    values: Cell<usize>,
    bytes: Cell<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { values: Cell::new(MOST_VALUES), bytes: Cell::new(MOST_JSON_BYTES) }
    }
}

impl Budget {
    /// For so many values, whatever texts are in them.
    pub fn of_values(most: usize) -> Self {
        Self { values: Cell::new(most), bytes: Cell::new(usize::MAX) }
    }

    /// Takes a value, and the bytes of its text.
    pub fn take<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let less = |left: &Cell<usize>, by| left.get().checked_sub(by).map(|less| left.set(less));
        less(&self.values, 1).and_then(|()| less(&self.bytes, bytes)).ok_or_else(|| {
            E::custom(format!(
                "the fields beside the texts have too much in them, expected at most {MOST_VALUES} values and {MOST_JSON_BYTES} bytes"
            ))
        })
    }
}

/// Reads a value like that within a budget.
#[derive(Clone, Copy)]
pub struct BoundedValue<'a>(pub &'a Budget);

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.0.take(0).map(|()| Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.0.take(0).map(|()| value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.0.take(0).map(|()| value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.0.take(0).map(|()| value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.0.take(0).map(|()| value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.take(value.len()).map(|()| value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.0.take(0)?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.0.take(0)?;
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            self.0.take(name.len())?;
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("the field {name:.40} stands there twice")));
            }
            let value = map.next_value_seed(self)?;
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(text: &str) -> serde_json::Result<Value> {
        BoundedValue(&Budget::default()).deserialize(&mut serde_json::Deserializer::from_str(text))
    }

    #[test]
    fn what_has_no_field_twice_is_what_it_was() {
        for text in
            [r#"[null, true, -1, 18446744073709551615, 1.5, "a\u00e9", {"a": {"b": []}, "c": {"a": 1}}]"#, "{}", "3"]
        {
            assert_eq!(once(text).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        }
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "c": 2, "a": 3}}]"#] {
            assert!(once(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_not_small_is_refused() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count));
        assert!(once(&list(MOST_VALUES - 2)).is_ok());
        for text in [
            list(MOST_VALUES),
            format!("[{}0]", "{\"\":0},".repeat(MOST_VALUES / 2)),
            format!("\"{}\"", "x".repeat(MOST_JSON_BYTES + 1)),
        ] {
            assert!(once(&text).is_err_and(|error| error.to_string().contains("too much")), "{text:.40}");
        }
    }
}
