//! Long-context tasks made from a seed, their scoring, and scores summed up. Pure: numbers come from the seed, token
//! counts from the caller.
//!
//! The tasks are RULER's, BABILong's (simulated bAbI facts in prose) and InfiniteBench's that need no data set; strings
//! follow the benchmarks. Files of questions are read as this program, RULER, LongBench and InfiniteBench write them. The only I/O is reading files that the caller names. Nothing here runs a model.

mod answer;
mod books;
mod documents;
mod error;
mod metric;
mod published;
mod question;
mod record;
mod results;
pub mod tasks;

pub use crate::eval::results::chart::svg;
pub use crate::eval::tasks::task::{Recipe, Task, generate, is_task_question, make, make_at_depth};
pub use answer::{Answer, AnswerSeconds, QuestionKey, Scoring, append_answers, merged, read_answers};
pub use books::{Book, Library};
pub use documents::Corpus;
pub use error::EvalError;
pub use metric::Metric;
pub use published::{PublishedQuestion, read_questions};
pub use question::{EvalQuestion, QuestionPlace};
pub use record::{EvalRecord, HaystackSource, read_haystack, score};
pub use results::{BASELINE, Block, MethodScore, Percent, Phases, Results, TaskScore};

#[cfg(test)]
mod tests;
