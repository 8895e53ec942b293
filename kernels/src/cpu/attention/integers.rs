//! Rows over a block of keys and values in 8 bits, by sums of integers: queries in 24 bits, weights in 16, each split into bytes. Sums are
//! exact, so that a row's bits depend on no order. Knows no mask.
//!
//! A query's unit is its largest element's; a weight's that of the row's largest weight in the block, times its value's scale.

use std::marker::PhantomData;
use std::ops::Range;

use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::super::lanes::VnniQuads;
use super::super::lanes::{Lanes, PANEL, QUAD_BYTES, QuadLanes, Sums, fetch_ahead};
use super::cache::BLOCK_KEYS;

/// Bytes of a query's element, and of a weight.
const QUERY_BYTES: usize = 3;
const WEIGHT_BYTES: usize = 2;
/// What the largest element of a query becomes, before it is rounded: 127 in the highest of three bytes with sign.
const QUERY_UNITS: f32 = 0x7f_7f00 as f32;
/// What the largest weight of a block becomes.
const WEIGHT_UNITS: f32 = 0xffff as f32;
/// Weights up to this, times the scales of values, are taken for 0: their units had no inverse.
const LEAST_WEIGHT: f32 = f32::MIN_POSITIVE * 65_536.0;
/// The most elements of a head whose sums fit 32 bits.
const MOST_ELEMENTS: usize = 512;
/// Panels and rows of a register tile.
const INTEGER_PANELS: usize = 2;
const INTEGER_ROWS: usize = 4;

/// Rows as integers. Empty where integers are not multiplied.
#[derive(Default)]
pub(super) struct IntegerRows {
    /// Words of four bytes of each query: for each four elements their lowest bytes, the middle and the highest ones.
    queries: Vec<[i32; QUERY_BYTES]>,
    /// Of each row: what makes up for keys that are 128 too large, and the query's unit.
    lifted: Vec<[i32; QUERY_BYTES]>,
    query_units: Vec<f32>,
    /// Lower, then upper bytes of the weights of each row.
    weights: Vec<[[u8; BLOCK_KEYS]; WEIGHT_BYTES]>,
    weight_units: Vec<f32>,
}

impl IntegerRows {
    /// Whether there are any.
    pub(super) fn taken(&self) -> bool {
        !self.query_units.is_empty()
    }

    /// Takes up queries `(rows, dim)` where vectors `L` multiply integers and sums of so many fit; else none.
    pub(super) fn take<L: Lanes>(&mut self, q: &[f32], dim: usize) {
        self.queries.clear();
        self.lifted.clear();
        self.query_units.clear();
        if !L::multiplies_codes() || dim > MOST_ELEMENTS {
            return;
        }
        for row in q.chunks_exact(dim) {
            self.take_query(row);
        }
        self.make_room(self.query_units.len());
    }

    /// For the weights of so many rows.
    fn make_room(&mut self, rows: usize) {
        self.weights.resize(rows, [[0; BLOCK_KEYS]; WEIGHT_BYTES]);
        self.weight_units.resize(rows, 0.0);
    }

    fn take_query(&mut self, row: &[f32]) {
        let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let finite = row.iter().all(|x| x.is_finite());
        // So small a query has no score that differs from 0.
        let inverse = if largest > LEAST_WEIGHT { QUERY_UNITS / largest } else { 0.0 };
        let mut sums = [0; QUERY_BYTES];
        for four in row.chunks(4) {
            let mut words = [[0u8; 4]; QUERY_BYTES];
            for (at, x) in four.iter().enumerate() {
                let scaled = x * inverse;
                let mut rest = (scaled + 0.5f32.copysign(scaled)) as i32;
                for (word, sum) in words.iter_mut().zip(&mut sums) {
                    let byte = rest as i8;
                    rest = (rest - i32::from(byte)) >> 8;
                    word[at] = byte as u8;
                    *sum += i32::from(byte);
                }
            }
            self.queries.push(words.map(i32::from_le_bytes));
        }
        self.lifted.push(sums.map(|sum| -128 * sum));
        self.query_units.push(if finite { largest / QUERY_UNITS } else { f32::NAN });
    }

