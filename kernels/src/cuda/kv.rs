//! Keys and values of one layer in device memory, `(tokens, kv heads, dim)`: appending is writing behind, and strides do not depend
//! on how much there is.

mod kept;
pub(super) mod tails;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::device::layout::{Map, Strides};
use super::device::{Device, DeviceBuffer, KeptMaps, WriteMark};
use super::moves::CopyRun;
use super::tensor::{Tensor, View};
use crate::{DType, KernelError};

/// Tokens up to which a kernel appends, which follows others sooner than a copy does.
const APPENDED_TOKENS: usize = 64;

/// A cache that grows geometrically; clones share memory until one of them grows.
#[derive(Clone)]
pub struct CudaKv {
    buffers: [Arc<DeviceBuffer>; 2],
    heads: usize,
    dim: usize,
    dtype: DType,
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
}

impl CudaKv {
    /// An empty cache with room for `capacity` tokens.
    ///
    /// # Errors
    /// [`KernelError::DeviceMemory`] where there is no room.
    pub fn new(device: &Device, heads: usize, dim: usize, dtype: DType, capacity: usize) -> Result<Self, KernelError> {
        let bytes = capacity * heads * dim * dtype.size();
        let buffers = [Arc::new(device.alloc(bytes)?), Arc::new(device.alloc(bytes)?)];
        let (written, maps) = (device.queue().written(), Default::default());
        Ok(Self { buffers, heads, dim, dtype, len: 0, capacity, written, maps, cleared: false, kept: OnceLock::new() })
    }

