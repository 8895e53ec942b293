//! How a checkpoint stores the elements of a tensor: one by one, or in blocks that share scales, as GGUF has them. Says what blocks are
//! and what stands in them; multiplies nothing.

mod blocks;
mod codes;

use std::fmt;
use std::ops::Range;

pub use blocks::BlockFormat;
pub(crate) use blocks::{Packing, SUB};
pub(crate) use codes::sub_block;

use crate::DType;

/// Storage type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// An element after the other.
    Plain(DType),
    /// Blocks of the last axis.
    Blocks(BlockFormat),
}

impl From<DType> for Stored {
    fn from(dtype: DType) -> Self {
        Self::Plain(dtype)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(dtype) => dtype.name(),
            Self::Blocks(format) => format.name(),
        })
    }
}

impl Stored {
    /// Elements that are stored together: a tensor's last axis is whole blocks of them.
    pub fn block(self) -> usize {
        match self {
            Self::Plain(_) => 1,
            Self::Blocks(format) => format.elements(),
        }
    }

    /// Bytes of so many elements; none where they are no whole blocks, or more than can be counted.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        match self {
            Self::Plain(dtype) => elements.checked_mul(dtype.size()),
            Self::Blocks(format) if elements.is_multiple_of(format.elements()) => {
                (elements / format.elements()).checked_mul(format.bytes())
            }
            Self::Blocks(_) => None,
        }
    }

    /// Bytes of elements `range`, which begin and end with a block.
    ///
    /// # Panics
    /// Where they do not.
    pub fn byte_range(self, range: Range<usize>) -> Range<usize> {
        let at = |element| self.bytes_of(element).expect("ranges of stored elements are whole blocks");
        at(range.start)..at(range.end)
    }
}
