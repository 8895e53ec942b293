//! Where the rows of a cache lie in its two buffers, keys in one and values in the other. Copies none.

use std::ops::Range;

use crate::{DType, KernelError, KvFormat, KvType};

/// What a cache has of each token, of keys as of values: elements `(kv heads, dim)`, or codes, behind all of which lie their scales
/// `(tokens, kv heads)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    pub heads: usize,
    pub dim: usize,
    pub of: KvType,
}

impl RowLayout {
    /// In compute type.
    pub fn computed(heads: usize, dim: usize, dtype: DType) -> Self {
        Self { heads, dim, of: dtype.into() }
    }

    /// The same rows in compute type.
    pub fn widened(self) -> Self {
        Self { of: self.of.computed.into(), ..self }
    }

    /// Bytes of a token's elements, or codes.
    pub fn row(self) -> usize {
        let element = match self.of.kept {
            KvFormat::Computed => self.of.computed.size(),
            KvFormat::Q8 => 1,
        };
        self.heads * self.dim * element
    }

    /// Bytes of a token's scales.
    pub fn scales(self) -> usize {
        match self.of.kept {
            KvFormat::Computed => 0,
            KvFormat::Q8 => self.heads * DType::Bf16.size(),
        }
    }

    /// Bytes before the scales of a buffer with room for so many tokens.
    pub fn before_scales(self, capacity: usize) -> usize {
        match self.of.kept {
            KvFormat::Computed => capacity * self.row(),
            KvFormat::Q8 => (capacity * self.row()).next_multiple_of(16),
        }
    }

    /// Bytes of a buffer with room for so many tokens.
    pub fn bytes(self, capacity: usize) -> usize {
        self.before_scales(capacity) + capacity * self.scales()
    }

    /// Where some tokens lie in such a buffer: the first byte of each run of bytes, and how many these are.
    pub fn runs(self, capacity: usize, tokens: &Range<usize>) -> impl Iterator<Item = (u64, usize)> + use<> {
        let of = |begin: usize, each: usize| ((begin + tokens.start * each) as u64, tokens.len() * each);
        let (codes, scales) = (of(0, self.row()), of(self.before_scales(capacity), self.scales()));
        [codes, scales].into_iter().take(if self.of.is_computed() { 1 } else { 2 })
    }

    /// Refuses rows of other heads, or kept in another way.
    ///
    /// # Errors
    /// [`KernelError::Shape`] names both.
    pub fn check_alike(self, more: Self, tokens: usize) -> Result<(), KernelError> {
        if self != more {
            let expected = format!("a cache of ({}, t, {}) {}", self.heads, self.dim, self.words());
            return Err(KernelError::Shape {
                operation: "kv_extend",
                expected,
                got: format!("[{}, {tokens}, {}] {}", more.heads, more.dim, more.words()),
            });
        }
        Ok(())
    }

    fn words(self) -> String {
        format!(
            "{}{}",
            self.of.computed.name(),
            self.of.kept.name().map(|kept| format!(" as {kept}")).unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_lie_behind_all_codes() {
        let rows = RowLayout { heads: 3, dim: 5, of: KvType { computed: DType::Bf16, kept: KvFormat::Q8 } };
        assert_eq!((rows.row(), rows.scales(), rows.before_scales(7), rows.bytes(7)), (15, 6, 112, 154));
        assert_eq!(rows.runs(7, &(2..4)).collect::<Vec<_>>(), [(30, 30), (124, 12)]);
        let wide = rows.widened();
        assert_eq!((wide.row(), wide.bytes(7)), (30, 210));
        assert_eq!(wide.runs(7, &(2..4)).collect::<Vec<_>>(), [(60, 60)]);
        assert!(rows.check_alike(rows, 1).is_ok() && rows.check_alike(wide, 1).is_err());
    }

    #[test]
    fn a_row_takes_the_bytes_that_are_counted() {
        for kept in [KvFormat::Computed, KvFormat::Q8] {
            for computed in [DType::F32, DType::Bf16] {
                let rows = RowLayout { heads: 8, dim: 128, of: KvType { computed, kept } };
                assert_eq!(rows.bytes(64), 64 * 8 * rows.of.row_bytes(128));
            }
        }
    }
}
