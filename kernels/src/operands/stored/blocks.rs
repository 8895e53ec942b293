//! The formats of blocks: their names, sizes, and what a block's bytes come to as numbers.

use std::fmt;

use half::f16;

/// Elements of a sub-block: what is decoded at a time.
pub(crate) const SUB: usize = 32;

/// Weights that share scales: as ggml lays them out, but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 4 bits, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits, a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits, a scale for 32.
    Q8_0,
    /// 2 bits, scales and minima of 4 bits for 16, of which 256 share a factor.
    Q2K,
    /// 3 bits, scales of 6 bits for 16, of which 256 share a factor.
    Q3K,
    /// 4 bits, scales and minima of 6 bits for 32, of which 256 share a factor.
    Q4K,
    /// 5 bits, scales and minima of 6 bits for 32, of which 256 share a factor.
    Q5K,
    /// 6 bits, scales of 8 bits for 16, of which 256 share a factor.
    Q6K,
    /// 4 bits that choose one of 16 values, a scale for 32.
    Iq4Nl,
    /// 4 bits that choose one of 16 values, scales of 6 bits for 32, of which 256 share a factor.
    Iq4Xs,
    /// 4-bit floats, a power of two for 32.
    Mxfp4,
    /// 4 bits, a scale (f16) and the code of zero (a byte) for 32: what AWQ, GPTQ and compressed-tensors store otherwise.
    Int4,
}

use BlockFormat as B;

/// How codes and scales of a format are kept where they are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Of a code: 4, 5, 6 or 8.
    pub bits: usize,
    /// Scales that 32 inputs have of their own: none, one, or one for each 16.
    pub scales: usize,
    /// Whether something is added to what is scaled.
    pub lows: bool,
}

impl Packing {
    /// Factors, and what is added, each.
    pub fn kinds(self) -> usize {
        1 + usize::from(self.lows)
    }
}

impl BlockFormat {
    /// All of them.
    pub const ALL: [Self; 14] = {
        let (mut all, mut at) = ([B::Int4; 14], 0);
        while at < B::GGML.len() {
            all[at] = B::GGML[at];
            at += 1;
        }
        all
    };

    /// Those of ggml.
    pub const GGML: [Self; 13] = [
        B::Q4_0,
        B::Q4_1,
        B::Q5_0,
        B::Q5_1,
        B::Q8_0,
        B::Q2K,
        B::Q3K,
        B::Q4K,
        B::Q5K,
        B::Q6K,
        B::Iq4Nl,
        B::Iq4Xs,
        B::Mxfp4,
    ];

