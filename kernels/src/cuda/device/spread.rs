//! How kernels are spread over a GPU's processors.

use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys::CUdevice_attribute as Attribute};

/// How a kernel is spread: blocks in x and y, threads of a block, bytes of shared memory.
#[derive(Clone, Copy)]
pub struct LaunchShape {
    pub blocks: (usize, usize),
    pub threads: u32,
    pub shared: usize,
}

impl LaunchShape {
    pub fn new(blocks: usize, threads: u32) -> Self {
        Self { blocks: (blocks, 1), threads, shared: 0 }
    }

    /// Threads that stride over `n` elements.
    pub fn over(n: usize) -> Self {
        Self::new(n.div_ceil(256).clamp(1, 16 * 1024), 256)
    }
}

/// What a GPU's processors have room for.
pub struct Occupancy {
    processors: usize,
    /// Bytes of shared memory that a block can ask for, that a processor has, and that each block takes beside.
    pub block: usize,
    processor: usize,
    taken: usize,
}

impl Occupancy {
    pub fn of(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        let number = |attribute| context.attribute(attribute).map(|number| number as usize);
        Ok(Self {
            processors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            block: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            processor: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            taken: number(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
        })
    }

    /// Processors of the GPU.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Blocks of a processor, where they are spread evenly; a tenth of the processors may have one more: small blocks among large.
    pub fn each(&self, (x, y): (usize, usize)) -> usize {
        (10 * x * y).saturating_sub(self.processors).div_ceil(10 * self.processors).max(1)
    }

    /// `spread` with so much shared memory that no processor takes many more blocks than others: a kernel that starts early finds
    /// processors free one after the other, and would fill the first of them.
    pub fn evenly(&self, spread: LaunchShape) -> LaunchShape {
        let crowded =
            (self.processor / (self.each(spread.blocks) + 1) + 1).next_multiple_of(128).saturating_sub(self.taken);
        LaunchShape { shared: spread.shared.max(crowded).min(self.block.max(spread.shared)), ..spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_processor_takes_a_block_more_than_it_has_to() {
        let room = Occupancy { processors: 132, block: 227 << 10, processor: 228 << 10, taken: 1 << 10 };
        let of_processor = |blocks: usize, shared: usize| {
            let spread = room.evenly(LaunchShape { blocks: (blocks / 8, 8), threads: 256, shared });
            assert!(spread.shared >= shared && spread.shared <= room.block);
            room.processor / (spread.shared + room.taken)
        };
        assert_eq!([128, 136, 256, 512].map(|blocks| of_processor(blocks, 115_648)), [1, 1, 2, 2]);
        assert_eq!([128, 256, 384, 1792].map(|blocks| of_processor(blocks, 73_728)), [1, 2, 3, 3]);
    }
}
