//! Merge of packed partials on the device.

use super::super::super::device::{Device, LaunchShape, launch, padded, typed};
use super::super::super::tensor::Tensor;
use super::table::{Sent, Table};
use crate::operands::packed::check_parts;
use crate::{DType, Heads, KernelError};

/// As `moves.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy)]
struct MergedRow {
    first: i32,
    count: i32,
    at: i32,
    to: i32,
}

/// What partials are merged to.
#[derive(Clone, Copy)]
pub(super) enum MergeTarget<'a> {
    /// Packed rows.
    Rows(u64),
    /// Outputs alone, in the tensor's type.
    Outputs(&'a Tensor),
}

impl Device {
    /// As `BatchAttention::merge_rows`.
    pub(in super::super::super) fn merge_rows(
        &self,
        heads: Heads,
        parts: &[Vec<&[f32]>],
        packed: &mut Vec<f32>,
    ) -> Result<(), KernelError> {
        check_parts(heads, parts)?;
        let row = heads.packed_row();
        let rows: usize = parts.iter().map(|part| part[0].len() / row).sum();
        let results = self.alloc(4 * row * rows)?;
        self.merge_uploaded(heads, parts, MergeTarget::Rows(results.pointer))?;
        self.download_floats(results.pointer, row * rows, packed)
    }

    /// As `BatchAttention::merge_packed`.
    pub(in super::super::super) fn merge_packed(
        &self,
        heads: Heads,
        parts: &[Vec<&[f32]>],
        dtype: DType,
    ) -> Result<Tensor, KernelError> {
        check_parts(heads, parts)?;
        let rows = parts.iter().map(|part| part[0].len() / heads.packed_row()).sum();
        let out = self.empty(&[rows, heads.query * heads.dim], dtype)?;
        self.merge_uploaded(heads, parts, MergeTarget::Outputs(&out))?;
        Ok(out)
    }

    fn merge_uploaded(&self, heads: Heads, parts: &[Vec<&[f32]>], to: MergeTarget<'_>) -> Result<(), KernelError> {
        let mut table = Table::default();
        // Partials first, so that their places are known once there is memory.
        let starts: Vec<Vec<u64>> =
            parts.iter().map(|part| part.iter().map(|partial| table.push(partial)).collect()).collect();
        let count: usize = parts.iter().map(Vec::len).sum();
        let rows: usize = parts.iter().map(|part| part[0].len() / heads.packed_row()).sum();
        let buffer = self.alloc(table.0.len() + 8 * count + size_of::<MergedRow>() * rows + 64)?;
        let (mut merges, mut done) = (Merges::default(), 0);
        for (part, starts) in parts.iter().zip(starts) {
            let rows = part[0].len() / heads.packed_row();
            merges.add(starts.into_iter().map(|at| buffer.pointer + at), rows, done);
            done += rows;
        }
        let places = merges.lay(&mut table);
        self.write(buffer.pointer, &table.0)?;
        self.merge_laid(heads, &merges, (&Sent::Lies(buffer), places), to)
    }

    pub(super) fn merge_laid(
        &self,
        heads: Heads,
        merges: &Merges,
        (sent, places): (&Sent, [u64; 2]),
        to: MergeTarget<'_>,
    ) -> Result<(), KernelError> {
        if merges.rows.is_empty() {
            return Ok(());
        }
        let threads = heads.dim.next_multiple_of(32).clamp(32, 256) as u32;
        let most = merges.rows.iter().map(|row| row.count).max().unwrap_or(0) as usize;
        let spread = LaunchShape { blocks: (merges.rows.len(), heads.query), threads, shared: padded(most) };
        let (query, dim) = (heads.query as i32, heads.dim as i32);
        let carried = if matches!(sent, Sent::Carried(_)) { "_carried" } else { "" };
        let (name, out) = match to {
            MergeTarget::Rows(out) => (format!("merge_rows{carried}"), out),
            MergeTarget::Outputs(tensor) => {
                (typed(&format!("merge_outputs{carried}"), tensor.dtype()), tensor.pointer())
            }
        };
        match sent {
            Sent::Carried(table) => {
                let [partials, rows] = places.map(|at| at as i32);
                launch!(self, &name, spread, **table, partials, rows, out, query, dim)
            }
            Sent::Lies(table) => {
                let [partials, rows] = places.map(|at| table.pointer + at);
                launch!(self, &name, spread, partials, rows, out, query, dim)
            }
        }
    }
}

/// Rows that are merged of several partials each.
#[derive(Default)]
pub(super) struct Merges {
    partials: Vec<u64>,
    rows: Vec<MergedRow>,
}

impl Merges {
    /// `rows` rows of these partials, which go to row `to` and those behind it.
    pub fn add(&mut self, partials: impl Iterator<Item = u64>, rows: usize, to: usize) {
        let first = self.partials.len();
        self.partials.extend(partials);
        let (first, count) = (first as i32, (self.partials.len() - first) as i32);
        self.rows.extend((0..rows).map(|row| MergedRow { first, count, at: row as i32, to: (to + row) as i32 }));
    }

    /// Places of partials and rows.
    pub fn lay(&self, table: &mut Table) -> [u64; 2] {
        [table.push(&self.partials), table.push(&self.rows)]
    }
}
