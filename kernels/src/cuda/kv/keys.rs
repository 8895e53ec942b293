//! Keys and values as attention is given them: as they were computed, or as codes. Attends to nothing.

use std::marker::PhantomData;

use super::super::device::DeviceBuffer;
use super::super::device::layout::Strides;
use super::super::tensor::View;
use crate::KvFormat;

/// Some tokens of a cache in 8 bits: codes `(tokens, kv heads, dim)` of keys and of values, and their scales `(tokens, kv heads)`.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    /// Keys, then values.
    pub codes: [u64; 2],
    pub scales: [u64; 2],
    pub heads: usize,
    pub tokens: usize,
    pub dim: usize,
    pub lives: PhantomData<&'a DeviceBuffer>,
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
