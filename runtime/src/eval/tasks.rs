//! The tasks that are made here: records of a given size from a seed. Scores nothing.

pub(crate) mod babi;
pub(crate) mod common;
pub(crate) mod draft;
pub(crate) mod fit;
pub(crate) mod frequency;
pub(crate) mod haystack;
pub(crate) mod natural;
pub(crate) mod needle;
pub(crate) mod prose;
pub(crate) mod retrieval;
pub(crate) mod task;
pub(crate) mod variable;
