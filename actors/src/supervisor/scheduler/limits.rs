//! What bounds scheduling in the supervisor, in one place. docs/scheduling.md names these and those of hosts.

use std::time::Duration;

/// Contexts that are encoded at once, or wait for a query host: while one job generates, context hosts encode the next. As many again
/// where each is the only one of its key.
pub const CONTEXTS_AT_ONCE: usize = 4;

/// Jobs that one query host generates at once, and as many again of keys for which nothing else is generated: nobody waits until what
/// another key asked for has ended.
pub const GENERATIONS_PER_HOST: usize = 32;

/// How long a context or a job waits for a host that can take it, before it fails.
pub const PLACEMENT_PATIENCE: Duration = Duration::from_secs(60);
