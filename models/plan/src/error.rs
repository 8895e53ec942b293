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
    /// A size is out of its range.
    #[error("{name} is {got}, expected {expected}")]
    Size {
        /// Name of the size.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A summary holds whole chunks.
    #[error(
        "a summary of {budget} tokens holds no chunk of {chunk}; raise the summary to at least {chunk} tokens a block, lower chunk_tokens, or give summary_tokens 0 for none"
    )]
    BudgetBelowChunk {
        /// Tokens of a block's summary.
        budget: usize,
        /// Tokens of a chunk.
        chunk: usize,
        /// Tokens of a block.
        block: usize,
    },
    /// Prefixes that cost more than any block saves.
    #[error(
        "blocks and their summaries add up to {rows} rows for a context of {context}, expected at most {most}; raise block_tokens or shorten the summaries"
    )]
    TooManyRows {
        /// Rows of all shards.
        rows: usize,
        /// Tokens of the context.
        context: usize,
        /// Most rows.
        most: usize,
    },
    /// The anchor has to hold the query.
    #[error(
        "a query of {query} tokens behind {before} does not fit an anchor of {anchor}; raise anchor_tokens to at least {least}, shorten the query, or set embed_query to false"
    )]
    QueryTooLong {
        /// Tokens of the query.
        query: usize,
        /// Context tokens in front of it.
        before: usize,
        /// Tokens of the anchor.
        anchor: usize,
        /// Least anchor that holds it.
        least: usize,
    },
    /// Nothing scores the tokens to pass on.
    #[error(
        "apb scores tokens by the query its anchor embeds, and this plan embeds none; give a query with embed_query and an anchor, or retaining_heads, or passing_tokens 0"
    )]
    NothingToScoreBy,
    /// Query heads are dealt out evenly.
    #[error("{hosts} context hosts do not divide {heads} query heads; ulysses runs on {} hosts", divisors(*heads))]
    HeadsNotDivided {
        /// Context hosts.
        hosts: usize,
        /// Query heads.
        heads: usize,
    },
    /// An even split leaves somebody nothing.
    #[error(
        "{tokens} context tokens in blocks of {block} leave {idle} of {hosts} context hosts without a block; {advice}"
    )]
    IdleHosts {
        /// Tokens of the context.
        tokens: usize,
        /// Tokens of a block.
        block: usize,
        /// Hosts without one.
        idle: usize,
        /// Context hosts.
        hosts: usize,
        /// What to do.
        advice: String,
    },
    /// Two options that exclude each other.
    #[error("{option} does not go with {other}; {advice}")]
    Conflict {
        /// One.
        option: &'static str,
        /// The other.
        other: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// No method of this name.
    #[error("no attention method is called {name:?}; known are {known}")]
    UnknownMethod {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// More passes between shards, or is to be named to a host, than messages can carry.
    #[error(
        "{what} of this plan has {got} {unit}, expected at most {most}; use more hosts or smaller blocks, or another method"
    )]
    TooLarge {
        /// What.
        what: &'static str,
        /// Of what it has too many.
        unit: &'static str,
        /// How many it has.
        got: u64,
        /// How many can be carried.
        most: u64,
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
            Self::NoHosts | Self::HeadsNotDivided { .. } | Self::IdleHosts { .. } => "placement_impossible",
            Self::ZeroBlock { .. } | Self::BlockTooSmall { .. } => "block_too_small",
            Self::AnchorTooLong { .. }
            | Self::Size { .. }
            | Self::BudgetBelowChunk { .. }
            | Self::TooManyRows { .. }
            | Self::QueryTooLong { .. }
            | Self::NothingToScoreBy
            | Self::Conflict { .. }
            | Self::ListLength { .. }
            | Self::ListValue { .. }
            | Self::Repeated { .. }
            | Self::UnknownMethod { .. } => "invalid_method",
            Self::TooLarge { .. } => "plan_too_large",
            Self::Broken { .. } => "invalid_plan",
        }
    }
}

/// Host counts that divide `heads`, in words.
fn divisors(heads: usize) -> String {
    let all: Vec<_> = (1..=heads).filter(|hosts| heads.is_multiple_of(*hosts)).map(|hosts| hosts.to_string()).collect();
    all.join(", ")
}
