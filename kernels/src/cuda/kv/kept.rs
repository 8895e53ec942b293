//! Maps of keys and values that stay in device memory from step to step: a step then names the place of each, and sends none twice.

use std::sync::Arc;

use super::super::device::layout::{Lies, Map, Strides, encode};
use super::super::device::{Device, KeptMaps, LaunchShape, MAP_PAIR, MappedKeys, launch};
use super::CudaKv;
use crate::KernelError;

impl CudaKv {
    /// Where its keys are, and how many its map is of: all that there is room for, where that is cleared.
    fn mapped(&self) -> MappedKeys {
        (self.buffers[0].pointer, if self.cleared { self.capacity } else { self.len })
    }

    fn whole_maps(&self) -> Result<[Map; 2], KernelError> {
        let (sizes, at) = ([self.heads, self.mapped().1, self.dim], Strides::by_rows(self.heads, self.dim));
        let [k, v] = [0, 1].map(|which: usize| encode(Lies { pointer: self.buffers[which].pointer, sizes, at }));
        Ok([k?, v?])
    }
}

/// What is kept of a cache of each layer.
fn kept<'a>(caches: &[&'a CudaKv]) -> Option<&'a Arc<KeptMaps>> {
    let (first, last) = (caches.first()?, caches.last()?);
    first.kept.get().filter(|kept| (kept.layers, kept.keys) == (caches.len(), last.mapped()))
}

impl Device {
    /// Keeps the maps of these caches, each of all layers, where they are not kept yet.
    pub fn keep_maps<'a>(&self, all: impl Iterator<Item = &'a [&'a CudaKv]>) -> Result<(), KernelError> {
        let (shelf, queue) = (self.map_shelf(), self.queue().number());
        let _keeping = shelf.keeping();
        let (mut new, mut maps, mut places) = (Vec::new(), Vec::<u8>::new(), Vec::<u8>::new());
        for caches in all.filter(|caches| kept(caches).is_none() && !caches.is_empty()) {
            let keys = caches[caches.len() - 1].mapped();
            let kept = shelf.take((caches.len(), keys), queue, |bytes| self.alloc(bytes))?;
            for (layer, kv) in caches.iter().enumerate() {
                kv.whole_maps()?.iter().for_each(|map| maps.extend_from_slice(&map.bytes()));
                places.extend((kept.at + (layer * MAP_PAIR) as u64).to_le_bytes());
            }
            new.push((caches[0], kept));
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
    pub fn kept_maps(&self, caches: &[&CudaKv]) -> Option<(u64, bool)> {
        let kept = kept(caches).filter(|kept| kept.is_of(self.queue().number()))?;
        // Of what is cleared, more is written in every step.
        let looks = || !caches[0].cleared && caches.iter().all(|kv| self.queue().is_done(kv.written));
        Some((kept.at, kept.is_settled(looks)))
    }
}