    /// Scores of some rows and the first keys of a block, in whole panels, times the scales of the keys: `(rows, BLOCK_KEYS)`.
    ///
    /// # Safety
    /// The keys and their scales must be there, and `scores` have room for the rows.
    pub(super) unsafe fn score(&self, rows: Range<usize>, keys: ScaledKeys, scores: *mut f32) {
        let quads = self.queries.len() / self.query_units.len();
        let call = Scores { rows: self, range: rows, keys, quads, scores };
        // SAFETY: the caller's promise; rows were taken where the processor has the instructions.
        unsafe { each(call) }
    }

    /// Takes the weights of a row, times the scales of their values, for the first `seen` keys. `weights` is spent.
    ///
    /// # Safety
    /// `weights` must hold [`BLOCK_KEYS`] elements that are not negative.
    #[inline(always)]
    pub(super) unsafe fn take_weights<L: Lanes>(&mut self, row: usize, weights: *mut f32, seen: usize) {
        /// Adding this leaves a number below 2^16 in the low bits, rounded.
        const ROUND: f32 = 8_388_608.0;
        let width = seen.next_multiple_of(PANEL);
        // SAFETY: the caller's promise; BLOCK_KEYS is whole panels, and a panel whole vectors.
        unsafe {
            for at in seen..width {
                *weights.add(at) = 0.0;
            }
            let (mut largest, mut sum) = (L::zero(), L::zero());
            for at in (0..width).step_by(L::N) {
                let weights = L::load(weights.add(at));
                (largest, sum) = (largest.max(weights), sum.add(weights));
            }
            let (largest, sum) = (largest.largest(), sum.sum());
            let inverse = if largest > LEAST_WEIGHT { WEIGHT_UNITS / largest } else { 0.0 };
            let unit = if largest > LEAST_WEIGHT { largest / WEIGHT_UNITS } else { 0.0 };
            self.weight_units[row] = if sum.is_nan() { f32::NAN } else { unit };
            for at in (0..width).step_by(L::N) {
                let weights = weights.add(at);
                L::load(weights).mul_add(L::splat(inverse), L::splat(ROUND)).store(weights);
            }
            let bits = std::slice::from_raw_parts(weights.cast::<u32>(), BLOCK_KEYS).as_chunks::<PANEL>().0;
            let [low, high] = &mut self.weights[row];
            let (low, high) = (low.as_chunks_mut().0, high.as_chunks_mut().0);
            for (bits, (low, high)) in bits.iter().zip(low.iter_mut().zip(high)) {
                (*low, *high) = (bits.map(|bits| bits as u8), bits.map(|bits| (bits >> 8) as u8));
            }
        }
    }

    /// Multiplies the weights of some rows with values of a block, those of the keys that were seen.
    ///
    /// # Safety
    /// The block must hold the values; [`IntegerRows::take_weights`] must have gone before for as many keys. `sums` must be fit for
    /// the rows.
    pub(super) unsafe fn gather<L: Lanes, S: Sums>(&self, rows: Range<usize>, values: BlockValues, sums: &S) {
        // SAFETY: as in `score`.
        unsafe { each(Values { rows: self, range: rows, values, sums, lanes: PhantomData::<L> }) }
    }
}

/// Panels of keys and their scales.
#[derive(Clone, Copy)]
pub(super) struct ScaledKeys {
    pub codes: *const i8,
    pub scales: *const bf16,
    pub panels: usize,
}

/// Panels of a block's values.
#[derive(Clone, Copy)]
pub(super) struct BlockValues {
    pub codes: *const i8,
    pub seen: usize,
    pub panels: usize,
}

/// Something computed by register tiles of panels and rows.
trait Tiled {
    fn panels(&self) -> usize;
    fn rows(&self) -> Range<usize>;

