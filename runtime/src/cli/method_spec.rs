//! Attention methods as one word: `star:block_tokens=4k:anchor_tokens=64`. Keys and values are the method's own; none is
//! named here.

use asterism_plan::MethodConfig;
use serde_json::{Map, Value};

use crate::{
    cluster::{self, size::Tokens},
    error::CliError,
};

const HINT: &str = "options follow the name: `star:block_tokens=4k:anchor_tokens=64`";

/// The method that `spec` names, with the options behind it.
pub fn parse(spec: &str) -> Result<MethodConfig, CliError> {
    let mut parts = split(spec, ':').into_iter();
    let name = parts.next().unwrap_or_default();
    let named: MethodConfig = name.parse().map_err(|error| CliError::usage(error).hint(HINT))?;
    let refused = |cause: String| CliError::usage(format!("method {name}: {cause}")).hint(HINT);
    let mut options = Map::new();
    for part in parts {
        let Some((key, value)) = part.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(refused(format!("expected KEY=VALUE, got {part:?}")));
        };
        if options.insert(key.to_owned(), option(value)).is_some() {
            return Err(refused(format!("{key} is given twice")));
        }
    }
    let mut typed = Map::new();
    typed.insert(named.name().to_owned(), Value::Object(options));
    serde_json::from_value(Value::Object(typed)).map_err(|error| refused(error.to_string()))
}

/// A list of specs separated by commas: each as typed, with its method.
pub fn parse_list(list: &str) -> Result<Vec<(String, MethodConfig)>, CliError> {
    let mut methods: Vec<(String, MethodConfig)> = Vec::new();
    for spec in split(list, ',').into_iter().map(str::trim) {
        let method = parse(spec)?;
        checked(&method)?;
        if methods.iter().any(|(_, known)| *known == method) {
            return Err(CliError::usage(format!("the method {spec} is given twice")).hint("name each method once"));
        }
        methods.push((spec.to_owned(), method));
    }
    Ok(methods)
}

/// Refuses sizes that make no plan.
pub fn checked(method: &MethodConfig) -> Result<(), CliError> {
    cluster::check_method(method).map_err(|error| {
        CliError::usage(format!("--method {}: {error}", method.name()))
            .hint("sizes are tokens, such as --block-size 4k")
    })
}

/// A size with its unit, JSON, or else a string.
fn option(value: &str) -> Value {
    match value.parse::<Tokens>() {
        Ok(Tokens(size)) => size.into(),
        Err(_) => serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned())),
    }
}

/// `text` cut at separators that stand neither in brackets nor in quotes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quoted, mut escaped) = (Vec::new(), 0, 0i32, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            c if c == separator && depth <= 0 => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(spec: &str) -> String {
        serde_json::to_string(&parse(spec).unwrap()).unwrap()
    }

    #[test]
    fn sizes_strings_and_nested_values() {
        assert_eq!(json("dense"), r#"{"dense":{}}"#);
        assert_eq!(
            json("star:block_tokens=4k:anchor_tokens=64"),
            r#"{"star":{"block_tokens":4096,"anchor_tokens":64}}"#
        );
        assert_eq!(json("star:anchor_position=previous"), r#"{"star":{"anchor_position":"previous"}}"#);
        assert_eq!(
            json(r#"star:anchor_content={"constant":{"token":5}}:block_tokens=64"#),
            r#"{"star":{"block_tokens":64,"anchor_content":{"constant":{"token":5}}}}"#
        );
    }

    #[test]
    fn lists_keep_what_was_typed() {
        let list = parse_list(
            r#"dense, star:anchor_position=previous,star:block_tokens=32:anchor_content={"constant":{"token":5}}"#,
        )
        .unwrap();
        let specs: Vec<&str> = list.iter().map(|(spec, _)| spec.as_str()).collect();
        assert_eq!(
            specs,
            [
                "dense",
                "star:anchor_position=previous",
                r#"star:block_tokens=32:anchor_content={"constant":{"token":5}}"#
            ]
        );
    }

    #[test]
    fn refusals_name_the_method() {
        let wrong = [
            "comet",
            "star:blocks=4",
            "star:block_tokens",
            "star:block_tokens=x",
            "star:block_tokens=1k:block_tokens=2k",
        ];
        let lists = ["dense,", "star,star", "star:block_tokens=4"];
        let stated: Vec<String> = wrong
            .iter()
            .map(|spec| parse(spec).unwrap_err())
            .chain(lists.iter().map(|list| parse_list(list).unwrap_err()))
            .map(|error| format!("{} {}", error.exit as u8, error.message))
            .collect();
        insta::assert_snapshot!(stated.join("\n"));
    }
}
