//! What bounds scheduling in the supervisor, in one place. docs/scheduling.md names these and those of hosts.

use std::time::Duration;

/// Contexts that are encoded at once, however long, or wait for a query host: while one job generates, context hosts encode the next. As many again
/// where each is the only one of its key.
pub const CONTEXTS_AT_ONCE: usize = 4;

/// Contexts that are encoded at once where all of them are short.
pub const SHORT_AT_ONCE: usize = 64;

/// Beyond these, contexts begin as long as all that is encoded takes no longer than this, about: hosts encode short ones together.
pub const ENCODED_AHEAD: Duration = Duration::from_millis(250);

/// How long a context or a job waits for a host that can take it, before it fails.
pub const PLACEMENT_PATIENCE: Duration = Duration::from_secs(60);
