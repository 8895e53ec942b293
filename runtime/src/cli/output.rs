//! Standard output holds the result and nothing else; errors, notes and progress go to standard error.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;

use crate::{
    error::{CliError, Exit},
    globals::{Format, printable},
};

/// Prints text, newline included where the caller has one: as it is, but on a terminal without what would control it.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { printable(text) } else { Cow::Borrowed(text) };
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Prints one JSON value: indented for `json`, on one line for `jsonl`.
pub fn print_json(value: &impl Serialize, format: Format) -> Result<(), CliError> {
    let text = match format {
        Format::Jsonl => serde_json::to_string(value),
        Format::Json | Format::Table => serde_json::to_string_pretty(value),
    };
    print(&(text.expect("plain values are JSON") + "\n"))
}

/// Prints rows: a table, one JSON array, or one JSON object a line.
pub fn print_rows<T: Serialize>(rows: &[T], format: Format, table: impl FnOnce(&[T]) -> Table) -> Result<(), CliError> {
    match format {
        Format::Table => print(&table(rows).to_string()),
        Format::Json => print_json(&rows, format),
        Format::Jsonl => rows.iter().try_for_each(|row| print_json(row, format)),
    }
}

/// Prints names and what they have, a pair a line.
pub fn print_pairs(pairs: &[(&str, String)]) -> Result<(), CliError> {
    let text: String = pairs.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect();
    print(&text)
}

/// A variant's name as tables have it.
pub fn lower(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// Says why the command failed and what to do next; returns its exit code.
pub fn fail(error: &CliError, color: bool) -> Exit {
    let (red, plain) = if color { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let mut err = io::stderr().lock();
    let mut text = format!("{red}error:{plain} {}\n", printable(error.message.trim_end()));
    if let Some(hint) = &error.hint {
        text += &format!("next: {}\n", printable(hint));
    }
    // A standard error that is gone leaves only the exit code.
    let _ = err.write_all(text.as_bytes());
    error.exit
}

/// Prints a piece of what goes on: nobody has to go on for a reader that went away.
///
/// # Errors
/// [`Exit::Interrupted`] then; what the system says otherwise.
pub fn print_piece(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(CliError::new(Exit::Interrupted, "nobody reads standard output any more"))
        }
        outcome => written(outcome),
    }
}

/// A reader that went away has seen what it wanted.
fn written(outcome: io::Result<()>) -> Result<(), CliError> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(CliError::new(Exit::JobFailed, format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Columns aligned with spaces; numbers to the right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new<const N: usize>(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned).to_vec()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Takes a column out that says nothing.
    pub fn without(mut self, column: usize) -> Self {
        self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        self
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(width).collect();
        let numeric = |column: usize| {
            let mut cells =
                self.rows[1..].iter().map(|row| row[column].as_str()).filter(|cell| *cell != "-").peekable();
            cells.peek().is_some() && cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
        };
        let right: Vec<_> = (0..columns).map(numeric).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let fill = " ".repeat(widths[column] - cell.chars().count());
                line += &if right[column] { format!("{fill}{cell}  ") } else { format!("{cell}{fill}  ") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_not_controlled() {
        assert_eq!(printable("a\x1b[2J\u{9b}\r\u{202e}b\n\tc"), "a\\u001b[2J\\u009b\\u000d\\u202eb\n\tc");
        assert!(matches!(printable("naïve 你好 😀\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn tables_align_numbers_to_the_right() {
        let mut table = Table::new(["HOST", "TOKENS", "STATE"]);
        table.row(["context-0".into(), "1,024".into(), "ready".into()]);
        table.row(["q".into(), "-".into(), "loading".into()]);
        insta::assert_snapshot!(table.to_string(), @r"
        HOST       TOKENS  STATE
        context-0   1,024  ready
        q               -  loading
        ");
    }
}
