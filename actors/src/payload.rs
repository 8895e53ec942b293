//! Tensor payloads: little-endian f32, row-major.

/// Reads exactly `count` values.
pub fn read_f32(bytes: &[u8], count: usize) -> Result<Vec<f32>, String> {
    if bytes.len() != count * size_of::<f32>() {
        return Err(format!("expected a payload of {count} f32 values, got {} bytes", bytes.len()));
    }
    let value = |chunk: &[u8]| f32::from_le_bytes(chunk.try_into().expect("chunks of four"));
    Ok(bytes.chunks_exact(size_of::<f32>()).map(value).collect())
}

/// Appends values.
pub fn write_f32(bytes: &mut Vec<u8>, values: &[f32]) {
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}
