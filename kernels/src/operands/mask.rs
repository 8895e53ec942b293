//! Which keys rows see, as a function of where they are. Lists no keys.

use std::ops::Range;

/// Which keys a query row sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Every row sees every key.
    None,
    /// Bottom-right causal: row `i` of `tq` sees key `j` of `tk` iff `j <= i + tk - tq`. A row may see no key.
    Causal,
    /// Rows before `row` see no key at all, the rest every key.
    From {
        /// The first row that sees keys.
        row: usize,
    },
    /// StreamingLLM: row `i` is token `first_row + i`, key `j` token `first_key + j`; a row sees a key that does not come
    /// after it and is either among the first `sink` tokens or less than `window` tokens back (1 is the row's own token).
    Streaming {
        /// First tokens of the sequence that everybody sees.
        sink: usize,
        /// Tokens seen up to the row's own, that one included.
        window: usize,
        /// Token of row 0.
        first_row: usize,
        /// Token of key 0.
        first_key: usize,
    },
}

impl Mask {
    /// The same over keys that begin at a later token, where it counts tokens.
    #[must_use]
    pub fn beginning_at(self, token: usize) -> Self {
        match self {
            Self::Streaming { sink, window, first_row, first_key } => {
                Self::Streaming { sink, window, first_row, first_key: first_key + token }
            }
            other => other,
        }
    }

    /// End of the keys that row `row` of `queries` sees among `keys`.
    pub(crate) fn visible(self, row: usize, queries: usize, keys: usize) -> usize {
        match self {
            Self::None => keys,
            Self::Causal => (row + 1 + keys).saturating_sub(queries).min(keys),
            Self::From { row: first } => {
                if row < first {
                    0
                } else {
                    keys
                }
            }
            Self::Streaming { first_row, first_key, .. } => (first_row + row + 1).saturating_sub(first_key).min(keys),
        }
    }

    /// Keys before the end of what row `row` sees that it does not see; start and end never fall from row to row.
    pub(crate) fn hidden(self, row: usize, visible: usize) -> Range<usize> {
        match self {
            Self::Streaming { sink, window, first_row, first_key } => {
                let start = sink.saturating_sub(first_key).min(visible);
                let end = (first_row + row + 1).saturating_sub(window).saturating_sub(first_key).min(visible);
                start..end.max(start)
            }
            _ => visible..visible,
        }
    }
}
