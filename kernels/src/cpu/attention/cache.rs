//! Keys and values of one layer as attention reads them. Computes nothing.

use std::ops::Range;

use half::bf16;

use super::super::lanes::{Aligned, Element, Loaded, PANEL};
use super::super::pool::{DisjointBuffer, Tasks, ThreadPool};

/// Keys that attention takes together.
pub(in super::super) const BLOCK_KEYS: usize = 128;

/// `len` tokens of every KV head.
#[derive(Clone)]
pub(in super::super) struct PanelCache<E> {
    pub heads: Vec<Head<E>>,
    pub dim: usize,
    pub len: usize,
    /// Bound of the scaled scores, if they have one.
    pub cap: Option<f32>,
}

/// One head. Whatever lies beyond `len` is allocated but means nothing.
#[derive(Clone, Default)]
pub(in super::super) struct Head<E> {
    /// Panels of [`PANEL`] keys, `dim` rows each: products with queries need no transposing. Of codes four rows lie side by side.
    pub keys: Aligned<E>,
    /// Blocks of [`BLOCK_KEYS`] tokens, each as panels of [`PANEL`] elements, [`BLOCK_KEYS`] rows each; of codes, too.
    pub values: Aligned<E>,
    /// Of each token, a key's and a value's; none where elements are numbers by themselves.
    pub scales: [Aligned<bf16>; 2],
}

impl<E: Loaded> PanelCache<E> {
    pub(in super::super) fn new(heads: usize, dim: usize) -> Self {
        Self { heads: (0..heads).map(|_| Head::default()).collect(), dim, len: 0, cap: None }
    }

    /// Elements of a token's values, padded to whole panels.
    pub(in super::super) fn stride(&self) -> usize {
        self.dim.next_multiple_of(PANEL)
    }

    /// Appends the rows of another cache of as many heads of the same size.
    pub(in super::super) fn extend(&mut self, more: &Self) {
        assert!(more.heads.len() == self.heads.len() && more.dim == self.dim, "caches of the same shape");
        let (dim, stride, start) = (self.dim, self.stride(), self.len);
        self.len += more.len;
        for (to, from) in self.heads.iter_mut().zip(&more.heads) {
            to.grow(start + more.len, dim, stride);
            to.copy(start, from, 0, more.len, [dim, stride]);
        }
    }

    /// A copy of rows `start..end`.
    pub(in super::super) fn rows(&self, start: usize, end: usize) -> Self {
        let (dim, stride, len) = (self.dim, self.stride(), end - start);
        let cut = |head: &Head<E>| {
            let mut cut = Head::default();
            cut.grow(len, dim, stride);
            cut.copy(0, head, start, len, [dim, stride]);
            cut
        };
        Self { heads: self.heads.iter().map(cut).collect(), dim, len, cap: self.cap }
    }

    /// Bytes held, capacity included.
    pub(in super::super) fn bytes(&self) -> usize {
        let scales = |head: &Head<E>| head.scales.iter().map(Aligned::bytes).sum::<usize>();
        self.heads.iter().map(|head| head.keys.bytes() + head.values.bytes() + scales(head)).sum()
    }
}

impl<E: Element> PanelCache<E> {
    /// Appends `tokens` rows of `k, v (heads, tokens, dim)`.
    pub(in super::super) fn append(&mut self, k: &[E], v: &[E], tokens: usize, pool: &ThreadPool) {
        let (start, dim, stride) = (self.len, self.dim, self.stride());
        self.len += tokens;
        let targets: Vec<_> = self.heads.iter_mut().map(|head| head.grow(self.len, dim, stride)).collect();
        let blocks = tokens.div_ceil(PANEL);
        let tasks = Tasks { count: targets.len() * blocks, cost: 4 * k.len() };
        pool.each(tasks, |task| {
            let (head, first) = (task / blocks, task % blocks * PANEL);
            let (keys, values) = &targets[head];
            for i in first..tokens.min(first + PANEL) {
                let (from, to) = ((head * tokens + i) * dim, start + i);
                for (d, k) in k[from..][..dim].iter().enumerate() {
                    // SAFETY: `grow` made room for token `to`, which this task alone writes.
                    unsafe { *keys.at(key::<E>(to, d, dim)) = *k };
                }
                for d in (0..dim).step_by(PANEL) {
                    // SAFETY: as above.
                    let to = unsafe { values.at(value::<E>(to, d, stride)) };
                    let from = &v[from + d..from + dim.min(d + PANEL)];
                    // SAFETY: as above; a panel's part of a row.
                    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
                }
            }
        });
    }

    /// Keys, then values, `(heads, tokens, dim)`.
    pub(in super::super) fn unpack(&self) -> [Vec<E>; 2] {
        let (dim, stride, size) = (self.dim, self.stride(), self.heads.len() * self.len * self.dim);
        let [mut keys, mut values] = [(); 2].map(|()| Vec::with_capacity(size));
        for (head, token) in self.heads.iter().flat_map(|head| (0..self.len).map(move |token| (head, token))) {
            keys.extend((0..dim).map(|d| head.keys[key::<E>(token, d, dim)]));
            values.extend((0..dim).map(|d| head.values[value::<E>(token, d, stride)]));
        }
        [keys, values]
    }

