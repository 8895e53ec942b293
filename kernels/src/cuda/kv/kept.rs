//! Maps of keys and values that stay in device memory from step to step: a step then names the place of each, and sends none twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::device::layout::{Lies, Map, Strides, encode};
use super::super::device::{Device, DeviceBuffer, LaunchShape, launch};
use super::CudaKv;
use crate::KernelError;

/// Bytes of the maps of keys and of values of a layer, as the kernels have them.
const EACH: usize = 256;
/// Bytes that memory is taken of at a time, if nobody needs more.
const TAKEN: usize = 1 << 20;

/// Places for maps in a device's memory.
#[derive(Default)]
pub struct MapShelf {
    /// Free places of so many layers each.
    free: Mutex<HashMap<usize, Vec<u64>>>,
    memory: Mutex<Vec<DeviceBuffer>>,
    /// Held by whoever keeps new maps until they are written.
    keeping: Mutex<()>,
}

/// The place of the maps of all layers, one behind the other; free again with this.
pub struct KeptMaps {
    at: u64,
    layers: usize,
    /// Of the queue in whose order they were written.
    queue: u64,
    /// The keys of the last layer that they are of, and how many.
    last: (u64, usize),
    /// Whether nothing that is under way may write the keys.
    settled: AtomicBool,
    shelf: Arc<MapShelf>,
}

impl Drop for KeptMaps {
    fn drop(&mut self) {
        let mut free = self.shelf.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.entry(self.layers).or_default().push(self.at);
    }
}

impl MapShelf {
    fn take(self: &Arc<Self>, device: &Device, caches: &[CudaKv]) -> Result<KeptMaps, KernelError> {
        let layers = caches.len();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = free.entry(layers).or_default();
        if free.is_empty() {
            let (each, count) = (layers * EACH, (TAKEN / (layers * EACH)).max(1));
            let memory = device.alloc(count * each)?;
            free.extend((0..count).rev().map(|place| memory.pointer + (place * each) as u64));
            self.memory.lock().unwrap_or_else(PoisonError::into_inner).push(memory);
        }
        let at = free.pop().expect("some were added");
        let (queue, last) = (device.queue().number(), caches[layers - 1].mapped());
        Ok(KeptMaps { at, layers, queue, last, settled: AtomicBool::new(false), shelf: Arc::clone(self) })
    }
}

impl CudaKv {
    /// Where its keys are, and how many its map is of: all that there is room for, where that is cleared.
    fn mapped(&self) -> (u64, usize) {
        (self.buffers[0].pointer, if self.cleared { self.capacity } else { self.len })
    }

    fn whole_maps(&self) -> Result<[Map; 2], KernelError> {
        let (sizes, at) = ([self.heads, self.mapped().1, self.dim], Strides::by_rows(self.heads, self.dim));
        let [k, v] = [0, 1].map(|which: usize| encode(Lies { pointer: self.buffers[which].pointer, sizes, at }));
        Ok([k?, v?])
    }
}

/// What is kept of a cache of each layer.
fn kept(caches: &[CudaKv]) -> Option<&Arc<KeptMaps>> {
    let (first, last) = (caches.first()?, caches.last()?);
    first.kept.get().filter(|kept| (kept.layers, kept.last) == (caches.len(), last.mapped()))
}

impl Device {
    /// Keeps the maps of these caches, each of all layers, where they are not kept yet.
    pub fn keep_maps<'a>(&self, all: impl Iterator<Item = &'a [CudaKv]>) -> Result<(), KernelError> {
        let shelf = self.map_shelf();
        let _keeping = shelf.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut new, mut maps, mut places) = (Vec::new(), Vec::<u8>::new(), Vec::<u8>::new());
        for caches in all.filter(|caches| kept(caches).is_none() && !caches.is_empty()) {
            let kept = shelf.take(self, caches)?;
            for (layer, kv) in caches.iter().enumerate() {
                kv.whole_maps()?.iter().for_each(|map| maps.extend_from_slice(&map.bytes()));
                places.extend((kept.at + (layer * EACH) as u64).to_le_bytes());
            }
            new.push((&caches[0], kept));
        }
        if new.is_empty() {
            return Ok(());
        }
        let (count, at) = (places.len() / 8, maps.len() as u64);
        maps.append(&mut places);
        let sent = self.upload_bytes(&maps)?;
        let (from, to, pairs) = (sent.pointer, sent.pointer + at, count as i32);
        launch!(self, "keep_maps", LaunchShape::new((16 * count).div_ceil(256), 256), from, to, pairs)?;
        for (kv, kept) in new {
            // The same caches may come twice.
            let _ = kv.kept.set(Arc::new(kept));
        }
        Ok(())
    }

    /// Where the maps of the first layer are, those of the others behind them, and whether nothing that is under way may write the
    /// keys; nothing where they are not kept for this device.
    pub fn kept_maps(&self, caches: &[CudaKv]) -> Option<(u64, bool)> {
        let kept = kept(caches).filter(|kept| kept.queue == self.queue().number())?;
        if !kept.settled.load(Ordering::Relaxed) {
            let settled = caches.iter().all(|kv| self.queue().is_done(kv.written));
            // Of what is written still, more follows.
            kept.settled.store(settled && !caches[0].cleared, Ordering::Relaxed);
            return Some((kept.at, settled && !caches[0].cleared));
        }
        Some((kept.at, true))
    }
}