    /// As ggml calls it, if it has it.
    pub fn name(self) -> &'static str {
        match self {
            B::Q4_0 => "Q4_0",
            B::Q4_1 => "Q4_1",
            B::Q5_0 => "Q5_0",
            B::Q5_1 => "Q5_1",
            B::Q8_0 => "Q8_0",
            B::Q2K => "Q2_K",
            B::Q3K => "Q3_K",
            B::Q4K => "Q4_K",
            B::Q5K => "Q5_K",
            B::Q6K => "Q6_K",
            B::Iq4Nl => "IQ4_NL",
            B::Iq4Xs => "IQ4_XS",
            B::Mxfp4 => "MXFP4",
            B::Int4 => "INT4",
        }
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        match self {
            B::Q2K | B::Q3K | B::Q4K | B::Q5K | B::Q6K | B::Iq4Xs => 256,
            _ => SUB,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            B::Q4_0 | B::Iq4Nl => 18,
            B::Q4_1 => 20,
            B::Q5_0 => 22,
            B::Q5_1 => 24,
            B::Q8_0 => 34,
            B::Q2K => 84,
            B::Q3K => 110,
            B::Q4K => 144,
            B::Q5K => 176,
            B::Q6K => 210,
            B::Iq4Xs => 136,
            B::Mxfp4 => 17,
            B::Int4 => 19,
        }
    }

    /// Where in a block its factors of 16 bits stand, of scales and of minima.
    pub(crate) fn factors(self) -> &'static [usize] {
        match self {
            B::Q4_0 | B::Q5_0 | B::Q8_0 | B::Iq4Nl | B::Iq4Xs => &[0],
            B::Q4_1 | B::Q5_1 | B::Q4K | B::Q5K => &[0, 2],
            B::Int4 => &[0, 0],
            B::Q2K => &[80, 82],
            B::Q3K => &[108],
            B::Q6K => &[208],
            B::Mxfp4 => &[],
        }
    }

    /// How its codes and scales are kept where they are multiplied.
    pub(crate) fn packing(self) -> Packing {
        let (bits, scales, lows) = match self {
            B::Q4_0 | B::Iq4Nl | B::Mxfp4 => (4, 0, false),
            B::Q4_1 => (4, 0, true),
            B::Q5_0 => (5, 0, false),
            B::Q5_1 => (5, 0, true),
            B::Q8_0 => (8, 0, false),
            B::Q2K => (4, 2, true),
            B::Q3K => (4, 2, false),
            B::Q4K | B::Int4 => (4, 1, true),
            B::Q5K => (5, 1, true),
            B::Q6K => (6, 2, false),
            B::Iq4Xs => (4, 1, false),
        };
        Packing { bits, scales, lows }
    }

    /// Bytes that devices keep so many elements of a matrix in, at most: whole sub-blocks of them.
    pub fn kept_bytes(self, elements: usize) -> usize {
        let packing = self.packing();
        let sub = packing.bits.next_multiple_of(2) * SUB / 8 + packing.scales * packing.kinds();
        elements / SUB * sub + elements / self.elements() * 2 * packing.kinds()
    }

    /// Whether factors are upper halves of f32 instead of halves.
    pub(crate) fn has_upper_factors(self) -> bool {
        self == B::Mxfp4
    }

    /// The first element of the first block with an element that is not finite, and what makes it so.
    pub fn first_not_finite(self, bytes: &[u8]) -> Option<(usize, f32)> {
        let factor = |block: &[u8], at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let wrong = |block: &[u8]| match self {
            B::Mxfp4 => mxfp4_not_finite(block),
            _ => self.factors().iter().map(|at| factor(block, *at)).find(|factor| !factor.is_finite()),
        };
        let mut blocks = bytes.chunks_exact(self.bytes()).enumerate();
        blocks.find_map(|(at, block)| wrong(block).map(|got| (at * self.elements(), got)))
    }

    /// Gives every block of `bytes` factors as large as `factor`: what is drawn at random becomes weights.
    pub fn set_factors(self, bytes: &mut [u8], factor: f32) {
        for block in bytes.chunks_exact_mut(self.bytes()) {
            for at in self.factors() {
                block[*at..at + 2].copy_from_slice(&f16::from_f32(factor).to_le_bytes());
            }
            if self == B::Mxfp4 {
                block[0] = (factor.to_bits() >> 23) as u8;
            }
        }
    }

    /// What codes stand for before they are scaled.
    pub(crate) fn values(self) -> &'static [i8; 256] {
        match self {
            B::Iq4Nl | B::Iq4Xs => &UNEVEN,
            B::Mxfp4 => &FLOATS,
            B::Q4_0 => &LESS_8,
            B::Q5_0 => &LESS_16,
            B::Q6K => &LESS_32,
            B::Q3K => &LESS_4,
            _ => &AS_THEY_ARE,
        }
    }
}

/// An element of a block of MXFP4 that is not finite: its factor is a power of two up to 2^127, whose product with a code may be beyond f32.
fn mxfp4_not_finite(block: &[u8]) -> Option<f32> {
    /// The least exponent whose product with the largest code, 6, is beyond f32.
    const BEYOND: u8 = 253;
    if block[0] < BEYOND {
        return None;
    }
    let mut values = [0.0; SUB];
    B::Mxfp4.dequantize(block, &mut values);
    values.into_iter().find(|value| !value.is_finite())
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// ggml's `kvalues_iq4nl`.
static UNEVEN: [i8; 256] = listed([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);
/// Twice what the sixteen floats of 4 bits (E2M1) are.
static FLOATS: [i8; 256] = listed([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);
static AS_THEY_ARE: [i8; 256] = less(0);
static LESS_4: [i8; 256] = less(4);
static LESS_8: [i8; 256] = less(8);
static LESS_16: [i8; 256] = less(16);
static LESS_32: [i8; 256] = less(32);

const fn listed(values: [i8; 16]) -> [i8; 256] {
    let (mut all, mut code) = ([0; 256], 0);
    while code < 16 {
        all[code] = values[code];
        code += 1;
    }
    all
}

/// Codes less an offset; those of 8 bits are signed.
const fn less(offset: i8) -> [i8; 256] {
    let (mut all, mut code) = ([0; 256], 0);
    while code < 256 {
        all[code] = (code as u8 as i8).wrapping_sub(offset);
        code += 1;
    }
    all
}
