//! Keys and values in 8 bits: codes, and a scale (bf16) for each token of a head. Attends to nothing.
//!
//! A row's codes and scale depend on that row alone: so its bits are the same in whatever block it lies and whatever came beside it. Keys
//! are turned by a Hadamard matrix before, as queries are when they are read, which changes no score: some models have keys with a
//! few elements that are hundreds of times the others, and one scale for all of them would leave nothing of these (QuaRot, Ashkboos et
//! al., 2024, section 4). Values are kept as they are.

use std::ops::Range;

use half::bf16;

use super::super::compute::Compute;
use super::super::lanes::{Element, Kernel, Lanes, PANEL};
use super::super::pool::{DisjointBuffer, Tasks};
use super::cache::{BLOCK_KEYS, Head, PanelCache, key, value};

/// Codes lie between this and its negative.
const MOST: f32 = 127.0;
/// Bytes of a scale.
const SCALE_BYTES: usize = size_of::<bf16>();

/// Elements of a head that are turned together: the largest power of two that divides it.
#[inline(always)]
fn side(dim: usize) -> usize {
    1 << dim.trailing_zeros()
}

/// Multiplies a row, block by block, with the Hadamard matrix of +1 and -1, which is [`side`] times its own inverse.
#[inline(always)]
fn hadamard(row: &mut [f32]) {
    let side = side(row.len());
    for block in row.chunks_exact_mut(side) {
        let mut step = 1;
        while step < side {
            for pair in block.chunks_exact_mut(2 * step) {
                let (low, high) = pair.split_at_mut(step);
                for (low, high) in low.iter_mut().zip(high) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
            step *= 2;
        }
    }
}

/// Turns a query so that its product with a turned key is that with the key. A key that is turned twice, the second time by this, is
/// itself.
#[inline(always)]
pub(super) fn turn_query(row: &mut [f32]) {
    hadamard(row);
    let factor = 1.0 / side(row.len()) as f32;
    row.iter_mut().for_each(|x| *x *= factor);
}

/// Codes of a row, and its scale: the least bf16 by which no code is beyond 127. No number where the row has one that is not finite.
#[inline(always)]
fn encode(row: &[f32], codes: &mut [i8]) -> bf16 {
    let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let bits = (largest / MOST).to_bits().wrapping_add(0xffff) >> 16;
    let scale = if row.iter().all(|x| x.is_finite()) { bf16::from_bits(bits as u16) } else { bf16::NAN };
    let wide = scale.widen();
    for (code, x) in codes.iter_mut().zip(row) {
        // What is no number becomes 0.
        *code = if wide > 0.0 { (x / wide).round_ties_even().clamp(-MOST, MOST) as i8 } else { 0 };
    }
    scale
}

impl PanelCache<i8> {
    /// Appends `tokens` rows of `k, v (heads, tokens, dim)`.
    pub(in super::super) fn keep<E: Element>(&mut self, k: &[E], v: &[E], tokens: usize, compute: &Compute) {
        let (start, dim, stride) = (self.len, self.dim, self.stride());
        self.len += tokens;
        let targets: Vec<_> =
            self.heads.iter_mut().map(|head| Target::of(head, start + tokens, [dim, stride])).collect();
        let blocks = tokens.div_ceil(PANEL);
        // Turning takes some operations an element.
        let tasks = Tasks { count: targets.len() * blocks, cost: 16 * k.len() };
        compute.pool.each(tasks, |task| {
            let (head, first) = (task / blocks, task % blocks * PANEL);
            let rows = first..tokens.min(first + PANEL);
            let from = [k, v].map(|x| &x[head * tokens * dim..][..tokens * dim]);
            compute.set.run(KeepRows { from, rows, start, sizes: [dim, stride], to: &targets[head] });
        });
    }

    /// The keys, then the values, that the codes stand for: `(heads, tokens, dim)`.
    pub(in super::super) fn widened<E: Element>(&self, compute: &Compute) -> [Vec<E>; 2] {
        let mut wide = [(); 2].map(|()| vec![E::default(); self.heads.len() * self.len * self.dim]);
        let to = wide.each_mut().map(|wide| DisjointBuffer::new(wide));
        let blocks = self.len.div_ceil(BLOCK_KEYS);
        let tasks = Tasks { count: self.heads.len() * blocks, cost: 16 * self.heads.len() * self.len * self.dim };
        compute.pool.each(tasks, |task| {
            let (head, first) = (task / blocks, task % blocks * BLOCK_KEYS);
            let rows = first..self.len.min(first + BLOCK_KEYS);
            // SAFETY: these rows are this task's alone.
            let to = to.each_ref().map(|to| unsafe {
                std::slice::from_raw_parts_mut(to.at((head * self.len + first) * self.dim), rows.len() * self.dim)
            });
            compute.set.run(WidenRows { cache: self, head: &self.heads[head], rows, to });
        });
        wide
    }

    /// Keys, then values, as they lie: of each head and token its codes, then its scale.
    pub(in super::super) fn raw(&self) -> Vec<u8> {
        let (dim, stride) = (self.dim, self.stride());
        let mut bytes = Vec::with_capacity(2 * self.heads.len() * self.len * (dim + SCALE_BYTES));
        for which in 0..2 {
            for head in &self.heads {
                for token in 0..self.len {
                    match which {
                        0 => bytes.extend((0..dim).map(|d| head.keys[key::<i8>(token, d, dim)] as u8)),
                        _ => bytes.extend((0..dim).map(|d| head.values[value::<i8>(token, d, stride)] as u8)),
                    }
                    bytes.extend(head.scales[which][token].to_le_bytes());
                }
            }
        }
        bytes
    }

    /// A cache of what [`PanelCache::raw`] gave, keys and values apart; none of another number of bytes.
    pub(in super::super) fn of_raw([heads, tokens, dim]: [usize; 3], raw: [&[u8]; 2]) -> Option<Self> {
        let mut cache = Self::new(heads, dim);
        let (stride, row) = (cache.stride(), dim + SCALE_BYTES);
        if raw.iter().any(|raw| raw.len() != heads * tokens * row) {
            return None;
        }
        cache.len = tokens;
        for (at, head) in cache.heads.iter_mut().enumerate() {
            head.grow(tokens, dim, stride);
            for token in 0..tokens {
                for (which, raw) in raw.iter().enumerate() {
                    let (codes, scale) = raw[(at * tokens + token) * row..][..row].split_at(dim);
                    for (d, code) in codes.iter().enumerate() {
                        match which {
                            0 => head.keys[key::<i8>(token, d, dim)] = *code as i8,
                            _ => head.values[value::<i8>(token, d, stride)] = *code as i8,
                        }
                    }
                    head.scales[which][token] = bf16::from_le_bytes([scale[0], scale[1]]);
                }
            }
        }
        Some(cache)
    }
}

/// Where rows of a head go.
struct Target {
    keys: DisjointBuffer<i8>,
    values: DisjointBuffer<i8>,
    scales: [DisjointBuffer<bf16>; 2],
}

impl Target {
    /// With room for so many tokens.
    fn of(head: &mut Head<i8>, tokens: usize, [dim, stride]: [usize; 2]) -> Self {
        let (keys, values) = head.grow(tokens, dim, stride);
        Self { keys, values, scales: head.scales.each_mut().map(|scales| DisjointBuffer::new(scales)) }
    }
}

/// Rows of a head on their way into its cache, behind the first `start`.
struct KeepRows<'a, E> {
    /// Keys, then values, `(tokens, dim)`.
    from: [&'a [E]; 2],
    rows: Range<usize>,
    start: usize,
    /// Of a head, and of its values in whole panels.
    sizes: [usize; 2],
    to: &'a Target,
}

impl<E: Element> Kernel for KeepRows<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { from, rows, start, sizes: [dim, stride], to } = self;
        let (mut row, mut codes) = (vec![0.0; dim], vec![0; dim]);
        for token in rows {
            for (which, from) in from.iter().enumerate() {
                row.iter_mut().zip(&from[token * dim..]).for_each(|(to, x)| *to = x.widen());
                if which == 0 {
                    hadamard(&mut row);
                }
                let scale = encode(&row, &mut codes);
                let at = start + token;
                // SAFETY: the cache has room for the token, whose elements this task alone writes.
                unsafe {
                    *to.scales[which].at(at) = scale;
                    for (d, code) in codes.iter().enumerate() {
                        match which {
                            0 => *to.keys.at(key::<i8>(at, d, dim)) = *code,
                            _ => *to.values.at(value::<i8>(at, d, stride)) = *code,
                        }
                    }
                }
            }
        }
    }
}

