//! What MInference and FlexPrefill keep of sums of attention weights, in numbers that every device takes.

use crate::{FlexRule, VerticalSlashRule};

/// Rows of a block, and keys of a slash block, of the vertical-slash pattern; rows it is estimated from.
pub const SLASH: usize = 64;
/// Rows and keys of a block of FlexPrefill; rows it estimates from.
pub const FLEX: usize = 128;
/// Columns and offsets of the vertical-slash pattern that come before all others.
pub const FOREMOST: [usize; 2] = [30, 100];

impl VerticalSlashRule {
    /// Columns and offsets kept, where there are so many.
    pub fn kept(&self) -> [usize; 2] {
        [self.vertical.max(30), self.slash.max(50)]
    }
}

impl FlexRule {
    /// Whether every row of a sequence sees every key before it.
    pub fn is_dense(&self, tokens: usize) -> bool {
        tokens <= self.min_budget.max(256)
    }

    /// Columns, and diagonals, that are kept at least of so many blocks.
    pub fn least(&self, blocks: usize) -> usize {
        self.min_budget.div_ceil(FLEX).clamp(1, blocks)
    }

    /// What may be covered of a mass; the whole is never missed by rounding.
    pub fn limit(&self, mass: f32) -> f32 {
        if self.gamma < 1.0 { self.gamma * mass } else { f32::INFINITY }
    }
}
