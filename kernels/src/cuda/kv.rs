//! Keys and values of one layer in device memory, `(tokens, kv heads, dim)`, as they were computed or as codes: appending is writing
//! behind, and strides do not depend on how much there is.

mod coded;
mod eight;
mod kept;
pub(super) mod keys;
mod rows;
pub(super) mod tails;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::codes::CachedCodes;
use super::device::layout::{Map, Strides};
use super::device::{Device, DeviceBuffer, KeptMaps, WriteMark};
use super::moves::CopyRun;
use super::tensor::{Tensor, View};
use crate::{KernelError, KvType};
use eight::WidenedRun;
use keys::Keys;
use rows::RowLayout;

/// Tokens up to which a kernel appends, which follows others sooner than a copy does.
const APPENDED_TOKENS: usize = 64;

/// A cache that grows geometrically; clones share memory until one of them grows.
#[derive(Clone)]
pub struct CudaKv {
    buffers: [Arc<DeviceBuffer>; 2],
    rows: RowLayout,
    len: usize,
    capacity: usize,
    /// When its tokens may have been written.
    written: WriteMark,
    /// Maps of all cached keys and values: elsewhere, since a step goes through many caches and few have any.
    maps: [OnceLock<Box<Map>>; 2],
    /// Whether there are zeros, or keys that once were cached, behind its tokens up to its capacity.
    cleared: bool,
    /// Maps in device memory, of this layer and those behind it, which the first layer keeps: of tokens, or of all the capacity where
    /// that is cleared.
    kept: OnceLock<Arc<KeptMaps>>,
    /// Of a cache that grows while it is attended to: its codes, where attention makes some.
    codes: Option<Arc<CachedCodes>>,
}

impl CudaKv {
    /// An empty cache with room for `capacity` tokens.
    ///
    /// # Errors
    /// [`KernelError::DeviceMemory`] where there is no room; [`KernelError::Shape`] for heads that are too long for 8 bits.
    pub fn new(
        device: &Device,
        heads: usize,
        dim: usize,
        of: impl Into<KvType>,
        capacity: usize,
    ) -> Result<Self, KernelError> {
        let of = of.into();
        if !of.is_computed() {
            eight::check_head(dim)?;
        }
        Self::with_rows(device, RowLayout { heads, dim, of }, capacity)
    }

    /// An empty one that is kept.
    fn with_rows(device: &Device, rows: RowLayout, capacity: usize) -> Result<Self, KernelError> {
        Self::within(device, rows, capacity, |bytes| device.alloc_lasting(bytes))
    }

    /// An empty one that is attended to and forgotten.
    fn passing(device: &Device, rows: RowLayout, capacity: usize) -> Result<Self, KernelError> {
        Self::within(device, rows, capacity, |bytes| device.alloc(bytes))
    }

    fn within(
        device: &Device,
        rows: RowLayout,
        capacity: usize,
        alloc: impl Fn(usize) -> Result<DeviceBuffer, KernelError>,
    ) -> Result<Self, KernelError> {
        let bytes = rows.bytes(capacity);
        let buffers = [Arc::new(alloc(bytes)?), Arc::new(alloc(bytes)?)];
        let (written, maps) = (device.queue().written(), Default::default());
        Ok(Self { buffers, rows, len: 0, capacity, written, maps, cleared: false, kept: OnceLock::new(), codes: None })
    }

    /// Keys and values `(kv heads, t, dim)`, in the memory where they lie, if they lie as a cache does.
    pub(super) fn lying(device: &Device, k: &Tensor, v: &Tensor) -> Option<Self> {
        let lies = |x: &Tensor| x.rows_first && x.offset == 0;
        let [heads, len, dim] = k.shape[..] else { return None };
        (lies(k) && lies(v) && (&k.shape, k.dtype) == (&v.shape, v.dtype)).then(|| Self {
            buffers: [Arc::clone(&k.buffer), Arc::clone(&v.buffer)],
            rows: RowLayout::computed(heads, dim, k.dtype),
            len,
            capacity: len,
            written: device.queue().written(),
            maps: Default::default(),
            cleared: false,
            kept: OnceLock::new(),
            codes: None,
        })
    }

