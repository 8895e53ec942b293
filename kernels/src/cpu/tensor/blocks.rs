//! Weights in blocks as products read them: as many bits as the checkpoint has, the codes of 16 outputs side by side. Widened a panel
//! at a time; multiplies nothing.
//!
//! Of each block there are its factors for 16 outputs, then for every 32 inputs the scales that these have of their own and their codes:
//! low halves of two inputs a byte, then the bits above, a byte for several inputs.

use std::ops::Range;

use super::super::lanes::{CodeLanes, PANEL};
use super::super::pool::{DisjointBuffer, Tasks, ThreadPool};
use crate::operands::{Packing, SUB, sub_block};
use crate::{BlockFormat, HostTensor, Stored};

/// Weights `(n, k)`, rows of `k` whole blocks.
pub(in super::super) struct BlockPanels {
    pub n: usize,
    pub k: usize,
    parts: Vec<PanelPart>,
}

/// Outputs of one format.
struct PanelPart {
    /// Its first panel.
    first: usize,
    layout: Layout,
    bytes: Vec<u8>,
}

/// How a format lies in panels.
#[derive(Clone, Copy)]
struct Layout {
    format: BlockFormat,
    packing: Packing,
}

impl Layout {
    fn of(format: BlockFormat) -> Self {
        Self { format, packing: format.packing() }
    }

    fn subs_of_block(self) -> usize {
        self.format.elements() / SUB
    }

    fn factor_bytes(self) -> usize {
        self.packing.kinds() * 2 * PANEL
    }

    fn sub_bytes(self) -> usize {
        self.packing.scales * self.packing.kinds() * PANEL + self.packing.bits * SUB * PANEL / 8
    }

    fn panel_bytes(self, k: usize) -> usize {
        k / self.format.elements() * (self.factor_bytes() + self.subs_of_block() * self.sub_bytes())
    }
}

impl BlockPanels {
    /// Packs parts `(n_i, k)`, if all of them are in blocks and each but the last fills panels, two at a time.
    pub fn pack(parts: &[HostTensor<'_>], pool: &ThreadPool) -> Option<Self> {
        let k = *parts.first()?.shape.get(1)?;
        let (_, rest) = parts.split_last()?;
        if k == 0 || rest.iter().any(|part| !part.shape[0].is_multiple_of(2 * PANEL)) {
            return None;
        }
        let (mut packed, mut n) = (Vec::new(), 0);
        for part in parts {
            let Stored::Blocks(format) = part.stored else { return None };
            packed.push(PanelPart::pack(part, (n / PANEL, k), Layout::of(format), pool));
            n += part.shape[0];
        }
        Some(Self { n, k, parts: packed })
    }

    /// Panels of 16 outputs.
    pub fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes.len()).sum()
    }

    /// Gives inputs `32 subs.start` to `32 subs.end` of a panel to `sink`.
    #[inline(always)]
    pub fn widen<C: CodeLanes>(&self, panel: usize, subs: Range<usize>, sink: &mut impl PairSink<C>) {
        let part = self.parts.iter().rfind(|part| part.first <= panel).expect("the first part begins at panel 0");
        let size = part.layout.panel_bytes(self.k);
        assert!(subs.end * SUB <= self.k && (panel - part.first + 1) * size <= part.bytes.len());
        let bytes = part.bytes[(panel - part.first) * size..].as_ptr();
        // SAFETY: the panel has these inputs.
        unsafe {
            match part.layout.packing.bits {
                4 => widen::<C, 4>(part.layout, bytes, subs, sink),
                5 => widen::<C, 5>(part.layout, bytes, subs, sink),
                6 => widen::<C, 6>(part.layout, bytes, subs, sink),
                _ => widen::<C, 8>(part.layout, bytes, subs, sink),
            }
        }
    }
}

