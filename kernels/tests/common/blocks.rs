//! Weights in blocks, drawn from a seed.

use asterism_kernels::BlockFormat;

/// Blocks at random, with factors that weights have.
pub fn drawn(format: BlockFormat, elements: usize, mut state: u64) -> Vec<u8> {
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..elements / format.elements() * format.bytes()).map(|_| draw()).collect();
    format.set_factors(&mut bytes, 0.004);
    if format == BlockFormat::Int4 {
        bytes.chunks_exact_mut(format.bytes()).for_each(|block| block[2] %= 17);
    }
    bytes
}

/// What blocks stand for, as bytes of f32.
pub fn widened(format: BlockFormat, bytes: &[u8]) -> Vec<u8> {
    let mut values = vec![0.0; bytes.len() / format.bytes() * format.elements()];
    format.dequantize(bytes, &mut values);
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
