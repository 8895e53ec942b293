//! Keys and values in 8 bits: how rows become codes, what codes stand for, and how they travel. Attends to nothing.

use std::ops::Range;

use super::super::device::layout::Strides;
use super::super::device::{Device, LaunchShape, launch, typed};
use super::super::tensor::{Staged, Tensor, View};
use super::CudaKv;
use super::keys::Codes;
use super::rows::RowLayout;
use crate::{DType, KernelError, KvFormat, KvType};

/// Rows that a block of threads takes, as the kernels have it.
const ROWS_OF_BLOCK: usize = 8;
/// Elements of a head that there is room for.
const LONGEST_HEAD: usize = 256;
/// Caches of a launch, as the kernel has it.
const KEPT_RUNS: usize = 32;

/// As `kept.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CodesArgument {
    codes: [u64; 2],
    scales: [u64; 2],
}

impl From<Codes<'_>> for CodesArgument {
    fn from(Codes { codes, scales, .. }: Codes<'_>) -> Self {
        Self { codes, scales }
    }
}

/// As `kept.cu` declares it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct KeptRun {
    to: CodesArgument,
    first: i32,
    count: i32,
}

/// As `kept.cu` declares it.
#[repr(C)]
struct Keeping {
    k: u64,
    v: u64,
    k_at: Strides,
    v_at: Strides,
    heads: i32,
    dim: i32,
    runs: [KeptRun; KEPT_RUNS],
}

/// As `kept.cu` declares it.
#[repr(C)]
struct Widening {
    from: CodesArgument,
    to: [u64; 2],
    rows: i64,
    dim: i32,
    unused: i32,
}

/// As `kept.cu` declares it.
#[repr(C)]
struct Travelling {
    codes: CodesArgument,
    bytes: u64,
    tokens: i64,
    heads: i32,
    dim: i32,
}

impl KeptRun {
    /// Rows from `first` on, to as many tokens as there are codes for.
    pub fn of(codes: Codes<'_>, first: usize) -> Self {
        Self { to: codes.into(), first: first as i32, count: codes.tokens as i32 }
    }
}

/// Blocks of threads for so many rows.
fn blocks(rows: usize) -> usize {
    rows.div_ceil(ROWS_OF_BLOCK)
}

/// Refuses heads that the kernels have no room for.
pub fn check_head(dim: usize) -> Result<(), KernelError> {
    match dim {
        1..=LONGEST_HEAD => Ok(()),
        _ => Err(KernelError::shape("kv", format!("heads of at most {LONGEST_HEAD} elements"), &[&[dim]])),
    }
}

impl CudaKv {
    /// Appends `k, v (kv heads, t, dim)`, whose shapes and types fit, to a cache in 8 bits.
    pub(super) fn keep(&mut self, device: &Device, k: &Tensor, v: &Tensor) -> Result<(), KernelError> {
        let Range { start, end } = self.room(device, k.shape[1])?;
        let run = KeptRun::of(self.codes(start, end), 0);
        device.keep_rows([k.heads_first()?, v.heads_first()?], &[run])?;
        self.written = device.queue().written();
        Ok(())
    }

    /// The same rows in compute type: shared, where they are.
    ///
    /// # Errors
    /// [`KernelError::DeviceMemory`] where there is no room.
    pub fn widened(&self, device: &Device) -> Result<Self, KernelError> {
        if self.rows.of.is_computed() {
            return Ok(self.clone());
        }
        let mut wide = Self::with_rows(device, self.rows.widened(), self.len)?;
        wide.append_widened(device, self)?;
        Ok(wide)
    }

    /// Appends what the codes of another cache, of the same heads, stand for.
    pub(super) fn append_widened(&mut self, device: &Device, more: &Self) -> Result<(), KernelError> {
        let Range { start, end } = self.room(device, more.len)?;
        let (RowLayout { heads, dim, of }, to) = (self.rows, self.view(start, end));
        let rows = heads * more.len;
        let widening = Widening {
            from: more.codes(0, more.len).into(),
            to: to.map(|view| view.pointer),
            rows: rows as i64,
            dim: dim as i32,
            unused: 0,
        };
        let spread = LaunchShape { blocks: (blocks(rows), 2), threads: 256, shared: 0 };
        launch!(device, &typed("widen_rows", of.computed), spread, widening)?;
        self.written = device.queue().written();
        Ok(())
    }