    /// Cached tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all but the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.resize(self.len.min(len));
    }

    fn resize(&mut self, len: usize) {
        self.len = len;
        for map in self.maps.iter_mut().filter(|map| map.get().is_some()) {
            *map = OnceLock::new();
        }
        if !self.cleared {
            self.kept = OnceLock::new();
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        2 * self.rows.bytes(self.capacity)
    }

    /// Keys, then values, of tokens `start..end` of a cache in compute type.
    ///
    /// # Panics
    /// When the cache has no room for such tokens, or is in 8 bits.
    pub fn view(&self, start: usize, end: usize) -> [View<'_>; 2] {
        assert!(start <= end && end <= self.capacity, "tokens {start}..{end} of {}", self.capacity);
        let rows @ RowLayout { heads, dim, of } = self.rows;
        assert!(of.is_computed(), "codes are no elements");
        let at = Strides::by_rows(heads, dim);
        let pointer = |buffer: &DeviceBuffer| buffer.pointer + (start * rows.row()) as u64;
        [0, 1].map(|i| {
            let shape = [heads, end - start, dim];
            let map = Some(&self.maps[i]).filter(|_| (start, end) == (0, self.len));
            let codes = self.codes.as_deref().filter(|_| start == 0);
            View::new(pointer(&self.buffers[i]), shape, at, of.computed).written(self.written).mapped(map).coded(codes)
        })
    }

    /// Room for `count` tokens more, which count as cached from now on: the caller writes them at once. What attends to them waits for
    /// all that was queued before, until [`CudaKv::append`] tells when they were written.
    ///
    /// # Errors
    /// [`KernelError::DeviceMemory`] where there is no room.
    ///
    /// # Panics
    /// When the cache is in 8 bits.
    pub fn extend(&mut self, device: &Device, count: usize) -> Result<[View<'_>; 2], KernelError> {
        let Range { start, end } = self.room(device, count)?;
        Ok(self.view(start, end))
    }

    /// As [`CudaKv::extend`], of any cache: the tokens that there is room for now.
    fn room(&mut self, device: &Device, count: usize) -> Result<Range<usize>, KernelError> {
        let (start, end) = (self.len, self.len + count);
        if end > self.capacity || self.is_shared() {
            let capacity = if end > self.capacity { end.max(2 * self.capacity) } else { self.capacity };
            let grown = Self::with_rows(device, self.rows, capacity)?;
            device.copy_bytes(&self.copies(0..start, (&grown, 0)))?;
            *self = grown;
        }
        if let Some(codes) = &self.codes {
            codes.forget_from(start);
        }
        self.resize(end);
        self.written = WriteMark::UNKNOWN;
        Ok(start..end)
    }

    /// Where some of its tokens are copied from and to, and how many bytes: to another cache that is kept alike, from its token `to` on.
    fn copies(&self, tokens: Range<usize>, (other, to): (&Self, usize)) -> Vec<(u64, u64, usize)> {
        let from = self.rows.runs(self.capacity, &tokens);
        let runs: Vec<_> = from.zip(other.rows.runs(other.capacity, &(to..to + tokens.len()))).collect();
        let buffers = self.buffers.iter().zip(&other.buffers);
        let of_buffers = buffers.flat_map(|(from, to)| {
            runs.iter().map(|&((own, bytes), (others, _))| (from.pointer + own, to.pointer + others, bytes))
        });
        of_buffers.collect()
    }

    /// Whether others may have its memory.
    fn is_shared(&self) -> bool {
        self.buffers.iter().any(|buffer| Arc::strong_count(buffer) > 1 || buffer.is_shared())
    }

    /// Appends rows of `k, v (kv heads, t, dim)` to each cache, by few launches where they lie as caches do.
    ///
    /// # Errors
    /// As [`CudaKv::append`].
    pub fn append_each(
        device: &Device,
        caches: Vec<(&mut Self, Range<usize>)>,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<(), KernelError> {
        let (heads, t, dim) = k.cube("kv_append")?;
        let fits = |kv: &Self, rows: &Range<usize>| {
            let RowLayout { heads: own, dim: own_dim, of } = kv.rows;
            v.shape == k.shape
                && rows.end <= t
                && (heads, dim) == (own, own_dim)
                && [k.dtype, v.dtype] == [of.computed; 2]
        };
        if !caches.is_empty() && caches.iter().all(|(kv, rows)| !kv.rows.of.is_computed() && fits(kv, rows)) {
            return Self::keep_each(device, caches, [k.heads_first()?, v.heads_first()?]);
        }
        let mut runs = Vec::with_capacity(2 * caches.len());
        for (kv, rows) in caches {
            let row = kv.rows.row();
            let lie = k.rows_first && v.rows_first && kv.rows.of.is_computed();
            if !lie || !fits(kv, &rows) || !row.is_multiple_of(16) {
                let [k, v] = [k, v].map(|x| device.narrow(x, 1, rows.start, rows.end));
                kv.append(device, &k?, &v?)?;
                continue;
            }
            let count = rows.len();
            for (to, from) in kv.extend(device, count)?.into_iter().zip([k, v]) {
                let from = from.pointer() + (rows.start * row) as u64;
                runs.extend(CopyRun::of(from, to.pointer, count * row));
            }
        }
        device.copy_runs(&runs)
    }

    /// Appends `k, v (kv heads, t, dim)`.
    ///
    /// # Errors
    /// [`KernelError::Shape`] and [`KernelError::DType`] for rows that do not fit the cache.
    pub fn append(&mut self, device: &Device, k: &Tensor, v: &Tensor) -> Result<(), KernelError> {
        let (heads, t, dim) = k.cube("kv_append")?;
        let RowLayout { heads: own, dim: own_dim, of } = self.rows;
        if v.shape != k.shape || (heads, dim) != (own, own_dim) {
            let expected = format!("k and v ({own}, t, {own_dim})");
            return Err(KernelError::shape("kv_append", expected, &[&k.shape, &v.shape]));
        }
        if let Some(got) = [k.dtype, v.dtype].into_iter().find(|dtype| *dtype != of.computed) {
            return Err(KernelError::DType { operation: "kv_append", got });
        }
        if !of.is_computed() {
            return self.keep(device, k, v);
        }
        let (bytes, by_rows) = (t * self.rows.row(), Strides::by_rows(heads, dim));
        let [to_k, to_v] = self.extend(device, t)?;
        let (k, v) = (k.heads_first()?, v.heads_first()?);
        if t <= APPENDED_TOKENS && k.at == by_rows && v.at == by_rows && bytes.is_multiple_of(16) {
            device.copy_pair([k.pointer, v.pointer], [to_k.pointer, to_v.pointer], bytes)?;
        } else {
            device.copy_heads(k, to_k)?;
            device.copy_heads(v, to_v)?;
        }
        // Others queue kernels meanwhile, so that only now all of these are among those that were counted.
        self.written = device.queue().written();
        Ok(())
    }

    /// The tokens of caches, one behind the other in compute type, with room for `more`: by few launches, however many caches there are.
    ///
    /// # Errors
    /// As [`CudaKv::append_cache`].
    pub fn joined(device: &Device, first: &Self, others: &[&Self], more: usize) -> Result<Self, KernelError> {
        let all = || [first].into_iter().chain(others.iter().copied());
        let rows = first.rows.widened();
        all().try_for_each(|kv| rows.check_alike(kv.rows.widened(), kv.len))?;
        let tokens: usize = all().map(Self::len).sum();
        let mut joined = Self::passing(device, rows, tokens + more)?;
        let (mut at, mut copies, mut widened) = (0, Vec::new(), Vec::new());
        for kv in all() {
            let end = at + kv.len;
            match kv.keys(0, kv.len) {
                Keys::Computed(_) => copies.extend(kv.copies(0..kv.len, (&joined, at))),
                Keys::Eight(codes) => widened.push(WidenedRun::of(codes, joined.view(at, end))),
            }
            at = end;
        }
        device.copy_bytes(&copies)?;
        device.widen_rows(rows.dim, rows.of.computed, &widened)?;
        joined.resize(tokens);
        joined.codes = Some(Arc::new(CachedCodes::of(joined.capacity)));
        joined.written = device.queue().written();
        Ok(joined)
    }

    /// Appends the tokens of another cache, which is kept alike, or in 8 bits where this is in compute type.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for a cache of other heads or another type.
    pub fn append_cache(&mut self, device: &Device, more: &Self) -> Result<(), KernelError> {
        if self.rows == more.rows.widened() && self.rows != more.rows {
            return self.append_widened(device, more);
        }
        self.rows.check_alike(more.rows, more.len)?;
        let Range { start, .. } = self.room(device, more.len)?;
        device.copy_bytes(&more.copies(0..more.len, (self, start)))?;
        self.written = device.queue().written();
        Ok(())
    }

    /// Keys, then values, of a cache in compute type, in the memory where they lie: who appends to the cache afterwards gets other
    /// memory.
    ///
    /// # Panics
    /// When the cache is in 8 bits.
    pub fn tensors(&self) -> [Tensor; 2] {
        let RowLayout { heads, dim, of } = self.rows;
        assert!(of.is_computed(), "codes are no elements");
        self.buffers.each_ref().map(|buffer| Tensor {
            shape: vec![heads, self.len, dim],
            dtype: of.computed,
            buffer: Arc::clone(buffer),
            offset: 0,
            rows_first: true,
        })
    }

    /// A copy of tokens `start..end`.
    ///
    /// # Errors
    /// [`KernelError::Shape`] where there are no such tokens.
    pub fn rows(&self, device: &Device, start: usize, end: usize) -> Result<Self, KernelError> {
        if start > end || end > self.len {
            return Err(KernelError::shape("kv_rows", format!("a range within {} rows", self.len), &[&[start, end]]));
        }
        let mut part = Self::with_rows(device, self.rows, end - start)?;
        part.resize(end - start);
        device.copy_bytes(&self.copies(start..end, (&part, 0)))?;
        part.written = device.queue().written();
        Ok(part)
    }
}
