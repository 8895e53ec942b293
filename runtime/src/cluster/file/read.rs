//! From text and environment to the typed file, and from serde's errors to a line and the nearest key.

use std::{borrow::Cow, ops::Range};

use serde::Deserialize;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{ClusterFile, paths};
pub use crate::cluster::file::error::FileError;
use crate::{cluster::size::Tokens, error::wording::reworded};

/// Characters of a value that a refusal repeats.
const SHOWN_VALUE: usize = 40;

/// Prefix of environment overrides: `ASTERISM__SECTION__KEY`.
const OVERRIDE_PREFIX: &str = "ASTERISM__";

/// Reads `text`, then lays the overrides among `environment` over it, in the order of their names. A `~` is its HOME.
pub fn parse(text: &str, environment: impl IntoIterator<Item = (String, String)>) -> Result<ClusterFile, FileError> {
    if text.trim().is_empty() {
        return Err(FileError::Empty);
    }
    let environment: Vec<_> = environment.into_iter().collect();
    let home = environment.iter().find(|(name, _)| name == "HOME").map(|(_, home)| home.clone());
    let text = spell_sizes_out(text)?;
    let mut file = typed(&text, &[]).map_err(|error| line_error(&text, &error))?;
    let mut overrides: Vec<_> = environment.into_iter().filter(|(name, _)| name.starts_with(OVERRIDE_PREFIX)).collect();
    overrides.sort();
    let overrides: Vec<_> = overrides.into_iter().map(Override::new).collect::<Result<_, _>>()?;
    for applied in 1..=overrides.len() {
        file = typed(&text, &overrides[..applied]).map_err(|error| {
            let laid = &overrides[applied - 1];
            laid.refuse(with_sizes(laid.path.last().map_or("", String::as_str), explain(&error)))
        })?;
    }
    paths::at_home(&mut file, home.as_deref())?;
    Ok(file)
}

/// One `ASTERISM__SECTION__KEY=value`.
struct Override {
    variable: String,
    path: Vec<String>,
    /// A TOML value.
    value: String,
}

impl Override {
    fn new((variable, value): (String, String)) -> Result<Self, FileError> {
        let path: Vec<_> = variable[OVERRIDE_PREFIX.len()..].split("__").map(str::to_ascii_lowercase).collect();
        let counts_tokens = path.last().is_some_and(|key| key.ends_with("_tokens"));
        let value = match value.parse::<Tokens>() {
            Ok(size) if counts_tokens => size.to_string(),
            _ if DeValue::parse(&value).is_ok() => value,
            _ => toml::Value::String(value).to_string(),
        };
        let new = Self { variable, path, value };
        if new.path.len() < 2 || new.path.iter().any(String::is_empty) {
            return Err(new.refuse("expected ASTERISM__SECTION__KEY, such as ASTERISM__CLUSTER__NAME".into()));
        }
        Ok(new)
    }

    fn refuse(&self, cause: String) -> FileError {
        FileError::Override { variable: self.variable.clone(), cause }
    }

    fn lay_over<'a>(&'a self, table: &mut DeTable<'a>) -> Result<(), toml::de::Error> {
        use serde::de::Error;
        let (key, sections) = self.path.split_last().expect("checked when made: at least two parts");
        let mut table = table;
        for section in sections {
            let section = Spanned::new(0..0, Cow::Borrowed(section.as_str()));
            let entry = table.entry(section).or_insert_with(|| Spanned::new(0..0, DeValue::Table(DeTable::new())));
            let DeValue::Table(inner) = entry.get_mut() else {
                return Err(toml::de::Error::custom("only keys of single tables can be overridden"));
            };
            table = inner;
        }
        let value = DeValue::parse(&self.value)?;
        table.insert(Spanned::new(0..0, Cow::Borrowed(key.as_str())), value);
        Ok(())
    }
}

fn typed(text: &str, overrides: &[Override]) -> Result<ClusterFile, toml::de::Error> {
    let mut table = DeTable::parse(text)?;
    for laid in overrides {
        laid.lay_over(table.get_mut())?;
    }
    ClusterFile::deserialize(toml::Deserializer::from(table))
}

/// Turns `"32k"` into 32768 wherever the key counts tokens, so that every typed section takes plain numbers. Lines stay.
fn spell_sizes_out(text: &str) -> Result<String, FileError> {
    let table = DeTable::parse(text).map_err(|error| line_error(text, &error))?;
    let mut sizes = Vec::new();
    collect_sizes(table.get_ref(), &mut sizes);
    sizes.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut spelled = text.to_owned();
    for (span, size) in sizes {
        spelled.replace_range(span, &size.to_string());
    }
    Ok(spelled)
}

fn collect_sizes(table: &DeTable<'_>, sizes: &mut Vec<(Range<usize>, Tokens)>) {
    for (key, value) in table {
        match value.get_ref() {
            DeValue::String(text) if key.get_ref().ends_with("_tokens") => {
                sizes.extend(text.parse().ok().map(|size| (value.span(), size)));
            }
            DeValue::Table(inner) => collect_sizes(inner, sizes),
            DeValue::Array(entries) => entries.iter().for_each(|entry| {
                if let DeValue::Table(inner) = entry.get_ref() {
                    collect_sizes(inner, sizes);
                }
            }),
            _ => {}
        }
    }
}

