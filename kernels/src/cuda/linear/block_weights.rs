//! Weights in blocks as the GPU reads them: as many bits as the checkpoint has. Few rows are multiplied by them as they lie; for more
//! they are widened to bf16 beside them. Either gives the bits of the product by the widened weights.

use std::ops::Range;
use std::thread;

use super::super::device::{Device, DeviceBuffer, LaunchShape, Occupancy, launch};
use super::super::tensor::Tensor;
use super::product::{Key, Operands};
use crate::operands::{Packing, SUB, sub_block};
use crate::{BlockFormat, DType, HostTensor, KernelError, Stored};

/// Most rows of a product by weights as they lie.
pub const FEW_BLOCK_ROWS: usize = 64;
/// Outputs and inputs of a tile, as the kernel has them.
const TILE_OUTPUTS: usize = 8;
const TILE_INPUTS: usize = 256;
/// Bytes of the low halves of a tile's codes.
const LOW_HALVES: usize = TILE_OUTPUTS * TILE_INPUTS / 2;
const TILE_SUBS: usize = TILE_INPUTS / SUB;
/// Formats that lie side by side at most.
const MOST_SECTIONS: usize = 4;
/// What makes a signed byte one that is 128 more.
const BIAS: u8 = 0x80;

/// Weights `(n, k)` in blocks.
pub struct BlockRows {
    pub shape: (usize, usize),
    sections: Vec<Section>,
}

/// Outputs of one format.
struct Section {
    /// The first output behind it.
    end: usize,
    tiles: DeviceBuffer,
    layout: TileLayout,
}

/// How a format lies in tiles.
#[derive(Clone, Copy)]
struct TileLayout {
    format: BlockFormat,
    packing: Packing,
    /// Bits of a code: 4, 6 or 8.
    bits: usize,
    /// Factors that a tile's inputs have.
    groups: usize,
}

