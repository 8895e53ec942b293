//! Weights laid out otherwise than a checkpoint stores them: norms with an offset, and heads of which a part turns. Uploads nothing.

use asterism_kernels::{DType, HostTensor, Stored};

/// A tensor with its values changed or moved.
pub(super) struct LaidOut {
    stored: Stored,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The tensors as linear layers take them.
pub(super) fn borrowed(laid: &[LaidOut]) -> Vec<HostTensor<'_>> {
    laid.iter().map(LaidOut::host).collect()
}

impl LaidOut {
    fn host(&self) -> HostTensor<'_> {
        HostTensor { stored: self.stored, shape: &self.shape, bytes: &self.bytes }
    }
}

/// The parts that a tensor stored as one is made of, of these shapes; those that are stored apart.
pub(super) fn cut<'a>(stored: &[HostTensor<'a>], shapes: &'a [Vec<usize>]) -> Vec<HostTensor<'a>> {
    let [one] = stored else { return stored.to_vec() };
    let row = one.bytes.len() / one.shape[0].max(1);
    let mut left = one.bytes;
    let part = |shape: &'a Vec<usize>| {
        let (bytes, after) = left.split_at(shape[0] * row);
        left = after;
        HostTensor { stored: one.stored, shape, bytes }
    };
    shapes.iter().map(part).collect()
}

/// The values plus `offset`, as f32.
pub(super) fn with_offset(stored: &HostTensor<'_>, offset: f32) -> Vec<u8> {
    stored.values().iter().flat_map(|value| (value + offset).to_le_bytes()).collect()
}

/// Rows of parts side by side, in which each of the first `heads` heads of `dim` rows has the first `turned` of them, whose halves turn
/// together, spread over the beginnings of its halves: so that what is rotated by halves of whole heads turns those, and angles of
/// 0 leave the others as they are. Scores do not depend on the order of a head's elements where queries and keys have the same.
pub(super) fn permuted(parts: &[HostTensor<'_>], heads: usize, [dim, turned]: [usize; 2]) -> Vec<LaidOut> {
    let mut left = heads * dim;
    let part = |stored: &HostTensor<'_>| {
        let rows = stored.shape.first().copied().unwrap_or(0);
        let row = stored.bytes.len() / rows.max(1);
        let moved = rows.min(left) / dim * dim;
        left -= moved;
        let from = |at: usize| if at < moved { at / dim * dim + place(at % dim, [dim, turned]) } else { at };
        let bytes = (0..rows).flat_map(|at| stored.bytes[from(at) * row..][..row].iter().copied()).collect();
        LaidOut { stored: stored.stored, shape: stored.shape.to_vec(), bytes }
    };
    parts.iter().map(part).collect()
}

/// Expert `expert` of weights `(experts, inputs, outputs)`, or of biases `(experts, outputs)`: `(outputs, inputs)`, or `(outputs)`. Where
/// every other output belongs to another product, those of the first come first.
pub(super) fn expert(stored: &HostTensor<'_>, expert: usize, interleaved: bool) -> LaidOut {
    let (inputs, outputs) = match *stored.shape {
        [_, inputs, outputs] => (Some(inputs), outputs),
        _ => (None, stored.shape.last().copied().unwrap_or(0)),
    };
    let widened: Vec<u8>;
    let (dtype, all) = match stored.stored {
        Stored::Plain(dtype) => (dtype, stored.bytes),
        Stored::Blocks(_) => {
            widened = stored.values().iter().flat_map(|value| value.to_le_bytes()).collect();
            (DType::F32, &widened[..])
        }
    };
    let (size, rows) = (dtype.size(), inputs.unwrap_or(1));
    let own = &all[expert * rows * outputs * size..][..rows * outputs * size];
    let from = |output: usize| match (interleaved, output < outputs / 2) {
        (false, _) => output,
        (true, true) => 2 * output,
        (true, false) => 2 * (output - outputs / 2) + 1,
    };
    let mut bytes = Vec::with_capacity(own.len());
    for output in 0..outputs {
        (0..rows).for_each(|row| bytes.extend_from_slice(&own[(row * outputs + from(output)) * size..][..size]));
    }
    let shape = [outputs].into_iter().chain(inputs).collect();
    LaidOut { stored: dtype.into(), shape, bytes }
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
        let stored = HostTensor { stored: DType::Bf16.into(), shape: &[12, 1], bytes: &bytes };
        let laid = permuted(&[stored], 2, [4, 2]);
        let rows: Vec<u8> = borrowed(&laid)[0].bytes.chunks(2).map(|row| row[0]).collect();
        assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11]);
    }

    #[test]
    fn an_expert_is_cut_out_and_turned() {
        let bytes: Vec<u8> = (0..24).flat_map(|value: u16| value.to_le_bytes()).collect();
        let stored = HostTensor { stored: DType::Bf16.into(), shape: &[2, 3, 4], bytes: &bytes };
        let values = |laid: &LaidOut| laid.host().bytes.chunks(2).map(|value| value[0]).collect::<Vec<_>>();
        let second = expert(&stored, 1, true);
        assert_eq!(second.shape, [4, 3]);
        assert_eq!(values(&second), [12, 16, 20, 14, 18, 22, 13, 17, 21, 15, 19, 23]);
        let biases = HostTensor { stored: DType::Bf16.into(), shape: &[2, 4], bytes: &bytes[..16] };
        assert_eq!(values(&expert(&biases, 1, false)), [4, 5, 6, 7]);
        assert_eq!(expert(&biases, 0, false).shape, [4]);
    }

    #[test]
    fn an_offset_is_added_in_f32() {
        for (dtype, bytes) in [
            (DType::F32, &0.5f32.to_le_bytes()[..]),
            (DType::Bf16, &0x3f00u16.to_le_bytes()[..]),
            (DType::F16, &0x3800u16.to_le_bytes()[..]),
        ] {
            let stored = HostTensor { stored: dtype.into(), shape: &[1], bytes };
            assert_eq!(with_offset(&stored, 1.0), 1.5f32.to_le_bytes());
        }
    }
}
