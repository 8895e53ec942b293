//! A zeroed, growable buffer on a cache-line boundary. Holds plain numbers only.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::vector::Loaded;

/// `len` elements, zero where nothing was written.
#[derive(Clone, Default)]
pub struct Aligned<E> {
    lines: Vec<Line>,
    len: usize,
    element: PhantomData<E>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl<E: Loaded> Aligned<E> {
    pub fn zeroed(len: usize) -> Self {
        let lines = vec![Line([0; 64]); (len * size_of::<E>()).div_ceil(64)];
        Self { lines, len, element: PhantomData }
    }

    /// Makes it at least `len` long; doubles when it must move.
    pub fn grow(&mut self, len: usize) {
        if len > self.len {
            let lines = (len * size_of::<E>()).div_ceil(64);
            self.lines.reserve(lines - self.lines.len());
            self.lines.resize(lines, Line([0; 64]));
            self.len = len;
        }
    }

    /// Bytes held, capacity included.
    pub fn bytes(&self) -> usize {
        self.lines.capacity() * 64
    }
}

impl<E: Loaded> Deref for Aligned<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        // SAFETY: the lines cover `len` elements, are initialised, and any bits are a number.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<E: Loaded> DerefMut for Aligned<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
