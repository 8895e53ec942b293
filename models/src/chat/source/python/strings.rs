//! Methods of Python's `str`. Those that count characters count code points, as Python does.

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::arguments::{Arguments, text};

/// Widest field that is filled up.
const WIDEST_FILLED: i64 = 1 << 16;

/// The result of a method; nothing where this is none of those that are known here.
pub fn method(own: &str, name: &str, mut arguments: Arguments) -> Result<Option<Value>, Error> {
    let result: Value = match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = arguments.text("chars")?;
            let is_cut = |c: char| chars.as_ref().map_or(is_space(c), |chars| chars.contains(c));
            let left = if name == "rstrip" { own } else { own.trim_start_matches(is_cut) };
            if name == "lstrip" { left } else { left.trim_end_matches(is_cut) }.into()
        }
        "split" | "rsplit" => {
            let (separator, most) = (arguments.text("sep")?, arguments.number("maxsplit")?);
            let most = most.and_then(|most| usize::try_from(most).ok());
            split(own, name == "rsplit", (separator.as_deref(), most))?.into()
        }
        "splitlines" => {
            let ends = arguments.truth("keepends")?;
            lines(own, ends).into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let separator = arguments.needed_text("sep")?;
            let at = if name == "partition" { own.find(&separator) } else { own.rfind(&separator) };
            let parts = match at {
                Some(at) => [&own[..at], &separator, &own[at + separator.len()..]],
                None if name == "partition" => [own, "", ""],
                None => ["", "", own],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "startswith" | "endswith" => {
            let sought = arguments.needed("prefix")?;
            let (_, within) = slice(own, &mut arguments)?;
            let has = |affix: &str| within.is_some_and(|within| affixed(within, affix, name == "startswith"));
            match sought.kind() {
                ValueKind::Seq => {
                    let affixes = sought.try_iter()?.map(|affix| text(&affix).map(has));
                    affixes.collect::<Result<Vec<bool>, Error>>()?.contains(&true).into()
                }
                _ => has(text(&sought)?).into(),
            }
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let sought = arguments.needed_text("sub")?;
            let (before, within) = slice(own, &mut arguments)?;
            sought_in((before, within), name, &sought)?
        }
        "replace" => {
            let (old, new) = (arguments.needed_text("old")?, arguments.needed_text("new")?);
            replace(own, (&old, &new), arguments.number("count")?).into()
        }
        "removeprefix" | "removesuffix" => {
            let affix = arguments.needed_text("prefix")?;
            let rest = if name == "removeprefix" { own.strip_prefix(&*affix) } else { own.strip_suffix(&*affix) };
            rest.unwrap_or(own).into()
        }
        "join" => {
            let items = arguments.needed("iterable")?.try_iter()?.map(|item| text(&item).map(str::to_owned));
            items.collect::<Result<Vec<String>, Error>>()?.join(own).into()
        }
        "title" => titled(own).into(),
        "swapcase" => own.chars().map(swapped).collect::<String>().into(),
        "casefold" => own.to_lowercase().replace('ß', "ss").into(),
        "isdecimal" => (!own.is_empty() && own.chars().all(|c| c.is_ascii_digit())).into(),
        "ljust" | "rjust" | "center" | "zfill" => filled(own, name, &mut arguments)?.into(),
        _ => return Ok(None),
    };
    arguments.end()?;
    Ok(Some(result))
}

/// `str.strip`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip`.
pub fn rstrip(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// `str.isspace` of a character: beside what Unicode calls white space, the four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn affixed(text: &str, affix: &str, begins: bool) -> bool {
    if begins { text.starts_with(affix) } else { text.ends_with(affix) }
}

/// `split` and `rsplit`.
fn split(text: &str, from_end: bool, (separator, most): (Option<&str>, Option<usize>)) -> Result<Vec<Value>, Error> {
    let mut parts: Vec<&str> = Vec::new();
    let (mut rest, most) = (text, most.unwrap_or(usize::MAX));
    if separator.is_some_and(str::is_empty) {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    loop {
        if separator.is_none() {
            rest = if from_end { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
            if rest.is_empty() {
                break;
            }
        }
        let cut = match separator {
            Some(by) if from_end => rest.rsplit_once(by),
            Some(by) => rest.split_once(by),
            None if from_end => rest.rsplit_once(is_space),
            None => rest.split_once(is_space),
        };
        let Some((left, right)) = cut.filter(|_| parts.len() < most) else {
            parts.push(rest);
            break;
        };
        parts.push(if from_end { right } else { left });
        rest = if from_end { left } else { right };
    }
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// `splitlines`.
pub fn lines(text: &str, ends: bool) -> Vec<&str> {
    let is_end = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(is_end) {
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { end };
        lines.push(&rest[..if ends { end } else { at }]);
        rest = &rest[end..];
    }
    lines.extend((!rest.is_empty()).then_some(rest));
    lines
}

/// The characters from `start` to `end`, and how many stand before them; nothing where there are none such.
fn slice<'t>(text: &'t str, arguments: &mut Arguments) -> Result<(usize, Option<&'t str>), Error> {
    let (start, end) = (arguments.number("start")?, arguments.number("end")?);
    if start.is_none() && end.is_none() {
        return Ok((0, Some(text)));
    }
    let length = text.chars().count() as i64;
    let at = |at: i64| if at < 0 { (at + length).max(0) } else { at.min(length) } as usize;
    let (first, last) = (at(start.unwrap_or(0)), at(end.unwrap_or(length)));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    let within = first <= last && start.unwrap_or(0) <= length;
    Ok((first, within.then(|| &text[byte(first)..byte(last)])))
}

/// `find`, `index` and `count`.
fn sought_in((before, within): (usize, Option<&str>), name: &str, sought: &str) -> Result<Value, Error> {
    if name == "count" {
        return Ok(within.map_or(0, |within| within.matches(sought).count()).into());
    }
    let at = within.and_then(|within| {
        let byte = if name.starts_with('r') { within.rfind(sought) } else { within.find(sought) };
        byte.map(|byte| before + within[..byte].chars().count())
    });
    match at {
        Some(at) => Ok(at.into()),
        None if name.ends_with("find") => Ok((-1).into()),
        None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
    }
}

/// `replace`; `count` is negative for all.
pub fn replace(text: &str, (old, new): (&str, &str), count: Option<i64>) -> String {
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    }
}

fn titled(text: &str) -> String {
    let mut within = false;
    let mut titled = String::with_capacity(text.len());
    for c in text.chars() {
        match within {
            true => titled.extend(c.to_lowercase()),
            false => titled.extend(c.to_uppercase()),
        }
        within = c.is_alphabetic();
    }
    titled
}

fn swapped(c: char) -> String {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn filled(text: &str, name: &str, arguments: &mut Arguments) -> Result<String, Error> {
    let width = arguments.number("width")?.unwrap_or(0).min(WIDEST_FILLED);
    let fill = arguments.text("fillchar")?.unwrap_or_else(|| if name == "zfill" { "0" } else { " " }.to_owned());
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    // Of an odd number, CPython puts the one more to the left where the width is odd.
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width as usize & 1),
        _ => missing,
    };
    let (sign, digits) = match text.strip_prefix(['+', '-']).filter(|_| name == "zfill") {
        Some(digits) => text.split_at(text.len() - digits.len()),
        None => ("", text),
    };
    Ok(format!("{sign}{}{digits}{}", fill.repeat(left), fill.repeat(missing - left)))
}
