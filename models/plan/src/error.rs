//! What can be wrong with a request or a plan.

/// Why a plan was not made, or is not a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing to encode.
    #[error("the context holds 0 tokens; give a document of at least 1 token")]
    EmptyContext,
    /// Nobody to encode it.
    #[error("the cluster has 0 context hosts; add a host with role \"context\"")]
    NoHosts,
    /// Blocks must hold something.
    #[error("block_tokens is 0; give at least {least}, or leave it out for an even split over the hosts")]
    ZeroBlock {
        /// Smallest block accepted.
        least: usize,
    },
    /// A unit was probably forgotten.
    #[error(
        "a block of {block} tokens for a context of {context}: did you mean {block}k? Blocks hold at least {least} tokens"
    )]
    BlockTooSmall {
        /// Tokens asked for.
        block: usize,
        /// Tokens of the context.
        context: usize,
        /// Smallest block accepted.
        least: usize,
    },
    /// The anchor is a leading part of the first block.
    #[error(
        "an anchor of {anchor} tokens is longer than a block of {block}; lower anchor_tokens or raise block_tokens"
    )]
    AnchorTooLong {
        /// Tokens asked for.
        anchor: usize,
        /// Tokens of a block.
        block: usize,
    },
    /// A list of the anchor ablations does not fit the anchor.
    #[error("{list} has {got} entries, the plan needs {expected}; give one {each}")]
    ListLength {
        /// Name of the list.
        list: &'static str,
        /// What an entry stands for.
        each: &'static str,
        /// Entries needed.
        expected: usize,
        /// Entries given.
        got: usize,
    },
    /// An entry of a list of the anchor ablations is out of range.
    #[error("{list} holds {got}, allowed are values below {below}")]
    ListValue {
        /// Name of the list.
        list: &'static str,
        /// First value not allowed.
        below: usize,
        /// The value given.
        got: usize,
    },
    /// A permutation names a token twice.
    #[error("permutation holds {got} twice; name each index at most once")]
    Repeated {
        /// The repeated index.
        got: usize,
    },
    /// Chunks must hold something.
    #[error("a summary chunk of 0 tokens; give at least 1, published is 32")]
    ZeroChunk,
    /// A share lies between nothing and all.
    #[error("a summary of {got} of each block; give a share from 0 to 1, published is 0.125")]
    SummaryShare {
        /// The share given.
        got: String,
    },
    /// No method of this name.
    #[error("no attention method is called {name:?}; known are {known}")]
    UnknownMethod {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A plan breaks an invariant of [`Plan`](crate::Plan): refuse to carry it out.
    #[error("not a plan: {what} of block {block} is {got}, expected {expected}; make the plan anew")]
    Broken {
        /// The quantity at fault.
        what: &'static str,
        /// Place of the shard in the plan; the number of shards when the plan as a whole is at fault.
        block: usize,
        /// What the invariant asks for.
        expected: usize,
        /// What the plan holds.
        got: usize,
    },
}

impl PlanError {
    /// A stable name for metric labels and HTTP.
    pub fn code(&self) -> &'static str {
        match self {
            Self::EmptyContext => "empty_context",
            Self::NoHosts => "placement_impossible",
            Self::ZeroBlock { .. } | Self::BlockTooSmall { .. } => "block_too_small",
            Self::AnchorTooLong { .. }
            | Self::ListLength { .. }
            | Self::ListValue { .. }
            | Self::Repeated { .. }
            | Self::ZeroChunk
            | Self::SummaryShare { .. }
            | Self::UnknownMethod { .. } => "invalid_method",
            Self::Broken { .. } => "invalid_plan",
        }
    }
}
