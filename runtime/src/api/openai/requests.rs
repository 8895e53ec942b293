//! Requests of OpenAI's API as clients write them, read field by field. Starts nothing.

pub(crate) mod ask;
pub(crate) mod fields;
pub(crate) mod form;
pub mod known;
pub(crate) mod logprobs;
pub(crate) mod message;
pub(crate) mod once;
mod sampling;
pub(crate) mod shape;
pub(crate) mod thinking;
pub(crate) mod tools;
