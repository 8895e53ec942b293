//! Buffers for payloads, kept for the next frame once the last one is dropped: fresh memory costs a page fault each 4 KiB.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rkyv::util::AlignedVec;

use crate::{PAYLOAD_ALIGNMENT, local::lock};

type Buffer = AlignedVec<PAYLOAD_ALIGNMENT>;

/// Buffers are of powers of two from this on; smaller ones cost nothing to make.
const SMALLEST: usize = 4 << 10;
const CLASSES: usize = 17;

/// Buffers that are not in use, by size.
pub(super) struct Pool {
    idle: Mutex<Idle>,
    most: usize,
}

struct Idle {
    buffers: [Vec<Buffer>; CLASSES],
    bytes: usize,
}

impl Pool {
    /// Keeps at most so many bytes idle.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { idle: Mutex::new(Idle { buffers: Default::default(), bytes: 0 }), most })
    }

    /// An empty buffer with room for so many bytes.
    pub fn take(&self, length: usize) -> Buffer {
        let Some(class) = class(length) else { return Buffer::with_capacity(length) };
        let mut idle = lock(&self.idle);
        if let Some(buffer) = idle.buffers[class].pop() {
            idle.bytes -= buffer.capacity();
            return buffer;
        }
        drop(idle);
        Buffer::with_capacity(SMALLEST << class)
    }

    /// The bytes of a buffer, which comes back once nobody holds them.
    pub fn lend(self: &Arc<Self>, buffer: Buffer) -> Bytes {
        if buffer.is_empty() {
            self.give_back(buffer);
            return Bytes::new();
        }
        Bytes::from_owner(Lent { buffer, pool: self.clone() })
    }

    fn give_back(&self, mut buffer: Buffer) {
        let fits = class(buffer.capacity()).is_some_and(|class| SMALLEST << class == buffer.capacity());
        let mut idle = lock(&self.idle);
        if fits && idle.bytes + buffer.capacity() <= self.most {
            buffer.clear();
            idle.bytes += buffer.capacity();
            let class = class(buffer.capacity()).unwrap_or_default();
            idle.buffers[class].push(buffer);
        }
    }
}

/// The smallest class that holds so many bytes; none for very short and very long buffers.
fn class(length: usize) -> Option<usize> {
    let class = length.next_power_of_two().trailing_zeros().saturating_sub(SMALLEST.trailing_zeros()) as usize;
    (length > SMALLEST / 2 && class < CLASSES).then_some(class)
}

struct Lent {
    buffer: Buffer,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_payload_is_used_again() {
        let pool = Pool::new(1 << 20);
        let mut buffer = pool.take(10_000);
        buffer.extend_from_slice(&[7; 10_000]);
        let at = buffer.as_ptr();
        let payload = pool.lend(buffer);
        let part = payload.slice(64..128);
        drop(payload);
        assert_ne!(pool.take(10_000).as_ptr(), at, "a part is still held");
        drop(part);
        let again = pool.take(9_000);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
    }

    #[test]
    fn idle_memory_is_bounded() {
        let pool = Pool::new(64 << 10);
        let filled = |length: usize| {
            let mut buffer = pool.take(length);
            buffer.extend_from_slice(&[1]);
            pool.lend(buffer)
        };
        let held: Vec<_> = [1, 4096, 40_000, 60_000, 300 << 20].map(filled).into();
        drop(held);
        assert_eq!(
            lock(&pool.idle).bytes,
            4096,
            "the two of 64 KiB would be too much beside it, the others fit no class"
        );
    }
}
