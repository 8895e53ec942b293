//! Linear layers: `y = x W^T (+ bias) (+ residual)` over weights packed once. Few rows and many run the same tiles, so a row's
//! result depends neither on its neighbours nor on the threads.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use half::bf16;

use super::compute::Compute;
use super::lanes::{
    Aligned, Element, Extent, Kernel, Lanes, LeftOperand, PANEL, RightOperand, Sums, load_some, product, store_some,
};
use super::pool::{DisjointBuffer, Tasks, filled};
use super::tensor::BlockPanels;

mod blocks;
#[cfg(target_arch = "x86_64")]
mod pairs;

#[cfg(target_arch = "x86_64")]
use blocks::RowTask;

/// Elements of `k` that a block of the weights spans: one panel of it stays in the first-level cache.
const K_BLOCK: usize = 256;
/// The same where weights are widened first: all panels of a tile stay there.
const WIDE_K_BLOCK: usize = 128;
/// Rows of `x` that a task takes at most: a block of them stays in the second-level cache.
const PIECE_ROWS: usize = 96;
/// Panels that run side by side: the widest tile.
const TILE_PANELS: usize = 4;
/// Multiply-adds below which a task is not worth splitting.
const GEMM_TASK: usize = 1 << 16;

/// Weights `(n, k)` in panels of [`PANEL`] outputs.
pub(super) enum GemmWeight<E> {
    Packed(Packed<E>),
    /// Widened where they are multiplied.
    Blocks(BlockPanels),
}

impl<E> GemmWeight<E> {
    /// Outputs and inputs.
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Packed(packed) => (packed.n, packed.k),
            Self::Blocks(panels) => (panels.n, panels.k),
        }
    }
}

/// Weights `(n, k)` as panels of [`PANEL`] outputs, `k` rows each, zero where the last panel is ragged.
pub(super) struct Packed<E> {
    pub n: usize,
    pub k: usize,
    /// Inputs of an output that lie side by side: 2 where products are of pairs, and zero if the last has no second; else 1.
    beside: usize,
    panels: Aligned<E>,
}

impl<E: Element> Packed<E> {
    /// Packs what `row(j, to)` writes: the `k` weights of output `j`.
    pub(super) fn new(n: usize, k: usize, compute: &Compute, row: impl Fn(usize, &mut [E]) + Sync) -> Self {
        let beside = if compute.set.multiplies_pairs() { 2 } else { 1 };
        let (count, depth) = (n.div_ceil(PANEL), k.next_multiple_of(beside));
        let mut panels = Aligned::zeroed(count * depth * PANEL);
        let shared = DisjointBuffer::new(&mut panels);
        compute.pool.each_with(
            Tasks { count, cost: n * k },
            || vec![E::default(); k],
            |weights, panel| {
                for lane in 0..PANEL.min(n - panel * PANEL) {
                    row(panel * PANEL + lane, weights);
                    for (p, w) in weights.iter().enumerate() {
                        let at = (panel * depth + p / beside * beside) * PANEL + lane * beside + p % beside;
                        // SAFETY: within this task's panel.
                        unsafe { *shared.at(at) = *w };
                    }
                }
            },
        );
        Self { n, k, beside, panels }
    }
}

/// One call: `x (rows, k)`.
pub(super) struct GemmCall<'a, E> {
    pub x: &'a [E],
    pub rows: usize,
    pub weight: &'a GemmWeight<E>,
    /// `(n)`, if any.
    pub bias: Option<&'a [f32]>,
    /// `(rows, n)`, if any.
    pub residual: Option<&'a [E]>,
}

