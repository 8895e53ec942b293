//! Embedding, norm, rotation, activation, conversion: operations between the products of a decoder. Sums stay within a row.

use std::sync::{Arc, Mutex};

use super::device::layout::Strides;
use super::device::{Device, LaunchShape, launch, typed};
use super::tensor::{Tensor, View};
use crate::{DType, Heads, KernelError, Rotary};

/// What `split_rotate` is given, as the kernel declares it.
#[repr(C)]
struct Rotation {
    qkv: u64,
    q: u64,
    k: u64,
    v: u64,
    positions: u64,
    inv_freq: u64,
    q_at: Strides,
    kv_at: Strides,
    query: i32,
    kv: i32,
    dim: i32,
    factor: f32,
}

/// Positions of a call's tokens and the frequencies of its pairs, uploaded once for all layers.
pub struct Positions {
    ids: Tensor,
    inv_freq: Tensor,
    factor: f32,
}

impl Positions {
    /// Tokens.
    pub fn len(&self) -> usize {
        self.ids.shape[0]
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those of tokens `start..end`.
    ///
    /// # Panics
    /// When there are no such tokens.
    pub fn part(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.len(), "tokens {start}..{end} of {}", self.len());
        let mut ids = self.ids.clone();
        ids.offset += 4 * start;
        ids.shape = vec![end - start];
        Self { ids, inv_freq: self.inv_freq.clone(), factor: self.factor }
    }
}

/// Lists of positions that are kept: those of the shards of a pass.
const SHELVED: usize = 1024;
/// Positions in them, unless one list has more.
const SHELVED_IDS: usize = 4 << 20;

/// Positions uploaded before: every layer of a pass asks for the same.
#[derive(Default)]
pub(super) struct PositionsShelf(Mutex<Vec<Shelved>>);

/// Positions and frequencies, and where they are on the device, with the factor.
type Shelved = (Vec<u32>, Vec<f32>, Arc<Positions>);

impl PositionsShelf {
    /// These positions and frequencies on the device.
    pub fn find(&self, device: &Device, ids: &[u32], rotary: Rotary<'_>) -> Result<Arc<Positions>, KernelError> {
        let mut shelf = self.0.lock().expect("no panic holds it");
        let same = |(known, by, on_device): &&Shelved| {
            known == ids && by == rotary.inv_freq && on_device.factor == rotary.factor
        };
        if let Some((_, _, known)) = shelf.iter().rev().find(same) {
            return Ok(Arc::clone(known));
        }
        let mut kept: usize = shelf.iter().map(|(known, ..)| known.len()).sum();
        while shelf.len() >= SHELVED || (kept + ids.len() > SHELVED_IDS && !shelf.is_empty()) {
            kept -= shelf.remove(0).0.len();
        }
        let positions = Arc::new(device.positions(ids, rotary)?);
        shelf.push((ids.to_vec(), rotary.inv_freq.to_vec(), Arc::clone(&positions)));
        Ok(positions)
    }
}

/// Whether rows of `columns` elements at `tensors` can be read sixteen bytes at a time.
fn wide(columns: usize, tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|x| (columns * x.dtype.size()).is_multiple_of(16) && x.pointer().is_multiple_of(16))
}

impl Device {
    /// Words as a tensor of 4-byte elements.
    pub(super) fn words(&self, words: &[u32]) -> Result<Tensor, KernelError> {
        let bytes: Vec<u8> = words.iter().flat_map(|x| x.to_le_bytes()).collect();
        let buffer = self.upload_bytes(&bytes)?.into();
        Ok(Tensor { shape: vec![words.len()], dtype: DType::F32, buffer, offset: 0, rows_first: false })
    }

    /// Uploads positions and frequencies.
    pub fn positions(&self, ids: &[u32], Rotary { inv_freq, factor }: Rotary<'_>) -> Result<Positions, KernelError> {
        Ok(Positions { ids: self.words(ids)?, inv_freq: self.tensor(&[inv_freq.len()], inv_freq, DType::F32)?, factor })
    }

