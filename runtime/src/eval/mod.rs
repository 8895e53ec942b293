//! Long-context tasks made from a seed, their scoring, and scores summed up. Pure: numbers come from the seed, token
//! counts from the caller.
//!
//! The tasks are RULER's, BABILong's (simulated bAbI facts in prose) and InfiniteBench's that need no data set; strings
//! follow the benchmarks. Files of questions are read as this program, RULER, LongBench and InfiniteBench write them. The only I/O is reading files that the caller names. Nothing here runs a model.

mod answer;
mod babi;
mod books;
mod chart;
mod common;
mod documents;
mod error;
mod fit;
mod frequency;
mod haystack;
mod interval;
mod metric;
mod needle;
mod overlap;
mod prose;
mod published;
mod question;
mod record;
mod report;
mod results;
mod retrieval;
mod task;
mod variable;

pub use answer::{Answer, Key, Scoring, Seconds, append_answers, merged, read_answers};
pub use books::{Book, Library};
pub use chart::svg;
pub use documents::Corpus;
pub use error::EvalError;
pub use metric::Metric;
pub use published::{Given, read_questions};
pub use question::{Place, Question};
pub use record::{HaystackSource, Record, read_haystack, score};
pub use results::{BASELINE, Block, MethodScore, Percent, Phases, Results, TaskScore};
pub use task::{Recipe, Task, generate, is_task_question, make, make_at_depth};

#[cfg(test)]
mod tests;
