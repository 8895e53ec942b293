//! `json.dumps`, which transformers has templates write JSON with. Reads none.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::arguments::{Arguments, text};
use super::numbers;

/// How `json.dumps` writes.
pub struct Style {
    ascii: bool,
    indent: Option<String>,
    separators: (String, String),
    sorted: bool,
}

/// Lists within lists; Python has its own limit.
const DEEPEST_JSON: usize = 500;

impl Style {
    /// `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
    pub fn of(mut arguments: Arguments) -> Result<Self, Error> {
        let ascii = arguments.truth("ensure_ascii")?;
        let indent = match arguments.next("indent")?.filter(|indent| !indent.is_none()) {
            Some(indent) => Some(match indent.as_str() {
                Some(text) => text.to_owned(),
                None => " ".repeat(i64::try_from(indent)?.clamp(0, 64) as usize),
            }),
            None => None,
        };
        let between = if indent.is_some() { "," } else { ", " };
        let separators = match arguments.next("separators")?.filter(|separators| !separators.is_none()) {
            Some(both) => {
                let (items, keys) = (both.get_item_by_index(0)?, both.get_item_by_index(1)?);
                (text(&items)?.to_owned(), text(&keys)?.to_owned())
            }
            None => (between.to_owned(), ": ".to_owned()),
        };
        let sorted = arguments.truth("sort_keys")?;
        arguments.end()?;
        Ok(Self { ascii, indent, separators, sorted })
    }

    /// A value as JSON.
    pub fn dump(&self, value: &Value) -> Result<String, Error> {
        let mut json = String::new();
        self.write(value, 0, &mut json)?;
        Ok(json)
    }

    fn write(&self, value: &Value, depth: usize, json: &mut String) -> Result<(), Error> {
        if depth > DEEPEST_JSON {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("JSON of more than {DEEPEST_JSON} levels")));
        }
        match value.kind() {
            ValueKind::String => self.quote(text(value)?, json),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.list((depth, ['[', ']']), items, json, |item, json| self.write(&item, depth + 1, json))?;
            }
            ValueKind::Map => {
                let pair = |key: Value| Ok((name(&key)?, value.get_item(&key)?));
                let mut pairs = value.try_iter()?.map(pair).collect::<Result<Vec<(String, Value)>, Error>>()?;
                if self.sorted {
                    pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
                }
                self.list((depth, ['{', '}']), pairs, json, |(name, item), json| {
                    self.quote(&name, json);
                    json.push_str(&self.separators.1);
                    self.write(&item, depth + 1, json)
                })?;
            }
            _ => json.push_str(&scalar(value)?),
        }
        Ok(())
    }

    fn list<T>(
        &self,
        (depth, [begins, ends]): (usize, [char; 2]),
        items: Vec<T>,
        json: &mut String,
        write: impl Fn(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, json: &mut String| {
            if let Some(indent) = &self.indent {
                json.push('\n');
                (0..depth).for_each(|_| json.push_str(indent));
            }
        };
        let empty = items.is_empty();
        json.push(begins);
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                json.push_str(&self.separators.0);
            }
            line(depth + 1, json);
            write(item, json)?;
        }
        if !empty {
            line(depth, json);
        }
        json.push(ends);
        Ok(())
    }

    fn quote(&self, text: &str, json: &mut String) {
        json.push('"');
        for c in text.chars() {
            match c {
                '"' => json.push_str("\\\""),
                '\\' => json.push_str("\\\\"),
                '\n' => json.push_str("\\n"),
                '\r' => json.push_str("\\r"),
                '\t' => json.push_str("\\t"),
                '\u{8}' => json.push_str("\\b"),
                '\u{c}' => json.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    let mut units = [0; 2];
                    c.encode_utf16(&mut units).iter().for_each(|unit| json.push_str(&format!("\\u{unit:04x}")));
                }
                c => json.push(c),
            }
        }
        json.push('"');
    }
}

/// What is neither text nor a list.
fn scalar(value: &Value) -> Result<String, Error> {
    let not = || Error::new(ErrorKind::InvalidOperation, format!("{} is not JSON serializable", value.kind()));
    Ok(match (value.kind(), numbers::float(value)) {
        (ValueKind::None, _) => "null".to_owned(),
        (ValueKind::Bool, _) => if value.is_true() { "true" } else { "false" }.to_owned(),
        (_, Some(float)) if float.is_nan() => "NaN".to_owned(),
        (_, Some(float)) if float.is_infinite() => if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        (_, Some(float)) => numbers::repr(float),
        (ValueKind::Number, None) => value.to_string(),
        _ => return Err(not()),
    })
}

/// The name that a key gets.
fn name(key: &Value) -> Result<String, Error> {
    key.as_str().map_or_else(|| scalar(key), |text| Ok(text.to_owned()))
}
