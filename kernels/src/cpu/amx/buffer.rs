//! Uninitialised memory for tiles: aligned to a cache line, and to a huge page when large.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Memory whose contents are whatever was last written through its pointer.
pub(super) struct AmxBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its memory and gives out only raw pointers; whoever dereferences them answers for races.
unsafe impl Send for AmxBuffer {}
// SAFETY: as above.
unsafe impl Sync for AmxBuffer {}

impl AmxBuffer {
    /// At least `bytes` bytes, uninitialised.
    pub(super) fn new(bytes: usize) -> Self {
        const LINE: usize = 64;
        const HUGE_PAGE: usize = 1 << 21;
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { LINE };
        let layout = Layout::from_size_align(bytes.max(LINE), align).expect("a size that fits the address space");
        // SAFETY: the layout's size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        #[cfg(target_os = "linux")]
        if align == HUGE_PAGE {
            // SAFETY: the range was just allocated; the advice changes how it is backed, not what it holds, and its
            // refusal costs only speed.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Self { start, layout }
    }

    /// Grows to at least `bytes` bytes; a larger buffer is a new one, without the old contents.
    pub(super) fn reserve(&mut self, bytes: usize) {
        if self.layout.size() < bytes {
            *self = Self::new(bytes);
        }
    }

    /// The first byte, as a pointer to `T`, which must be a plain number.
    pub(super) fn pointer<T: Copy>(&self) -> *mut T {
        self.start.as_ptr().cast()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for AmxBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
