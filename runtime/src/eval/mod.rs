//! Long-context tasks made from a seed, and their scoring. Pure: numbers come from the seed, token counts from the caller.
//!
//! The tasks are those of RULER that need no data set (needles, variable tracking, frequent words) and simulated bAbI
//! facts in prose as in BABILong; strings follow the benchmarks. The only I/O is reading a file that the caller names.
//! Nothing here runs a model.

mod babi;
mod error;
mod fit;
mod frequency;
mod haystack;
mod needle;
mod prose;
mod record;
mod table;
mod task;
mod variable;

pub use error::EvalError;
pub use record::{HaystackSource, Record, read_haystack, read_jsonl, score};
pub use table::{Row, Table};
pub use task::{Task, generate};

#[cfg(test)]
mod tests;