/// Rows of a head on their way out of its cache.
struct WidenRows<'a, E> {
    cache: &'a PanelCache<i8>,
    head: &'a Head<i8>,
    rows: Range<usize>,
    /// Keys, then values, of these rows.
    to: [&'a mut [E]; 2],
}

impl<E: Element> Kernel for WidenRows<'_, E> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { cache, head, rows, to } = self;
        let (dim, stride) = (cache.dim, cache.stride());
        let mut row = vec![0.0; dim];
        for (which, to) in to.into_iter().enumerate() {
            for (token, to) in rows.clone().zip(to.chunks_exact_mut(dim)) {
                let scale = head.scales[which][token].widen();
                for (d, x) in row.iter_mut().enumerate() {
                    let code = if which == 0 {
                        head.keys[key::<i8>(token, d, dim)]
                    } else {
                        head.values[value::<i8>(token, d, stride)]
                    };
                    *x = f32::from(code) * scale;
                }
                if which == 0 {
                    turn_query(&mut row);
                }
                to.iter_mut().zip(&row).for_each(|(to, x)| *to = E::narrow(*x));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_code_is_off_by_half_a_step_at_most(row in prop::collection::vec(-1e4f32..1e4, 1..130), power in -30i32..30) {
            let row: Vec<f32> = row.iter().map(|x| x * (power as f32).exp2()).collect();
            let mut codes = vec![0; row.len()];
            let scale = encode(&row, &mut codes).widen();
            let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            // A bf16 is at most 2^-7 above what it is rounded up from.
            prop_assert!(scale >= largest / 127.0 && scale <= largest / 127.0 * (1.0 + 1.01 / 128.0));
            for (code, x) in codes.iter().zip(&row) {
                prop_assert!((f32::from(*code) * scale - x).abs() <= 0.50001 * scale, "{x} became {code} of {scale}");
            }
        }

        #[test]
        fn what_is_turned_twice_is_itself(row in prop::collection::vec(-9f32..9.0, 96)) {
            for dim in [1, 3, 24, 32, 96] {
                let (row, mut turned) = (&row[..dim], row[..dim].to_vec());
                hadamard(&mut turned);
                let (mut query, slow) = (row.to_vec(), row.iter().map(|x| f64::from(x * x)).sum::<f64>());
                turn_query(&mut query);
                let product: f64 = query.iter().zip(&turned).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                prop_assert!((product - slow).abs() <= 1e-4 * (1.0 + slow), "{product} of {slow}");
                turn_query(&mut turned);
                prop_assert!(row.iter().zip(&turned).all(|(x, y)| (x - y).abs() < 1e-4));
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_no_number_is_none() {
        let mut codes = [3; 4];
        assert_eq!((encode(&[0.0, -0.0, 0.0, 0.0], &mut codes), codes), (bf16::ZERO, [0; 4]));
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(encode(&[1.0, odd, 0.0, 0.0], &mut codes).is_nan());
        }
        assert!(encode(&[f32::MAX, 1.0, -f32::MAX, f32::MIN_POSITIVE], &mut codes).is_finite());
        assert!(codes[0] >= 126);
        assert_eq!(codes, [codes[0], 0, -codes[0], 0]);
    }
}