/// As `block_weights.cu` declares them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SectionArgument {
    tiles: u64,
    end: i32,
    bytes: i32,
    kind: i32,
    shared: i32,
    upper: i32,
    less: i32,
    values: [u32; 4],
    unused: [i32; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Blocks {
    x: u64,
    bias: u64,
    residual: u64,
    out: u64,
    rows: i32,
    n: i32,
    k: i32,
    first: i32,
    last: i32,
    out_row: i32,
    most: i32,
    sections: i32,
    tiles: i32,
    unused: i32,
    of: [SectionArgument; MOST_SECTIONS],
}

impl BlockRows {
    /// Packs parts `(n_i, k)` that lie side by side, if all are in blocks and fill tiles.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for parts without the bytes that their shapes want, and what the device reports.
    pub fn pack(device: &Device, parts: &[HostTensor<'_>]) -> Result<Option<Self>, KernelError> {
        let fills = |part: &HostTensor<'_>| part.shape.len() == 2 && part.shape[0].is_multiple_of(TILE_OUTPUTS);
        let k = parts.first().and_then(|part| part.shape.get(1)).copied().unwrap_or(0);
        if k == 0 || parts.len() > MOST_SECTIONS || !parts.iter().all(|part| fills(part) && part.shape[1] == k) {
            return Ok(None);
        }
        let format = |part: &HostTensor<'_>| if let Stored::Blocks(format) = part.stored { Some(format) } else { None };
        let Some(formats) = parts.iter().map(format).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let (mut sections, mut end) = (Vec::new(), 0);
        for (part, format) in parts.iter().zip(formats) {
            part.check("linear_weight")?;
            end += part.shape[0];
            let layout = TileLayout::of(format, part);
            sections.push(Section { end, tiles: device.upload_bytes(&layout.tiles(part))?, layout });
        }
        Ok(Some(Self { shape: (end, k), sections }))
    }

    /// Queues outputs of a product of at most [`FEW_BLOCK_ROWS`] rows; operands are those of all, but for what comes out.
    pub fn multiply(
        &self,
        device: &Device,
        key: Key,
        rows: usize,
        operands: Operands,
        outputs: Range<usize>,
    ) -> Result<(), KernelError> {
        let mut blocks = self.argument(operands, rows, outputs.clone());
        blocks.bias = if key.bias { operands.bias } else { 0 };
        let kernel = BlockKernel::of(rows, outputs.len() / TILE_OUTPUTS, (blocks.most as usize, device.room()));
        blocks.tiles = kernel.tiles as i32;
        launch!(device, kernel.name, kernel.shape, blocks)
    }

    /// All weights as bf16 `(n, k)`.
    ///
    /// # Errors
    /// What the device reports.
    pub fn widened(&self, device: &Device) -> Result<Tensor, KernelError> {
        let (n, k) = self.shape;
        let wide = device.empty(&[n, k], DType::Bf16)?;
        let operands =
            Operands { x: 0, weight: 0, scales: [0; 2], bias: 0, residual: 0, out: wide.pointer(), pitch: 0 };
        let blocks = self.argument(operands, 0, 0..n);
        let of_block = 8 * TILE_OUTPUTS;
        let spread = LaunchShape { blocks: (n.div_ceil(of_block), k.div_ceil(TILE_INPUTS)), threads: 256, shared: 0 };
        launch!(device, "widen_blocks", spread, blocks)?;
        Ok(wide)
    }

    fn argument(&self, operands: Operands, rows: usize, outputs: Range<usize>) -> Blocks {
        let ((n, k), mut of) = (self.shape, [SectionArgument::default(); MOST_SECTIONS]);
        for (to, section) in of.iter_mut().zip(&self.sections) {
            *to = section.argument();
        }
        Blocks {
            x: operands.x,
            bias: 0,
            residual: operands.residual,
            out: operands.out,
            rows: rows as i32,
            n: n as i32,
            k: k as i32,
            first: outputs.start as i32,
            last: outputs.end as i32,
            out_row: outputs.len() as i32,
            most: self.sections.iter().map(|section| section.layout.bytes()).max().unwrap_or(0) as i32,
            sections: self.sections.len() as i32,
            tiles: 0,
            unused: 0,
            of,
        }
    }
}

/// A kernel of `block_weights.cu`, and how it is spread.
struct BlockKernel {
    name: &'static str,
    /// Tiles of outputs that a block of threads has at a time.
    tiles: usize,
    shape: LaunchShape,
}

impl BlockKernel {
    /// For so many rows and tiles of outputs, the largest of which takes so many bytes.
    fn of(rows: usize, all: usize, (most, room): (usize, &Occupancy)) -> Self {
        /// Bytes of a tile that is widened, of which two are held.
        const WIDE: usize = 2 * TILE_OUTPUTS * TILE_INPUTS;
        let processors = room.processors();
        // As evenly over processors and turns as can be.
        let spread = |most: usize| all.div_ceil(processors * all.div_ceil(processors * most));
        let few = all.div_ceil(processors);
        if rows <= 16 && few > 4 {
            let (tiles, stages) = (few.min(8), 4);
            let shared = stages * (16 * TILE_INPUTS * 2 + tiles * most);
            let shape = LaunchShape { blocks: (all.div_ceil(tiles), 1), threads: 32 * tiles as u32, shared };
            return Self { name: "linear_blocks_16_alone", tiles, shape };
        }
        // Rows, stages and warps for each tile, as the kernels have them.
        let (name, held, stages, warps, mut tiles) = match rows <= 16 {
            true => ("linear_blocks_16", 16, 6, 5, few),
            false => ("linear_blocks_64", 64, 4, 4, spread(6).next_multiple_of(2)),
        };
        let bytes = |tiles: usize| stages * (held * TILE_INPUTS * 2 + tiles * most) + 2 * tiles * WIDE;
        while bytes(tiles) > room.block && tiles > 2 {
            tiles -= 2;
        }
        let blocks = all.div_ceil(tiles).min(processors);
        let shape = LaunchShape { blocks: (blocks, 1), threads: (32 * warps * tiles) as u32, shared: bytes(tiles) };
        Self { name, tiles, shape }
    }
}

impl Section {
    fn argument(&self) -> SectionArgument {
        let TileLayout { format, bits, groups, .. } = self.layout;
        let values = format.values();
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| values[4 * at + i] as u8 ^ BIAS));
        SectionArgument {
            tiles: self.tiles.pointer,
            end: self.end as i32,
            bytes: self.layout.bytes() as i32,
            kind: kind(format),
            shared: (TILE_SUBS / groups).trailing_zeros() as i32,
            upper: i32::from(format.has_upper_factors()),
            // Signed bytes, chosen or codes themselves, are 128 more than they are.
            less: if bits == 8 || chooses(format) { i32::from(BIAS) } else { -i32::from(values[0]) },
            values: std::array::from_fn(four),
            unused: [0; 2],
        }
    }
}

/// Whether codes choose one of sixteen values that are not numbers one after the other.
fn chooses(format: BlockFormat) -> bool {
    matches!(format, BlockFormat::Iq4Nl | BlockFormat::Iq4Xs | BlockFormat::Mxfp4)
}

/// The kernel's number for what a format has in common with others: as `block_weights.cu` lists them.
fn kind(format: BlockFormat) -> i32 {
    use BlockFormat as B;
    match format {
        B::Q4_0 => 0,
        B::Q4_1 => 1,
        B::Q4K => 2,
        B::Int4 => 3,
        B::Q3K => 4,
        B::Q2K => 5,
        B::Iq4Nl | B::Mxfp4 => 6,
        B::Iq4Xs => 7,
        B::Q5_0 => 8,
        B::Q5_1 => 9,
        B::Q5K => 10,
        B::Q6K => 11,
        B::Q8_0 => 12,
    }
}