impl<E: Element> GemmCall<'_, E> {
    /// `(rows, n)`, in whichever type: sums are f32 until they are written.
    pub(super) fn run<O: Element>(self, compute: &Compute) -> Vec<O> {
        let (n, k) = self.weight.shape();
        assert!(self.x.len() == self.rows * k && self.bias.is_none_or(|b| b.len() == n));
        assert!(self.residual.is_none_or(|r| r.len() == self.rows * n));
        let (cost, panels) = (self.rows * n * k, n.div_ceil(PANEL));
        let row_tasks = self.rows.div_ceil(PIECE_ROWS).max(1);
        let row_step = self.rows.div_ceil(row_tasks).next_multiple_of(6);
        let wanted = (cost / GEMM_TASK).clamp(1, 4 * compute.pool.threads());
        let panel_step = panels.div_ceil(wanted.div_ceil(row_tasks)).next_multiple_of(TILE_PANELS).max(TILE_PANELS);
        let panel_tasks = panels.div_ceil(panel_step);
        let tasks = Tasks { count: self.rows.div_ceil(row_step.max(1)) * panel_tasks, cost };
        let write = |out: DisjointBuffer<O>| {
            compute.pool.each_with(tasks, GemmScratch::default, |scratch, task| {
                let (row, panel) = (task / panel_tasks * row_step, task % panel_tasks * panel_step);
                let rows = row..self.rows.min(row + row_step);
                let panels = panel..panels.min(panel + panel_step);
                compute.set.run(GemmTask {
                    call: &self,
                    #[cfg(target_arch = "x86_64")]
                    pairs: compute.set.multiplies_pairs(),
                    rows,
                    panels,
                    out: &out,
                    scratch,
                });
            });
        };
        // SAFETY: the tasks cover every row and panel.
        unsafe { filled(self.rows * n, write) }
    }
}

#[derive(Default)]
struct GemmScratch {
    /// A task's rows of `x`, widened.
    x: Vec<f32>,
    /// Sums of the tiles under way while `k` blocks follow one another: `(rows, TILE_PANELS panels)`.
    sums: Vec<f32>,
    /// Blocks of the weights, widened.
    wide: Vec<f32>,
    /// The same as pairs.
    #[cfg(target_arch = "x86_64")]
    pairs: Aligned<bf16>,
    /// A task's rows of `x`, each with a zero at its end.
    #[cfg(target_arch = "x86_64")]
    even: Vec<bf16>,
}

struct GemmTask<'a, E, O> {
    call: &'a GemmCall<'a, E>,
    /// Whether products are of pairs of bf16.
    #[cfg(target_arch = "x86_64")]
    pairs: bool,
    rows: Range<usize>,
    panels: Range<usize>,
    out: &'a DisjointBuffer<O>,
    scratch: &'a mut GemmScratch,
}

