//! Answers of OpenAI's API, whole and as streams, and the jobs that they wait for. Reads no request.

pub(crate) mod answer;
pub(crate) mod calls;
pub(crate) mod completion_events;
pub(crate) mod connection;
pub(crate) mod response;
pub(crate) mod running;
pub(crate) mod several;
pub(crate) mod stream;
pub(crate) mod wire;
