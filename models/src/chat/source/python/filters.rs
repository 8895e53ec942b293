//! Filters of Jinja2 that do otherwise than the interpreter's own. Knows no methods.

use minijinja::value::{Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, filters};

use super::arguments::Arguments;
use super::{json::Style, strings};

/// Widest indent.
const WIDEST_INDENT: i64 = 1 << 10;

/// Teaches the interpreter these filters.
pub fn teach(environment: &mut Environment<'static>) {
    type Filter = fn(&Value, Arguments) -> Result<Value, Error>;
    let known: [(&'static str, Filter); 10] = [
        ("tojson", |value, arguments| Style::of(arguments)?.dump(value).map(Value::from)),
        ("trim", trim),
        ("replace", replace),
        ("length", length),
        ("count", length),
        ("default", default),
        ("d", default),
        ("indent", indent),
        ("int", int),
        ("float", float),
    ];
    for (name, filter) in known {
        environment.add_filter(name, move |value: &Value, rest: Rest<ValueOrKwargs>| {
            let arguments: Vec<Value> = rest.0.into_iter().map(Value::from).collect();
            filter(value, Arguments::of(&arguments)?)
        });
    }
}

/// What `str` makes of a value.
fn text(value: &Value) -> String {
    if value.is_undefined() { String::new() } else { value.to_string() }
}

fn trim(value: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let chars = arguments.text("chars")?;
    arguments.end()?;
    let text = text(value);
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).into(),
        None => strings::strip(&text).into(),
    })
}

fn replace(value: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let (old, new) = (text(&arguments.needed("old")?), text(&arguments.needed("new")?));
    let count = arguments.number("count")?;
    arguments.end()?;
    Ok(strings::replace(&text(value), (&old, &new), count).into())
}

fn length(value: &Value, arguments: Arguments) -> Result<Value, Error> {
    arguments.end()?;
    if value.is_undefined() { Ok(0.into()) } else { filters::length(value).map(Value::from) }
}

fn default(value: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let (other, falsy) = (arguments.next("default_value")?, arguments.truth("boolean")?);
    arguments.end()?;
    let missing = value.is_undefined() || (falsy && !value.is_true());
    Ok(if missing { other.unwrap_or_else(|| "".into()) } else { value.clone() })
}

fn indent(value: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let width = arguments.next("width")?.unwrap_or_else(|| 4.into());
    let (first, blank) = (arguments.truth("first")?, arguments.truth("blank")?);
    arguments.end()?;
    let by = match width.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(i64::try_from(width)?.clamp(0, WIDEST_INDENT) as usize),
    };
    // The line that ends with the text is one, too.
    let text = text(value) + "\n";
    let mut indented = String::with_capacity(text.len());
    for (at, line) in strings::lines(&text, false).into_iter().enumerate() {
        indented.push_str(if at > 0 { "\n" } else { "" });
        if (at > 0 && (blank || !line.is_empty())) || (at == 0 && first) {
            indented.push_str(&by);
        }
        indented.push_str(line);
    }
    Ok(indented.into())
}

fn int(value: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let (other, base) =
        (arguments.next("default")?.unwrap_or_else(|| 0.into()), arguments.number("base")?.unwrap_or(10));
    arguments.end()?;
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "expected a base from 2 to 36"))?;
    let Some(text) = value.as_str().map(strings::strip) else {
        return Ok(match number(value) {
            Some(_) if value.is_integer() && value.is_number() => value.clone(),
            Some(float) => (float as i64).into(),
            None => other,
        });
    };
    let digits = match base {
        16 => text.trim_start_matches("0x"),
        8 => text.trim_start_matches("0o"),
        2 => text.trim_start_matches("0b"),
        _ => text,
    };
    let whole = i64::from_str_radix(&digits.replace('_', ""), base).ok();
    let cut = || text.parse::<f64>().ok().filter(|float| float.is_finite()).map(|float| float.trunc() as i64);
    Ok(whole.or_else(cut).map_or(other, Value::from))
}

/// A number, or a truth as one.
fn number(value: &Value) -> Option<f64> {
    let truth = || bool::try_from(value.clone()).ok().map(f64::from);
    if value.is_number() { f64::try_from(value.clone()).ok() } else { truth() }
}

fn float(value: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let other = arguments.next("default")?.unwrap_or_else(|| 0.0.into());
    arguments.end()?;
    let float = match value.as_str() {
        Some(text) => strings::strip(text).parse::<f64>().ok(),
        None => number(value),
    };
    Ok(float.map_or(other, Value::from))
}
