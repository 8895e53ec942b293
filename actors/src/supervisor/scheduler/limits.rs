//! What bounds scheduling in the supervisor, in one place. docs/scheduling.md names these and those of hosts.

use std::time::Duration;

/// Contexts that are encoded at once, or wait for a query host: while one job generates, context hosts encode the next. As many again
/// where each is the only one of its key.
pub const CONTEXTS_AT_ONCE: usize = 4;

/// How long a context or a job waits for a host that can take it, before it fails.
pub const PLACEMENT_PATIENCE: Duration = Duration::from_secs(60);