    /// # Safety
    /// The operands must have the panels and rows from there on.
    unsafe fn tile<Q: QuadLanes, const R: usize, const V: usize>(&self, row: usize, panel: usize);
}

/// All tiles, by AVX-512 VNNI. There are no rows as integers where the processor lacks it.
///
/// # Safety
/// The operands must be what the call says, and the processor have the instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn each<T: Tiled>(call: T) {
    // SAFETY: the caller's promise.
    unsafe { tiles::<VnniQuads, T>(&call) }
}

/// All tiles, in plain Rust.
///
/// # Safety
/// The operands must be what the call says.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn each<T: Tiled>(call: T) {
    // SAFETY: the caller's promise.
    unsafe { tiles::<[i32; PANEL], T>(&call) }
}

/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn tiles<Q: QuadLanes, T: Tiled>(call: &T) {
    let mut panel = 0;
    while panel < call.panels() {
        // SAFETY: the caller's promise.
        panel += unsafe {
            match call.panels() - panel {
                INTEGER_PANELS.. => column::<Q, T, INTEGER_PANELS>(call, panel),
                _ => column::<Q, T, 1>(call, panel),
            }
        };
    }
}

/// # Safety
/// As [`each`].
#[inline(always)]
unsafe fn column<Q: QuadLanes, T: Tiled, const V: usize>(call: &T, panel: usize) -> usize {
    let Range { start, end } = call.rows();
    for row in (start..end).step_by(INTEGER_ROWS) {
        // SAFETY: the caller's promise.
        unsafe {
            match end - row {
                1 => call.tile::<Q, 1, V>(row, panel),
                2 => call.tile::<Q, 2, V>(row, panel),
                3 => call.tile::<Q, 3, V>(row, panel),
                _ => call.tile::<Q, INTEGER_ROWS, V>(row, panel),
            }
        }
    }
    V
}

struct Scores<'a> {
    rows: &'a IntegerRows,
    range: Range<usize>,
    keys: ScaledKeys,
    /// Words of a query.
    quads: usize,
    scores: *mut f32,
}

impl Tiled for Scores<'_> {
    fn panels(&self) -> usize {
        self.keys.panels
    }
    fn rows(&self) -> Range<usize> {
        self.range.clone()
    }

    #[inline(always)]
    unsafe fn tile<Q: QuadLanes, const R: usize, const V: usize>(&self, row: usize, panel: usize) {
        let Self { rows, quads, .. } = *self;
        let of_panel = quads * QUAD_BYTES;
        // SAFETY: the caller's promise.
        unsafe {
            let keys = self.keys.codes.add(panel * of_panel);
            let queries = rows.queries.as_ptr().add(row * quads);
            let mut sums = [[[Q::splat(0); V]; QUERY_BYTES]; R];
            for (r, sums) in sums.iter_mut().enumerate() {
                for (sums, lifted) in sums.iter_mut().zip(rows.lifted[row + r]) {
                    *sums = [Q::splat(lifted); V];
                }
            }
            for quad in 0..quads {
                let mut lifted = [Q::splat(0); V];
                for (v, lifted) in lifted.iter_mut().enumerate() {
                    let keys = keys.add(v * of_panel + quad * QUAD_BYTES);
                    fetch_ahead(keys.wrapping_add(BLOCK_KEYS / PANEL * of_panel));
                    *lifted = Q::load(keys).lift();
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (sums, word) in sums.iter_mut().zip(*queries.add(r * quads + quad)) {
                        let word = Q::splat(word);
                        for (sum, keys) in sums.iter_mut().zip(lifted) {
                            *sum = sum.add_products(keys, word);
                        }
                    }
                }
            }
            for (r, [low, middle, high]) in sums.into_iter().enumerate() {
                let (unit, row) = (rows.query_units[row + r], row + r - self.range.start);
                for v in 0..V {
                    let key = (panel + v) * PANEL;
                    let to = self.scores.add(row * BLOCK_KEYS + key);
                    high[v].store_scaled(middle[v].join(low[v]), unit, self.keys.scales.add(key), to);
                }
            }
        }
    }
}

