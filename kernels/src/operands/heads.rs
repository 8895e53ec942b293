//! The heads of an attention layer. Holds no number of theirs.

/// Head counts and size of one attention layer. `query` is a multiple of `kv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Elements of one head.
    pub dim: usize,
}

impl Heads {
    /// f32 values of one packed row.
    pub fn packed_row(self) -> usize {
        self.query * (self.dim + 1)
    }
}
