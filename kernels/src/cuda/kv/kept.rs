//! Maps of keys and values, or of codes where these lie, that stay in device memory from step to step: a step then names the place of each,
//! and sends none twice.

use std::sync::Arc;

use super::super::device::layout::{KEY_BOX, Lies, Strides, encode};
use super::super::device::{Device, KeptMaps, LaunchShape, MAP_PAIR, MappedKeys, launch};
use super::rows::RowLayout;
use super::{CudaKv, keys::Codes};
use crate::KernelError;

impl CudaKv {
    /// Where its keys are, and how many its map is of: all that there is room for, where that is cleared.
    fn mapped(&self) -> MappedKeys {
        (self.buffers[0].pointer, if self.cleared { self.capacity } else { self.len })
    }

    /// Adds maps of its keys and of its values; of codes where these and their scales begin, as `codes.cu` declares it.
    fn add_maps(&self, maps: &mut Vec<u8>) -> Result<(), KernelError> {
        let (end, RowLayout { heads, dim, of }) = (maps.len() + MAP_PAIR, self.rows);
        if of.is_computed() {
            let (sizes, at) = ([heads, self.mapped().1, dim], Strides::by_rows(heads, dim));
            for pointer in self.begin() {
                maps.extend_from_slice(&encode(Lies { pointer, sizes, at, copied: KEY_BOX })?.bytes());
            }
        } else {
            let Codes { codes, scales, .. } = self.codes(0, 0);
            maps.extend(codes.into_iter().chain(scales).flat_map(u64::to_le_bytes));
        }
        maps.resize(end, 0);
        Ok(())
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
                kv.add_maps(&mut maps)?;
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