struct Values<'a, S, L> {
    rows: &'a IntegerRows,
    range: Range<usize>,
    values: BlockValues,
    sums: &'a S,
    lanes: PhantomData<L>,
}

impl<S: Sums, L: Lanes> Tiled for Values<'_, S, L> {
    fn panels(&self) -> usize {
        self.values.panels
    }
    fn rows(&self) -> Range<usize> {
        self.range.clone()
    }

    #[inline(always)]
    unsafe fn tile<Q: QuadLanes, const R: usize, const V: usize>(&self, row: usize, panel: usize) {
        const OF_PANEL: usize = BLOCK_KEYS * PANEL;
        let Self { rows, values: BlockValues { codes, seen, panels }, .. } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            let values = codes.add(panel * OF_PANEL);
            let weights = rows.weights.as_ptr().add(row).cast::<[[u8; 4]; BLOCK_KEYS / 4]>();
            let mut sums = [[[Q::splat(0); V]; WEIGHT_BYTES]; R];
            for quad in 0..seen.div_ceil(4) {
                let mut codes = [Q::splat(0); V];
                for (v, codes) in codes.iter_mut().enumerate() {
                    let values = values.add(v * OF_PANEL + quad * QUAD_BYTES);
                    fetch_ahead(values.wrapping_add(panels * OF_PANEL));
                    *codes = Q::load(values);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (byte, sums) in sums.iter_mut().enumerate() {
                        let word = (*weights.add(r * WEIGHT_BYTES + byte))[quad];
                        let word = Q::splat(i32::from_le_bytes(word));
                        for (sum, codes) in sums.iter_mut().zip(codes) {
                            *sum = sum.add_products(word, codes);
                        }
                    }
                }
            }
            for (r, [low, high]) in sums.into_iter().enumerate() {
                for v in 0..V {
                    let mut sums = [0.0; PANEL];
                    high[v].join(low[v]).store_times(rows.weight_units[row + r], sums.as_mut_ptr());
                    for at in (0..PANEL).step_by(L::N) {
                        let (row, column) = (row + r - self.range.start, (panel + v) * PANEL + at);
                        self.sums.finish::<L, 1, 1>(row, column, [[L::load(sums.as_ptr().add(at))]]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::PortableLanes;
    use super::*;

    /// Numbers in [-1, 1).
    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let bits = |i: u32| i.wrapping_mul(0x9e37_79b1).rotate_left(13).wrapping_mul(0x85eb_ca6b) >> 8;
        (0..n as u32).map(|i| bits(i + 7919 * seed) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    fn codes(n: usize, seed: u32) -> Vec<i8> {
        numbers(n, seed).into_iter().map(|x| (x * 127.9) as i8).collect()
    }

    const ROWS: usize = 7;
    const DIM: usize = 80;
    const SEEN: usize = 101;

    fn rows(q: &[f32], weights: &[f32]) -> IntegerRows {
        let mut rows = IntegerRows::default();
        for (row, q) in q.chunks_exact(DIM).enumerate() {
            rows.take_query(q);
            rows.make_room(row + 1);
            let mut weights = weights[row * BLOCK_KEYS..][..BLOCK_KEYS].to_vec();
            // SAFETY: as many as a block.
            unsafe { rows.take_weights::<PortableLanes>(row, weights.as_mut_ptr(), SEEN) };
        }
        rows
    }

    /// Scores and weighted values by some lanes, or the fastest.
    fn computed(rows: &IntegerRows, [k, v]: [&[i8]; 2], scales: &[bf16], portable: bool) -> [Vec<f32>; 2] {
        let (mut scores, mut sums) = (vec![0.0; ROWS * BLOCK_KEYS], vec![0.0; ROWS * DIM]);
        let keys = ScaledKeys { codes: k.as_ptr(), scales: scales.as_ptr(), panels: SEEN.div_ceil(PANEL) };
        let values = BlockValues { codes: v.as_ptr(), seen: SEEN, panels: DIM / PANEL };
        let raw = super::super::sums::Raw { output: sums.as_mut_ptr(), stride: DIM };
        let call = Scores { rows, range: 0..ROWS, keys, quads: DIM / 4, scores: scores.as_mut_ptr() };
        let of_values = Values { rows, range: 0..ROWS, values, sums: &raw, lanes: PhantomData::<PortableLanes> };
        // SAFETY: the operands are as large as that.
        unsafe {
            if portable {
                tiles::<[i32; PANEL], _>(&call);
                tiles::<[i32; PANEL], _>(&of_values);
            } else {
                each(call);
                each(of_values);
            }
        }
        [scores, sums]
    }

    #[test]
    fn sums_are_those_of_the_numbers_and_the_same_bits_by_any_instructions() {
        let (q, mut weights) = (numbers(ROWS * DIM, 1), numbers(ROWS * BLOCK_KEYS, 2));
        weights.iter_mut().for_each(|x| *x = x.abs());
        let (k, v) = (codes(BLOCK_KEYS * DIM, 3), codes(BLOCK_KEYS * DIM, 4));
        let scales: Vec<bf16> = numbers(BLOCK_KEYS, 5).into_iter().map(|x| bf16::from_f32(x.abs() + 0.1)).collect();
        let rows = rows(&q, &weights);
        let [scores, sums] = computed(&rows, [&k, &v], &scales, true);
        for row in 0..ROWS {
            for key in 0..SEEN {
                let code = |d: usize| f64::from(k[super::super::cache::key::<i8>(key, d, DIM)]);
                let product: f64 = (0..DIM).map(|d| f64::from(q[row * DIM + d]) * code(d)).sum();
                let exact = product * scales[key].to_f64();
                let got = f64::from(scores[row * BLOCK_KEYS + key]);
                assert!((got - exact).abs() < 1e-4 + 1e-6 * exact.abs(), "row {row}, key {key}: {got}, not {exact}");
            }
            for d in 0..DIM {
                let code = |key: usize| f64::from(v[super::super::cache::value::<i8>(key, d, DIM)]);
                let exact: f64 = (0..SEEN).map(|key| f64::from(weights[row * BLOCK_KEYS + key]) * code(key)).sum();
                let got = f64::from(sums[row * DIM + d]);
                assert!((got - exact).abs() < 0.05, "row {row}, element {d}: {got}, not {exact}");
            }
        }
        if !super::super::super::choice::KernelSet::Avx512.multiplies_codes() {
            return;
        }
        let fastest = computed(&rows, [&k, &v], &scales, false);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&fastest[0]) == bits(&scores) && bits(&fastest[1]) == bits(&sums));
    }

    #[test]
    fn what_is_no_number_is_none_and_nothing_is_zero() {
        let mut rows = IntegerRows::default();
        for x in [f32::NAN, f32::INFINITY, 0.0] {
            rows.take_query(&[1.0, x, 0.0, 0.0]);
        }
        assert!(rows.query_units[0].is_nan() && rows.query_units[1].is_nan() && rows.query_units[2] > 0.0);
        rows.make_room(3);
        for (row, x) in [f32::NAN, 0.5, 0.0].into_iter().enumerate() {
            let mut weights = [0.0; BLOCK_KEYS];
            (weights[3], weights[4]) = (x, f32::NAN);
            // SAFETY: as many as a block, of which the fifth is not seen.
            unsafe { rows.take_weights::<PortableLanes>(row, weights.as_mut_ptr(), 4) };
        }
        assert!(rows.weight_units[0].is_nan() && rows.weight_units[2] == 0.0);
        assert_eq!(rows.weight_units[1], 0.5 / WEIGHT_UNITS);
        assert_eq!((rows.weights[1][0][..5].to_vec(), rows.weights[1][1][3]), (vec![0, 0, 0, 255, 0], 255));
    }
}
