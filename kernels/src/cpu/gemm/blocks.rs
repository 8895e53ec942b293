//! Weights in blocks where they are multiplied: widened into memory for several rows, into registers for one. Sums are those of the
//! same weights widened before, in the same order. Packs nothing.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m512;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::super::lanes::{Avx512Codes, Pairs, Sums};
use super::super::lanes::{CodeLanes, Element, Lanes, PANEL};
use super::super::tensor::{BlockPanels, PairSink};
use crate::DType;
use crate::operands::SUB;

/// Writes some inputs of some panels, whole blocks of 32, as packed weights are, but that numbers of type `E` stand there as f32.
#[inline(always)]
pub fn widen<L: Lanes, E: Element>(
    blocks: &BlockPanels,
    panels: Range<usize>,
    inputs: Range<usize>,
    wide: &mut Vec<f32>,
) {
    let subs = inputs.start / SUB..inputs.end / SUB;
    wide.resize(panels.len() * inputs.len() * PANEL, 0.0);
    for (panel, to) in panels.zip(wide.chunks_exact_mut(inputs.len() * PANEL)) {
        let task = WideTask { blocks, panel, subs: subs.clone(), to };
        match (L::N, E::DTYPE) {
            // SAFETY: lanes as wide are AVX-512's.
            #[cfg(target_arch = "x86_64")]
            (PANEL, DType::F32) => unsafe { avx512::widen::<false>(task) },
            // SAFETY: the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            (PANEL, _) if Pairs::available() => unsafe { avx512::widen_by_bf16(task) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            (PANEL, _) => unsafe { avx512::widen::<true>(task) },
            (_, DType::F32) => task.run::<[u32; PANEL], false>(),
            _ => task.run::<[u32; PANEL], true>(),
        }
    }
}

/// The same for bf16 as pairs of inputs, in `to`.
///
/// # Safety
/// The processor must have what [`Pairs`] need.
#[cfg(target_arch = "x86_64")]
pub unsafe fn widen_pairs(blocks: &BlockPanels, panels: Range<usize>, inputs: Range<usize>, to: &mut [bf16]) {
    let subs = inputs.start / SUB..inputs.end / SUB;
    for (panel, to) in panels.zip(to.chunks_exact_mut(inputs.len() * PANEL)) {
        // SAFETY: the caller's promise.
        unsafe { avx512::widen_pairs(blocks, panel, subs.clone(), to) };
    }
}

/// A row of 16 pairs for two inputs.
#[cfg(target_arch = "x86_64")]
struct PairRows<'a> {
    to: &'a mut [bf16],
}

#[cfg(target_arch = "x86_64")]
impl PairSink<Avx512Codes<true>> for PairRows<'_> {
    #[inline(always)]
    fn write(&mut self, _: usize, pair: usize, even: __m512, odd: __m512) {
        let to = self.to[2 * pair * PANEL..][..2 * PANEL].as_mut_ptr();
        // SAFETY: the row was just found to be there, and the processor has the instructions where these lanes are.
        unsafe { Pairs::rounded(even, odd).store(to) };
    }
}

struct WideTask<'a> {
    blocks: &'a BlockPanels,
    panel: usize,
    subs: Range<usize>,
    to: &'a mut [f32],
}

impl WideTask<'_> {
    #[inline(always)]
    fn run<C: CodeLanes, const ROUNDS: bool>(self) {
        self.blocks.widen::<C, ROUNDS, 1>([self.panel], self.subs, &mut WideRows { to: self.to });
    }
}

/// A row of 16 outputs for each input.
struct WideRows<'a> {
    to: &'a mut [f32],
}

impl<C: CodeLanes> PairSink<C> for WideRows<'_> {
    #[inline(always)]
    fn write(&mut self, _: usize, pair: usize, even: C::Floats, odd: C::Floats) {
        let to = self.to[2 * pair * PANEL..][..2 * PANEL].as_mut_ptr();
        // SAFETY: both rows were just found to be there.
        unsafe {
            C::store(even, to);
            C::store(odd, to.add(PANEL));
        }
    }
}

/// One row of `x`, f32 or bf16, by some panels, summed in registers: AVX-512 has enough.
#[cfg(target_arch = "x86_64")]
pub struct RowTask<'a, S, X> {
    pub x: &'a [X],
    pub blocks: &'a BlockPanels,
    pub panels: Range<usize>,
    pub sums: &'a S,
}

#[cfg(target_arch = "x86_64")]
impl<S: Sums> RowTask<'_, S, bf16> {
    /// By pairs, to the bits of several rows.
    ///
    /// # Safety
    /// The sums must be fit for these panels, and the processor have what [`Pairs`] need.
    #[inline(always)]
    pub unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promise.
        unsafe { avx512::multiply_pairs::<L, S>(self) }
    }
}

