//! Weights in blocks as products read them: as many bits as the checkpoint has, the codes of 16 outputs side by side. Widened a panel
//! at a time; multiplies nothing.
//!
//! Of each block there are its factors for 16 outputs, then for every 32 inputs the scales that these have of their own and their codes:
//! of each output a code after the other, bit after bit, in words that lie beside those of the other outputs.

use std::ops::Range;

use super::super::lanes::{Choice, CodeLanes, PANEL, fetch_ahead};
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

    /// Panels from `panel` on that have its format.
    #[cfg(target_arch = "x86_64")]
    pub fn alike(&self, panel: usize) -> usize {
        let next = self.parts.iter().map(|part| part.first).find(|first| *first > panel);
        next.unwrap_or(self.panels()) - panel
    }

    /// Gives inputs `32 subs.start` to `32 subs.end` of panels of one format to `sink`, rounded to bf16 where `ROUNDS` says so.
    #[inline(always)]
    pub fn widen<C: CodeLanes, const ROUNDS: bool, const V: usize>(
        &self,
        panels: [usize; V],
        subs: Range<usize>,
        sink: &mut impl PairSink<C>,
    ) {
        let part = self.parts.iter().rfind(|part| part.first <= panels[0]).expect("the first part begins at panel 0");
        let size = part.layout.panel_bytes(self.k);
        assert!(subs.end * SUB <= self.k);
        let bytes = panels.map(|panel| part.bytes[(panel - part.first) * size..][..size].as_ptr());
        let of = (part.layout, size);
        // SAFETY: the panels have these inputs.
        unsafe {
            match (part.layout.packing.bits, part.layout.chooses()) {
                // These are powers of two by four bits.
                (4, _) if part.layout.format.has_upper_factors() => {
                    widen::<C, Chosen<4>, false, V>(of, bytes, subs, sink)
                }
                (4, _) => widen::<C, Chosen<4>, ROUNDS, V>(of, bytes, subs, sink),
                (5, true) => widen::<C, Chosen<5>, ROUNDS, V>(of, bytes, subs, sink),
                (5, false) => widen::<C, Lifted<5>, ROUNDS, V>(of, bytes, subs, sink),
                (6, _) => widen::<C, Lifted<6>, ROUNDS, V>(of, bytes, subs, sink),
                _ => widen::<C, Lifted<8>, ROUNDS, V>(of, bytes, subs, sink),
            }
        }
    }
}

/// Where widened weights go. No closure, whose calls would not be compiled with the instructions of the lanes.
pub(in super::super) trait PairSink<C: CodeLanes> {
    /// Inputs `2 pair` and `2 pair + 1` from the first asked for on, of 16 outputs: those of the panel that was named as number
    /// `side`. Must be `#[inline(always)]`.
    fn write(&mut self, side: usize, pair: usize, even: C::Floats, odd: C::Floats);
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
        let bits = self.packing.bits;
        for (at, code) in codes.iter().enumerate() {
            // Those of 8 bits have a sign.
            let code = if bits == 8 { code ^ 0x80 } else { *code };
            for bit in 0..bits {
                let at = at * bits + bit;
                to[at / 32 * WORDS + 4 * lane + at % 32 / 8] |= (code >> bit & 1) << (at % 8);
            }
        }
    }

    /// Whether numbers are looked up: those of five bits at most that are uneven, or that something is added to.
    fn chooses(self) -> bool {
        self.packing.bits == 4 || self.packing.lows
    }

    /// What is taken from a code that is not looked up.
    fn less(self) -> f32 {
        let of_zero = if self.packing.bits == 8 { 0x80 } else { 0 };
        -f32::from(self.format.values()[of_zero])
    }
}

/// Bytes of a word of each of 16 outputs.
const WORDS: usize = 4 * PANEL;

/// How a code becomes a number.
trait Decoding {
    const BITS: usize;

    /// Of the code that begins at bit `from` of each word.
    fn decode<C: CodeLanes>(words: C, from: u32, choice: &Choice<C::Floats>) -> C::Floats;
    /// What to add to a scaled code, of a scale and what the format adds.
    fn low<C: CodeLanes>(layout: Layout, scale: C::Floats, low: C::Floats) -> C::Floats;
}

/// By a list.
struct Chosen<const BITS: u32>;

impl<const BITS: u32> Decoding for Chosen<BITS> {
    const BITS: usize = BITS as usize;

    #[inline(always)]
    fn decode<C: CodeLanes>(words: C, from: u32, choice: &Choice<C::Floats>) -> C::Floats {
        words.shift_right(from).choose::<BITS>(choice)
    }
    #[inline(always)]
    fn low<C: CodeLanes>(_: Layout, _: C::Floats, low: C::Floats) -> C::Floats {
        low
    }
}

/// As it is, with what is then too much taken from the product: both are exact, since a scale has no more than 18 bits.
struct Lifted<const BITS: u32>;

impl<const BITS: u32> Decoding for Lifted<BITS> {
    const BITS: usize = BITS as usize;

    #[inline(always)]
    fn decode<C: CodeLanes>(words: C, from: u32, _: &Choice<C::Floats>) -> C::Floats {
        words.lifted::<BITS>(from)
    }
    #[inline(always)]
    fn low<C: CodeLanes>(layout: Layout, scale: C::Floats, _: C::Floats) -> C::Floats {
        C::mul(scale, C::floats(&[-(C::lift(BITS) + layout.less()); PANEL]))
    }
}

/// Thirty-two inputs of a panel.
#[derive(Clone, Copy)]
struct SubPanel<F> {
    codes: *const u8,
    /// Scales of each half, and what is added.
    scales: [F; 2],
    lows: [F; 2],
}

