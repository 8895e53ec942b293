//! The keys that a sequence makes itself, of all layers in one run of memory: it grows by one allotment and few launches.

use std::sync::{Arc, OnceLock};

use super::super::device::{Device, DeviceBuffer, WriteMark};
use super::CudaKv;
use super::eight::PlacedCodes;
use super::rows::RowLayout;
use crate::{DType, Heads, KernelError, KvFormat, KvType};

/// Tokens that there is room for at least, and by which it grows at least.
const TAIL: usize = 64;

/// Has `own`, a cache a layer, have its first `keys` tokens and room for `rows` more, which [`OwnRun::extend`] counts as cached, layer by layer:
/// a step looks at two of its caches before it begins. Where they lie; nothing where the caches are not such a sequence's, of bf16 kept so.
pub fn make_room(
    device: &Device,
    own: &mut [&mut CudaKv],
    (heads, kept): (Heads, KvFormat),
    (keys, rows): (usize, usize),
) -> Result<Option<OwnRun>, KernelError> {
    let layout = RowLayout { heads: heads.kv, dim: heads.dim, of: KvType { computed: DType::Bf16, kept } };
    let like = |kv: &CudaKv| kv.rows == layout;
    let ends =
        |own: &[&mut CudaKv], holds: &dyn Fn(&CudaKv) -> bool| [0, own.len() - 1].iter().all(|at| holds(&*own[*at]));
    if keys > 0 && !ends(own, &|kv| like(kv) && kv.len >= keys) {
        return Ok(None);
    }
    // Whoever has the memory of one layer has that of all.
    let fits = |kv: &CudaKv| kv.cleared && like(kv) && keys + rows <= kv.capacity;
    if !ends(own, &fits) || own[0].is_shared() {
        let grown = grown(device, own, layout, (keys, rows))?;
        own.iter_mut().zip(grown).for_each(|(kv, grown)| **kv = grown);
    }
    let [key, value] = [0, 1].map(|which: usize| own[0].buffers[which].pointer);
    let layer = own.get(1).map_or(0, |next| next.buffers[0].pointer.wrapping_sub(key));
    let scales = layout.before_scales(own[0].capacity) as u64;
    Ok(Some(OwnRun { keys, rows, layout, first: key, scales, value: value.wrapping_sub(key), layer }))
}

/// The run of memory in which a sequence's own keys and values of all layers lie.
#[derive(Clone, Copy, PartialEq)]
pub struct OwnRun {
    /// Tokens before the step, and of the step.
    keys: usize,
    rows: usize,
    layout: RowLayout,
    /// The first key of the first layer, how far its scale and its value are from it, and each from that of the next layer.
    first: u64,
    scales: u64,
    value: u64,
    layer: u64,
}

impl OwnRun {
    /// Tokens, those of the step included.
    pub fn tokens(self) -> usize {
        self.keys + self.rows
    }

    /// Tokens before the step.
    pub fn before(self) -> usize {
        self.keys
    }

    /// Tokens of the step.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// How its tokens are kept.
    pub fn kept(self) -> KvFormat {
        self.layout.of.kept
    }

    /// Where the key of a row of the step goes in the first layer; how far its value is from it, and each from that of the next layer.
    pub fn place(self, row: usize) -> [u64; 3] {
        [self.first + ((self.keys + row) * self.layout.row()) as u64, self.value, self.layer]
    }

    /// The same of codes, with their scales.
    pub fn codes_place(self, row: usize) -> PlacedCodes {
        let [key, value, layer] = self.place(row);
        let scale = self.first + self.scales + ((self.keys + row) * self.layout.scales()) as u64;
        PlacedCodes { key, scale: scale - key, value, layer }
    }

    /// Counts the step's rows, which the caller writes at once, in the cache of a layer.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for a cache that does not lie in this run, or lacks room or tokens.
    pub fn extend(self, layer: usize, kv: &mut CudaKv) -> Result<(), KernelError> {
        let key = self.first.wrapping_add(self.layer.wrapping_mul(layer as u64));
        let lies = kv.buffers.each_ref().map(|buffer| buffer.pointer) == [key, key.wrapping_add(self.value)];
        if !lies || kv.len < self.keys || kv.capacity < self.tokens() {
            let expected =
                format!("{} tokens and room for {} in the memory of the first layer's", self.keys, self.rows);
            return Err(KernelError::shape("attend_step", expected, &[&[layer], &[kv.len, kv.capacity]]));
        }
        kv.resize(self.tokens());
        kv.written = WriteMark::UNKNOWN;
        Ok(())
    }
}

/// The same caches in other memory, with room.
fn grown(
    device: &Device,
    own: &[&mut CudaKv],
    layout: RowLayout,
    (keys, rows): (usize, usize),
) -> Result<Vec<CudaKv>, KernelError> {
    let layers = own.len();
    let capacity = (keys + rows).max(2 * keys).next_multiple_of(TAIL);
    let each = layout.bytes(capacity);
    let memory = Arc::new(device.alloc_lasting(2 * layers * each)?);
    device.clear(&memory)?;
    let mut copies = Vec::with_capacity(2 * layers);
    let written = device.queue().written();
    let caches = (0..layers).map(|layer| {
        let buffers = [0, 1].map(|which| Arc::new(DeviceBuffer::part(&memory, (2 * layer + which) * each, each)));
        let grown = CudaKv {
            buffers,
            rows: layout,
            len: keys,
            capacity,
            written,
            maps: Default::default(),
            cleared: true,
            kept: OnceLock::new(),
            codes: None,
        };
        if keys > 0 {
            copies.append(&mut own[layer].copies(0..keys, (&grown, 0)));
        }
        grown
    });
    let caches: Vec<CudaKv> = caches.collect();
    device.copy_bytes(&copies)?;
    Ok(caches)
}
