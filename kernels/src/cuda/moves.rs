//! Merge of partials, copies of parts, gather, scores of keys and the largest of them.

mod sampling;

use std::sync::Arc;

use super::device::{Device, LaunchShape, launch, typed};
use super::tensor::{Tensor, View};
use crate::backend::check_lists;
use crate::{DType, KernelError, Partial};

/// As the kernel declares it.
#[repr(C)]
struct Pair {
    out: u64,
    other: u64,
    lse: u64,
    other_lse: u64,
    out_head: i64,
    out_row: i64,
    other_head: i64,
    other_row: i64,
    lse_head: i64,
    other_lse_head: i64,
    heads: i32,
    rows: i32,
    dim: i32,
    unused: i32,
}

/// Bytes that go from one place to another, in 16-byte steps, as the kernel declares it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CopyRun {
    from: u64,
    to: u64,
    /// Of what is written.
    steps: i32,
    /// From f32 to bf16.
    narrows: i32,
}

/// Runs of a launch, as the kernel has it.
const RUNS: usize = 32;
/// Runs that are rows of so many steps, and those from one to the next where they are written, as the kernel declares it.
#[repr(C)]
struct ColumnRuns {
    each: [CopyRun; RUNS],
    row: i32,
    pitch: i32,
}
/// Blocks of threads that copy one run.
const COPY_BLOCKS: usize = 1024;

impl CopyRun {
    /// These bytes as they are, where they lie in whole steps.
    pub fn of(from: u64, to: u64, bytes: usize) -> Option<Self> {
        let steps = bytes.is_multiple_of(16).then_some(bytes / 16).and_then(|steps| i32::try_from(steps).ok())?;
        (from.is_multiple_of(16) && to.is_multiple_of(16)).then_some(Self { from, to, steps, narrows: 0 })
    }

    /// So many bytes of bf16, made from f32.
    fn narrowed(from: u64, to: u64, bytes: usize) -> Option<Self> {
        Self::of(from, to, bytes).map(|run| Self { narrows: 1, ..run })
    }
}

/// Rows that there is room for behind a tensor that was extended: those of a block, behind the summaries before it.
const SPARE_ROWS: usize = 8192;

/// A bf16 partial whose rows lie anywhere: output, log-sum-exp `(heads, rows of more)` f32, and which of its rows is the first.
pub type Placed<'a> = (View<'a>, &'a Tensor, usize);

impl Device {
    /// Waits, and says whether the first `bytes` of two tensors, whole words, are the same.
    pub(super) fn equal(&self, a: &Tensor, b: &Tensor, bytes: usize) -> Result<bool, KernelError> {
        let differ = self.words(&[0])?;
        let (one, other, to, count) = (a.pointer(), b.pointer(), differ.pointer(), (bytes / 4) as i64);
        launch!(self, "differ", LaunchShape::over(bytes / 4), one, other, to, count)?;
        let mut found = [0; 4];
        self.download_bytes(to, &mut found)?;
        Ok(found == [0; 4])
    }

    /// Two runs of as many bytes, by one launch; by two copies where they do not lie in whole steps.
    pub(super) fn copy_pair(&self, [a, b]: [u64; 2], [to_a, to_b]: [u64; 2], bytes: usize) -> Result<(), KernelError> {
        if let (Some(one), Some(other)) = (CopyRun::of(a, to_a, bytes), CopyRun::of(b, to_b, bytes)) {
            return self.copy_runs(&[one, other]);
        }
        self.copy_2d((a, 0), (to_a, 0), bytes, 1)?;
        self.copy_2d((b, 0), (to_b, 0), bytes, 1)
    }

    /// Runs of bytes, from where and to where, that do not overlap: by few launches, but those that do not lie in whole steps.
    pub(super) fn copy_bytes(&self, copies: &[(u64, u64, usize)]) -> Result<(), KernelError> {
        let mut runs = Vec::with_capacity(copies.len());
        for &(from, to, bytes) in copies {
            match CopyRun::of(from, to, bytes) {
                Some(run) => runs.push(run),
                None => self.copy_2d((from, 0), (to, 0), bytes, 1)?,
            }
        }
        self.copy_runs(&runs)
    }

    /// Copies runs that do not overlap, by as few launches as there can be.
    pub(super) fn copy_runs(&self, runs: &[CopyRun]) -> Result<(), KernelError> {
        for some in runs.chunks(RUNS) {
            let mut sent = [CopyRun::default(); RUNS];
            sent[..some.len()].copy_from_slice(some);
            launch!(self, "copy_runs", Self::spread_runs(some), sent)?;
        }
        Ok(())
    }

