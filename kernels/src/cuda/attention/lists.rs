//! Lists of keys in device memory: brought there, or made there of what was chosen. Chooses nothing.

use super::super::device::{Device, DeviceBuffer, LaunchShape, launch};
use super::super::tensor::Tensor;
use crate::{KernelError, KeySets};

/// Which lists there are: of `(head, row / rows)`, over a causal sequence of `tokens`.
#[derive(Clone, Copy)]
pub struct Grouped {
    pub heads: usize,
    pub rows: usize,
    pub tokens: usize,
}

/// For each list ranges of keys, ascending, disjoint, not adjacent.
pub struct Lists {
    pub of: Grouped,
    /// Where the ranges of each list begin, and how many there are of all: 8 bytes each.
    pub offsets: DeviceBuffer,
    /// As `lists.cuh` declares them.
    pub ranges: DeviceBuffer,
    /// Pairs of a row and a listed key that does not come after it.
    pub pairs: u64,
}

/// As `lists.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Making {
    ranges: u64,
    offsets: u64,
    counts: u64,
    rows: i32,
    groups: i32,
    tokens: i32,
    lists: i32,
}

/// As `lists.cu` declares it.
#[repr(C)]
struct Bits {
    to: Making,
    bits: u64,
    words: i32,
    unit: i32,
}

/// As `lists.cu` declares it.
#[repr(C)]
struct Lines {
    to: Making,
    columns: u64,
    offsets: u64,
    column_count: i32,
    offset_count: i32,
}

/// Bytes of a range.
const RANGE: usize = 12;

impl Grouped {
    /// Lists of a head.
    pub fn groups(&self) -> usize {
        self.tokens.div_ceil(self.rows)
    }

    /// Rows of a list, as the kernels count them.
    pub fn clipped(&self) -> i32 {
        self.rows.min(self.tokens.max(1)) as i32
    }

    fn lists(&self) -> usize {
        self.heads * self.groups()
    }
}

impl Device {
    /// Lists that the host has.
    pub(in super::super) fn listed(&self, keys: &KeySets, tokens: usize) -> Result<Lists, KernelError> {
        let (mut offsets, mut ranges, mut count) = (vec![0; 8], Vec::new(), 0u64);
        for (head, group) in (0..keys.heads()).flat_map(|head| (0..keys.groups()).map(move |group| (head, group))) {
            let mut before = 0;
            for range in keys.ranges(head, group) {
                ranges.extend([range.start, range.end, before].into_iter().flat_map(u32::to_le_bytes));
                before += range.end - range.start;
                count += 1;
            }
            offsets.extend(count.to_le_bytes());
        }
        let of = Grouped { heads: keys.heads(), rows: keys.rows(), tokens };
        let [offsets, ranges] = [self.upload_bytes(&offsets)?, self.upload_bytes(&ranges)?];
        Ok(Lists { of, offsets, ranges, pairs: keys.pairs(tokens) })
    }

    /// Lists brought back.
    pub(in super::super) fn key_sets(&self, lists: &Lists) -> Result<KeySets, KernelError> {
        let Lists { of, offsets, ranges, .. } = lists;
        let (mut ends, mut bytes) = (vec![0; offsets.bytes], vec![0; ranges.bytes]);
        self.download_bytes(offsets.pointer, &mut ends)?;
        self.download_bytes(ranges.pointer, &mut bytes)?;
        let ends: Vec<usize> = ends.as_chunks::<8>().0.iter().map(|end| u64::from_le_bytes(*end) as usize).collect();
        let range = |range: &[u8; RANGE]| {
            let [start, end] = [0, 4].map(|at| u32::from_le_bytes(range[at..at + 4].try_into().expect("four bytes")));
            start..end
        };
        let ranges = bytes.as_chunks::<RANGE>().0;
        let lists: Vec<Vec<_>> =
            ends.windows(2).map(|ends| ranges[ends[0]..ends[1]].iter().map(range).collect()).collect();
        KeySets::new(of.heads, of.rows, &lists)
    }

    /// A bit for each `unit` keys of each list, so many words of 32 to a list.
    pub(in super::super) fn lists_of_bits(
        &self,
        of: Grouped,
        bits: &DeviceBuffer,
        (words, unit): (usize, usize),
    ) -> Result<Lists, KernelError> {
        let spread = LaunchShape::new(of.lists().div_ceil(4), 128);
        let argument = |to| Bits { to, bits: bits.pointer, words: words as i32, unit: unit as i32 };
        self.made(of, |to| launch!(self, "list_bits", spread, argument(to)))
    }

    /// MInference's lists, of columns and offsets `(heads, count)`, ascending words.
    pub(super) fn lists_of_lines(&self, of: Grouped, [columns, offsets]: [&Tensor; 2]) -> Result<Lists, KernelError> {
        let spread = LaunchShape::new(of.lists().div_ceil(4), 128);
        let argument = |to| Lines {
            to,
            columns: columns.pointer(),
            offsets: offsets.pointer(),
            column_count: columns.shape[1] as i32,
            offset_count: offsets.shape[1] as i32,
        };
        self.made(of, |to| launch!(self, "list_lines", spread, argument(to)))
    }

    /// Counts what `make` lists, then has it listed.
    fn made(&self, of: Grouped, make: impl Fn(Making) -> Result<(), KernelError>) -> Result<Lists, KernelError> {
        let lists = of.lists();
        let counts = self.alloc(16 * lists)?;
        let (rows, groups, tokens) = (of.clipped(), of.groups() as i32, of.tokens as i32);
        let counting =
            Making { ranges: 0, offsets: 0, counts: counts.pointer, rows, groups, tokens, lists: lists as i32 };
        make(counting)?;
        let mut bytes = vec![0; 16 * lists];
        self.download_bytes(counts.pointer, &mut bytes)?;
        let (mut offsets, mut ranges, mut pairs) = (vec![0; 8], 0u64, 0u64);
        for [count, some] in bytes.as_chunks::<16>().0.iter().map(|counts| {
            let half = |at: usize| u64::from_le_bytes(counts[at..at + 8].try_into().expect("eight bytes"));
            [half(0), half(8)]
        }) {
            ranges += count;
            pairs += some;
            offsets.extend(ranges.to_le_bytes());
        }
        let (offsets, ranges) = (self.upload_bytes(&offsets)?, self.alloc(RANGE * ranges as usize)?);
        make(Making { ranges: ranges.pointer, offsets: offsets.pointer, ..counting })?;
        Ok(Lists { of, offsets, ranges, pairs })
    }
}
