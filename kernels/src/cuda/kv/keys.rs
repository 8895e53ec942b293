//! Keys and values as attention is given them: as they were computed, or as codes. Attends to nothing.

use std::marker::PhantomData;

use super::super::device::layout::Strides;
use super::super::device::{DeviceBuffer, WriteMark};
use super::super::tensor::View;
use super::CudaKv;
use crate::{KvFormat, KvType};

/// Some tokens of a cache in 8 bits: codes `(tokens, kv heads, dim)` of keys and of values, and their scales `(tokens, kv heads)`.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    /// Keys, then values.
    pub codes: [u64; 2],
    pub scales: [u64; 2],
    pub heads: usize,
    pub tokens: usize,
    pub dim: usize,
    /// When they may have been written.
    pub written: WriteMark,
    lives: PhantomData<&'a DeviceBuffer>,
}

/// Keys and values.
#[derive(Clone, Copy)]
pub enum Keys<'a> {
    Computed([View<'a>; 2]),
    Eight(Codes<'a>),
}

impl Keys<'_> {
    /// How many there are.
    pub fn tokens(&self) -> usize {
        match self {
            Self::Computed([k, _]) => k.rows,
            Self::Eight(codes) => codes.tokens,
        }
    }

    /// KV heads.
    pub fn heads(&self) -> usize {
        match self {
            Self::Computed([k, _]) => k.heads,
            Self::Eight(codes) => codes.heads,
        }
    }

    /// Elements of a head.
    pub fn dim(&self) -> usize {
        match self {
            Self::Computed([k, _]) => k.dim,
            Self::Eight(codes) => codes.dim,
        }
    }

    /// How they are kept.
    pub fn kept(&self) -> KvFormat {
        match self {
            Self::Computed(_) => KvFormat::Computed,
            Self::Eight(_) => KvFormat::Q8,
        }
    }

    /// Where keys and values begin, and how far heads and tokens are from each other, in elements or codes.
    pub fn places(&self) -> ([u64; 2], Strides) {
        match self {
            Self::Computed([k, v]) => ([k.pointer, v.pointer], k.at),
            Self::Eight(codes) => (codes.codes, Strides::by_rows(codes.heads, codes.dim)),
        }
    }
}

impl CudaKv {
    /// Heads and elements of one, and the types of its rows.
    pub fn of(&self) -> ([usize; 2], KvType) {
        ([self.rows.heads, self.rows.dim], self.rows.of)
    }

    /// Where keys and values begin.
    pub fn begin(&self) -> [u64; 2] {
        self.buffers.each_ref().map(|buffer| buffer.pointer)
    }

    /// Tokens `start..end`, for which the cache must have room.
    ///
    /// # Panics
    /// When it has not.
    pub fn keys(&self, start: usize, end: usize) -> Keys<'_> {
        match self.rows.of.kept {
            KvFormat::Computed => Keys::Computed(self.view(start, end)),
            KvFormat::Q8 => Keys::Eight(self.codes(start, end)),
        }
    }

    /// The same of a cache in 8 bits.
    ///
    /// # Panics
    /// When it is none, or has no room for such tokens.
    pub(super) fn codes(&self, start: usize, end: usize) -> Codes<'_> {
        let (rows, capacity) = (self.rows, self.capacity);
        assert!(rows.of.kept == KvFormat::Q8, "codes are of caches in 8 bits");
        assert!(start <= end && end <= capacity, "tokens {start}..{end} of {capacity}");
        let scales = (rows.before_scales(capacity) + start * rows.scales()) as u64;
        Codes {
            codes: self.begin().map(|begin| begin + (start * rows.row()) as u64),
            scales: self.begin().map(|begin| begin + scales),
            heads: rows.heads,
            tokens: end - start,
            dim: rows.dim,
            written: self.written,
            lives: PhantomData,
        }
    }
}