impl TileLayout {
    fn of(format: BlockFormat, part: &HostTensor<'_>) -> Self {
        let packing = format.packing();
        let bits = packing.bits.next_multiple_of(2);
        let own = (TILE_INPUTS / format.elements()).max(1);
        // Blocks of one tile that have the same factors share them.
        let shares = |groups: usize| {
            let row = part.bytes.len() / part.shape[0].max(1);
            let factors = |block: &[u8]| [0, packing.kinds() - 1].map(|kind| format.factor(block, kind));
            part.bytes.chunks_exact(row).all(|row| {
                row.chunks(own / groups * format.bytes())
                    .all(|group| group.chunks_exact(format.bytes()).all(|block| factors(block) == factors(group)))
            })
        };
        let groups = [1, 2, 4].into_iter().filter(|groups| *groups < own).find(|groups| shares(*groups)).unwrap_or(own);
        Self { format, packing, bits, groups }
    }

    /// Bytes of the scales of one output's 32 inputs.
    fn stride(self) -> usize {
        self.packing.scales * self.packing.kinds()
    }

    fn code_bytes(self) -> usize {
        LOW_HALVES / 4 * self.bits
    }

    /// Bytes of a tile.
    fn bytes(self) -> usize {
        let factors = self.groups * self.packing.kinds() * 2;
        self.code_bytes() + TILE_OUTPUTS * (TILE_SUBS * self.stride() + factors)
    }

    /// A part's tiles, those of eight outputs after those of the eight before.
    fn tiles(self, part: &HostTensor<'_>) -> Vec<u8> {
        let (n, k) = (part.shape[0], part.shape[1]);
        let (row, eight) = (part.bytes.len() / n.max(1), k.div_ceil(TILE_INPUTS) * self.bytes());
        let mut tiles = vec![0; n / TILE_OUTPUTS * eight];
        let threads = thread::available_parallelism().map_or(1, |count| count.get());
        let each = (n / TILE_OUTPUTS).div_ceil(threads).max(1);
        thread::scope(|scope| {
            let parts = tiles.chunks_mut(each * eight).zip(part.bytes.chunks(each * TILE_OUTPUTS * row));
            for (tiles, rows) in parts {
                scope.spawn(move || {
                    for (tiles, rows) in tiles.chunks_exact_mut(eight).zip(rows.chunks_exact(TILE_OUTPUTS * row)) {
                        rows.chunks_exact(row).enumerate().for_each(|(output, row)| self.pack(row, output, tiles));
                    }
                });
            }
        });
        tiles
    }

    /// Puts one output's row into its tiles.
    fn pack(self, row: &[u8], output: usize, tiles: &mut [u8]) {
        let (of_block, kinds) = (self.format.elements() / SUB, self.packing.kinds());
        let of_group = TILE_SUBS / self.groups;
        for at in 0..row.len() / self.format.bytes() * of_block {
            let block = &row[at / of_block * self.format.bytes()..][..self.format.bytes()];
            let decoded = sub_block(self.format, block, at % of_block);
            let (tile, sub) = (&mut tiles[at / TILE_SUBS * self.bytes()..][..self.bytes()], at % TILE_SUBS);
            let (codes, rest) = tile.split_at_mut(self.code_bytes());
            self.pack_codes(&decoded.codes, (output, sub), codes);
            let (scales, factors) = rest.split_at_mut(TILE_OUTPUTS * TILE_SUBS * self.stride());
            let scales = &mut scales[(output * TILE_SUBS + sub) * self.stride()..];
            for (kind, own) in [decoded.scales, decoded.lows].into_iter().take(kinds).enumerate() {
                for half in 0..self.packing.scales {
                    scales[kind * self.packing.scales + half] = own[half] as u8 ^ BIAS;
                }
            }
            for kind in 0..kinds {
                let to = 2 * ((output * self.groups + sub / of_group) * kinds + kind);
                factors[to..to + 2].copy_from_slice(&self.format.factor(block, kind).to_le_bytes());
            }
        }
    }

    /// Codes of 32 inputs, as the lanes that multiply them want them: of sixteen, a lane has two that lie beside each other and the
    /// two eight behind them.
    fn pack_codes(self, codes: &[u8; SUB], (output, sub): (usize, usize), to: &mut [u8]) {
        let (low, high) = to.split_at_mut(LOW_HALVES);
        for (at, code) in codes.iter().enumerate() {
            let (step, within) = (at / 16, at % 16);
            let lane = output * 4 + within % 8 / 2;
            let nibble = step * 4 + within / 8 * 2 + within % 2;
            let (half, word) = (sub / 4, sub % 4);
            let code = if self.bits == 8 { code ^ BIAS } else { *code };
            let four = (half * 32 + lane) * 16 + word * 4 + nibble / 2;
            low[four] |= (code & 15) << (4 * (nibble % 2));
            match self.bits {
                8 => high[four] |= code >> 4 << (4 * (nibble % 2)),
                6 => {
                    high[(half * 32 + lane) * 8 + word / 2 * 4 + nibble / 2] |=
                        code >> 4 << (word % 2 * 4 + nibble % 2 * 2)
                }
                _ => {}
            }
        }
    }
}