#[cfg(target_arch = "x86_64")]
impl<S: Sums> RowTask<'_, S, f32> {
    /// # Safety
    /// The sums must be fit for these panels, and the processor have AVX-512F.
    #[inline(always)]
    pub unsafe fn run<L: Lanes, E: Element>(self) {
        // SAFETY: the caller's promise, and what was just found.
        unsafe {
            match E::DTYPE {
                DType::F32 => avx512::multiply::<L, S, false>(self),
                _ if Pairs::available() => avx512::multiply_by_bf16::<L, S>(self),
                _ => avx512::multiply::<L, S, true>(self),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<S: Sums, X> RowTask<'_, S, X> {
    /// # Safety
    /// As [`RowTask::run`], on a processor that suits the lanes.
    #[inline(always)]
    unsafe fn multiply<L: Lanes, C: CodeLanes, const ROUNDS: bool>(self)
    where
        Row<C::Floats, X>: PairSink<C>,
    {
        let Self { x, blocks, panels, sums } = self;
        assert_eq!(x.len(), blocks.k);
        let mut panel = panels.start;
        while panel < panels.end {
            let count = SIDES.min(panels.end - panel).min(blocks.alike(panel));
            let mut row = Row { x: x.as_ptr(), sums: [C::floats(&[0.0; PANEL]); SIDES] };
            let mut sides = [panel; SIDES];
            for (side, of) in sides.iter_mut().enumerate() {
                *of += side.min(count - 1);
            }
            blocks.widen::<C, ROUNDS, SIDES>(sides, 0..blocks.k / SUB, &mut row);
            let [first, second, third, fourth] = row.sums;
            // SAFETY: the panels are the caller's.
            unsafe {
                finish::<L, C>(sums, panel, first);
                if count > 1 {
                    finish::<L, C>(sums, panel + 1, second);
                }
                if count > 2 {
                    finish::<L, C>(sums, panel + 2, third);
                }
                if count > 3 {
                    finish::<L, C>(sums, panel + 3, fourth);
                }
            }
            panel += count;
        }
    }
}

/// # Safety
/// The sums must be fit for the panel, and the processor suit the lanes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn finish<L: Lanes, C: CodeLanes>(sums: &impl Sums, panel: usize, sum: C::Floats) {
    let mut lanes = [0.0; PANEL];
    // SAFETY: sixteen each; the rest is the caller's promise.
    unsafe {
        C::store(sum, lanes.as_mut_ptr());
        sums.finish::<L, 1, 1>(0, panel * PANEL, [[L::load(lanes.as_ptr())]]);
    }
}

/// Panels that run side by side: a sum waits longer for the one before it than a processor takes to add one.
#[cfg(target_arch = "x86_64")]
const SIDES: usize = 4;

/// A row of `x` and its sums of so many panels.
#[cfg(target_arch = "x86_64")]
struct Row<F, X> {
    x: *const X,
    sums: [F; SIDES],
}

#[cfg(target_arch = "x86_64")]
impl<C: CodeLanes> PairSink<C> for Row<C::Floats, f32> {
    #[inline(always)]
    fn write(&mut self, side: usize, pair: usize, even: C::Floats, odd: C::Floats) {
        // SAFETY: `x` has as many elements as there are inputs.
        let [first, second] = unsafe { self.x.add(2 * pair).cast::<[f32; 2]>().read() };
        let sum = C::mul_add(C::floats(&[first; PANEL]), even, self.sums[side]);
        self.sums[side] = C::mul_add(C::floats(&[second; PANEL]), odd, sum);
    }
}

#[cfg(target_arch = "x86_64")]
impl PairSink<Avx512Codes<true>> for Row<__m512, bf16> {
    #[inline(always)]
    fn write(&mut self, side: usize, pair: usize, even: __m512, odd: __m512) {
        // SAFETY: `x` has as many elements as there are inputs, and the processor has the instructions where these lanes are.
        let (x, weights) = unsafe { (Pairs::splat(self.x.add(2 * pair)), Pairs::rounded(even, odd)) };
        self.sums[side] = x.add_products(weights, self.sums[side]);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use half::bf16;

    use super::{Avx512Codes, BlockPanels, Lanes, PairRows, Range, RowTask, Sums, WideTask};

    #[target_feature(enable = "avx512f")]
    pub unsafe fn widen<const ROUNDS: bool>(task: WideTask<'_>) {
        task.run::<Avx512Codes<false>, ROUNDS>();
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn widen_by_bf16(task: WideTask<'_>) {
        task.run::<Avx512Codes<true>, true>();
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn widen_pairs(blocks: &BlockPanels, panel: usize, subs: Range<usize>, to: &mut [bf16]) {
        blocks.widen::<Avx512Codes<true>, false, 1>([panel], subs, &mut PairRows { to });
    }

    #[target_feature(enable = "avx512f")]
    pub unsafe fn multiply<L: Lanes, S: Sums, const ROUNDS: bool>(task: RowTask<'_, S, f32>) {
        // SAFETY: the caller's promise.
        unsafe { task.multiply::<L, Avx512Codes<false>, ROUNDS>() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn multiply_by_bf16<L: Lanes, S: Sums>(task: RowTask<'_, S, f32>) {
        // SAFETY: the caller's promise.
        unsafe { task.multiply::<L, Avx512Codes<true>, true>() }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn multiply_pairs<L: Lanes, S: Sums>(task: RowTask<'_, S, bf16>) {
        // SAFETY: the caller's promise.
        unsafe { task.multiply::<L, Avx512Codes<true>, false>() }
    }
}
