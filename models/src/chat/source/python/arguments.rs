//! Arguments of a function of Python: in their order, or by name. Calls nothing.

use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Error, ErrorKind};

/// What a function was called with, taken one by one.
pub struct Arguments {
    values: std::vec::IntoIter<Value>,
    names: Kwargs,
}

impl Arguments {
    pub fn of(arguments: &[Value]) -> Result<Self, Error> {
        let (values, names): (&[Value], Kwargs) = from_args(arguments)?;
        let values: Vec<Value> = values.to_vec();
        Ok(Self { values: values.into_iter(), names })
    }

    /// The next one, by order or by its name.
    pub fn next(&mut self, name: &str) -> Result<Option<Value>, Error> {
        match self.values.next() {
            Some(value) => Ok(Some(value)),
            None if self.names.has(name) => self.names.get(name).map(Some),
            None => Ok(None),
        }
    }

    pub fn needed(&mut self, name: &str) -> Result<Value, Error> {
        self.next(name)?.ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("{name} is missing")))
    }

    /// Text, which `none` is not given for.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Error> {
        match self.next(name)?.filter(|value| !value.is_none()) {
            Some(value) => text(&value).map(|text| Some(text.to_owned())),
            None => Ok(None),
        }
    }

    pub fn needed_text(&mut self, name: &str) -> Result<String, Error> {
        text(&self.needed(name)?).map(str::to_owned)
    }

    /// A whole number, which `none` is not given for.
    pub fn number(&mut self, name: &str) -> Result<Option<i64>, Error> {
        self.next(name)?.filter(|value| !value.is_none()).map(i64::try_from).transpose()
    }

    pub fn truth(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.next(name)?.is_some_and(|value| value.is_true()))
    }

    /// Nothing else was given.
    pub fn end(mut self) -> Result<(), Error> {
        match self.values.next() {
            Some(_) => Err(ErrorKind::TooManyArguments.into()),
            None => self.names.assert_all_used(),
        }
    }

    /// Those by order, and those by name.
    pub fn into_parts(self) -> (Vec<Value>, Kwargs) {
        (self.values.collect(), self.names)
    }
}

/// A string, and nothing that would have to be made one.
pub fn text(value: &Value) -> Result<&str, Error> {
    let other = || Error::new(ErrorKind::InvalidOperation, format!("expected a string, got {}", value.kind()));
    value.as_str().ok_or_else(other)
}
