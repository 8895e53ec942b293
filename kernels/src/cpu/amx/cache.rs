//! Keys and values of one layer, packed for the tile unit as they arrive. Computes nothing.

use std::ops::Range;

use half::bf16;

use super::buffer::AmxBuffer;
use super::engine::{BLOCK_SIDE, Engine, LANES, Rows, STEP_ELEMENTS, TILE_ELEMENTS};
use super::{Parallel, dispatch};

/// `len` tokens of each KV head, in blocks of 32: a panel of `A` over the head's elements (the keys), then for each 32
/// elements a step of `A` over the block's tokens (the values, transposed). What lies beyond `len` is zero.
pub struct AmxCache {
    heads: Vec<AmxBuffer>,
    dim: usize,
    len: usize,
    /// Blocks that each head has room for.
    room: usize,
}

impl AmxCache {
    /// No tokens of `heads` heads of `dim` elements, a multiple of 16.
    pub fn new(heads: usize, dim: usize) -> Self {
        assert!(dim > 0 && dim.is_multiple_of(LANES), "the head size must be a multiple of {LANES}");
        Self { heads: (0..heads).map(|_| AmxBuffer::new(0)).collect(), dim, len: 0, room: 0 }
    }

    /// Tokens held.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// KV heads.
    pub fn heads(&self) -> usize {
        self.heads.len()
    }

    /// Elements of a head.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Bytes held, room to grow included.
    pub fn bytes(&self) -> usize {
        self.heads.iter().map(AmxBuffer::bytes).sum()
    }

    /// Appends the rows of `keys, values (heads, tokens, dim)`.
    pub fn append(&mut self, keys: &[bf16], values: &[bf16], parallel: Parallel<'_>) {
        let row = self.heads.len() * self.dim;
        assert!(
            keys.len() == values.len() && keys.len().is_multiple_of(row),
            "keys and values must be (heads, t, dim)"
        );
        let tokens = keys.len() / row;
        self.reserve((self.len + tokens).div_ceil(BLOCK_SIDE));
        let [keys, values] = [keys, values].map(|data| Rows {
            data: data.as_ptr().cast(),
            stride: self.dim,
            rows: tokens,
            columns: self.dim,
        });
        dispatch!(append_with(self, keys, values, parallel));
        self.len += tokens;
    }

    /// Appends the tokens of another cache of as many heads of the same size.
    pub fn extend(&mut self, more: &Self) {
        assert!(more.heads.len() == self.heads.len() && more.dim == self.dim, "caches of the same shape");
        self.reserve((self.len + more.len).div_ceil(BLOCK_SIDE));
        for (from, to) in more.heads.iter().zip(&self.heads) {
            // SAFETY: the one head holds the tokens, the other has room for them behind its own.
            unsafe { self.copy_tokens([from.pointer(), to.pointer()], 0, self.len, more.len) };
        }
        self.len += more.len;
    }