    /// Keys, then values, as they travel, where they are in 8 bits: `(kv heads, tokens)` rows of codes and their scale.
    pub(in super::super) fn raw<'a>(&self, device: &'a Device) -> Result<Option<Staged<'a>>, KernelError> {
        if self.rows.of.is_computed() {
            return Ok(None);
        }
        let bytes = 2 * self.rows.heads * self.len * self.rows.of.row_bytes(self.rows.dim);
        let buffer = device.alloc(bytes)?;
        self.travel(device, "pack_codes", buffer.pointer)?;
        Ok(Some(Staged::of(device, buffer, bytes)))
    }

    /// A cache of `(kv heads, t, dim)` in 8 bits, of bytes as they travelled, keys and values apart.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for another number of bytes.
    pub(in super::super) fn of_raw(
        device: &Device,
        [heads, tokens, dim]: [usize; 3],
        raw: [&[&[u8]]; 2],
        computed: DType,
    ) -> Result<Self, KernelError> {
        check_head(dim)?;
        let rows = RowLayout { heads, dim, of: KvType { computed, kept: KvFormat::Q8 } };
        let [keys, values] = raw.map(|pieces| pieces.iter().map(|piece| piece.len()).sum::<usize>());
        let each = heads.checked_mul(tokens).and_then(|all| all.checked_mul(rows.of.row_bytes(dim)));
        if [Some(keys), Some(values)] != [each; 2] {
            let expected = format!("keys and values of ({heads}, {tokens}, {dim}) in 8 bits");
            return Err(KernelError::shape("upload_kept", expected, &[&[keys], &[values]]));
        }
        let (sent, mut at) = (device.alloc(keys + values)?, 0);
        for piece in raw.into_iter().flatten() {
            device.write(sent.pointer + at, piece)?;
            at += piece.len() as u64;
        }
        let mut kv = Self::with_rows(device, rows, tokens)?;
        kv.resize(tokens);
        kv.travel(device, "unpack_codes", sent.pointer)?;
        kv.written = device.queue().written();
        Ok(kv)
    }

    fn travel(&self, device: &Device, kernel: &str, bytes: u64) -> Result<(), KernelError> {
        let RowLayout { heads, dim, .. } = self.rows;
        let travelling = Travelling {
            codes: self.codes(0, self.len).into(),
            bytes,
            tokens: self.len as i64,
            heads: heads as i32,
            dim: dim as i32,
        };
        launch!(device, kernel, LaunchShape::new(blocks(2 * heads * self.len), 256), travelling)
    }
}

impl Device {
    /// Rows of `k, v (kv heads, t, dim)` to caches in 8 bits, by few launches.
    pub(super) fn keep_rows(&self, [k, v]: [View<'_>; 2], runs: &[KeptRun]) -> Result<(), KernelError> {
        let name = typed("keep_rows", k.dtype);
        for some in runs.chunks(KEPT_RUNS) {
            let mut sent = [KeptRun::default(); KEPT_RUNS];
            sent[..some.len()].copy_from_slice(some);
            let most = some.iter().map(|run| run.count as usize).max().unwrap_or(0);
            let keeping = Keeping {
                k: k.pointer,
                v: v.pointer,
                k_at: k.at,
                v_at: v.at,
                heads: k.heads as i32,
                dim: k.dim as i32,
                runs: sent,
            };
            let spread = LaunchShape { blocks: (blocks(2 * k.heads * most), some.len()), threads: 256, shared: 0 };
            launch!(self, &name, spread, keeping)?;
        }
        Ok(())
    }

    /// Queries `(query heads, rows, dim)` bf16 as they are asked of keys in 8 bits: turned as these are, `(rows, query heads dim)` f32.
    pub(in super::super) fn turned(&self, q: View<'_>) -> Result<Tensor, KernelError> {
        let out = self.empty(&[q.rows, q.heads * q.dim], DType::F32)?;
        let (from, at, to) = (q.pointer, q.at, out.pointer());
        let [heads, rows, dim] = [q.heads, q.rows, q.dim].map(|size| size as i32);
        let spread = LaunchShape::new(blocks(q.heads * q.rows), 256);
        launch!(self, "turn_queries", spread, from, at, to, heads, rows, dim)?;
        Ok(out)
    }
}

/// Rows of a step on their way to caches in 8 bits, as `kept.cu` declares it: where a row's key goes in the first layer, and how far from
/// it are its scale, its value and that of the next layer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PlacedCodes {
    pub key: u64,
    pub scale: u64,
    pub value: u64,
    pub layer: u64,
}

impl Device {
    /// A layer's queries `(t, query heads dim)`, keys and values `(t, kv heads dim)`, all bf16, to where each belongs: queries turned, to
    /// `queries` in f32.
    pub(in super::super) fn place_codes(
        &self,
        [query, kv, dim]: [usize; 3],
        [q, k, v]: [&Tensor; 3],
        (queries, to): (&Tensor, u64),
        layer: usize,
    ) -> Result<(), KernelError> {
        let spread = LaunchShape { blocks: (q.shape[0], blocks(query + 2 * kv)), threads: 256, shared: 0 };
        let (q, k, v, queries) = (q.pointer(), k.pointer(), v.pointer(), queries.pointer());
        let [query, kv, dim, layer] = [query, kv, dim, layer].map(|size| size as i32);
        launch!(self, "place_rows_eight", spread, q, k, v, queries, to, query, kv, dim, layer)
    }
}

/// Appends some rows of `k, v` to each cache in 8 bits, which all are of these heads.
pub fn keep_each(
    device: &Device,
    caches: Vec<(&mut CudaKv, Range<usize>)>,
    views: [View<'_>; 2],
) -> Result<(), KernelError> {
    let mut runs = Vec::with_capacity(caches.len());
    let mut written = Vec::with_capacity(caches.len());
    for (kv, rows) in caches {
        let Range { start, end } = kv.room(device, rows.len())?;
        runs.push(KeptRun::of(kv.codes(start, end), rows.start));
        written.push(kv);
    }
    device.keep_rows(views, &runs)?;
    written.into_iter().for_each(|kv| kv.written = device.queue().written());
    Ok(())
}
