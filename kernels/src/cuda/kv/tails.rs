//! The keys that a sequence makes itself, of all layers in one run of memory: it grows by one allotment and few launches.

use std::sync::{Arc, OnceLock};

use super::super::device::{Device, DeviceBuffer, WriteMark};
use super::super::moves::CopyRun;
use super::CudaKv;
use crate::{DType, Heads, KernelError};

/// Tokens that there is room for at least, and by which it grows at least.
const TAIL: usize = 64;

/// Has `own`, a cache a layer, hold its first `keys` tokens and `rows` more, which the caller writes. Says whether the caches are such a
/// sequence's.
pub fn make_room(
    device: &Device,
    own: &mut [&mut CudaKv],
    heads: Heads,
    (keys, rows): (usize, usize),
) -> Result<bool, KernelError> {
    let like = |kv: &CudaKv| (kv.heads, kv.dim, kv.dtype) == (heads.kv, heads.dim, DType::Bf16);
    let has = |kv: &CudaKv| kv.len >= keys;
    if keys > 0 && !(like(&*own[0]) && own.iter().all(|kv| has(kv))) {
        return Ok(false);
    }
    // Whoever has the memory of one layer has that of all.
    let fits = |kv: &CudaKv| kv.cleared && keys + rows <= kv.capacity;
    if !own.iter().all(|kv| fits(kv)) || own[0].is_shared() {
        let grown = grown(device, own, heads, (keys, rows))?;
        own.iter_mut().zip(grown).for_each(|(kv, grown)| **kv = grown);
    }
    for kv in own.iter_mut() {
        kv.resize(keys + rows);
        kv.written = WriteMark::UNKNOWN;
    }
    Ok(true)
}

/// Where the first of the last `rows` keys is, how far its value is from it, and each from that of the next layer, in caches that
/// [`make_room`] made.
pub fn places(own: &[&CudaKv], rows: usize) -> [u64; 3] {
    let first = own[0];
    let [key, value] = [0, 1].map(|which: usize| first.buffers[which].pointer);
    let layer = own.get(1).map_or(0, |next| next.buffers[0].pointer - key);
    [key + ((first.len - rows) * first.row()) as u64, value - key, layer]
}

/// The same caches in other memory, with room.
fn grown(
    device: &Device,
    own: &[&mut CudaKv],
    heads: Heads,
    (keys, rows): (usize, usize),
) -> Result<Vec<CudaKv>, KernelError> {
    let layers = own.len();
    let row = heads.kv * heads.dim * DType::Bf16.size();
    let capacity = (keys + rows).max(2 * keys).next_multiple_of(TAIL);
    let each = capacity * row;
    let memory = Arc::new(device.alloc(2 * layers * each)?);
    device.clear(&memory)?;
    let mut runs = Vec::with_capacity(2 * layers);
    let written = device.queue().written();
    let caches = (0..layers).map(|layer| {
        let buffers = [0, 1].map(|which| Arc::new(DeviceBuffer::part(&memory, (2 * layer + which) * each, each)));
        if keys > 0 {
            let pairs = own[layer].buffers.iter().zip(&buffers);
            runs.extend(pairs.filter_map(|(from, to)| CopyRun::of(from.pointer, to.pointer, keys * row)));
        }
        CudaKv {
            buffers,
            heads: heads.kv,
            dim: heads.dim,
            dtype: DType::Bf16,
            len: keys,
            capacity,
            written,
            maps: Default::default(),
            cleared: true,
            kept: OnceLock::new(),
        }
    });
    let caches: Vec<CudaKv> = caches.collect();
    device.copy_runs(&runs)?;
    Ok(caches)
}
