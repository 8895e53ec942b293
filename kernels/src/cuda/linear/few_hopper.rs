//! Products of few rows by an own kernel for Hopper that reads the weights once and at full speed: of 8-bit floats, and of more rows of
//! bf16 than [`super::few`]'s takes. It is chosen as that is.

use super::super::device::layout::{Lies, Map, Strides};
use super::super::device::{Device, LaunchShape, launch};
use super::few;
use super::product::{Key, Operands};
use crate::KernelError;

/// Most rows that it takes.
pub const MOST_ROWS: usize = 64;
/// Bytes of a row that lie beside each other in shared memory, and how often a stage has them, as `few_hopper.cu` has it.
const PANEL_BYTES: usize = 128;
const STAGE_PANELS: usize = 2;
/// Of a stage, its two barriers.
const BARRIER_BYTES: usize = 16;
/// A warpgroup, and a warp that brings what it multiplies.
const THREADS: u32 = 128 + 32;

/// As `few_hopper.cu` declares it.
#[repr(C, align(64))]
struct FewRows {
    maps: [Map; 2],
    scales: [u64; 2],
    bias: u64,
    residual: u64,
    out: u64,
    rows: i32,
    n: i32,
    panels: i32,
    unused: [i32; 3],
}

/// What a block of threads multiplies at a time, as `few_hopper.cu` has it.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    outputs: usize,
    stages: usize,
}

impl Tile {
    /// The smallest for so many rows; of so many outputs that what comes from memory is what takes longest, where that can be, and that
    /// all processors have about as much of it to read.
    fn of(rows: usize, n: usize, processors: usize) -> Self {
        let tile = |rows, outputs, stages| Self { rows, outputs, stages };
        let sizes = match rows {
            ..=8 => &[tile(8, 48, 16), tile(8, 32, 22)][..],
            9..=16 => &[tile(16, 48, 14), tile(16, 32, 18)],
            17..=32 => &[tile(32, 112, 6), tile(32, 64, 9), tile(32, 48, 11), tile(32, 32, 14)],
            _ => &[tile(64, 112, 5), tile(64, 64, 7), tile(64, 48, 8), tile(64, 32, 9)],
        };
        let cost = |tile: &&Self| {
            let (tiles, Tile { rows, outputs, .. }) = (n.div_ceil(tile.outputs), tile);
            let each = tiles.div_ceil(processors);
            // The cache gives at a time what half of the processors could take, memory what a quarter of them could.
            let cached = 2 * tiles * (outputs + rows) / processors;
            let slowest = (each * (outputs + rows)).max(cached).max(4 * n / processors);
            (slowest, each * tile.outputs)
        };
        *sizes.iter().min_by_key(cost).expect("there are some")
    }

    /// Bytes of shared memory.
    fn shared(self) -> usize {
        self.stages * ((self.rows + self.outputs) * STAGE_PANELS * PANEL_BYTES + BARRIER_BYTES)
    }
}

/// Whether the kernel takes a product of up to so many rows.
pub fn takes(device: &Device, key: Key, rows: usize) -> bool {
    let even = key.n.is_multiple_of(8) && row_bytes(key).is_multiple_of(PANEL_BYTES);
    let some = rows <= MOST_ROWS && (key.eight || rows > few::FEW_PRODUCT_ROWS);
    some && even && device.is_hopper() && !(key.bias && key.residual)
}

fn row_bytes(key: Key) -> usize {
    if key.eight { key.k } else { 2 * key.k }
}

/// Queues a product that the kernel takes.
pub fn multiply(device: &Device, key: Key, rows: usize, operands: Operands) -> Result<(), KernelError> {
    let (n, panels) = (key.n, row_bytes(key) / PANEL_BYTES);
    let processors = device.room().processors();
    let tile = Tile::of(rows, n, processors);
    // Panels of rows of elements of two bytes.
    let map = |pointer: u64, rows: usize, copied: [usize; 2]| {
        let at = Strides { head: PANEL_BYTES as i64 / 2, row: row_bytes(key) as i64 / 2 };
        let copied = copied.map(|count| count as u32);
        device.known_maps().find(Lies { pointer, sizes: [panels, rows, PANEL_BYTES / 2], at, copied })
    };
    let few = FewRows {
        maps: [
            map(operands.x, rows, [STAGE_PANELS, tile.rows])?,
            map(operands.weight, n, [STAGE_PANELS, tile.outputs])?,
        ],
        scales: operands.scales,
        bias: if key.bias { operands.bias } else { 0 },
        residual: operands.residual,
        out: operands.out,
        rows: rows as i32,
        n: n as i32,
        panels: panels as i32,
        unused: [0; 3],
    };
    let spread =
        LaunchShape { blocks: (n.div_ceil(tile.outputs).min(processors), 1), threads: THREADS, shared: tile.shared() };
    let name = if key.eight { "eight" } else { "half" };
    launch!(device, &format!("linear_few_{name}_{}x{}", tile.rows, tile.outputs), spread, few)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_about_as_much_to_read_each() {
        let outputs = |rows, sizes: [usize; 5]| sizes.map(|n| Tile::of(rows, n, 132).outputs);
        assert_eq!(outputs(1, [4096, 5120, 6144, 8192, 28672]), [32, 48, 48, 32, 32]);
        let sizes = [4096, 5120, 8192, 14336, 28672];
        assert_eq!((outputs(17, sizes), outputs(64, sizes)), ([32, 48, 64, 112, 112], [64, 64, 64, 112, 112]));
        for (rows, held) in [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64)] {
            for n in [1024, 4096, 8192, 128_256] {
                let tile = Tile::of(rows, n, 132);
                assert_eq!(tile.rows, held);
                assert!(tile.shared() <= 227 << 10, "{rows} rows");
            }
        }
    }
}
