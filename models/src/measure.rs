//! For measuring: what phase 2 looks at, and prompts that mean nothing. No cluster asks for either.

mod masses;
mod synthetic;

pub use masses::WatchedContext;
pub use synthetic::synthetic_prompt;
