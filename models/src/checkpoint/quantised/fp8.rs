//! Weights of 8-bit floats (E4M3, as OCP has it: no infinity), each times the scale of its tensor, output or block.

use super::{
    layer::{Layer, Part},
    scheme::Scales,
};
use crate::ModelError;

/// What a layer's weight `(n, k)` stands for.
pub(super) fn values(
    layer: &Layer<'_>,
    weight: &Part<'_>,
    scales: Scales,
    [n, k]: [usize; 2],
) -> Result<Vec<f32>, ModelError> {
    weight.of_shape(&[n, k], "the shape of the model")?;
    let scale = match layer.part("weight_scale_inv") {
        Some(scale) => scale,
        None => layer.needed("weight_scale", weight)?,
    };
    let [outputs, inputs] = shared_by(&scale, scales, [n, k])?;
    let (numbers, columns) = (scale.floats()?, k.div_ceil(inputs));
    let mut values = Vec::with_capacity(n * k);
    for (output, row) in weight.bytes.chunks_exact(k.max(1)).enumerate() {
        let numbers = &numbers[output / outputs * columns..][..columns];
        let pieces = row.chunks(inputs).zip(numbers);
        values
            .extend(pieces.flat_map(|(piece, scale)| piece.iter().map(move |bits| FLOATS[usize::from(*bits)] * scale)));
    }
    Ok(values)
}

/// Outputs and inputs that share a scale, by what the configuration says and the tensor's shape allows.
fn shared_by(scale: &Part<'_>, scales: Scales, [n, k]: [usize; 2]) -> Result<[usize; 2], ModelError> {
    let (shape, one) = (scale.entry.shape.as_slice(), scale.entry.shape.iter().product::<usize>() == 1);
    let by_channel = matches!(shape, [outputs] | [outputs, 1] if *outputs == n);
    match scales {
        Scales::Tensor | Scales::AsStored if one => Ok([n.max(1), k.max(1)]),
        Scales::Channel | Scales::AsStored if by_channel => Ok([1, k.max(1)]),
        Scales::Block([outputs, inputs]) if shape == [n.div_ceil(outputs), k.div_ceil(inputs)] => Ok([outputs, inputs]),
        scales => {
            let expected = match scales {
                Scales::Tensor => "[1]".to_owned(),
                Scales::Channel => format!("[{n}, 1]"),
                Scales::Block([outputs, inputs]) => format!("[{}, {}]", n.div_ceil(outputs), k.div_ceil(inputs)),
                Scales::AsStored => format!("[1] or [{n}, 1]"),
            };
            Err(scale.refuses(format!("of shape {shape:?}"), format!("{expected} by quantization_config")))
        }
    }
}

/// All of them.
static FLOATS: [f32; 256] = {
    let (mut floats, mut bits) = ([0.0; 256], 0);
    while bits < 256 {
        floats[bits] = float(bits as u8);
        bits += 1;
    }
    floats
};

const fn float(bits: u8) -> f32 {
    let (sign, exponent, fraction) = ((bits as u32 & 0x80) << 24, bits as u32 >> 3 & 15, bits as u32 & 7);
    let magnitude = match (exponent, fraction) {
        (15, 7) => return f32::NAN,
        // Eighths of the least power of two, which is 2^-6.
        (0, fraction) => fraction as f32 / 512.0,
        (exponent, fraction) => f32::from_bits((exponent + 120) << 23 | fraction << 20),
    };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_those_of_the_format() {
        let at = |bits: u8| FLOATS[usize::from(bits)];
        for (bits, expected) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(at(bits), expected, "{bits:#x}");
        }
        assert!(at(0x7f).is_nan() && at(0xff).is_nan());
        assert!((0..0x7e).all(|bits| at(bits) < at(bits + 1)));
    }
}