impl<E: Element, O: Element> Kernel for GemmTask<'_, E, O> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (n, k) = self.call.weight.shape();
        let stored = &self.call.x[self.rows.start * k..self.rows.end * k];
        #[cfg(target_arch = "x86_64")]
        if let Some(x) = E::as_bf16(stored).filter(|_| self.pairs) {
            // SAFETY: sets that multiply pairs run where the processor can.
            return unsafe { self.multiply_pairs::<L>(x) };
        }
        let GemmScratch { x, sums, wide, .. } = self.scratch;
        let x = E::as_f32(stored).unwrap_or_else(|| {
            x.clear();
            x.extend(stored.iter().map(|x| x.widen()));
            x
        });
        let mut output = Output::of(self.call, self.out, self.rows.start, n);
        // Lanes as wide are AVX-512's.
        #[cfg(target_arch = "x86_64")]
        if let (GemmWeight::Blocks(blocks), 1, PANEL) = (self.call.weight, self.rows.len(), L::N) {
            let row = RowTask { x, blocks, panels: self.panels, sums: &output };
            // SAFETY: no other task has this part of the output.
            return unsafe { row.run::<L, E>() };
        }
        sums.resize(self.rows.len() * TILE_PANELS * PANEL, 0.0);
        let step = match self.call.weight {
            GemmWeight::Packed(_) => K_BLOCK,
            GemmWeight::Blocks(_) => WIDE_K_BLOCK,
        };
        for (panels, inputs) in parts(self.panels, k, step) {
            let depth = inputs.len();
            output.begin(&panels, &inputs, k, sums);
            let extent = Extent { rows: self.rows.len(), k: depth, panels: panels.len() };
            // SAFETY: `x` holds these rows, the weights these panels, `sums` the rows by TILE_PANELS panels, and no other
            // task has this part of the output.
            unsafe {
                let left = LeftOperand { data: x.as_ptr().add(inputs.start), row: k };
                match self.call.weight {
                    GemmWeight::Packed(packed) => {
                        assert_eq!(packed.beside, 1, "packed for pairs");
                        let data = packed.panels.as_ptr().add((panels.start * k + inputs.start) * PANEL);
                        let right = RightOperand { data, panel: k * PANEL, row: PANEL };
                        product::<L, E, _>(extent, left, right, &output);
                    }
                    GemmWeight::Blocks(weights) => {
                        blocks::widen::<L, E>(weights, panels, inputs, wide);
                        let right = RightOperand { data: wide.as_ptr(), panel: depth * PANEL, row: PANEL };
                        product::<L, f32, _>(extent, left, right, &output);
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<E: Element, O: Element> GemmTask<'_, E, O> {
    /// The products by pairs of rows `x`, for elements that are bf16.
    ///
    /// # Safety
    /// The processor must have what `Pairs` need.
    unsafe fn multiply_pairs<L: Lanes>(self, x: &[bf16]) {
        let (n, k) = self.call.weight.shape();
        let GemmScratch { sums, pairs, even, .. } = self.scratch;
        let mut output = Output::of(self.call, self.out, self.rows.start, n);
        if let (GemmWeight::Blocks(blocks), 1) = (self.call.weight, self.rows.len()) {
            let row = RowTask { x, blocks, panels: self.panels, sums: &output };
            // SAFETY: no other task has this part of the output; the rest is the caller's promise.
            return unsafe { row.run::<L>() };
        }
        sums.resize(self.rows.len() * TILE_PANELS * PANEL, 0.0);
        let depth = k.next_multiple_of(2);
        let x = if depth == k {
            x
        } else {
            even.clear();
            x.chunks_exact(k).for_each(|row| even.extend(row.iter().chain(&[bf16::ZERO])));
            even
        };
        for (panels, inputs) in parts(self.panels, k, K_BLOCK) {
            output.begin(&panels, &inputs, k, sums);
            let extent = Extent { rows: self.rows.len(), k: inputs.len().next_multiple_of(2), panels: panels.len() };
            // SAFETY: as in `run`; the elements of packed weights are bf16.
            unsafe {
                let left = pairs::LeftPairs { data: x.as_ptr().add(inputs.start), row: depth };
                let (data, panel) = match self.call.weight {
                    GemmWeight::Packed(packed) => {
                        assert_eq!(packed.beside, 2, "not packed for pairs");
                        let panels = packed.panels.as_ptr().cast::<bf16>();
                        (panels.add((output.origin.1 / PANEL * depth + inputs.start) * PANEL), depth)
                    }
                    GemmWeight::Blocks(weights) => {
                        pairs.grow(TILE_PANELS * K_BLOCK * PANEL);
                        blocks::widen_pairs(weights, panels, inputs.clone(), pairs);
                        (pairs.as_ptr(), inputs.len())
                    }
                };
                pairs::product(extent, left, RightOperand { data, panel: panel * PANEL, row: PANEL }, &output);
            }
        }
    }
}

/// Panels and inputs of each product of a task, in order.
fn parts(panels: Range<usize>, k: usize, step: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    panels.clone().step_by(TILE_PANELS).flat_map(move |panel| {
        let panels = panel..panels.end.min(panel + TILE_PANELS);
        (0..k.max(1)).step_by(step).map(move |from| (panels.clone(), from..k.min(from + step)))
    })
}

struct Output<'a, E, O> {
    call: &'a GemmCall<'a, E>,
    out: &'a DisjointBuffer<O>,
    /// Row and column of `out` where the rows and panels of this product begin.
    origin: (usize, usize),
    n: usize,
    sums: *mut f32,
    first: bool,
    last: bool,
}

impl<'a, E: Element, O: Element> Output<'a, E, O> {
    /// That of rows from `row` on, whose sums begin and end in registers.
    fn of(call: &'a GemmCall<'a, E>, out: &'a DisjointBuffer<O>, row: usize, n: usize) -> Self {
        Self { call, out, origin: (row, 0), n, sums: std::ptr::null_mut(), first: true, last: true }
    }

    /// Takes the sums of some of all `k` inputs for some panels next.
    #[inline(always)]
    fn begin(&mut self, panels: &Range<usize>, inputs: &Range<usize>, k: usize, sums: &mut [f32]) {
        (self.origin.1, self.sums) = (panels.start * PANEL, sums.as_mut_ptr());
        (self.first, self.last) = (inputs.start == 0, inputs.end == k);
    }

    /// # Safety
    /// `at` and `column` must lie in the output and belong to this task.
    #[inline(always)]
    unsafe fn write<L: Lanes>(&self, at: usize, column: usize, sum: L) {
        let columns = self.n - column;
        // SAFETY: no more columns are touched than the row has left.
        unsafe {
            let mut y = sum;
            if let Some(bias) = self.call.bias {
                y = y.add(load_some(bias.as_ptr().add(column), columns));
            }
            if let Some(residual) = self.call.residual {
                y = y.add(load_some(residual.as_ptr().add(at), columns));
            }
            store_some(self.out.at(at), columns, y);
        }
    }
}

impl<E: Element, O: Element> Sums for Output<'_, E, O> {
    #[inline(always)]
    unsafe fn start<L: Lanes, const R: usize, const V: usize>(&self, row: usize, column: usize) -> [[L; V]; R] {
        let mut acc = [[L::zero(); V]; R];
        if !self.first {
            for (r, acc) in acc.iter_mut().enumerate() {
                for (v, acc) in acc.iter_mut().enumerate() {
                    // SAFETY: the tile lies in the rows by TILE_PANELS panels of `sums`.
                    *acc = unsafe { L::load(self.sums.add((row + r) * TILE_PANELS * PANEL + column + v * L::N)) };
                }
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn finish<L: Lanes, const R: usize, const V: usize>(&self, row: usize, column: usize, acc: [[L; V]; R]) {
        for (r, acc) in acc.into_iter().enumerate() {
            for (v, sum) in acc.into_iter().enumerate() {
                let c = column + v * L::N;
                let to = self.origin.1 + c;
                // SAFETY: as in `start`; columns past the last are not written.
                unsafe {
                    if !self.last {
                        sum.store(self.sums.add((row + r) * TILE_PANELS * PANEL + c));
                    } else if to < self.n {
                        self.write((self.origin.0 + row + r) * self.n + to, to, sum);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::cpu::choice::KernelSet;
    use crate::cpu::lanes::tests::vector_sets;
    use crate::cpu::pool::ThreadPool;
    use half::bf16;

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i + seed).wrapping_mul(0x9e37_79b1) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// The set that multiplies pairs, where this machine runs it.
    fn pairs() -> impl Iterator<Item = KernelSet> {
        [KernelSet::Avx512Bf16].into_iter().filter(|set| set.available(DType::Bf16))
    }

    fn check<E: Element>(tolerance: f32) {
        for (rows, k, n) in [(1, 8, 5), (2, 300, 33), (7, 16, 64), (100, 530, 70), (13, 256, 128), (0, 4, 4)] {
            let narrow = |v: Vec<f32>| v.into_iter().map(E::narrow).collect::<Vec<E>>();
            let (x, w) = (narrow(values(rows * k, 1)), narrow(values(n * k, 2)));
            let (bias, residual) = (values(n, 3), narrow(values(rows * n, 4)));
            for set in vector_sets().into_iter().chain(pairs().filter(|_| E::DTYPE == DType::Bf16)) {
                let mut by_threads = Vec::new();
                for threads in [1, 3] {
                    let compute = Compute { set, pool: ThreadPool::new(Some(threads)).unwrap() };
                    let packed = Packed::new(n, k, &compute, |j, to| to.copy_from_slice(&w[j * k..][..k]));
                    let weight = GemmWeight::Packed(packed);
                    let call = |x, rows, residual| GemmCall { x, rows, weight: &weight, bias: Some(&bias), residual };
                    let y = call(&x, rows, Some(&residual)).run::<E>(&compute);
                    let wide = call(&x, rows, Some(&residual)).run::<f32>(&compute);
                    assert!(y.iter().zip(&wide).all(|(y, wide)| y.widen() == E::narrow(*wide).widen()), "{set:?}");
                    for (at, y) in y.iter().enumerate() {
                        let (i, j) = (at / n, at % n);
                        let dot: f32 = (0..k).map(|p| x[i * k + p].widen() * w[j * k + p].widen()).sum();
                        let expected = dot + bias[j] + residual[at].widen();
                        let error = (y.widen() - expected).abs();
                        assert!(error <= tolerance + tolerance * expected.abs(), "{set:?} {rows}x{k}x{n} at {i},{j}");
                    }
                    for i in 0..rows {
                        let alone = call(&x[i * k..][..k], 1, Some(&residual[i * n..][..n])).run::<E>(&compute);
                        assert!(
                            alone.iter().zip(&y[i * n..]).all(|(a, b)| a.widen() == b.widen()),
                            "row {i} of {rows}"
                        );
                    }
                    by_threads.push(y.into_iter().map(|y| y.widen().to_bits()).collect::<Vec<_>>());
                }
                assert!(by_threads.windows(2).all(|w| w[0] == w[1]), "{set:?} depends on the threads");
            }
        }
    }

    #[test]
    fn agrees_with_the_obvious_sum_row_by_row_on_any_threads() {
        check::<f32>(1e-4);
        check::<bf16>(1e-2);
    }

    /// Of each pair the second number first (Intel SDM, VDPBF16PS): hosts whose processors differ give the same bits.
    #[test]
    fn pairs_are_summed_in_the_documented_order_for_any_number_of_rows() {
        for set in pairs() {
            let compute = Compute { set, pool: ThreadPool::new(Some(2)).unwrap() };
            for (k, n) in [(1, 1), (2, 17), (31, 64), (256, 130), (257, 70), (600, 5), (513, 96)] {
                let draw = |count, seed| values(count, seed).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
                let (x, w, bias, residual) = (draw(40 * k, 1), draw(n * k, 2), values(n, 3), draw(40 * n, 4));
                let packed = Packed::new(n, k, &compute, |j, to| to.copy_from_slice(&w[j * k..][..k]));
                let weight = GemmWeight::Packed(packed);
                let product = |i: usize, j: usize, p: usize| x[i * k + p].to_f32() * w[j * k + p].to_f32();
                let sum = |i, j| {
                    (0..k).step_by(2).fold(0.0, |sum, p| {
                        let sum = if p + 1 < k { sum + product(i, j, p + 1) } else { sum };
                        sum + product(i, j, p)
                    })
                };
                let sums: Vec<f32> = (0..40 * n).map(|at| sum(at / n, at % n)).collect();
                for rows in 1..=40 {
                    for (bias, residual) in [(None, None), (Some(&bias[..]), Some(&residual[..rows * n]))] {
                        let call = GemmCall { x: &x[..rows * k], rows, weight: &weight, bias, residual };
                        for (at, y) in call.run::<bf16>(&compute).iter().enumerate() {
                            let biased = sums[at] + bias.map_or(0.0, |bias| bias[at % n]);
                            let expected = bf16::from_f32(biased + residual.map_or(0.0, |r| r[at].to_f32()));
                            assert_eq!(y.to_bits(), expected.to_bits(), "{rows}x{k}x{n} at {at}");
                        }
                    }
                }
            }
        }
    }
}