    /// Keys and values `(kv heads, t, dim)`, in the memory where they lie, if they lie as a cache does.
    pub(super) fn of(device: &Device, k: &Tensor, v: &Tensor) -> Option<Self> {
        let lies = |x: &Tensor| x.rows_first && x.offset == 0;
        let [heads, len, dim] = k.shape[..] else { return None };
        (lies(k) && lies(v) && (&k.shape, k.dtype) == (&v.shape, v.dtype)).then(|| Self {
            buffers: [Arc::clone(&k.buffer), Arc::clone(&v.buffer)],
            heads,
            dim,
            dtype: k.dtype,
            len,
            capacity: len,
            written: device.queue().written(),
            maps: Default::default(),
            cleared: false,
            kept: OnceLock::new(),
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
        2 * self.capacity * self.row()
    }

    fn row(&self) -> usize {
        self.heads * self.dim * self.dtype.size()
    }

    /// Keys, then values, of tokens `start..end`.
    ///
    /// # Panics
    /// When the cache has no room for such tokens.
    pub fn view(&self, start: usize, end: usize) -> [View<'_>; 2] {
        assert!(start <= end && end <= self.capacity, "tokens {start}..{end} of {}", self.capacity);
        let at = Strides::by_rows(self.heads, self.dim);
        let pointer = |buffer: &DeviceBuffer| buffer.pointer + (start * self.row()) as u64;
        [0, 1].map(|i| {
            let shape = [self.heads, end - start, self.dim];
            let map = Some(&self.maps[i]).filter(|_| (start, end) == (0, self.len));
            View::new(pointer(&self.buffers[i]), shape, at, self.dtype).written(self.written).mapped(map)
        })
    }

    /// Room for `count` tokens more, which count as cached from now on: the caller writes them at once. What attends to them waits for
    /// all that was queued before, until [`CudaKv::append`] tells when they were written.
    ///
    /// # Errors
    /// [`KernelError::DeviceMemory`] where there is no room.
    pub fn extend(&mut self, device: &Device, count: usize) -> Result<[View<'_>; 2], KernelError> {
        let (start, end) = (self.len, self.len + count);
        if end > self.capacity || self.is_shared() {
            let capacity = if end > self.capacity { end.max(2 * self.capacity) } else { self.capacity };
            let grown = Self::new(device, self.heads, self.dim, self.dtype, capacity)?;
            let [from, to] = [&self.buffers, &grown.buffers].map(|of| [of[0].pointer, of[1].pointer]);
            device.copy_pair(from, to, start * self.row())?;
            *self = grown;
        }
        self.resize(end);
        self.written = WriteMark::UNKNOWN;
        Ok(self.view(start, end))
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
        let lies = |x: &Tensor| x.rows_first && x.shape == k.shape;
        let mut runs = Vec::with_capacity(2 * caches.len());
        for (kv, rows) in caches {
            let whole = lies(k) && lies(v) && rows.end <= t && (heads, dim) == (kv.heads, kv.dim);
            if !whole || [k.dtype, v.dtype] != [kv.dtype; 2] || !kv.row().is_multiple_of(16) {
                let [k, v] = [k, v].map(|x| device.narrow(x, 1, rows.start, rows.end));
                kv.append(device, &k?, &v?)?;
                continue;
            }
            let (row, count) = (kv.row(), rows.len());
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
        if v.shape != k.shape || (heads, dim) != (self.heads, self.dim) {
            let expected = format!("k and v ({}, t, {})", self.heads, self.dim);
            return Err(KernelError::shape("kv_append", expected, &[&k.shape, &v.shape]));
        }
        if let Some(got) = [k.dtype, v.dtype].into_iter().find(|dtype| *dtype != self.dtype) {
            return Err(KernelError::DType { operation: "kv_append", got });
        }
        let (bytes, by_rows) = (t * self.row(), Strides::by_rows(heads, dim));
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

    /// The tokens of caches, one behind the other, with room for `more`: by few launches, however many there are.
    ///
    /// # Errors
    /// As [`CudaKv::append_cache`].
    pub fn joined(device: &Device, first: &Self, others: &[&Self], more: usize) -> Result<Self, KernelError> {
        let all = || [first].into_iter().chain(others.iter().copied());
        all().try_for_each(|kv| first.check_alike(kv))?;
        let tokens: usize = all().map(Self::len).sum();
        let mut joined = Self::new(device, first.heads, first.dim, first.dtype, tokens + more)?;
        if !joined.row().is_multiple_of(16) {
            all().try_for_each(|kv| joined.append_cache(device, kv))?;
            return Ok(joined);
        }
        let (to, mut at, mut runs) = (joined.buffers.each_ref().map(|of| of.pointer), 0, Vec::new());
        for kv in all() {
            let bytes = kv.len * kv.row();
            for (from, to) in kv.buffers.iter().zip(to) {
                runs.extend(CopyRun::of(from.pointer, to + at, bytes));
            }
            at += bytes as u64;
        }
        device.copy_runs(&runs)?;
        joined.resize(tokens);
        joined.written = device.queue().written();
        Ok(joined)
    }

    fn check_alike(&self, more: &Self) -> Result<(), KernelError> {
        if (self.heads, self.dim, self.dtype) != (more.heads, more.dim, more.dtype) {
            let expected = format!("a cache of ({}, t, {}) {:?}", self.heads, self.dim, self.dtype);
            return Err(KernelError::shape("kv_extend", expected, &[&[more.heads, more.len, more.dim]]));
        }
        Ok(())
    }

    /// Appends the tokens of another cache.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for a cache of other heads or another type.
    pub fn append_cache(&mut self, device: &Device, more: &Self) -> Result<(), KernelError> {
        self.check_alike(more)?;
        let from = [more.buffers[0].pointer, more.buffers[1].pointer];
        let [to_k, to_v] = self.extend(device, more.len)?;
        device.copy_pair(from, [to_k.pointer, to_v.pointer], more.len * more.row())?;
        self.written = device.queue().written();
        Ok(())
    }

    /// Keys, then values, in the memory where they lie: who appends to the cache afterwards gets other memory.
    pub fn tensors(&self) -> [Tensor; 2] {
        self.buffers.each_ref().map(|buffer| Tensor {
            shape: vec![self.heads, self.len, self.dim],
            dtype: self.dtype,
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
        let mut part = Self::new(device, self.heads, self.dim, self.dtype, end - start)?;
        part.resize(end - start);
        let [from, to] = [&self.buffers, &part.buffers].map(|of| [of[0].pointer, of[1].pointer]);
        device.copy_pair(from.map(|from| from + (start * self.row()) as u64), to, part.len * self.row())?;
        part.written = device.queue().written();
        Ok(part)
    }
}