fn line_error(text: &str, error: &toml::de::Error) -> FileError {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..start].matches('\n').count() + 1;
    let names_no_key = ["invalid ", "wanted "].iter().any(|begin| error.message().starts_with(begin));
    let table = DeTable::parse(text).ok().filter(|_| names_no_key);
    let Some((key, value)) = table.as_ref().and_then(|table| entry_at(table.get_ref(), start)) else {
        return FileError::Line { line, cause: explain(error) };
    };
    let value: String = text[value].chars().take(SHOWN_VALUE).collect();
    let cause = match explain(error) {
        cause if cause.starts_with("wanted string or table") => format!("{key} = {value}: expected a name in quotes"),
        cause => format!("{key}: {}", with_sizes(&key, cause)),
    };
    FileError::Line { line, cause }
}

/// The key whose value begins before a place and ends behind it, with its sections, and where the value is.
fn entry_at(table: &DeTable<'_>, place: usize) -> Option<(String, Range<usize>)> {
    table.iter().find_map(|(name, value)| {
        let within = |value: &Spanned<DeValue<'_>>| value.get_ref().as_table().and_then(|table| entry_at(table, place));
        let (inner, is_leaf) = match value.get_ref() {
            DeValue::Table(_) => (within(value), false),
            DeValue::Array(entries) => {
                (entries.iter().find_map(within), entries.iter().all(|entry| !entry.get_ref().is_table()))
            }
            _ => (None, true),
        };
        match inner {
            Some((key, span)) => Some((format!("{}.{key}", name.get_ref()), span)),
            None => (is_leaf && value.span().contains(&place)).then(|| (name.get_ref().to_string(), value.span())),
        }
    })
}

/// How else a number of tokens may be written.
fn with_sizes(key: &str, cause: String) -> String {
    match key.ends_with("_tokens") && cause.contains("expected a whole number") {
        true => cause + "; sizes in tokens may be written \"4k\"",
        false => cause,
    }
}

/// serde's message, with the nearest known name where one was not known.
fn explain(error: &toml::de::Error) -> String {
    let message = error.message();
    if message.contains("wanted exactly 1 element") {
        return "exactly one attention method is wanted, such as [attention.star]".into();
    }
    let words = reworded(message).replace('`', "'").replace("expected an object", "expected a table");
    match words.strip_prefix("unknown field ") {
        Some(rest) => format!("unknown key {rest}"),
        None => words.replacen("unknown variant ", "unknown value ", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text, []).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_line_and_the_nearest_key() {
        let errors = [
            "version = 1\n[cluster]\nnmae = \"x\"\n",
            "version = 1\n[clutser]\n",
            "version = 1\n[supervisor]\nheartbeat_ms = \"fast\"\n",
            "version = 1\n[model]\n\nmax_context_tokens = \"32kb\"\n",
            "version = 1\n[model]\ndtype = \"fp32\"\n",
            "version = 1\n[model]\ndtype = 16\n",
            "version = 1\n[[model]]\n[[model]]\nname = \"b\"\n\ndtype = 16\n",
            "version = 1\nmodel.dtype = [1]\n",
            "version = 1\n[[host]]\nname = \"a\"\nrole = \"query\"\nport = 70000\n",
            "version = 1\n[[host]]\nname = \"a\"\nrole = \"query\"\nthreads = -1\n",
            "version = 1\n[security]\nallow_open_admin = \"yes\"\n",
            "version = 1\ncluster = 3\n",
            "version = 1\n[attention.stra]\n",
            "version = 1\n[attention.star]\nblock_token = 4096\n",
            "version = 1\n[attention.star]\n[attention.dense]\n",
            "version = 1\n[[host]]\nname = \"a\"\nrole = \"contxt\"\n",
            "version = 1\n[[host]]\nname = \"a\"\n",
            "version = 1\n[cluster\n",
            "[cluster]\n",
            "version = 1\n[cluster]\nzzz = 1\n",
        ]
        .map(|text| format!("{text:?}\n  {}", refused(text)))
        .join("\n");
        insta::assert_snapshot!(errors);
    }

    #[test]
    fn an_empty_file_is_said_to_be_empty() {
        assert_eq!([parse("", []), parse(" \n\n", [])], [Err(FileError::Empty), Err(FileError::Empty)]);
    }

    #[test]
    fn sizes_and_overrides() {
        let text = "version = 1\n[model]\nmax_context_tokens = \"32k\"\n";
        assert_eq!(parse(text, []).unwrap().model.first.max_context_tokens, Some(32768));
        let laid = |pairs: &[(&str, &str)]| parse(text, pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())));
        let file = laid(&[
            ("ASTERISM__MODEL__MAX_CONTEXT_TOKENS", "1k"),
            ("ASTERISM__CLUSTER__NAME", "north"),
            ("ASTERISM__SUPERVISOR__HEARTBEAT_MS", "250"),
            ("PATH", "/bin"),
        ])
        .unwrap();
        assert_eq!(file.model.first.max_context_tokens, Some(1024));
        assert_eq!(file.cluster.name, "north");
        assert_eq!(file.supervisor.heartbeat_ms, 250);
        let errors = [
            laid(&[("ASTERISM__CLUSTER__NMAE", "x")]),
            laid(&[("ASTERISM__CLUSTER", "x")]),
            laid(&[("ASTERISM__SUPERVISOR__HEARTBEAT_MS", "soon")]),
            laid(&[("ASTERISM__VERSION__X", "1")]),
        ]
        .map(|outcome| outcome.unwrap_err().to_string())
        .join("\n");
        insta::assert_snapshot!(errors);
    }
}
