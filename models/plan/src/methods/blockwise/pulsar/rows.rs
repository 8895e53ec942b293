//! How much shards may add up to that each encode the summaries before them.

use crate::{PlanError, Summary};

/// Most rows that shards may add up to, for each token of the context and beyond: many small blocks, each behind summaries
/// of all before it, would need memory as the square of the context.
const MOST_ROWS: (usize, usize) = (64, 1 << 16);

/// # Errors
/// [`PlanError::TooManyRows`] where each shard behind the sink and all summaries before it is too much.
pub(super) fn check(context: usize, sink: usize, summaries: &[Summary]) -> Result<(), PlanError> {
    let (mut before, mut rows) = (sink, context);
    for summary in summaries {
        rows = rows.saturating_add(before);
        before = before.saturating_add(summary.indices.len());
    }
    let most = context.saturating_mul(MOST_ROWS.0).saturating_add(MOST_ROWS.1);
    match rows > most {
        true => Err(PlanError::TooManyRows { rows, context, most }),
        false => Ok(()),
    }
}
