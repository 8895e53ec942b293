//! What clients ask about the server itself: its model, its health, its version, and how it cuts texts into tokens. Answers no question.

pub(super) mod models;
pub(super) mod openapi;
pub(super) mod status;
pub(super) mod tokens;
