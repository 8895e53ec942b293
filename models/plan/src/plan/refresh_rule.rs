//! Which tokens of a context a question gets anew: a pure function of ids. Encodes nothing.

use serde::{Deserialize, Serialize};

use crate::{Span, SummaryBudget, SummaryRule, summarize};

/// Which tokens a question gets anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshRule {
    /// First tokens of the context, always among them.
    pub sink_tokens: usize,
    /// Tokens of a chunk, at least 1.
    pub chunk_tokens: usize,
    /// Tokens of the chunks that the question asks for.
    pub tokens: usize,
}

impl RefreshRule {
    /// The sink and the chunks that the query asks for, as runs of tokens in place.
    pub(super) fn choose(&self, context: &[u32], query: &[u32]) -> Vec<Span> {
        let budget = SummaryBudget::Tokens(self.tokens);
        let rule = SummaryRule { chunk_tokens: self.chunk_tokens, budget, ..SummaryRule::query_aware() };
        let whole = 0..context.len();
        let summary = summarize(context, query, std::slice::from_ref(&whole), &rule).swap_remove(0);
        let sink = self.sink_tokens.min(context.len()) as u32;
        let chosen = summary.indices.into_iter().filter(|index| *index >= sink);
        Span::runs((0..sink).chain(chosen).map(|token| (token, token)))
    }
}
