//! A cache in 8 bits: what it takes in, what its codes stand for, and how it travels.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::device::Device;
use super::super::tensor::{Staged, Tensor, View};
use super::CudaKv;
use super::eight::{KeptRun, WidenedRun, check_head};
use super::keys::{Codes, Keys};
use super::rows::RowLayout;
use crate::{DType, KernelError, KvFormat, KvType};

impl CudaKv {
    /// Heads and elements of one, and the types of its rows.
    pub(in super::super) fn of(&self) -> ([usize; 2], KvType) {
        ([self.rows.heads, self.rows.dim], self.rows.of)
    }

    /// Where keys and values begin.
    pub(in super::super) fn begin(&self) -> [u64; 2] {
        self.buffers.each_ref().map(|buffer| buffer.pointer)
    }

    /// Tokens `start..end`, for which the cache must have room.
    ///
    /// # Panics
    /// When it has not.
    pub(in super::super) fn keys(&self, start: usize, end: usize) -> Keys<'_> {
        match self.rows.of.kept {
            KvFormat::Computed => Keys::Computed(self.view(start, end)),
            KvFormat::Q8 => Keys::Eight(self.codes(start, end)),
        }
    }

    /// The same of a cache in 8 bits.
    ///
    /// # Panics
    /// When it is none, or has no room for such tokens.
    pub(super) fn codes(&self, start: usize, end: usize) -> Codes<'_> {
        let (rows, capacity) = (self.rows, self.capacity);
        assert!(rows.of.kept == KvFormat::Q8, "codes are of caches in 8 bits");
        assert!(start <= end && end <= capacity, "tokens {start}..{end} of {capacity}");
        let scales = (rows.before_scales(capacity) + start * rows.scales()) as u64;
        Codes {
            codes: self.begin().map(|begin| begin + (start * rows.row()) as u64),
            scales: self.begin().map(|begin| begin + scales),
            heads: rows.heads,
            tokens: end - start,
            dim: rows.dim,
            lives: PhantomData,
        }
    }

    /// Appends `k, v (kv heads, t, dim)`, whose shapes and types fit, to a cache in 8 bits.
    pub(super) fn keep(&mut self, device: &Device, k: &Tensor, v: &Tensor) -> Result<(), KernelError> {
        Self::keep_each(device, vec![(self, 0..k.shape[1])], [k.heads_first()?, v.heads_first()?])
    }

    /// Appends some rows of `k, v` to each cache in 8 bits, whose heads and types fit.
    pub(super) fn keep_each(
        device: &Device,
        mut caches: Vec<(&mut Self, Range<usize>)>,
        views: [View<'_>; 2],
    ) -> Result<(), KernelError> {
        let mut runs = Vec::with_capacity(caches.len());
        for (kv, rows) in &mut caches {
            let Range { start, end } = kv.room(device, rows.len())?;
            runs.push(KeptRun::of(kv.codes(start, end), rows.start));
        }
        device.keep_rows(views, &runs)?;
        caches.into_iter().for_each(|(kv, _)| kv.written = device.queue().written());
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
        let mut wide = Self::passing(device, self.rows.widened(), self.len)?;
        wide.append_widened(device, self)?;
        Ok(wide)
    }

    /// Appends what the codes of another cache, of the same heads, stand for.
    pub(super) fn append_widened(&mut self, device: &Device, more: &Self) -> Result<(), KernelError> {
        let Range { start, end } = self.room(device, more.len)?;
        let run = WidenedRun::of(more.codes(0, more.len), self.view(start, end));
        device.widen_rows(self.rows.dim, self.rows.of.computed, &[run])?;
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
        device.pack_codes(self.codes(0, self.len), buffer.pointer)?;
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
        device.unpack_codes(sent.pointer, kv.codes(0, tokens))?;
        kv.written = device.queue().written();
        Ok(kv)
    }
}
