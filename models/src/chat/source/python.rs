//! What Python and Jinja2 do otherwise than the interpreter does by itself, as far as chat templates ask for it. Bounds nothing.
//!
//! Not taught, so that a template that needs it is refused by name: `%` of a string, methods that change a list or a mapping
//! (transformers refuses them too), `varargs` and `kwargs` of macros, `cycler`, `joiner`, and filters that write for browsers.

mod arguments;
mod filters;
mod json;
mod numbers;
mod strings;
mod syntax;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use arguments::Arguments;
pub use strings::{rstrip, strip};
pub use syntax::text;

/// Teaches the interpreter methods, filters and tests of Python and Jinja2.
pub fn teach(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|output, state, value| match numbers::float(value) {
        Some(float) => output.write_str(&numbers::repr(float)).map_err(Error::from),
        None => minijinja::escape_formatter(output, state, value),
    });
    environment.remove_global("debug");
    environment.add_function("dict", |arguments: minijinja::value::Rest<minijinja::value::ValueOrKwargs>| {
        let arguments: Vec<Value> = arguments.0.into_iter().map(Into::into).collect();
        dict(&arguments)
    });
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Iterable | String | Map | Undefined)
    });
    filters::teach(environment);
}

/// A method that the interpreter does not know.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let known = match (value.as_str(), name) {
        (Some(text), _) => strings::method(text, name, Arguments::of(arguments)?)?,
        (None, "copy") if matches!(value.kind(), ValueKind::Map | ValueKind::Seq) => Some(value.clone()),
        (None, "index") if value.kind() == ValueKind::Seq => Some(index(value, Arguments::of(arguments)?)?),
        _ => None,
    };
    match known {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// `list.index`.
fn index(list: &Value, mut arguments: Arguments) -> Result<Value, Error> {
    let what = arguments.needed("x")?;
    arguments.end()?;
    let mut items = list.try_iter()?;
    let at = items.position(|item| item == what);
    at.map(Value::from).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, format!("{what:?} is not in list")))
}

/// `dict`, of a mapping or of pairs, and of names.
fn dict(arguments: &[Value]) -> Result<Value, Error> {
    let (values, names) = Arguments::of(arguments)?.into_parts();
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    for value in values {
        for key in value.try_iter()? {
            pairs.push(match value.kind() {
                ValueKind::Map => (key.clone(), value.get_item(&key)?),
                _ => (key.get_item_by_index(0)?, key.get_item_by_index(1)?),
            });
        }
    }
    for name in names.args() {
        pairs.push((Value::from(name), names.get(name)?));
    }
    Ok(Value::from_pairs(pairs))
}
