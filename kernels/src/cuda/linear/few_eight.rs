//! Products of few rows of 8-bit floats by an own kernel for Hopper that reads the weights once and at full speed; chosen as
//! [`super::few`]'s is.

use super::super::device::layout::{Lies, Map, Strides};
use super::super::device::{Device, LaunchShape, launch};
use super::product::{Key, Operands};
use crate::KernelError;

/// Most rows that it takes.
const MOST_ROWS: usize = 64;
/// Inputs of a stage, as `few_eight.cu` has them.
const STAGE_INPUTS: usize = 256;
/// Of a stage, its two barriers.
const BARRIER_BYTES: usize = 16;
/// A warpgroup, and a warp that brings what it multiplies.
const THREADS: u32 = 128 + 32;

/// As `few_eight.cu` declares it.
#[repr(C, align(64))]
struct FewEight {
    maps: [Map; 2],
    scales: [u64; 2],
    bias: u64,
    residual: u64,
    out: u64,
    rows: i32,
    n: i32,
    k: i32,
    unused: [i32; 3],
}

/// What a block of threads multiplies at a time, as `few_eight.cu` has it.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    outputs: usize,
    stages: usize,
}

impl Tile {
    /// The smallest for so many rows; of few rows so many outputs that all processors have about as much to read.
    fn of(rows: usize, n: usize, processors: usize) -> Self {
        let tile = |rows, outputs, stages| Self { rows, outputs, stages };
        let sizes = match rows {
            ..=8 => [tile(8, 48, 16), tile(8, 32, 22)],
            9..=16 => [tile(16, 48, 14), tile(16, 32, 18)],
            17..=32 => [tile(32, 64, 9); 2],
            _ => [tile(64, 64, 7); 2],
        };
        let most = |tile: &Self| n.div_ceil(tile.outputs).div_ceil(processors) * tile.outputs;
        sizes.into_iter().min_by_key(most).expect("there are two")
    }

    /// Bytes of shared memory.
    fn shared(self) -> usize {
        self.stages * ((self.rows + self.outputs) * STAGE_INPUTS + BARRIER_BYTES)
    }
}

/// Whether the kernel takes a product of up to so many rows.
pub fn takes(device: &Device, key: Key, rows: usize) -> bool {
    key.eight && rows <= MOST_ROWS && device.is_hopper() && !(key.bias && key.residual)
}

/// Queues a product that the kernel takes.
pub fn multiply(device: &Device, key: Key, rows: usize, operands: Operands) -> Result<(), KernelError> {
    let Key { n, k, bias, .. } = key;
    let processors = device.room().processors();
    let tile = Tile::of(rows, n, processors);
    // Two bytes are an element of a map.
    let map = |pointer: u64, rows: usize, box_rows: usize| {
        let at = Strides { head: (rows * k / 2) as i64, row: (k / 2) as i64 };
        device.known_maps().find(Lies { pointer, sizes: [1, rows, k / 2], at, box_rows: box_rows as u32 })
    };
    let few = FewEight {
        maps: [map(operands.x, rows, tile.rows)?, map(operands.weight, n, tile.outputs)?],
        scales: operands.scales,
        bias: if bias { operands.bias } else { 0 },
        residual: operands.residual,
        out: operands.out,
        rows: rows as i32,
        n: n as i32,
        k: k as i32,
        unused: [0; 3],
    };
    let spread =
        LaunchShape { blocks: (n.div_ceil(tile.outputs).min(processors), 1), threads: THREADS, shared: tile.shared() };
    launch!(device, &format!("linear_few_eight_{}x{}", tile.rows, tile.outputs), spread, few)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_about_as_much_to_read_each() {
        let outputs = |n| Tile::of(1, n, 132).outputs;
        assert_eq!([4096, 5120, 6144, 28672].map(outputs), [32, 48, 48, 32]);
        for (rows, held) in [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64), (64, 64)] {
            let tile = Tile::of(rows, 4096, 132);
            assert_eq!(tile.rows, held);
            assert!(tile.shared() <= 227 << 10, "{rows} rows");
        }
    }
}
