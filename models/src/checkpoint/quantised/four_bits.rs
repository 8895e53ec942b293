//! Weights of 4-bit integers in the layouts of AutoAWQ (`gemm`), GPTQ and compressed-tensors (`pack-quantized`): a number is
//! `scale (code - zero)`, its scale and zero shared by a group of inputs of one output.

use asterism_kernels::BlockFormat;
use half::f16;

use super::super::weights::Weight;
use super::{
    layer::{Layer, Part},
    scheme::{ALL_INPUTS, FourBits},
};
use crate::ModelError;

/// Codes of a word.
const CODES: usize = 8;
/// Inputs of a block.
const BLOCK: usize = 32;
/// Which of eight neighbours AutoAWQ puts where in a word.
const AWQ_ORDER: [usize; CODES] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Codes in words, and where the code of an output and an input is.
struct Codes {
    words: Vec<u32>,
    columns: usize,
}

impl Codes {
    /// The code at `place` of the word in a row and column.
    fn at(&self, row: usize, column: usize, place: usize) -> i32 {
        (self.words[row * self.columns + column] >> (4 * place) & 15) as i32
    }
}

impl FourBits {
    /// What the tensor of codes is called.
    pub(super) fn codes(self) -> &'static str {
        match self {
            Self::Awq { .. } | Self::Gptq { .. } => "qweight",
            Self::Packed { .. } => "weight_packed",
        }
    }

    /// A layer's weight `(n, k)`: in blocks, or in numbers where a block's inputs have several scales, or scales that f16 does not hold.
    pub(super) fn weight<'a>(
        self,
        layer: &Layer<'_>,
        codes: &Part<'_>,
        [n, k]: [usize; 2],
    ) -> Result<Weight<'a>, ModelError> {
        if !n.is_multiple_of(CODES) && !matches!(self, Self::Packed { .. }) {
            return Err(codes.refuses(format!("of a layer with {n} outputs"), "a multiple of 8"));
        }
        let group = self.group(k);
        let groups = k.div_ceil(group);
        let of_codes = match self {
            Self::Awq { .. } => [k, n / CODES],
            Self::Gptq { .. } => [k.div_ceil(CODES), n],
            Self::Packed { .. } => [n, k.div_ceil(CODES)],
        };
        codes.of_shape(&of_codes, "4 bits and the shape of the model")?;
        let codes_of = |part: &Part<'_>, columns| Ok::<_, ModelError>(Codes { words: part.words()?, columns });
        let (words, zeros) = (codes_of(codes, of_codes[1])?, self.zeros(layer, codes, [n, groups])?);
        let by_output = matches!(self, Self::Packed { .. });
        let scales = layer.needed(if by_output { "weight_scale" } else { "scales" }, codes)?;
        scales.of_shape(&if by_output { [n, groups] } else { [groups, n] }, "group_size")?;
        let (scales, group_of) = (scales.floats()?, groups_of(layer, by_output, [k, group, groups])?);
        let code = |output: usize, input: usize| match self {
            Self::Awq { .. } => words.at(input, output / CODES, place_in_awq(output)),
            Self::Gptq { .. } => words.at(input / CODES, output, input % CODES),
            Self::Packed { .. } => words.at(output, input / CODES, input % CODES),
        };
        let scale =
            |output: usize, group: usize| scales[if by_output { output * groups + group } else { group * n + output }];
        let zero = |output: usize, group: usize| zeros.as_ref().map_or(8, |zeros| self.zero(zeros, output, group));
        let shares = |inputs: &[usize]| inputs.iter().all(|group| *group == inputs[0]);
        let in_blocks = k.is_multiple_of(BLOCK) && group_of.chunks_exact(BLOCK).all(shares);
        if in_blocks && scales.iter().all(|scale| f16::from_f32(*scale).to_f32() == *scale) {
            let mut bytes = Vec::with_capacity(n * k / BLOCK * BlockFormat::Int4.bytes());
            for output in 0..n {
                for (block, inputs) in group_of.chunks_exact(BLOCK).enumerate() {
                    bytes.extend(f16::from_f32(scale(output, inputs[0])).to_le_bytes());
                    bytes.push(zero(output, inputs[0]) as u8);
                    let code = |at: usize| code(output, block * BLOCK + at) as u8;
                    bytes.extend((0..BLOCK / 2).map(|at| code(at) | code(at + BLOCK / 2) << 4));
                }
            }
            return Ok(Weight::of_blocks(&[n, k], BlockFormat::Int4, bytes));
        }
        let mut values = Vec::with_capacity(n * k);
        for output in 0..n {
            let value = |(input, group): (usize, &usize)| {
                scale(output, *group) * (code(output, input) - zero(output, *group)) as f32
            };
            values.extend(group_of.iter().enumerate().map(value));
        }
        Ok(Weight::of_f32(&[n, k], &values))
    }

    fn group(self, k: usize) -> usize {
        let (Self::Awq { group } | Self::Gptq { group, .. } | Self::Packed { group, .. }) = self;
        if group == ALL_INPUTS { k.max(1) } else { group }
    }

    /// Codes of zeros; without any, a zero is the middle.
    fn zeros(self, layer: &Layer<'_>, codes: &Part<'_>, [n, groups]: [usize; 2]) -> Result<Option<Codes>, ModelError> {
        let (name, shape) = match self {
            Self::Packed { zeros: false, .. } => return Ok(None),
            Self::Packed { .. } => ("weight_zero_point", [n.div_ceil(CODES), groups]),
            Self::Awq { .. } | Self::Gptq { .. } => ("qzeros", [groups, n / CODES]),
        };
        let zeros = layer.needed(name, codes)?;
        zeros.of_shape(&shape, "group_size")?;
        Ok(Some(Codes { words: zeros.words()?, columns: shape[1] }))
    }

    fn zero(self, zeros: &Codes, output: usize, group: usize) -> i32 {
        match self {
            Self::Awq { .. } => zeros.at(group, output / CODES, place_in_awq(output)),
            Self::Gptq { one_more, .. } => zeros.at(group, output / CODES, output % CODES) + i32::from(one_more),
            Self::Packed { .. } => zeros.at(output / CODES, group, output % CODES),
        }
    }
}

fn place_in_awq(output: usize) -> usize {
    // Even neighbours first.
    let at = output % CODES;
    debug_assert_eq!(AWQ_ORDER[at / 2 + at % 2 * 4], at);
    at / 2 + at % 2 * 4
}

/// The group of each input: by the tensor that orders them, where there is one.
fn groups_of(layer: &Layer<'_>, by_output: bool, [k, group, groups]: [usize; 3]) -> Result<Vec<usize>, ModelError> {
    let Some(order) = layer.part(if by_output { "weight_g_idx" } else { "g_idx" }) else {
        return Ok((0..k).map(|input| input / group).collect());
    };
    order.of_shape(&[k], "the shape of the model")?;
    let numbers = order.words()?.into_iter().map(|number| number as usize).collect::<Vec<_>>();
    match numbers.iter().find(|number| **number >= groups) {
        Some(beyond) => Err(order.refuses(format!("{beyond} for some input"), format!("groups below {groups}"))),
        None => Ok(numbers),
    }
}