/// # Safety
/// The panels must have inputs up to `32 subs.end`.
#[inline(always)]
unsafe fn widen<C: CodeLanes, D: Decoding, const ROUNDS: bool, const V: usize>(
    (layout, size): (Layout, usize),
    panels: [*const u8; V],
    subs: Range<usize>,
    sink: &mut impl PairSink<C>,
) {
    const { assert!(V <= 4, "no more are written out") };
    let (of_block, sub_bytes, values) = (layout.subs_of_block(), layout.sub_bytes(), layout.format.values());
    let (factor_bytes, shift) = (layout.factor_bytes(), of_block.trailing_zeros());
    let block_bytes = factor_bytes + of_block * sub_bytes;
    let choice = Choice {
        list: [C::floats(&list(values, 0)), C::floats(&list(values, PANEL))],
        first: values[..PANEL].windows(2).all(|pair| pair[0] + 1 == pair[1]).then_some(values[0]),
    };
    for (at, sub) in subs.enumerate() {
        // SAFETY: a block of each panel, and its 32 inputs.
        unsafe {
            let (block, rest) = ((sub >> shift) * block_bytes, factor_bytes + (sub & (of_block - 1)) * sub_bytes);
            let mut of = [layout.sub_panel::<C, D>(panels[0].add(block), panels[0].add(block + rest)); V];
            for (of, panel) in of.iter_mut().zip(panels).skip(1) {
                *of = layout.sub_panel::<C, D>(panel.add(block), panel.add(block + rest));
            }
            let ahead = block + rest + AHEAD;
            // Where a panel ends, what comes next lies behind the last of those beside it.
            let ahead = if ahead < size { ahead } else { ahead + (V - 1) * size };
            for panel in panels {
                for line in (0..sub_bytes).step_by(64) {
                    fetch_ahead(panel.wrapping_add(ahead + line));
                }
            }
            // Written out, so that what is shifted by and which sum is added to are constants.
            macro_rules! pairs {
                ($($pair:literal)*) => {
                    $(sides!($pair 0 1 2 3);)*
                };
            }
            macro_rules! sides {
                ($pair:literal $($side:literal)*) => {
                    $(if $side < V {
                        let (even, odd) = of[$side].pair::<C, D, ROUNDS>($pair, &choice);
                        sink.write($side, at * (SUB / 2) + $pair, even, odd);
                    })*
                };
            }
            pairs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
    }
}

/// Bytes of a panel that are asked for ahead of those that are widened.
const AHEAD: usize = 2048;

/// What sixteen codes stand for.
fn list(values: &[i8; 256], from: usize) -> [f32; PANEL] {
    std::array::from_fn(|at| f32::from(values[from + at]))
}

impl<F: Copy> SubPanel<F> {
    /// Two inputs.
    ///
    /// # Safety
    /// The codes must be there.
    #[inline(always)]
    unsafe fn pair<C: CodeLanes<Floats = F>, D: Decoding, const ROUNDS: bool>(
        &self,
        pair: usize,
        choice: &Choice<F>,
    ) -> (F, F) {
        // SAFETY: the caller's promise.
        let (even, odd) = unsafe { (self.input::<C, D>(2 * pair, choice), self.input::<C, D>(2 * pair + 1, choice)) };
        if ROUNDS { C::round(even, odd) } else { (even, odd) }
    }

    /// # Safety
    /// As [`SubPanel::pair`].
    #[inline(always)]
    unsafe fn input<C: CodeLanes<Floats = F>, D: Decoding>(&self, input: usize, choice: &Choice<F>) -> F {
        // SAFETY: the caller's promise.
        let (words, from) = unsafe { words_of::<C, D>(self.codes, input) };
        let half = input / (SUB / 2);
        C::mul_add(self.scales[half], D::decode(words, from, choice), self.lows[half])
    }
}

/// Words with the codes of an input, and where in them these begin.
///
/// # Safety
/// `codes` must have all of 32 inputs.
#[inline(always)]
unsafe fn words_of<C: CodeLanes, D: Decoding>(codes: *const u8, input: usize) -> (C, u32) {
    let (word, from) = (input * D::BITS / 32, input * D::BITS % 32);
    // SAFETY: the caller's promise.
    unsafe {
        let words = C::load(codes.add(word * WORDS));
        if from + D::BITS <= 32 {
            return (words, from as u32);
        }
        let next = C::load(codes.add((word + 1) * WORDS));
        (words.shift_right(from as u32).or(next.shift_left(32 - from as u32)), 0)
    }
}

impl Layout {
    /// # Safety
    /// `block` must be one, and `rest` begin 32 inputs of it.
    #[inline(always)]
    unsafe fn sub_panel<C: CodeLanes, D: Decoding>(self, block: *const u8, rest: *const u8) -> SubPanel<C::Floats> {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = self.scales_of::<C>(block, rest);
            let lows = match self.packing.lows {
                true => self.scales_of::<C>(block.add(2 * PANEL), rest.add(self.packing.scales * PANEL)),
                false => [C::floats(&[0.0; PANEL]); 2],
            };
            let codes = rest.add(self.packing.scales * self.packing.kinds() * PANEL);
            let lows = [D::low::<C>(self, scales[0], lows[0]), D::low::<C>(self, scales[1], lows[1])];
            SubPanel { codes, scales, lows }
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
            let first = C::mul(factor, C::load_signed(own));
            if self.packing.scales == 1 {
                return [first; 2];
            }
            [first, C::mul(factor, C::load_signed(own.add(PANEL)))]
        }
    }
}
