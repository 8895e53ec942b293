//! A record before it has its size: what a task makes of a seed. Counts no tokens.

/// A record but for its size.
pub(crate) struct Draft {
    pub(crate) query: String,
    /// The answer to a context of so many units.
    pub(crate) answer: Box<dyn Fn(usize) -> String>,
    /// The context with so many units of haystack.
    pub(crate) context: Box<dyn FnMut(usize) -> String>,
}