    /// Mean of some keys of a head.
    pub(in super::super) fn mean_key(&self, head: usize, tokens: Range<usize>) -> Vec<f32> {
        let (keys, count) = (&self.heads[head].keys, tokens.len() as f32);
        let mut mean = vec![0.0; self.dim];
        for token in tokens {
            for (d, sum) in mean.iter_mut().enumerate() {
                *sum += keys[key::<E>(token, d, self.dim)].widen();
            }
        }
        mean.iter_mut().for_each(|sum| *sum /= count);
        mean
    }
}

impl<E: Loaded> Head<E> {
    /// Room for one block.
    pub(in super::super) fn block(dim: usize, stride: usize) -> Self {
        let mut head = Self::default();
        head.grow(BLOCK_KEYS, dim, stride);
        head
    }

    /// Copies `count` tokens from token `start` of `source` to token `at`.
    pub(in super::super) fn copy(
        &mut self,
        at: usize,
        source: &Self,
        start: usize,
        count: usize,
        [dim, stride]: [usize; 2],
    ) {
        self.copy_scales(at, source, start, count);
        let mut done = 0;
        while done < count {
            let (from, to) = (start + done, at + done);
            // As many as lie side by side in a panel of either.
            let beside = (count - done).min(PANEL - from % PANEL).min(PANEL - to % PANEL);
            let (run, line) = (beside * E::BESIDE, PANEL * E::BESIDE);
            let width = dim.next_multiple_of(E::BESIDE) * PANEL - line + run;
            let from_keys = &source.keys[key::<E>(from, 0, dim)..][..width];
            let to_keys = &mut self.keys[key::<E>(to, 0, dim)..][..width];
            if run == line {
                to_keys.copy_from_slice(from_keys);
            } else {
                let lines = to_keys.chunks_mut(line).zip(from_keys.chunks(line));
                lines.for_each(|(to, from)| to[..run].copy_from_slice(&from[..run]));
            }
            self.copy_values(to, source, from, beside, stride);
            done += beside;
        }
    }

    /// The values of tokens that lie in one panel of keys of either.
    fn copy_values(&mut self, to: usize, source: &Self, from: usize, count: usize, stride: usize) {
        // Elements of so many tokens lie side by side: where these begin alike, they go as they lie.
        let before = from.next_multiple_of(E::BESIDE) - from;
        let alone = if from % E::BESIDE == to % E::BESIDE { before.min(count) } else { count };
        let run = (count - alone) / E::BESIDE * E::BESIDE;
        for panel in (0..stride * BLOCK_KEYS).step_by(BLOCK_KEYS * PANEL) {
            if run > 0 {
                let [from, to] = [from, to].map(|first| panel + value::<E>(first + alone, 0, stride));
                self.values[to..][..run * PANEL].copy_from_slice(&source.values[from..][..run * PANEL]);
            }
            for token in (0..alone).chain(alone + run..count) {
                let [from, to] = [from, to].map(|first| panel + value::<E>(first + token, 0, stride));
                for column in (0..PANEL * E::BESIDE).step_by(E::BESIDE) {
                    self.values[to + column] = source.values[from + column];
                }
            }
        }
    }

    fn copy_scales(&mut self, at: usize, source: &Self, start: usize, count: usize) {
        if E::SCALED {
            for (to, from) in self.scales.iter_mut().zip(&source.scales) {
                to[at..at + count].copy_from_slice(&from[start..start + count]);
            }
        }
    }

    pub(super) fn grow(&mut self, len: usize, dim: usize, stride: usize) -> (DisjointBuffer<E>, DisjointBuffer<E>) {
        self.keys.grow(len.next_multiple_of(PANEL) * dim.next_multiple_of(E::BESIDE));
        self.values.grow(len.next_multiple_of(BLOCK_KEYS) * stride);
        if E::SCALED {
            self.scales.iter_mut().for_each(|scales| scales.grow(len.next_multiple_of(BLOCK_KEYS)));
        }
        (DisjointBuffer::new(&mut self.keys), DisjointBuffer::new(&mut self.values))
    }
}

/// Where element `d` of key `token` lies.
pub(super) fn key<E: Loaded>(token: usize, d: usize, dim: usize) -> usize {
    token / PANEL * PANEL * dim.next_multiple_of(E::BESIDE) + in_panel::<E>(d, token % PANEL)
}

/// Where element `d` of value `token` lies.
pub(super) fn value<E: Loaded>(token: usize, d: usize, stride: usize) -> usize {
    let block = token / BLOCK_KEYS * BLOCK_KEYS * stride;
    block + d / PANEL * BLOCK_KEYS * PANEL + in_panel::<E>(token % BLOCK_KEYS, d % PANEL)
}

/// Where a row's element of a column lies in a panel.
fn in_panel<E: Loaded>(row: usize, column: usize) -> usize {
    row / E::BESIDE * E::BESIDE * PANEL + column * E::BESIDE + row % E::BESIDE
}
