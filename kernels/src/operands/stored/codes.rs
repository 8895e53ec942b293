//! What 32 elements of a block are: a code for each, and a scale and a minimum for each 16. After ggml's `dequantize_row_*`
//! (ggml-quants.c): `scale * value(code) + minimum` has the same bits, since products of these scales and codes are rounded once.

use half::f16;

use super::blocks::{BlockFormat as B, SUB};

/// 32 elements of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubBlock {
    /// A code for each.
    pub codes: [u8; SUB],
    /// Factor of the block, and of each 16: a scale is their product.
    pub factor: f32,
    pub scales: [i8; 2],
    /// The same of what is added.
    pub low_factor: f32,
    pub lows: [i8; 2],
}

impl SubBlock {
    /// The elements, of codes that stand for `values`.
    pub(super) fn write(&self, values: &[i8; 256], to: &mut [f32]) {
        for (half, to) in to.chunks_exact_mut(SUB / 2).enumerate() {
            let scale = self.factor * f32::from(self.scales[half]);
            let low = self.low_factor * f32::from(self.lows[half]);
            for (code, to) in self.codes[half * SUB / 2..].iter().zip(to) {
                *to = scale * f32::from(values[usize::from(*code)]) + low;
            }
        }
    }
}

impl B {
    /// Writes what blocks stand for: `to` is as many elements as `bytes` has.
    ///
    /// # Panics
    /// Where the two do not fit, or are no whole blocks.
    pub fn dequantize(self, bytes: &[u8], to: &mut [f32]) {
        assert!(to.len().is_multiple_of(self.elements()) && bytes.len() == to.len() / self.elements() * self.bytes());
        for (block, to) in bytes.chunks_exact(self.bytes()).zip(to.chunks_exact_mut(self.elements())) {
            for (sub, to) in to.chunks_exact_mut(SUB).enumerate() {
                sub_block(self, block, sub).write(self.values(), to);
            }
        }
    }

    /// Sixteen bits of a block's factor of scales (0) or of minima (1): as they are stored, or the upper half of an f32
    /// ([`BlockFormat::has_upper_factors`]).
    pub(crate) fn factor(self, block: &[u8], kind: usize) -> u16 {
        match self {
            B::Mxfp4 => (sub_block(self, block, 0).factor.to_bits() >> 16) as u16,
            _ => {
                let at = self.factors()[kind];
                u16::from_le_bytes([block[at], block[at + 1]])
            }
        }
    }
}

/// Elements `32 sub` to `32 sub + 32` of a block.
pub(crate) fn sub_block(format: B, block: &[u8], sub: usize) -> SubBlock {
    let factors: [f32; 2] = std::array::from_fn(|at| {
        let at = format.factors().get(at);
        at.map_or(0.0, |&at| f16::from_le_bytes([block[at], block[at + 1]]).to_f32())
    });
    let plain = |codes| SubBlock { codes, factor: factors[0], scales: [1; 2], low_factor: factors[1], lows: [1; 2] };
    match format {
        B::Q4_0 | B::Iq4Nl => plain(halves(&block[2..])),
        B::Q4_1 => plain(halves(&block[4..])),
        B::Q5_0 => plain(with_fifth(halves(&block[6..]), &block[2..])),
        B::Q5_1 => plain(with_fifth(halves(&block[8..]), &block[4..])),
        B::Q8_0 => plain(std::array::from_fn(|at| block[2 + at])),
        B::Mxfp4 => SubBlock { factor: power(block[0]), ..plain(halves(&block[1..])) },
        B::Int4 => SubBlock { lows: [(block[2] as i8).wrapping_neg(); 2], ..plain(halves(&block[3..])) },
        B::Q2K => q2(block, sub, plain([0; SUB])),
        B::Q3K => q3(block, sub, plain([0; SUB])),
        B::Q4K | B::Q5K => q4_or_q5(format, block, sub, plain([0; SUB])),
        B::Q6K => q6(block, sub, plain([0; SUB])),
        B::Iq4Xs => {
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * sub) & 3;
            let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
            let scale = (low | (high as u8) << 4) as i8 - 32;
            SubBlock { scales: [scale; 2], ..plain(halves(&block[8 + 16 * sub..])) }
        }
    }
}

