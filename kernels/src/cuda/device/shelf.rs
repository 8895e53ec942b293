//! Places in device memory for maps that stay from step to step. Encodes none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffer::DeviceBuffer;
use crate::KernelError;

/// Bytes of the maps of keys and of values of a layer, as the kernels have them.
pub const MAP_PAIR: usize = 256;
/// Bytes that memory is taken of at a time, if nobody needs more.
const TAKEN: usize = 1 << 20;

/// Places for maps in a device's memory.
#[derive(Default)]
pub struct MapShelf {
    /// Free places of so many layers each.
    free: Mutex<HashMap<usize, Vec<u64>>>,
    memory: Mutex<Vec<DeviceBuffer>>,
    keeping: Mutex<()>,
}

/// The keys that maps are of: those of the last layer, and how many.
pub type MappedKeys = (u64, usize);

/// The place of the maps of all layers, one behind the other; free again with this.
pub struct KeptMaps {
    pub at: u64,
    pub layers: usize,
    pub keys: MappedKeys,
    /// Of the queue in whose order they are written.
    queue: u64,
    settled: AtomicBool,
    shelf: Arc<MapShelf>,
}

impl Drop for KeptMaps {
    fn drop(&mut self) {
        held(&self.shelf.free).entry(self.layers).or_default().push(self.at);
    }
}

impl KeptMaps {
    /// Whether they are written in the order of a queue.
    pub fn is_of(&self, queue: u64) -> bool {
        self.queue == queue
    }

    /// Whether nothing that is under way may write the keys; once that is so, it stays so.
    pub fn is_settled(&self, looks: impl FnOnce() -> bool) -> bool {
        let settled = self.settled.load(Ordering::Relaxed) || looks();
        self.settled.store(settled, Ordering::Relaxed);
        settled
    }
}

impl MapShelf {
    /// Held by whoever keeps new maps until they are written.
    pub fn keeping(&self) -> MutexGuard<'_, ()> {
        held(&self.keeping)
    }

    /// A place for the maps of so many layers, one at least, in a queue's order; `memory` gives so many bytes.
    pub fn take(
        self: &Arc<Self>,
        (layers, keys): (usize, MappedKeys),
        queue: u64,
        memory: impl FnOnce(usize) -> Result<DeviceBuffer, KernelError>,
    ) -> Result<KeptMaps, KernelError> {
        let mut free = held(&self.free);
        let free = free.entry(layers).or_default();
        if free.is_empty() {
            let (each, count) = (layers * MAP_PAIR, (TAKEN / (layers * MAP_PAIR)).max(1));
            let memory = memory(count * each)?;
            free.extend((0..count).rev().map(|place| memory.pointer + (place * each) as u64));
            held(&self.memory).push(memory);
        }
        let at = free.pop().expect("some were added");
        Ok(KeptMaps { at, layers, keys, queue, settled: AtomicBool::new(false), shelf: Arc::clone(self) })
    }
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