    /// As `Collectives::rows_into`.
    pub fn rows_into(&self, parts: &[Tensor], to: &Tensor, first: usize) -> Result<(), KernelError> {
        let ((rows, pitch), size) = (to.matrix("rows_into")?, to.dtype.size());
        let columns = parts.first().map_or(Ok(0), |part| part.matrix("rows_into").map(|(_, columns)| columns))?;
        let fits = |part: &Tensor| part.dtype == to.dtype && part.shape.len() == 2 && part.shape[1] == columns;
        let given: usize = parts.iter().map(|part| part.shape[0]).sum();
        if !parts.iter().all(fits) || given != rows || first + columns > pitch {
            let shapes: Vec<&[usize]> = parts.iter().map(|part| part.shape.as_slice()).collect();
            return Err(KernelError::shape(
                "rows_into",
                format!("parts of {rows} rows, within ({rows}, {pitch})"),
                &shapes,
            ));
        }
        let ([row, pitch], mut runs) =
            ([columns, pitch].map(|columns| columns * size), Vec::with_capacity(parts.len()));
        let mut at = to.pointer() + (first * size) as u64;
        for part in parts.iter().filter(|part| part.elements() > 0) {
            match CopyRun::of(part.pointer(), at, part.bytes()).filter(|_| (row | pitch).is_multiple_of(16)) {
                Some(run) => runs.push(run),
                None => self.copy_2d((part.pointer(), row), (at, pitch), row, part.shape[0])?,
            }
            at += (part.shape[0] * pitch) as u64;
        }
        for some in runs.chunks(RUNS) {
            let [row, pitch] = [row, pitch].map(|bytes| (bytes / 16) as i32);
            let mut sent = ColumnRuns { each: [CopyRun::default(); RUNS], row, pitch };
            sent.each[..some.len()].copy_from_slice(some);
            launch!(self, "copy_columns", Self::spread_runs(some), sent)?;
        }
        Ok(())
    }

    /// Blocks that copy some runs.
    fn spread_runs(runs: &[CopyRun]) -> LaunchShape {
        let most = runs.iter().map(|run| run.steps as usize).max().unwrap_or(0);
        LaunchShape { blocks: (most.div_ceil(256).min(COPY_BLOCKS), runs.len()), threads: 256, shared: 0 }
    }