    /// Forgets all but the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{len} of {} tokens", self.len);
        let columns = self.steps() * BLOCK_SIDE;
        for head in &self.heads {
            let head = head.pointer::<u16>();
            for (token, column) in (len..self.len).flat_map(|token| (0..columns).map(move |column| (token, column))) {
                // SAFETY: the head holds the token, and nobody else has it.
                unsafe { (*head.add(self.key(token, column)), *head.add(self.value(token, column))) = (0, 0) }
            }
        }
        self.len = len;
    }

    /// A copy of tokens `start..end`.
    pub fn rows(&self, start: usize, end: usize) -> Self {
        assert!(start <= end && end <= self.len, "rows {start}..{end} of {}", self.len);
        let mut copy = Self::new(self.heads.len(), self.dim);
        copy.reserve((end - start).div_ceil(BLOCK_SIDE));
        copy.len = end - start;
        for (from, to) in self.heads.iter().zip(&copy.heads) {
            // SAFETY: both heads hold the tokens named.
            unsafe { self.copy_tokens([from.pointer(), to.pointer()], start, 0, end - start) };
        }
        copy
    }

    /// A copy of `count` tokens of a head, the first of those in `ranges`.
    pub fn listed(&self, head: usize, ranges: &[Range<u32>], count: usize) -> Self {
        let mut copy = Self::new(1, self.dim);
        copy.reserve(count.div_ceil(BLOCK_SIDE));
        for range in ranges {
            let (start, take) = (range.start as usize, range.len().min(count - copy.len));
            assert!(start + take <= self.len, "tokens {start}.. of {}", self.len);
            // SAFETY: the source holds the tokens, the copy has room for `count`.
            unsafe { self.copy_tokens([self.heads[head].pointer(), copy.heads[0].pointer()], start, copy.len, take) };
            copy.len += take;
        }
        assert_eq!(copy.len, count, "as many tokens as were asked for");
        copy
    }

    /// Copies `count` tokens from `start` on to `at`, between heads laid out as this cache's.
    ///
    /// # Safety
    /// `from` must hold the tokens and `to` have room for them, and nobody else write there.
    unsafe fn copy_tokens(&self, [from, to]: [*mut u16; 2], start: usize, at: usize, count: usize) {
        let columns = self.steps() * BLOCK_SIDE;
        let mut token = 0;
        while token < count {
            let (source, target) = (start + token, at + token);
            if source.is_multiple_of(BLOCK_SIDE) && target.is_multiple_of(BLOCK_SIDE) && count - token >= BLOCK_SIDE {
                let [source, target] = [source, target].map(|token| token / BLOCK_SIDE * self.block());
                // SAFETY: the caller's promise; a whole block.
                unsafe { to.add(target).copy_from_nonoverlapping(from.add(source), self.block()) };
                token += BLOCK_SIDE;
                continue;
            }
            for column in (0..columns).step_by(BLOCK_SIDE) {
                let [source, target] = [source, target].map(|token| self.key(token, column));
                // SAFETY: the caller's promise; a key's 32 elements of a step lie side by side.
                unsafe { to.add(target).copy_from_nonoverlapping(from.add(source), BLOCK_SIDE) };
            }
            for column in 0..columns {
                // SAFETY: as above.
                unsafe { *to.add(self.value(target, column)) = *from.add(self.value(source, column)) }
            }
            token += 1;
        }
    }

    /// Keys and values of a head as `(tokens, dim)`.
    pub(in super::super) fn unpack(&self, head: usize) -> [Vec<bf16>; 2] {
        let head = self.heads[head].pointer::<bf16>().cast_const();
        let [mut keys, mut values] = [(); 2].map(|()| Vec::with_capacity(self.len * self.dim));
        for (token, column) in (0..self.len).flat_map(|token| (0..self.dim).map(move |column| (token, column))) {
            // SAFETY: the head holds the token.
            unsafe {
                keys.push(*head.add(self.key(token, column)));
                values.push(*head.add(self.value(token, column)));
            }
        }
        [keys, values]
    }

    /// Block `index` of a head; its values follow its keys after half a [`AmxCache::block`].
    ///
    /// # Safety
    /// The block must hold tokens.
    pub(super) unsafe fn at(&self, head: usize, index: usize) -> *const u16 {
        // SAFETY: the caller names a block there is.
        unsafe { self.heads[head].pointer::<u16>().add(index * self.block()) }
    }

    /// bf16 elements of a block, keys and values.
    pub(super) fn block(&self) -> usize {
        2 * self.steps() * STEP_ELEMENTS
    }

    /// Steps of 32 across a head.
    pub(super) fn steps(&self) -> usize {
        self.dim.div_ceil(BLOCK_SIDE)
    }

    /// Where a key's element lies.
    fn key(&self, token: usize, column: usize) -> usize {
        token / BLOCK_SIDE * self.block()
            + column / BLOCK_SIDE * STEP_ELEMENTS
            + token % BLOCK_SIDE * BLOCK_SIDE
            + column % BLOCK_SIDE
    }

    /// Where a value's element lies.
    fn value(&self, token: usize, column: usize) -> usize {
        token / BLOCK_SIDE * self.block()
            + self.block() / 2
            + column / LANES * TILE_ELEMENTS
            + column % LANES * BLOCK_SIDE
            + token % BLOCK_SIDE
    }

    /// Makes room for `blocks` blocks, half as much again as there was at least; new blocks are zero.
    fn reserve(&mut self, blocks: usize) {
        if blocks <= self.room {
            return;
        }
        let (old, size) = (self.len.div_ceil(BLOCK_SIDE), self.block());
        self.room = blocks.max(self.room + self.room / 2);
        for head in &mut self.heads {
            let larger = AmxBuffer::new(self.room * size * size_of::<u16>());
            // SAFETY: the new buffer has `room` blocks, the old one those in use.
            unsafe {
                larger.pointer::<u16>().copy_from_nonoverlapping(head.pointer(), old * size);
                larger.pointer::<u16>().add(old * size).write_bytes(0, (self.room - old) * size);
            }
            *head = larger;
        }
    }
}

impl Clone for AmxCache {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.heads.len(), self.dim);
        copy.reserve(self.len.div_ceil(BLOCK_SIDE));
        copy.len = self.len;
        for (from, to) in self.heads.iter().zip(&copy.heads) {
            let used = self.len.div_ceil(BLOCK_SIDE) * self.block();
            // SAFETY: both buffers have the blocks in use.
            unsafe { to.pointer::<u16>().copy_from_nonoverlapping(from.pointer(), used) }
        }
        copy
    }
}