/// Where widened weights go. No closure, whose calls would not be compiled with the instructions of the lanes.
pub(in super::super) trait PairSink<C: CodeLanes> {
    /// Inputs `2 pair` and `2 pair + 1` from the first asked for on, of 16 outputs. Must be `#[inline(always)]`.
    fn write(&mut self, pair: usize, even: C::Floats, odd: C::Floats);
}

impl PanelPart {
    fn pack(part: &HostTensor<'_>, (first, k): (usize, usize), layout: Layout, pool: &ThreadPool) -> Self {
        let (n, size) = (part.shape[0], layout.panel_bytes(k));
        let panels = n.div_ceil(PANEL);
        let mut bytes = vec![0; panels * size];
        let (row, shared) = (part.bytes.len() / n.max(1), DisjointBuffer::new(&mut bytes));
        pool.each(Tasks { count: panels, cost: n * k }, |panel| {
            // SAFETY: a panel's bytes, which are this task's.
            let to = unsafe { std::slice::from_raw_parts_mut(shared.at(panel * size), size) };
            for lane in 0..PANEL.min(n - panel * PANEL) {
                layout.pack(&part.bytes[(panel * PANEL + lane) * row..][..row], lane, to);
            }
        });
        Self { first, layout, bytes }
    }
}

impl Layout {
    /// Puts one output's row into its lane of a panel.
    fn pack(self, row: &[u8], lane: usize, panel: &mut [u8]) {
        let (kinds, factors) = (self.packing.kinds(), self.factor_bytes());
        let block_bytes = factors + self.subs_of_block() * self.sub_bytes();
        for (block, to) in row.chunks_exact(self.format.bytes()).zip(panel.chunks_exact_mut(block_bytes)) {
            for kind in 0..kinds {
                to[2 * (kind * PANEL + lane)..][..2].copy_from_slice(&self.format.factor(block, kind).to_le_bytes());
            }
            for (sub, to) in to[factors..].chunks_exact_mut(self.sub_bytes()).enumerate() {
                let decoded = sub_block(self.format, block, sub);
                let (scales, codes) = to.split_at_mut(self.packing.scales * kinds * PANEL);
                for half in 0..self.packing.scales {
                    for (kind, scale) in [decoded.scales[half], decoded.lows[half]].into_iter().take(kinds).enumerate()
                    {
                        scales[(kind * self.packing.scales + half) * PANEL + lane] = scale as u8;
                    }
                }
                self.pack_codes(&decoded.codes, lane, codes);
            }
        }
    }

    fn pack_codes(self, codes: &[u8; SUB], lane: usize, to: &mut [u8]) {
        for (at, code) in codes.iter().enumerate() {
            if self.packing.bits == 8 {
                to[at * PANEL + lane] = *code;
                continue;
            }
            to[at / 2 * PANEL + lane] |= (code & 15) << (4 * (at % 2));
            let above = self.packing.bits - 4;
            if let Some(of_byte) = usize::checked_div(8, above) {
                to[LOW_BYTES + at / of_byte * PANEL + lane] |= code >> 4 << (above * (at % of_byte));
            }
        }
    }
}

/// Bytes of the low halves of 32 inputs.
const LOW_BYTES: usize = SUB / 2 * PANEL;

/// Scales of the halves of 32 inputs, and what is added to them.
#[derive(Clone, Copy)]
struct Scaling<F> {
    scales: [F; 2],
    lows: [F; 2],
}

