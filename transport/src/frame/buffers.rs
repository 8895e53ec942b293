//! Memory that payloads arrive in, aligned, used again once nobody holds what came in it before. Reads nothing.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use bytes::{Buf, Bytes, BytesMut};

use crate::{Meta, PAYLOAD_ALIGNMENT, frame::meta::Metas, signal::lock};

/// Bytes kept at most for payloads to come, those included that somebody holds still.
pub const BUFFERS_KEPT_BYTES: usize = 96 << 20;
/// Buffers kept at most.
const KEPT_BUFFERS: usize = 64;
/// No buffer is smaller.
const SMALLEST: usize = 4 << 10;
/// Larger ones are whole multiples of it; smaller ones powers of two.
const STEP: usize = 1 << 20;
/// A payload takes no buffer that is larger than so many times its own size.
const TOO_LARGE: usize = 4;

/// Buffers of one transport: those that came back, and handles of those that will.
#[derive(Default)]
pub(crate) struct Buffers {
    /// The one that waits longest first.
    kept: Mutex<Vec<Buffer>>,
    metas: Arc<Metas>,
}

impl Buffers {
    /// A buffer for `bytes` that came back, if there is one.
    pub fn again(&self, bytes: usize) -> Option<Buffer> {
        let mut kept = lock(&self.kept);
        let fits = |buffer: &Buffer| (bytes..=(TOO_LARGE * bytes).max(SMALLEST)).contains(&buffer.size);
        let index = kept.iter_mut().position(|buffer| fits(buffer) && buffer.came_back())?;
        Some(kept.remove(index))
    }

    /// An empty meta that takes `bytes`, from those that came back where these are few.
    pub fn meta(&self, bytes: usize) -> Option<Meta> {
        self.metas.take(bytes)
    }

    /// An empty buffer that takes at least `bytes`.
    #[cfg(feature = "ucx")]
    pub fn take(&self, bytes: usize) -> Buffer {
        self.again(bytes).unwrap_or_else(|| Buffer::new(bytes))
    }

    /// What `buffer` holds; its memory comes back once the last holder drops it.
    pub fn share(&self, mut buffer: Buffer) -> Bytes {
        let shared = buffer.bytes.split().freeze();
        let mut kept = lock(&self.kept);
        let mut size: usize = kept.iter().map(|buffer| buffer.size).sum();
        size += buffer.size;
        while !kept.is_empty() && (size > BUFFERS_KEPT_BYTES || kept.len() >= KEPT_BUFFERS) {
            size -= kept.remove(0).size;
        }
        if size <= BUFFERS_KEPT_BYTES {
            kept.push(buffer);
        }
        shared
    }
}

/// Bytes that arrive one after another, the first at an address divisible by 64.
pub(crate) struct Buffer {
    bytes: BytesMut,
    /// Bytes that it takes.
    size: usize,
}

impl Buffer {
    /// Bytes that a new buffer for `bytes` takes.
    pub fn size_for(bytes: usize) -> usize {
        if bytes < STEP { bytes.next_power_of_two().max(SMALLEST) } else { bytes.next_multiple_of(STEP) }
    }

    /// An empty buffer that takes at least `bytes`.
    pub fn new(bytes: usize) -> Self {
        let size = Self::size_for(bytes);
        let mut buffer = Self { bytes: BytesMut::with_capacity(size + PAYLOAD_ALIGNMENT), size };
        buffer.align();
        buffer
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// What has arrived.
    pub fn filled(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds `bytes`, for which there must be room.
    pub fn append(&mut self, bytes: &[u8]) {
        debug_assert!(self.len() + bytes.len() <= self.size);
        self.bytes.extend_from_slice(bytes);
    }

    /// Puts `bytes` at a place for which there must be room; what belongs before them may still be to come.
    #[cfg(feature = "ucx")]
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        if at == self.len() {
            return self.append(bytes);
        }
        let end = at + bytes.len();
        debug_assert!(end <= self.size);
        if self.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at..end].copy_from_slice(bytes);
    }

    /// Cuts off the places of what comes elsewhere, each with its size: an empty buffer keeps what is before the first.
    pub fn split(&mut self, parts: impl Iterator<Item = Range<usize>>) -> Vec<(BytesMut, usize)> {
        let parts: Vec<_> = parts.collect();
        let mut places: Vec<_> =
            parts.iter().rev().map(|part| (self.bytes.split_off(part.start), part.len())).collect();
        places.reverse();
        places
    }

    /// Adds a place that was cut off, now full, behind what is there.
    pub fn join(&mut self, place: BytesMut) {
        self.bytes.unsplit(place);
    }

    /// Its memory, for whoever fills it by address.
    #[cfg(feature = "ucx")]
    pub fn memory(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// Whether nobody holds what was in it; it is empty and whole then.
    fn came_back(&mut self) -> bool {
        self.bytes.clear();
        let came_back = self.bytes.try_reclaim(self.size + PAYLOAD_ALIGNMENT);
        if came_back {
            self.align();
        }
        came_back
    }

    fn align(&mut self) {
        let skipped = self.bytes.as_ptr().addr().next_multiple_of(PAYLOAD_ALIGNMENT) - self.bytes.as_ptr().addr();
        self.bytes.resize(skipped, 0);
        self.bytes.advance(skipped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(buffers: &Buffers, bytes: usize) -> Buffer {
        let mut buffer = buffers.again(bytes).unwrap_or_else(|| Buffer::new(bytes));
        buffer.append(&vec![7; bytes]);
        buffer
    }

    #[test]
    fn a_buffer_comes_back_whole_and_aligned_when_the_last_holder_drops_it() {
        let buffers = Buffers::default();
        let first = buffers.share(filled(&buffers, 5000));
        let (address, part) = (first.as_ptr().addr(), first.slice(100..));
        drop(first);
        assert!(buffers.again(5000).is_none(), "a part of it is held");
        drop(part);
        for bytes in [8192, 4096, 5000, 2048] {
            let again = buffers.share(filled(&buffers, bytes));
            assert_eq!((again.as_ptr().addr(), again.len()), (address, bytes));
            assert!(address.is_multiple_of(PAYLOAD_ALIGNMENT));
        }
        assert!(buffers.again(2000).is_none(), "a small payload takes no large buffer");
        assert!(buffers.again(8193).is_none());
    }

    #[test]
    fn no_more_is_kept_than_said() {
        let buffers = Buffers::default();
        for _ in 0..3 * KEPT_BUFFERS {
            drop(buffers.share(filled(&buffers, 1)));
        }
        let held: Vec<_> = (0..3 * KEPT_BUFFERS).map(|_| buffers.share(filled(&buffers, 1))).collect();
        assert_eq!(lock(&buffers.kept).len(), KEPT_BUFFERS);
        drop(held);
        let large: Vec<_> = (0..4).map(|_| buffers.share(filled(&buffers, BUFFERS_KEPT_BYTES / 3))).collect();
        assert!(lock(&buffers.kept).iter().map(Buffer::size).sum::<usize>() <= BUFFERS_KEPT_BYTES);
        assert!(large.iter().all(|payload| payload.len() == BUFFERS_KEPT_BYTES / 3));
        buffers.share(filled(&buffers, BUFFERS_KEPT_BYTES + 1));
        assert!(lock(&buffers.kept).is_empty());
    }
}