/// The low halves of sixteen bytes, then the high ones.
fn halves(bytes: &[u8]) -> [u8; SUB] {
    std::array::from_fn(|at| if at < SUB / 2 { bytes[at] & 15 } else { bytes[at - SUB / 2] >> 4 })
}

/// A fifth bit from a word of 32.
fn with_fifth(codes: [u8; SUB], word: &[u8]) -> [u8; SUB] {
    std::array::from_fn(|at| codes[at] | (word[at / 8] >> (at % 8) & 1) << 4)
}

/// Half of the power of two that an exponent alone stands for: values are doubled.
fn power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (u32::from(exponent) - 1) << 23,
    })
}

/// Sixteen scales and minima of 4 bits, 64 bytes of codes.
fn q2(block: &[u8], sub: usize, base: SubBlock) -> SubBlock {
    let scales = &block[2 * sub..2 * sub + 2];
    let codes = &block[16 + 32 * (sub / 4)..];
    SubBlock {
        codes: std::array::from_fn(|at| codes[at] >> (2 * (sub % 4)) & 3),
        scales: [scales[0] & 15, scales[1] & 15].map(|scale| scale as i8),
        lows: [scales[0] >> 4, scales[1] >> 4].map(|low| -(low as i8)),
        ..base
    }
}

/// A high bit of each, 64 bytes of low ones, sixteen scales of 6 bits.
fn q3(block: &[u8], sub: usize, base: SubBlock) -> SubBlock {
    let (high, codes, packed) = (&block[..32], &block[32 + 32 * (sub / 4)..], &block[96..108]);
    let scale = |at: usize| {
        let low = packed[at % 8] >> (4 * (at / 8)) & 15;
        let high = packed[8 + at % 4] >> (2 * (at / 4)) & 3;
        (low | high << 4) as i8 - 32
    };
    let code = |at: usize| codes[at] >> (2 * (sub % 4)) & 3 | (high[at] >> sub & 1) << 2;
    SubBlock { codes: std::array::from_fn(code), scales: [scale(2 * sub), scale(2 * sub + 1)], ..base }
}

/// Eight scales and minima of 6 bits in twelve bytes; with 5 bits, 32 bytes of high ones before the others.
fn q4_or_q5(format: B, block: &[u8], sub: usize, base: SubBlock) -> SubBlock {
    let packed = &block[4..16];
    let (scale, low) = match sub {
        0..4 => (packed[sub] & 63, packed[sub + 4] & 63),
        _ => (packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4),
    };
    let fifth = format == B::Q5K;
    let codes = &block[if fifth { 48 } else { 16 } + 32 * (sub / 2)..];
    let code = |at: usize| {
        let high = if fifth { block[16 + at] >> sub & 1 } else { 0 };
        codes[at] >> (4 * (sub % 2)) & 15 | high << 4
    };
    SubBlock { codes: std::array::from_fn(code), scales: [scale as i8; 2], lows: [-(low as i8); 2], ..base }
}

/// 128 bytes of low halves, 64 of two high bits, sixteen scales of 8 bits.
fn q6(block: &[u8], sub: usize, base: SubBlock) -> SubBlock {
    let (half, quarter) = (sub / 4, sub % 4);
    let (low, high) = (&block[64 * half + 32 * (quarter % 2)..], &block[128 + 32 * half..]);
    let code = |at: usize| low[at] >> (4 * (quarter / 2)) & 15 | (high[at] >> (2 * quarter) & 3) << 4;
    let scales = [0, 1].map(|at| block[192 + 2 * sub + at] as i8);
    SubBlock { codes: std::array::from_fn(code), scales, ..base }
}