    /// Rows of `table (vocab, e)`: `(t, e)`.
    pub fn embed(&self, table: &Tensor, ids: &[u32]) -> Result<Tensor, KernelError> {
        let (vocab, e) = table.matrix("embed")?;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            let (expected, got) = (format!("token ids below {vocab}"), id.to_string());
            return Err(KernelError::Shape { operation: "embed", expected, got });
        }
        let (out, words) = (self.empty(&[ids.len(), e], table.dtype)?, self.words(ids)?);
        let (from, list, to, columns) = (table.pointer(), words.pointer(), out.pointer(), e as i32);
        launch!(self, &typed("embed", table.dtype), LaunchShape::new(ids.len(), 128), from, list, to, columns)?;
        Ok(out)
    }

    /// Root-mean-square norm of each row of `x (.., e)`, times `weight (e)`. A `residual` of its shape is added to `x`, in place, first.
    pub fn rms_norm(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        weight: &Tensor,
        eps: f32,
    ) -> Result<Tensor, KernelError> {
        let e = x.shape.last().copied().unwrap_or(0);
        let rows = x.elements() / e.max(1);
        if weight.shape != [e] || residual.is_some_and(|residual| residual.shape != x.shape) {
            return Err(KernelError::shape("rms_norm", format!("weight ({e}), residual like x"), &[&weight.shape]));
        }
        if weight.dtype != x.dtype || residual.is_some_and(|residual| residual.dtype != x.dtype) {
            return Err(KernelError::DType { operation: "rms_norm", got: weight.dtype });
        }
        let out = Tensor { rows_first: x.rows_first, ..self.empty(&x.shape, x.dtype)? };
        let mut operands = vec![x, weight, &out];
        operands.extend(residual);
        let name = if wide(e, &operands) { "rms_norm_wide" } else { "rms_norm" };
        let (from, add) = (x.pointer(), residual.map_or(0, Tensor::pointer));
        let (by, to, columns) = (weight.pointer(), out.pointer(), e as i32);
        launch!(self, &typed(name, x.dtype), LaunchShape::new(rows, 256), from, add, by, to, columns, eps)?;
        Ok(out)
    }

    /// `silu(gate) * up` of `gate_up (t, 2 f)`, gate first: `(t, f)`.
    pub fn gated_silu(&self, gate_up: &Tensor) -> Result<Tensor, KernelError> {
        let (rows, both) = gate_up.matrix("gated_silu")?;
        if !both.is_multiple_of(2) {
            return Err(KernelError::shape("gated_silu", "an even number of columns", &[&gate_up.shape]));
        }
        let out = self.empty(&[rows, both / 2], gate_up.dtype)?;
        self.gated_silu_into(gate_up, &out, 0)?;
        Ok(out)
    }

    /// The same, into columns from `first` on of a matrix of as many rows.
    pub fn gated_silu_into(&self, gate_up: &Tensor, to: &Tensor, first: usize) -> Result<(), KernelError> {
        let ((rows, both), (to_rows, pitch)) = (gate_up.matrix("gated_silu")?, to.matrix("gated_silu")?);
        let f = both / 2;
        if to_rows != rows || first + f > pitch || to.dtype != gate_up.dtype {
            let expected = format!("({rows}, {} or more)", first + f);
            return Err(KernelError::shape("gated_silu", expected, &[&to.shape]));
        }
        let size = to.dtype.size();
        let wide = wide(f, &[gate_up, to]) && [first, pitch].iter().all(|x| (x * size).is_multiple_of(16));
        let (name, step) = if wide { ("gated_silu_wide", 16 / size) } else { ("gated_silu", 1) };
        let (from, at, count) = (gate_up.pointer(), to.pointer() + (first * size) as u64, (rows * f) as i64);
        let (columns, pitch) = (f as i32, pitch as i32);
        launch!(self, &typed(name, to.dtype), LaunchShape::over(rows * f / step), from, at, count, columns, pitch)
    }

    /// `silu(x)` of each element.
    pub fn silu(&self, x: &Tensor) -> Result<Tensor, KernelError> {
        let out = self.empty(&x.shape, x.dtype)?;
        let (from, to, count) = (x.pointer(), out.pointer(), x.elements() as i64);
        launch!(self, &typed("silu", x.dtype), LaunchShape::over(x.elements()), from, to, count)?;
        Ok(out)
    }

    /// The elements in another type; the same tensor when it is that already.
    pub fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor, KernelError> {
        if x.dtype == dtype {
            return Ok(x.clone());
        }
        let out = Tensor { rows_first: x.rows_first, ..self.empty(&x.shape, dtype)? };
        let (from, to, count) = (x.pointer(), out.pointer(), x.elements() as i64);
        launch!(self, &typed("cast_to", dtype), LaunchShape::over(x.elements()), from, to, count)?;
        Ok(out)
    }

    /// Splits `qkv (t, (query + 2 kv) dim)` into heads, rotates queries and keys (half-split convention) and writes queries to
    /// `q`, keys and values to `k` and `v`: places in a cache, say. Angles are f32 products of position and frequency.
    pub fn split_rotate(
        &self,
        qkv: &Tensor,
        positions: &Positions,
        q: View<'_>,
        [k, v]: [View<'_>; 2],
    ) -> Result<(), KernelError> {
        let (t, columns) = qkv.matrix("split_rotate")?;
        let heads = Heads { query: q.heads, kv: k.heads, dim: q.dim };
        let fits = columns == (heads.query + 2 * heads.kv) * heads.dim
            && [q.rows, k.rows, v.rows, positions.len()] == [t; 4]
            && 2 * positions.inv_freq.elements() == heads.dim
            && (k.heads, k.dim, k.at) == (v.heads, q.dim, v.at);
        if !fits {
            let expected = format!("qkv (t, {}), t positions, {} frequencies", columns, heads.dim / 2);
            let got: [&[usize]; 3] = [&qkv.shape, &[positions.len()], &[positions.inv_freq.elements()]];
            return Err(KernelError::shape("split_rotate", expected, &got));
        }
        if [q.dtype, k.dtype, v.dtype] != [qkv.dtype; 3] {
            return Err(KernelError::DType { operation: "split_rotate", got: q.dtype });
        }
        let rotation = Rotation {
            qkv: qkv.pointer(),
            q: q.pointer,
            k: k.pointer,
            v: v.pointer,
            positions: positions.ids.pointer(),
            inv_freq: positions.inv_freq.pointer(),
            q_at: q.at,
            kv_at: k.at,
            query: heads.query as i32,
            kv: heads.kv as i32,
            dim: heads.dim as i32,
            factor: positions.factor,
        };
        let step = 4 * qkv.dtype.size() as u64;
        let aligned = [rotation.qkv, rotation.q, rotation.k, rotation.v].iter().all(|at| at.is_multiple_of(step));
        let name = if heads.dim.is_multiple_of(8) && aligned { "split_rotate_wide" } else { "split_rotate" };
        let spread = LaunchShape { blocks: (t, 1), threads: 256, shared: 4 * heads.dim };
        launch!(self, &typed(name, qkv.dtype), spread, rotation)
    }

    /// `(heads, t, dim)` -> `(t, heads dim)` in `dtype`; the same memory where nothing changes.
    pub fn join_heads(&self, x: &Tensor, dtype: DType) -> Result<Tensor, KernelError> {
        let (heads, t, dim) = x.cube("join_heads")?;
        if x.rows_first || x.dtype == dtype {
            return Ok(self.cast(&self.by_rows(x)?, dtype)?.joined());
        }
        if x.dtype != DType::F32 {
            return Err(KernelError::DType { operation: "join_heads", got: x.dtype });
        }
        let out = self.empty(&[t, heads * dim], dtype)?;
        let (from, to, sizes) = (x.pointer(), out.pointer(), [heads as i32, t as i32, dim as i32]);
        let [heads, t, dim] = sizes;
        launch!(self, &typed("join_heads", dtype), LaunchShape::over(x.elements()), from, to, heads, t, dim)?;
        Ok(out)
    }

    /// Copies rows from view to view.
    pub fn copy_heads(&self, from: View<'_>, to: View<'_>) -> Result<(), KernelError> {
        if (from.heads, from.rows, from.dim) != (to.heads, to.rows, to.dim) {
            let got: [&[usize]; 2] = [&[from.heads, from.rows, from.dim], &[to.heads, to.rows, to.dim]];
            return Err(KernelError::shape("copy_heads", "views of one shape", &got));
        }
        if from.dtype != to.dtype {
            return Err(KernelError::DType { operation: "copy_heads", got: from.dtype });
        }
        let (count, by_rows) = (from.heads * from.rows * from.dim, Strides::by_rows(from.heads, from.dim));
        if from.at == by_rows && to.at == by_rows {
            return self.copy_2d((from.pointer, 0), (to.pointer, 0), count * from.dtype.size(), 1);
        }
        let step = 16 / from.dtype.size();
        let wide = [from, to].iter().all(|view| {
            let strides = [view.at.head, view.at.row, view.dim as i64];
            view.pointer.is_multiple_of(16) && strides.iter().all(|stride| *stride % step as i64 == 0)
        });
        let (name, step) = if wide { ("copy_heads_wide", step) } else { ("copy_heads", 1) };
        let (heads, t, dim) = (from.heads as i32, from.rows as i32, from.dim as i32);
        let (name, spread) = (typed(name, from.dtype), LaunchShape::over(count / step));
        launch!(self, &name, spread, from.pointer, to.pointer, from.at, to.at, heads, t, dim)
    }

    /// Numbers in `[-scale, scale)`, a function of place and seed: weights for measuring, made on the device.
    pub fn random(&self, shape: &[usize], dtype: DType, seed: u32, scale: f32) -> Result<Tensor, KernelError> {
        let out = self.empty(shape, dtype)?;
        let (to, count) = (out.pointer(), out.elements() as i64);
        launch!(self, &typed("random_fill", dtype), LaunchShape::over(out.elements()), to, count, seed, scale)?;
        Ok(out)
    }

    /// Rows `(rows, columns)` of bf16 numbers of many sizes, whose second half is the first again, times the second factor
    /// instead of the first: with factors of two signs on one side only, sums of products cancel.
    pub(super) fn cancelling(
        &self,
        shape: [usize; 2],
        seed: u32,
        [first, second]: [f32; 2],
    ) -> Result<Tensor, KernelError> {
        let out = self.empty(&shape, DType::Bf16)?;
        let (to, count, columns) = (out.pointer(), out.elements() as i64, shape[1] as i32);
        launch!(self, "cancelling_fill", LaunchShape::over(out.elements()), to, count, seed, columns, first, second)?;
        Ok(out)
    }
}
