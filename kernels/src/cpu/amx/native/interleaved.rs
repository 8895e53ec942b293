//! Tile products in small pieces, to be put between vector instructions.
//!
//! The tile unit works beside the vector units, but only on what the processor's window of pending instructions holds. A
//! product issued whole fills the window, and the vectors wait; one multiplication at a time, both stay busy. For the same
//! reason the sums of a product stay in tiles until the next product takes these over.

use std::arch::asm;
use std::slice::Iter;

use super::super::super::lanes::fetch_ahead;
use super::super::engine::{BLOCK_SIDE, Product, STEP_ELEMENTS, TILE_ELEMENTS};
use super::session::Session;

/// Tile multiplications of a step: of each half of `A` with each of `B`, in this order.
const MULTIPLICATIONS: usize = 4;

impl Product {
    /// From one multiplication to the next: a narrow product has none with the second half of `B`.
    fn stride(&self) -> usize {
        if self.narrow { 2 } else { 1 }
    }
}

/// Products to be issued evenly over a number of slots.
pub(super) struct InterleavedProducts<'a> {
    session: &'a mut Session,
    products: Iter<'a, Product>,
    /// The product being issued, with `a` and `b` at the step reached and `steps` counting those left.
    current: Product,
    /// Whether the step reached is the product's first.
    fresh: bool,
    /// The next multiplication of the step reached.
    at: usize,
    /// Multiplications issued, and those of all products.
    issued: usize,
    total: usize,
    /// Slots passed, and those there are.
    slot: usize,
    slots: usize,
}

impl<'a> InterleavedProducts<'a> {
    /// Nothing is issued until the first slot.
    pub(super) fn new(session: &'a mut Session, products: &'a [Product], slots: usize) -> Self {
        const NO_PRODUCT: Product = Product {
            a: std::ptr::null(),
            b: std::ptr::null(),
            steps: 0,
            c: std::ptr::null_mut(),
            accumulate: false,
            narrow: false,
            prefetch: 0,
        };
        let of = |product: &Product| MULTIPLICATIONS / product.stride() * product.steps;
        let total = products.iter().map(of).sum();
        Self {
            session,
            products: products.iter(),
            current: NO_PRODUCT,
            fresh: false,
            at: 0,
            issued: 0,
            total,
            slot: 0,
            slots,
        }
    }

    /// Issues one slot's share; after the last slot, all products are issued.
    ///
    /// # Safety
    /// The products must be valid, and the session this thread's.
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self) {
        self.slot += 1;
        let due = self.slot * self.total / self.slots;
        while self.issued < due {
            // SAFETY: the caller's promise; a multiplication is due, so a product has one left.
            unsafe { self.multiply() }
            self.issued += 1;
        }
    }

    /// Asks for what lies ahead of a tile of `A`: a tile at a time, since the processor waits for no more lines at once.
    #[inline(always)]
    fn fetch(&self, tile: usize) {
        if self.current.prefetch > 0 {
            let start = self.current.a.wrapping_add(self.current.prefetch + tile);
            (0..TILE_ELEMENTS).step_by(BLOCK_SIDE).for_each(|line| fetch_ahead(start.wrapping_add(line)));
        }
    }

    /// Issues the next multiplication: tiles 0 to 3 are sums, of which a narrow product has 0 and 2; 4 and 5 are the halves of
    /// `A`'s step, 6 and 7 those of `B`'s.
    ///
    /// # Safety
    /// As [`advance`](Self::advance), and one must be left.
    #[inline(always)]
    unsafe fn multiply(&mut self) {
        const STRIDE: usize = 64;
        /// Hands a tile of sums over from the open block to this product's.
        macro_rules! take_over {
            ($tile:tt, $offset:literal) => {
                if self.fresh {
                    const ROW: usize = 128;
                    if !self.session.open.is_null() {
                        asm!(concat!("tilestored [{c} + {row}*1 + ", $offset, "], ", $tile),
                            c = in(reg) self.session.open, row = in(reg) ROW, options(nostack, preserves_flags));
                    }
                    if self.current.accumulate {
                        asm!(concat!("tileloadd ", $tile, ", [{c} + {row}*1 + ", $offset, "]"),
                            c = in(reg) self.current.c, row = in(reg) ROW, out($tile) _,
                            options(nostack, preserves_flags));
                    } else {
                        asm!(concat!("tilezero ", $tile), out($tile) _, options(nostack, nomem, preserves_flags));
                    }
                }
            };
        }
        // SAFETY: a session lives, so tiles are configured; panels cover 2 KiB a step, blocks 4 KiB. Sums are handed over
        // tile by tile in a product's first step, after which its block is the open one.
        unsafe {
            match self.at {
                0 => {
                    self.fresh = self.current.steps == 0;
                    if self.fresh {
                        self.current = *self.products.next().expect("multiplications are counted from the products");
                        if self.session.narrow != self.current.narrow {
                            self.session.settle();
                        }
                    }
                    take_over!("tmm0", 0);
                    self.fetch(0);
                    asm!("tileloadd tmm6, [{b} + {s}*1]", "tileloadd tmm4, [{a} + {s}*1]", "tdpbf16ps tmm0, tmm4, tmm6",
                        a = in(reg) self.current.a, b = in(reg) self.current.b, s = in(reg) STRIDE,
                        out("tmm0") _, out("tmm4") _, out("tmm6") _, options(nostack, preserves_flags));
                }
                1 => {
                    take_over!("tmm1", 64);
                    asm!("tileloadd tmm7, [{b} + {s}*1 + 1024]", "tdpbf16ps tmm1, tmm4, tmm7",
                        b = in(reg) self.current.b, s = in(reg) STRIDE,
                        out("tmm1") _, out("tmm7") _, options(nostack, preserves_flags));
                }
                2 => {
                    take_over!("tmm2", 2048);
                    self.fetch(TILE_ELEMENTS);
                    asm!("tileloadd tmm5, [{a} + {s}*1 + 1024]", "tdpbf16ps tmm2, tmm5, tmm6",
                        a = in(reg) self.current.a, s = in(reg) STRIDE,
                        out("tmm2") _, out("tmm5") _, options(nostack, preserves_flags));
                }
                _ => {
                    take_over!("tmm3", 2112);
                    asm!("tdpbf16ps tmm3, tmm5, tmm7", out("tmm3") _, options(nostack, nomem, preserves_flags));
                }
            }
        }
        self.at += self.current.stride();
        if self.at == MULTIPLICATIONS {
            self.at = 0;
            (self.session.open, self.session.narrow) = (self.current.c, self.current.narrow);
            self.current.a = self.current.a.wrapping_add(STEP_ELEMENTS);
            self.current.b = self.current.b.wrapping_add(STEP_ELEMENTS);
            self.current.steps -= 1;
        }
    }
}