/// Writes the rows after the cache's last; `len` stays.
///
/// # Safety
/// The machine must suit the engine, the cache have room, and the operands be `(heads, rows, dim)`.
unsafe fn append_with<E: Engine>(cache: &AmxCache, keys: Rows, values: Rows, parallel: Parallel<'_>) {
    let (tokens, start) = (keys.rows, cache.len);
    let (first, last) = (start / BLOCK_SIDE, (start + tokens).div_ceil(BLOCK_SIDE));
    parallel(cache.heads.len() * (last - first), &|task| {
        let (head, block) = (task / (last - first), first + task % (last - first));
        let from = (block * BLOCK_SIDE).max(start) - start;
        let rows = (tokens - from).min((block + 1) * BLOCK_SIDE - start - from);
        let band = |source: &Rows| Rows { rows, ..source.band(head * tokens + from) };
        // SAFETY: these rows are the operands', and the block is this task's alone.
        unsafe {
            let (keys, values) = (band(&keys), band(&values));
            if rows == BLOCK_SIDE {
                pack_block::<E>(cache, keys, values, cache.at(head, block).cast_mut());
            } else {
                append_rows(cache, [keys, values], cache.heads[head].pointer(), start + from);
            }
        }
    });
}

/// Packs 32 tokens as a whole block.
///
/// # Safety
/// As [`append_with`]; `target` is a block.
unsafe fn pack_block<E: Engine>(cache: &AmxCache, keys: Rows, values: Rows, target: *mut u16) {
    // SAFETY: the panel of keys fills the first half of the block, the values' tiles the second.
    unsafe {
        E::pack_rows(keys, target);
        let target = target.add(cache.block() / 2);
        for tile in 0..cache.dim / LANES {
            let source = Rows { data: values.data.add(tile * LANES), columns: LANES, ..values };
            E::pack_transposed(source, target.add(tile * TILE_ELEMENTS));
        }
    }
}

/// Writes some tokens of a block, element by element.
///
/// # Safety
/// `head` must have room for the tokens from `start` on, and nobody else write them.
unsafe fn append_rows(cache: &AmxCache, [keys, values]: [Rows; 2], head: *mut u16, start: usize) {
    for row in 0..keys.rows {
        for column in 0..cache.dim {
            // SAFETY: the operands have the row; the head has room for the token.
            unsafe {
                *head.add(cache.key(start + row, column)) = *keys.data.add(row * keys.stride + column);
                *head.add(cache.value(start + row, column)) = *values.data.add(row * values.stride + column);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{alone, numbers, threads};
    use super::*;

    const HEADS: usize = 2;

    fn contents(cache: &AmxCache) -> Vec<u16> {
        let blocks = cache.len.div_ceil(BLOCK_SIDE) * cache.block();
        let head = |head: &AmxBuffer| {
            // SAFETY: the blocks in use are initialised.
            unsafe { std::slice::from_raw_parts(head.pointer::<u16>().cast_const(), blocks) }.to_vec()
        };
        cache.heads.iter().flat_map(head).collect()
    }

    /// Rows `range` of `(heads, total, dim)`.
    fn cut(data: &[bf16], total: usize, dim: usize, range: std::ops::Range<usize>) -> Vec<bf16> {
        (0..HEADS).flat_map(|head| &data[(head * total + range.start) * dim..][..range.len() * dim]).copied().collect()
    }

    #[test]
    fn pieces_and_copies_hold_what_the_whole_holds() {
        for dim in [16, 48, 64] {
            let total = 150;
            let (keys, values) = (numbers(1, HEADS * total * dim), numbers(2, HEADS * total * dim));
            let mut whole = AmxCache::new(HEADS, dim);
            whole.append(&keys, &values, &threads);
            assert_eq!(whole.len(), total);
            let mut pieces = AmxCache::new(HEADS, dim);
            let mut start = 0;
            for end in [1, 2, 31, 70, 128, 129, total] {
                let [keys, values] = [&keys, &values].map(|data| cut(data, total, dim, start..end));
                pieces.append(&keys, &values, &alone);
                start = end;
            }
            assert_eq!(contents(&pieces), contents(&whole));
            assert_eq!(contents(&whole.clone()), contents(&whole));
            let mut cut_back = whole.clone();
            for end in [149, 129, 70, 33] {
                cut_back.truncate(end);
                assert_eq!(contents(&cut_back), contents(&whole.rows(0, end)), "what lies beyond {end} is zero");
            }
            let mut middle = AmxCache::new(HEADS, dim);
            let [keys, values] = [&keys, &values].map(|data| cut(data, total, dim, 5..133));
            middle.append(&keys, &values, &alone);
            assert_eq!(contents(&whole.rows(5, 133)), contents(&middle));
            assert_eq!((whole.len(), whole.heads(), whole.dim(), middle.len()), (total, HEADS, dim, 128));
        }
    }

    #[test]
    fn values_are_transposed_within_a_block() {
        let mut cache = AmxCache::new(1, 16);
        let values: Vec<bf16> = (0..32 * 16).map(bf16::from_bits).collect();
        cache.append(&values, &values, &alone);
        let packed = contents(&cache);
        // token 3, element 5: keys by token, values by element
        assert_eq!((packed[3 * 32 + 5], packed[STEP_ELEMENTS + 5 * 32 + 3]), (53, 53));
        assert!(
            packed[STEP_ELEMENTS + TILE_ELEMENTS..].iter().all(|&bits| bits == 0),
            "the missing half of a step is zero"
        );
    }
}
