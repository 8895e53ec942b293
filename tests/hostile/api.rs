//! What clients of the admin API and of OpenAI's API cannot do, however many and however slow.

pub mod answers;
pub mod background;
pub mod bodies;
pub mod connections;
pub mod http;
pub mod keys;
pub mod listener;
pub mod logprobs;
pub mod openai;
pub mod origins;
pub mod queue;
pub mod requests;