    /// Merges `other` into `to`, in place: a prefix's partial into a block's own.
    pub fn merge_into(&self, to: Placed<'_>, other: Placed<'_>) -> Result<(), KernelError> {
        let ((out, lse, first), (more, more_lse, more_first)) = (to, other);
        let fits = |(view, lse, first): Placed<'_>| {
            lse.shape.len() == 2 && lse.shape[0] == view.heads && first + view.rows <= lse.shape[1]
        };
        let same = (out.heads, out.rows, out.dim) == (more.heads, more.rows, more.dim) && out.dim.is_multiple_of(2);
        if !same || !fits(to) || !fits(other) {
            let got: [&[usize]; 4] =
                [&[out.heads, out.rows, out.dim], &[more.heads, more.rows, more.dim], &lse.shape, &more_lse.shape];
            return Err(KernelError::shape("merge_into", "two partials of one shape", &got));
        }
        if [out.dtype, more.dtype] != [DType::Bf16; 2] || [lse.dtype, more_lse.dtype] != [DType::F32; 2] {
            return Err(KernelError::DType { operation: "merge_into", got: out.dtype });
        }
        let pair = Pair {
            out: out.pointer,
            other: more.pointer,
            lse: lse.pointer() + 4 * first as u64,
            other_lse: more_lse.pointer() + 4 * more_first as u64,
            out_head: out.at.head,
            out_row: out.at.row,
            other_head: more.at.head,
            other_row: more.at.row,
            lse_head: lse.shape[1] as i64,
            other_lse_head: more_lse.shape[1] as i64,
            heads: out.heads as i32,
            rows: out.rows as i32,
            dim: out.dim as i32,
            unused: 0,
        };
        let wide = matches!(out.dim, 64 | 128 | 256)
            && [out.pointer, more.pointer].iter().all(|pointer| pointer.is_multiple_of(16))
            && [pair.out_head, pair.out_row, pair.other_head, pair.other_row].iter().all(|stride| stride % 8 == 0);
        let (name, threads) = if wide { ("merge_into_wide", out.dim / 8) } else { ("merge_into", 32) };
        launch!(self, name, LaunchShape::new((out.heads * out.rows * threads).div_ceil(256), 256), pair)
    }

    /// Exact merge of partials over disjoint keys, in the order given; outputs f32 or bf16, statistics f32.
    pub fn merge(&self, partials: &[Partial<Tensor>]) -> Result<Partial<Tensor>, KernelError> {
        let Some(Partial { output, .. }) = partials.first() else {
            return Err(KernelError::Shape { operation: "merge", expected: "a partial".into(), got: "none".into() });
        };
        let (heads, t, dim) = output.cube("merge")?;
        for p in partials {
            if p.output.shape != output.shape || p.lse.shape != [heads, t] {
                let expected = format!("outputs ({heads}, {t}, {dim}), lse ({heads}, {t})");
                return Err(KernelError::shape("merge", expected, &[&p.output.shape, &p.lse.shape]));
            }
            if p.output.dtype != output.dtype || p.lse.dtype != DType::F32 {
                return Err(KernelError::DType { operation: "merge", got: p.output.dtype });
            }
        }
        let merged =
            Partial { output: self.empty(&output.shape, output.dtype)?, lse: self.empty(&[heads, t], DType::F32)? };
        let of = |pick: fn(&Partial<Tensor>) -> &Tensor| partials.iter().map(move |p| pick(p).pointer());
        let table: Vec<u8> = of(|p| &p.output).chain(of(|p| &p.lse)).flat_map(u64::to_le_bytes).collect();
        let table = self.upload_bytes(&table)?;
        let (outputs, lses) = (table.pointer, table.pointer + 8 * partials.len() as u64);
        let (to, to_lse, n, columns) =
            (merged.output.pointer(), merged.lse.pointer(), partials.len() as i32, dim as i32);
        let spread = LaunchShape::new(heads * t, dim.next_multiple_of(32).clamp(32, 256) as u32);
        launch!(self, &typed("merge", output.dtype), spread, outputs, lses, n, to, to_lse, columns)?;
        Ok(merged)
    }

    /// `start..end` along `axis`: a copy, unless it lies that way.
    pub fn narrow(&self, x: &Tensor, axis: usize, start: usize, end: usize) -> Result<Tensor, KernelError> {
        if x.shape.get(axis).is_none_or(|size| start > end || end > *size) {
            let expected = format!("a range within axis {axis} of {:?}", x.shape);
            return Err(KernelError::shape("narrow", expected, &[&[start, end]]));
        }
        if x.rows_first && axis == 1 {
            return Ok(x.part(start, end));
        }
        let (x, mut shape) = (&self.by_heads(x)?, x.shape.clone());
        shape[axis] = end - start;
        let out = self.empty(&shape, x.dtype)?;
        let run = x.shape[axis + 1..].iter().product::<usize>() * x.dtype.size();
        let (pitch, bytes) = (x.shape[axis] * run, (end - start) * run);
        let outer = x.shape[..axis].iter().product();
        self.copy_2d((x.pointer() + (start * run) as u64, pitch), (out.pointer(), bytes), bytes, outer)?;
        Ok(out)
    }

    /// A copy of `parts` one after the other along `axis`.
    pub fn concat(&self, parts: &[Tensor], axis: usize) -> Result<Tensor, KernelError> {
        match (parts.iter().any(|part| part.rows_first), axis) {
            (false, _) => self.concat_plain(parts, axis),
            (true, 1) => self.concat_by_rows(parts),
            (true, _) => {
                let parts = parts.iter().map(|part| self.by_heads(part)).collect::<Result<Vec<_>, _>>()?;
                self.concat_plain(&parts, axis)
            }
        }
    }

    /// Rows behind rows. Where attention of many and of few rows meets, f32 gives way to the type of the others.
    fn concat_by_rows(&self, parts: &[Tensor]) -> Result<Tensor, KernelError> {
        let dtype = if parts.iter().all(|part| part.dtype == DType::F32) { DType::F32 } else { DType::Bf16 };
        let parts = parts.iter().map(|part| self.by_rows(part)).collect::<Result<Vec<_>, _>>()?;
        let (heads, _, dim) = parts[0].cube("concat")?;
        if parts.iter().any(|part| (part.shape[0], part.shape[2]) != (heads, dim)) {
            let shapes: Vec<&[usize]> = parts.iter().map(|part| part.shape.as_slice()).collect();
            return Err(KernelError::shape("concat", "parts that differ in axis 1 only", &shapes));
        }
        let joined: Vec<Tensor> = parts.iter().map(Tensor::joined).collect();
        let all = self.stacked(&joined, dtype)?;
        Ok(Tensor { shape: vec![heads, all.shape[0], dim], rows_first: true, ..all })
    }

    /// Matrices of as many columns one below the other, f32 or `dtype`, in `dtype`.
    fn stacked(&self, parts: &[Tensor], dtype: DType) -> Result<Tensor, KernelError> {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let out = self.empty(&[rows, parts[0].shape[1]], dtype)?;
        let (mut runs, mut to) = (Vec::with_capacity(parts.len()), out.pointer());
        for part in parts.iter().filter(|part| part.elements() > 0) {
            let bytes = part.elements() * dtype.size();
            let run = match part.dtype == dtype {
                true => CopyRun::of(part.pointer(), to, bytes),
                false => CopyRun::narrowed(part.pointer(), to, bytes),
            };
            match run {
                Some(run) => runs.push(run),
                None => self.copy_2d((self.cast(part, dtype)?.pointer(), 0), (to, 0), bytes, 1)?,
            }
            to += bytes as u64;
        }
        self.copy_runs(&runs)?;
        Ok(out)
    }

    /// As `TensorOps::extended`: `more` is written behind `x` where that is the beginning of memory with room, which nobody else
    /// goes on from.
    pub(super) fn extended(&self, pairs: [[&Tensor; 2]; 2]) -> Result<[Tensor; 2], KernelError> {
        let mut runs = Vec::with_capacity(4);
        let mut extend = |[x, more]: [&Tensor; 2]| -> Result<Tensor, KernelError> {
            let fits =
                x.shape.len() == 3 && (x.shape.first(), x.shape.get(2)) == (more.shape.first(), more.shape.get(2));
            if !fits || x.dtype != more.dtype || !(x.rows_first || more.rows_first) {
                return self.concat(&[x.clone(), more.clone()], 1);
            }
            let (x, more) = (self.by_rows(x)?, self.by_rows(more)?);
            let (shape, row) = (vec![x.shape[0], x.shape[1] + more.shape[1], x.shape[2]], x.shape[0] * x.shape[2]);
            let whole = x.offset == 0 && x.bytes() == x.buffer.bytes;
            let mut copy = |from: &Tensor, to: u64| {
                match CopyRun::of(from.pointer(), to, from.bytes()) {
                    Some(run) => runs.push((run, from.clone())),
                    None => self.copy_2d((from.pointer(), 0), (to, 0), from.bytes(), 1)?,
                }
                Ok::<(), KernelError>(())
            };
            let grown = if whole { x.buffer.extended(more.bytes()) } else { None };
            let buffer = match grown {
                Some(buffer) => buffer,
                None => {
                    let bytes = x.bytes() + more.bytes();
                    let buffer = self.alloc(bytes + SPARE_ROWS * row * x.dtype.size())?.shared(bytes);
                    copy(&x, buffer.pointer)?;
                    buffer
                }
            };
            copy(&more, buffer.pointer + x.bytes() as u64)?;
            Ok(Tensor { shape, buffer: Arc::new(buffer), offset: 0, ..x })
        };
        let extended = [extend(pairs[0])?, extend(pairs[1])?];
        let (runs, _held): (Vec<CopyRun>, Vec<Tensor>) = runs.into_iter().unzip();
        self.copy_runs(&runs)?;
        Ok(extended)
    }

    fn concat_plain(&self, parts: &[Tensor], axis: usize) -> Result<Tensor, KernelError> {
        let beside = |part: &Tensor| {
            let mut shape = part.shape.clone();
            (axis < shape.len()).then(|| shape.remove(axis)).map(|_| shape)
        };
        let shapes = || parts.iter().map(|part| part.shape.as_slice()).collect::<Vec<_>>();
        let Some((first, other)) = parts.first().and_then(|first| beside(first).map(|other| (first, other))) else {
            return Err(KernelError::shape("concat", format!("parts that have an axis {axis}"), &shapes()));
        };
        if parts.iter().any(|part| part.dtype != first.dtype || beside(part).as_ref() != Some(&other)) {
            let expected = format!("parts of one type that differ in axis {axis} only");
            return Err(KernelError::shape("concat", expected, &shapes()));
        }
        if axis == 0 && first.shape.len() == 2 {
            return self.stacked(parts, first.dtype);
        }
        let mut shape = first.shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let out = self.empty(&shape, first.dtype)?;
        let run = shape[axis + 1..].iter().product::<usize>() * first.dtype.size();
        let (outer, pitch) = (shape[..axis].iter().product(), shape[axis] * run);
        let mut to = out.pointer();
        for part in parts {
            let bytes = part.shape[axis] * run;
            self.copy_2d((part.pointer(), bytes), (to, pitch), bytes, outer)?;
            to += bytes as u64;
        }
        Ok(out)
    }

    /// As `AllGather::gather`.
    pub(super) fn gather_listed(&self, x: &Tensor, rows: &[Vec<u32>]) -> Result<Tensor, KernelError> {
        let (heads, t, _) = x.cube("gather")?;
        let count = check_lists(rows, heads, t)?;
        let mut list = self.words(&rows.concat())?;
        list.shape = vec![heads, count];
        self.gather(&self.by_heads(x)?, &list)
    }

    /// Rows `rows (heads, n)` of each head of `x (heads, t, dim)`; every one below `t`, as `top_k` gives them: `(heads, n, dim)`.
    pub fn gather(&self, x: &Tensor, rows: &Tensor) -> Result<Tensor, KernelError> {
        let ((heads, t, dim), (lists, count)) = (x.cube("gather")?, rows.matrix("gather")?);
        if lists != heads {
            return Err(KernelError::shape("gather", format!("{heads} lists"), &[&rows.shape]));
        }
        let out = self.empty(&[heads, count, dim], x.dtype)?;
        let (from, list, to) = (x.pointer(), rows.pointer(), out.pointer());
        let (t, n, columns) = (t as i32, count as i32, dim as i32);
        launch!(self, &typed("gather", x.dtype), LaunchShape::new(heads * count, 64), from, list, to, t, n, columns)?;
        Ok(out)
    }

    /// `q.k` of each key of `k (kv heads, t, dim)`, averaged over the rows of `q (query heads, m, dim)` and the query heads that
    /// share the KV head, not scaled: `(kv heads, t)` f32.
    pub fn key_scores(&self, q: &Tensor, k: &Tensor) -> Result<Tensor, KernelError> {
        let ((query, rows, dim), (kv, t, key_dim)) = (q.cube("key_scores")?, k.cube("key_scores")?);
        if dim != key_dim || rows == 0 || kv == 0 || query == 0 || !query.is_multiple_of(kv) || q.dtype != k.dtype {
            let expected = "q (a multiple of kv heads, at least 1, dim), k (kv heads, t, dim)";
            return Err(KernelError::shape("key_scores", expected, &[&q.shape, &k.shape]));
        }
        let (means, out) = (self.empty(&[kv, dim], DType::F32)?, self.empty(&[kv, t], DType::F32)?);
        let (from, to, count, columns) = (q.pointer(), means.pointer(), (query / kv * rows) as i32, dim as i32);
        launch!(self, &typed("mean_rows", q.dtype), LaunchShape::new(kv, 128), from, to, count, columns)?;
        let (keys, scores, heads, t) = (k.pointer(), out.pointer(), kv as i32, t as i32);
        let spread = LaunchShape::new((kv * t as usize).div_ceil(8), 256);
        launch!(self, &typed("key_dots", k.dtype), spread, to, keys, scores, heads, t, columns)?;
        Ok(out)
    }

    /// Indices of the `k` largest of each row of `scores (lists, n)` f32, ties to the smallest, ascending: `(lists, k)` of 4-byte
    /// words, chosen on the device. All of them when there are fewer.
    pub fn top_k(&self, scores: &Tensor, k: usize) -> Result<Tensor, KernelError> {
        let (lists, n) = scores.matrix("top_k")?;
        if scores.dtype != DType::F32 {
            return Err(KernelError::DType { operation: "top_k", got: scores.dtype });
        }
        let out = self.empty(&[lists, k.min(n)], DType::F32)?;
        if out.elements() > 0 {
            let (from, to, n, k) = (scores.pointer(), out.pointer(), n as i32, k.min(n) as i32);
            launch!(self, "top_k", LaunchShape::new(lists, 1024), from, to, n, k)?;
        }
        Ok(out)
    }

    /// The words of what [`Device::top_k`] gave.
    pub fn download_words(&self, tensor: &Tensor) -> Result<Vec<u32>, KernelError> {
        let mut bytes = vec![0; tensor.bytes()];
        self.download_bytes(tensor.pointer(), &mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|x| u32::from_le_bytes(*x)).collect())
    }
}
