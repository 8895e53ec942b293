//! What is served over HTTP: the admin API with its console, and OpenAI's. The supervisor answers; nothing is scheduled here.

pub mod admin;
pub mod anthropic;
pub mod http;
pub mod openai;
pub(crate) mod secrets;