/// # Safety
/// `panel` must have inputs up to `32 subs.end`.
#[inline(always)]
unsafe fn widen<C: CodeLanes, const BITS: usize>(
    layout: Layout,
    panel: *const u8,
    subs: Range<usize>,
    sink: &mut impl PairSink<C>,
) {
    let (of_block, sub_bytes, values) = (layout.subs_of_block(), layout.sub_bytes(), layout.format.values());
    let (factor_bytes, shift) = (layout.factor_bytes(), of_block.trailing_zeros());
    let block_bytes = factor_bytes + of_block * sub_bytes;
    let scale_bytes = layout.packing.scales * layout.packing.kinds() * PANEL;
    let (chosen, less) = ([C::floats(&list(values, 0)), C::floats(&list(values, PANEL))], -i32::from(values[0]));
    let mut to = 0;
    for sub in subs {
        // SAFETY: a block of the panel, and its 32 inputs: scales, then codes.
        unsafe {
            let block = panel.add((sub >> shift) * block_bytes);
            let rest = block.add(factor_bytes + (sub & (of_block - 1)) * sub_bytes);
            let codes = rest.add(scale_bytes);
            let Scaling { scales, lows } = layout.scaling::<C>(block, rest);
            for half in 0..2 {
                let (scale, low) = (scales[half], lows[half]);
                for pair in half * PANEL / 2..(half + 1) * PANEL / 2 {
                    let (even, odd) = pair_of::<C, BITS>(codes, pair);
                    let (even, odd) = match BITS < 6 {
                        true => (even.choose(&chosen), odd.choose(&chosen)),
                        false => (even.widen_less(less), odd.widen_less(less)),
                    };
                    sink.write(to, C::mul_add(scale, even, low), C::mul_add(scale, odd, low));
                    to += 1;
                }
            }
        }
    }
}

/// What sixteen codes stand for.
fn list(values: &[i8; 256], from: usize) -> [f32; PANEL] {
    std::array::from_fn(|at| f32::from(values[from + at]))
}

impl Layout {
    /// # Safety
    /// `block` must be one, and `rest` begin 32 inputs of it.
    #[inline(always)]
    unsafe fn scaling<C: CodeLanes>(self, block: *const u8, rest: *const u8) -> Scaling<C::Floats> {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.scales_of::<C>(block, rest);
            let lows = match self.packing.lows {
                true => self.scales_of::<C>(block.add(2 * PANEL), rest.add(self.packing.scales * PANEL)),
                false => [C::floats(&[0.0; PANEL]); 2],
            };
            Scaling { scales, lows }
        }
    }

    /// Factors, times what each half has of its own.
    ///
    /// # Safety
    /// `factors` and `own` must be those of a kind.
    #[inline(always)]
    unsafe fn scales_of<C: CodeLanes>(self, factors: *const u8, own: *const u8) -> [C::Floats; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let factor = match self.format.has_upper_factors() {
                true => C::load_upper(factors),
                false => C::load_halves(factors),
            };
            if self.packing.scales == 0 {
                return [factor; 2];
            }
            let first = C::mul(factor, C::load_signed(own).widen_less(0));
            if self.packing.scales == 1 {
                return [first; 2];
            }
            [first, C::mul(factor, C::load_signed(own.add(PANEL)).widen_less(0))]
        }
    }
}

/// The codes of two inputs, of which the lowest `BITS` bits count; those of 8 bits with their sign.
///
/// # Safety
/// `codes` must have all of 32 inputs.
#[inline(always)]
unsafe fn pair_of<C: CodeLanes, const BITS: usize>(codes: *const u8, pair: usize) -> (C, C) {
    // SAFETY: two rows of the codes, or one of their low halves and one of the bits above.
    unsafe {
        if BITS == 8 {
            let codes = codes.add(2 * pair * PANEL);
            return (C::load_signed(codes), C::load_signed(codes.add(PANEL)));
        }
        let low = C::load(codes.add(pair * PANEL));
        let (even, odd) = (low.and(15), low.shift_right(4));
        if BITS == 4 {
            return (even, odd);
        }
        let above = BITS - 4;
        let (of_byte, mask) = (8 / above, ((1 << above) - 1) << 4);
        let high = C::load(codes.add(LOW_BYTES + 2 * pair / of_byte * PANEL)).shift_left(4);
        let shift = (above * (2 * pair % of_byte)) as u32;
        (even.take(high.shift_right(shift), mask), odd.take(high.shift_right(shift + above as u32), mask))
    }
}
