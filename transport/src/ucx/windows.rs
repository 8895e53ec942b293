//! How far the two sides of a link may run ahead of each other's readers, over all of its channels: bytes, with the
//! bookkeeping of frames. Sends nothing itself.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use crate::{
    MAX_META_BYTES, MAX_PAYLOAD_BYTES,
    frame::{HEADER_BYTES, buffers::Buffer, meta},
    signal::lock,
};

/// Bytes that the bookkeeping of a frame counts as, so that empty ones fill a window too.
const OF_ITSELF: u64 = 448;

/// What a frame takes of a window, which is what it takes of the receiver's memory. Both ends count alike.
pub(super) fn weight(meta: usize, payload: usize) -> u64 {
    let buffer = if payload == 0 { 0 } else { Buffer::size_for(payload) };
    let meta = if meta == 0 { 0 } else { meta.max(meta::META_KEPT_BYTES) };
    OF_ITSELF + (HEADER_BYTES + meta + buffer) as u64
}

/// The largest of these: a sender may go beyond a window by one.
pub(super) fn largest() -> u64 {
    weight(MAX_META_BYTES, MAX_PAYLOAD_BYTES)
}

/// What all links of a transport hold that nobody has read.
pub(super) struct HeldBytes {
    bytes: AtomicU64,
    links: AtomicUsize,
    most: u64,
}

impl HeldBytes {
    /// Nothing yet.
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(0), links: AtomicUsize::new(0), most })
    }

    /// Whether a link that holds so much is to end, for it holds more than its share of too much.
    fn is_too_much(&self, of_link: u64) -> bool {
        let links = self.links.load(Ordering::Relaxed).max(1) as u64;
        self.bytes.load(Ordering::Relaxed) > self.most && of_link > self.most / links
    }
}

/// The windows of one link.
pub(super) struct Windows {
    /// Bytes that either side may send ahead of the reader, of a channel and of the link.
    window: u64,
    holding: Arc<HeldBytes>,
    coming: Mutex<Coming>,
    going: Mutex<Going>,
}

/// Bytes announced to this side, those of them done with, and those of these that the peer knows of.
#[derive(Default)]
struct Coming {
    arrived: u64,
    done: u64,
    credited: u64,
}

#[derive(Default)]
struct Going {
    sent: u64,
    credited: u64,
    /// Whether a sender was turned down since the last credit.
    waits: bool,
}

impl Windows {
    pub fn new(window: u64, holding: Arc<HeldBytes>) -> Arc<Self> {
        holding.links.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { window, holding, coming: Mutex::default(), going: Mutex::default() })
    }

    /// Bytes that either side may send ahead of the reader of a channel.
    pub fn of_channel(&self) -> u64 {
        self.window
    }

    /// Takes so many bytes in; the error says why they are too many.
    pub fn admit(self: &Arc<Self>, bytes: u64) -> Result<Charge, &'static str> {
        let mut coming = lock(&self.coming);
        coming.arrived += bytes;
        self.holding.bytes.fetch_add(bytes, Ordering::Relaxed);
        let (ahead, held) = (coming.arrived - coming.credited, coming.arrived - coming.done);
        drop(coming);
        let charge = Charge { windows: self.clone(), bytes };
        if ahead > self.window + largest() {
            return Err("the peer sends more than the link's window lets it");
        }
        if self.holding.is_too_much(held) {
            return Err("this process holds too much that was not read, and most of it is this peer's");
        }
        Ok(charge)
    }

    /// What is to be said to the peer so that it sends on; nothing while that would be little.
    pub fn credit_due(&self) -> Option<u64> {
        self.credit_after(0)
    }

    /// The same, with so many bytes more done.
    fn credit_after(&self, bytes: u64) -> Option<u64> {
        let mut coming = lock(&self.coming);
        coming.done += bytes;
        if coming.done - coming.credited < self.window.div_ceil(4) {
            return None;
        }
        coming.credited = coming.done;
        Some(coming.done)
    }

    /// Whether a frame of so many bytes may be sent; it counts as sent then.
    pub fn send(&self, bytes: u64) -> bool {
        let mut going = lock(&self.going);
        if going.sent - going.credited >= self.window {
            going.waits = true;
            return false;
        }
        going.sent += bytes;
        true
    }

    /// The peer has read so many bytes; says whether senders wait for that, or nothing where these were never sent.
    pub fn credit(&self, bytes: u64) -> Option<bool> {
        let mut going = lock(&self.going);
        if bytes > going.sent {
            return None;
        }
        going.credited = going.credited.max(bytes);
        Some(std::mem::take(&mut going.waits))
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.holding.links.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes of a frame that is held; dropped once it is read or given up.
pub(super) struct Charge {
    windows: Arc<Windows>,
    bytes: u64,
}

impl Charge {
    /// Ends it; what is to be said to the peer now, if anything.
    pub fn pay(mut self) -> Option<u64> {
        let bytes = std::mem::take(&mut self.bytes);
        self.windows.holding.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.windows.credit_after(bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            lock(&self.windows.coming).done += self.bytes;
            self.windows.holding.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_runs_ahead_by_its_window_and_one_frame() {
        let (windows, window) = (Windows::new(1000, HeldBytes::new(u64::MAX)), 1000);
        assert!(windows.send(window - 1) && windows.send(500), "one frame may go beyond the window");
        assert!(!windows.send(1));
        assert_eq!(windows.credit(1499), Some(true), "somebody waits");
        assert_eq!(windows.credit(700), Some(false), "an older credit says nothing new");
        assert!(windows.send(window));
        assert_eq!(windows.credit(2500), None);
        let first = windows.admit(window - 1).expect("it is within the window");
        let last = windows.admit(largest()).expect("one frame may go beyond it");
        assert!(windows.admit(2).is_err());
        assert_eq!(windows.credit_due(), None);
        drop((first, last));
        assert_eq!(windows.credit_due(), Some(largest() + window + 1));
        windows.admit(window).expect("there is room again");
    }

    #[test]
    fn of_too_much_the_link_that_has_most_ends() {
        let holding = HeldBytes::new(1000);
        let [modest, greedy] = [(); 2].map(|()| Windows::new(1 << 20, holding.clone()));
        let kept = modest.admit(400).expect("its share is 500");
        let more = greedy.admit(600).expect("all links together hold no more than they may");
        assert!(greedy.admit(1).is_err());
        modest.admit(100).expect("it keeps to its share");
        drop((kept, more));
        greedy.admit(900).expect("nothing else is held");
    }
}
