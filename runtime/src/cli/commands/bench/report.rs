//! What a run of cases prints: one JSON document, a line as each case ends, or a table at the end.

use serde::Serialize;

use super::ceiling::Ceiling;
use crate::{
    cli::output::{self, Table},
    cluster::size,
    error::{CliError, Exit},
    globals::{Format, Globals},
};

/// What was timed, or what kept it from being timed.
#[derive(Serialize)]
pub struct Case<W, T> {
    /// The case.
    #[serde(flatten)]
    pub what: W,
    #[serde(flatten)]
    pub timed: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl<W, T> Case<W, T> {
    /// The last column of its row.
    pub fn state(&self) -> String {
        self.error.clone().unwrap_or_else(|| "ok".into())
    }
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Document<'a, S, C> {
    setup: &'a S,
    ceiling: Option<Ceiling>,
    cases: &'a [C],
}

/// What `-o jsonl` prints for each case.
#[derive(Serialize)]
struct CaseLine<'a, S, C> {
    #[serde(flatten)]
    setup: &'a S,
    ceiling: Option<Ceiling>,
    #[serde(flatten)]
    case: &'a C,
}

/// The cases of a run.
pub struct BenchReport<'a, S, W, T> {
    pub globals: &'a Globals,
    pub setup: S,
    pub ceiling: Option<Ceiling>,
    cases: Vec<Case<W, T>>,
}

impl<'a, S: Serialize, W: Serialize, T: Serialize> BenchReport<'a, S, W, T> {
    pub fn new(globals: &'a Globals, setup: S, ceiling: Option<Ceiling>) -> Self {
        Self { globals, setup, ceiling, cases: Vec::new() }
    }

    /// Adds a case, and prints its line where lines are printed.
    pub fn add(&mut self, what: W, outcome: Result<T, CliError>) -> Result<(), CliError> {
        let (timed, error) = match outcome {
            Ok(timed) => (Some(timed), None),
            Err(error) => (None, Some(error.message)),
        };
        let case = Case { what, timed, error };
        if self.globals.format == Format::Jsonl {
            output::print_json(&CaseLine { setup: &self.setup, ceiling: self.ceiling, case: &case }, Format::Jsonl)?;
        }
        self.cases.push(case);
        Ok(())
    }

    /// Prints what was not printed yet. Fails where a case did.
    pub fn finish<const N: usize>(
        self,
        heads: [&str; N],
        row: impl Fn(&Self, &Case<W, T>) -> [String; N],
    ) -> Result<Exit, CliError> {
        match self.globals.format {
            Format::Json => {
                let document = Document { setup: &self.setup, ceiling: self.ceiling, cases: &self.cases };
                output::print_json(&document, Format::Json)?;
            }
            Format::Table => {
                let mut table = Table::new(heads);
                self.cases.iter().for_each(|case| table.row(row(&self, case)));
                output::print(&table.to_string())?;
            }
            Format::Jsonl => {}
        }
        match self.cases.iter().any(|case| case.error.is_some()) {
            true => Ok(Exit::JobFailed),
            false => Ok(Exit::Success),
        }
    }
}

/// A cell: `-` where there is nothing to say.
pub fn cell<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// A rate in 10^12 a second.
pub fn tera(rate: f64) -> String {
    format!("{:.3}", rate / 1e12)
}

/// A share of a ceiling.
pub fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// Bytes at the peak.
pub fn peak(bytes: u64) -> String {
    size::bytes(bytes)
}
