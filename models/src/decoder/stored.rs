//! Weights laid out otherwise than a checkpoint stores them: norms with an offset, and heads of which a part turns. Uploads nothing.

use asterism_kernels::HostTensor;

/// A tensor with its values changed or moved.
pub(super) struct LaidOut<'a> {
    stored: HostTensor<'a>,
    bytes: Vec<u8>,
}

/// The tensors as linear layers take them.
pub(super) fn borrowed<'a>(laid: &'a [LaidOut<'_>]) -> Vec<HostTensor<'a>> {
    let host = |LaidOut { stored, bytes }: &'a LaidOut<'_>| HostTensor {
        dtype: stored.dtype,
        shape: stored.shape,
        bytes: bytes.as_slice(),
    };
    laid.iter().map(host).collect()
}

/// The values plus `offset`, as f32.
pub(super) fn with_offset(stored: &HostTensor<'_>, offset: f32) -> Vec<u8> {
    stored
        .bytes
        .chunks_exact(stored.dtype.size())
        .flat_map(|bytes| (stored.dtype.read(bytes) + offset).to_le_bytes())
        .collect()
}

/// Rows of parts side by side, in which each of the first `heads` heads of `dim` rows has the first `turned` of them, whose halves turn
/// together, spread over the beginnings of its halves: so that what is rotated by halves of whole heads turns those, and angles of
/// 0 leave the others as they are. Scores do not depend on the order of a head's elements where queries and keys have the same.
pub(super) fn permuted<'a>(parts: &[HostTensor<'a>], heads: usize, [dim, turned]: [usize; 2]) -> Vec<LaidOut<'a>> {
    let mut left = heads * dim;
    let part = |stored: &HostTensor<'a>| {
        let rows = stored.shape.first().copied().unwrap_or(0);
        let row = stored.bytes.len() / rows.max(1);
        let moved = rows.min(left) / dim * dim;
        left -= moved;
        let from = |at: usize| if at < moved { at / dim * dim + place(at % dim, [dim, turned]) } else { at };
        let bytes = (0..rows).flat_map(|at| stored.bytes[from(at) * row..][..row].iter().copied()).collect();
        LaidOut { stored: *stored, bytes }
    };
    parts.iter().map(part).collect()
}

/// Which stored element of a head stands at `at`.
fn place(at: usize, [dim, turned]: [usize; 2]) -> usize {
    let (half, turning, still) = (dim / 2, turned / 2, (dim - turned) / 2);
    match at {
        at if at < turning => at,
        at if at < half => turned + at - turning,
        at if at < half + turning => at - half + turning,
        at => turned + still + at - half - turning,
    }
}

#[cfg(test)]
mod tests {
    use asterism_kernels::DType;

    use super::*;

    #[test]
    fn what_turns_together_stands_half_a_head_apart() {
        let places: Vec<usize> = (0..8).map(|at| place(at, [8, 4])).collect();
        assert_eq!(places, [0, 1, 4, 5, 2, 3, 6, 7]);
        let mut all: Vec<usize> = (0..96).map(|at| place(at, [96, 72])).collect();
        assert_eq!((all[0], all[36], all[48], all[84]), (0, 72, 36, 84));
        all.sort_unstable();
        assert!(all.into_iter().eq(0..96));
    }

    #[test]
    fn heads_that_turn_are_laid_out_and_the_others_are_not() {
        let bytes: Vec<u8> = (0..12).flat_map(|row: u16| row.to_le_bytes()).collect();
        let stored = HostTensor { dtype: DType::Bf16, shape: &[12, 1], bytes: &bytes };
        let laid = permuted(&[stored], 2, [4, 2]);
        let rows: Vec<u8> = borrowed(&laid)[0].bytes.chunks(2).map(|row| row[0]).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn an_offset_is_added_in_f32() {
        for (dtype, bytes) in [
            (DType::F32, &0.5f32.to_le_bytes()[..]),
            (DType::Bf16, &0x3f00u16.to_le_bytes()[..]),
            (DType::F16, &0x3800u16.to_le_bytes()[..]),
        ] {
            let stored = HostTensor { dtype, shape: &[1], bytes };
            assert_eq!(with_offset(&stored, 1.0), 1.5f32.to_le_bytes());
        }
    }
}
