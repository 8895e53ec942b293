//! A thread's use of the tile unit: its configuration, and the sums that it holds for a block of memory.

use std::arch::asm;

/// This thread's tile configuration, eight tiles of 16 rows x 64 bytes, while the value lives. Released when dropped, so
/// that a switch has no 8 KiB to save.
///
/// Tiles are state of the thread, as for Intel's intrinsics: the compiler allocates none, so what one operation leaves in
/// them the next one finds. Only `Beside` leaves anything: tiles 0 to 3, whose block is `open`.
pub(in super::super) struct Session {
    /// The block that tiles 0 to 3 hold and memory does not yet; null for none.
    pub(super) open: *mut f32, // also makes the session stay on its thread
    /// Whether that block's product is a narrow one, which tiles 0 and 2 hold.
    pub(super) narrow: bool,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: a session exists, so the unit does.
        unsafe { asm!("tilerelease", options(nostack, nomem)) }
    }
}

#[repr(C, align(64))]
struct Configuration([u8; 64]);

static CONFIGURATION: Configuration = {
    let mut bytes = [0; 64];
    bytes[0] = 1; // palette
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64; // bytes of a row, 16 bits each
        bytes[48 + tile] = 16; // rows
        tile += 1;
    }
    Configuration(bytes)
};

impl Session {
    /// Configures the tiles.
    ///
    /// # Safety
    /// The unit must be there and granted.
    pub(in super::super) unsafe fn begin() -> Self {
        // SAFETY: the unit is there and granted, and the 64 bytes are a valid palette 1 configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, readonly)) };
        Self { open: std::ptr::null_mut(), narrow: false }
    }

    /// Writes what the tiles hold to its block.
    ///
    /// # Safety
    /// The block must be live.
    #[inline(always)]
    pub(in super::super) unsafe fn settle(&mut self) {
        if !self.open.is_null() {
            // SAFETY: these tiles hold the sums of this block, which is 4 KiB long.
            unsafe {
                asm!(
                    "tilestored [{c} + {row}*1], tmm0",
                    "tilestored [{c} + {row}*1 + 2048], tmm2",
                    c = in(reg) self.open,
                    row = in(reg) 128usize,
                    options(nostack, preserves_flags),
                );
                if !self.narrow {
                    asm!(
                        "tilestored [{c} + {row}*1 + 64], tmm1",
                        "tilestored [{c} + {row}*1 + 2112], tmm3",
                        c = in(reg) self.open,
                        row = in(reg) 128usize,
                        options(nostack, preserves_flags),
                    );
                }
            }
            self.open = std::ptr::null_mut();
        }
    }
}
