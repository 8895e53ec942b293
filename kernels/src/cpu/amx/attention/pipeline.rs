//! The inner loop of a task: tile products of one unit of work between the exponentials of another.
//!
//! A unit is a block of keys for a tile of 32 query rows that some of them see. While the exponentials of a unit are taken, the tile unit
//! computes the scores of the next and adds the weighted values of the one before; scores and weights are double-buffered.

use std::cell::RefCell;
use std::ops::Range;

use super::super::buffer::AmxBuffer;
use super::super::engine::{
    BLOCK_SIDE, Engine, Exponentials, LANES, Product, RESULT_BLOCK, Rows, STEP_ELEMENTS, Softmax, TILE_ELEMENTS,
};
use super::super::panels;
use super::plan::{AMX_BLOCK_KEYS, AmxAttentionPlan, AmxRows, STRETCH_BLOCKS, TILES};
use super::scores::{blank, hide, punch, raise};

/// Blocks from one that few rows see to the one asked for meanwhile.
const PREFETCHED_BLOCKS: usize = 2;

thread_local! {
    /// Scores, weights, sums and queries of a task, kept between calls.
    static SCRATCH: RefCell<AmxBuffer> = RefCell::new(AmxBuffer::new(0));
}

/// Computes the rows of one task.
///
/// # Safety
/// The machine must suit the engine; the task must be one of the plan's, and no other thread have it.
pub(super) unsafe fn run<E: Engine>(plan: &AmxAttentionPlan<'_>, task: &AmxRows) {
    SCRATCH.with_borrow_mut(|scratch| {
        let blocks = task.rows.div_ceil(BLOCK_SIDE) * plan.cache.steps();
        let elements = 2 * RESULT_BLOCK + blocks * RESULT_BLOCK; // scores and sums in f32; weights and queries in bf16
        scratch.reserve(elements * (size_of::<f32>() + size_of::<u16>()));
        let scores = scratch.pointer::<f32>();
        // SAFETY: the parts follow one another in the buffer sized for them; each is a multiple of 64 bytes.
        unsafe {
            let sums = scores.add(2 * RESULT_BLOCK);
            let weights = sums.add(blocks * RESULT_BLOCK).cast::<u16>();
            let mut pipeline = Pipeline {
                plan,
                task,
                scores,
                sums,
                weights,
                queries: weights.add(2 * STEP_ELEMENTS),
                softmax: [[Softmax::EMPTY; 2]; TILES],
                visible: [(usize::MAX, 0); TILES],
                peaks: [[[f32::NEG_INFINITY; LANES]; 2]; TILES],
                holes: [const { Holes::NONE }; TILES],
                products: Vec::new(),
            };
            pipeline.prepare::<E>();
            pipeline.attend::<E>(&mut E::begin());
            pipeline.finish::<E>();
        }
    });
}

/// A block of keys for a tile of query rows.
#[derive(Clone, Copy, PartialEq)]
struct Unit {
    block: usize,
    tile: usize,
    /// Which of the two buffers of scores and weights it has.
    side: usize,
}

/// Keys before the last that rows of a tile do not see.
struct Holes {
    /// Each row's.
    rows: [Range<usize>; BLOCK_SIDE],
    /// Those hidden to any row, and whatever lies between.
    any: Range<usize>,
    /// Those hidden to every row; without an end where no row sees more.
    all: Range<usize>,
}

impl Holes {
    const NONE: Self = Self { rows: [const { 0..0 }; BLOCK_SIDE], any: 0..0, all: 0..usize::MAX };

    fn add(&mut self, row: usize, visible: usize, hidden: Range<usize>) {
        self.all.start = self.all.start.max(hidden.start);
        if hidden.end < visible {
            self.all.end = self.all.end.min(hidden.end);
        }
        if self.any.is_empty() {
            self.any = hidden.clone();
        } else if !hidden.is_empty() {
            self.any = self.any.start.min(hidden.start)..self.any.end.max(hidden.end);
        }
        self.rows[row] = hidden;
    }
}

struct Pipeline<'a> {
    plan: &'a AmxAttentionPlan<'a>,
    task: &'a AmxRows,
    /// Twice `(32 keys, 32 rows)`.
    scores: *mut f32,
    /// For each tile `(head dim, 32)`: weighted values, transposed, not yet normalised.
    sums: *mut f32,
    /// Twice a step of a panel of `B`.
    weights: *mut u16,
    /// For each tile a panel of `B`.
    queries: *mut u16,
    softmax: [[Softmax; 2]; TILES],
    /// Keys that every row of a tile sees, and that any does.
    visible: [(usize, usize); TILES],
    holes: [Holes; TILES],
    /// Highest score of each row, where it is wanted.
    peaks: [[[f32; LANES]; 2]; TILES],
    /// Tile products to run beside the exponentials of a unit.
    products: Vec<Product>,
}

// SAFETY of the methods: `run` sized the scratch for the plan, began a session and owns the task; each method touches only
// scratch and the task's own rows, through pointers derived from these sizes.
impl Pipeline<'_> {
    /// Packs the queries, clears the sums and notes what each row sees.
    unsafe fn prepare<E: Engine>(&mut self) {
        let (plan, task) = (self.plan, self.task);
        let (dim, steps) = (plan.cache.dim(), plan.cache.steps());
        let first = task.head * plan.rows + task.first;
        let rows = Rows { data: plan.query.wrapping_add(first * dim), stride: dim, rows: task.rows, columns: dim };
        for tile in 0..self.tiles() {
            // SAFETY: a band lies within the task's rows; the panel and the sums are the tile's.
            unsafe {
                panels::pack_columns::<E>(rows.band(tile * BLOCK_SIDE), self.queries.add(tile * steps * STEP_ELEMENTS));
                self.sums.add(tile * steps * RESULT_BLOCK).write_bytes(0, steps * RESULT_BLOCK);
            }
        }
        for row in 0..task.rows {
            let visible = plan.visible(task.first + row);
            let (least, most) = &mut self.visible[row / BLOCK_SIDE];
            (*least, *most) = (visible.min(*least), visible.max(*most));
            self.holes[row / BLOCK_SIDE].add(row % BLOCK_SIDE, visible, plan.hidden(task.first + row));
            self.softmax[row / BLOCK_SIDE][row / LANES % 2].visible[row % LANES] =
                u32::try_from(visible).unwrap_or(u32::MAX);
        }
    }

    /// All units: stretches of blocks, tiles within them.
    unsafe fn attend<E: Engine>(&mut self, session: &mut E::Session) {
        let Some(mut unit) = self.following(None) else { return };
        let mut before: Option<Unit> = None;
        // SAFETY: each unit's scores are computed before its weights, and those before they are used.
        unsafe {
            E::product(session, self.score(unit));
            loop {
                let next = self.following(Some(unit));
                self.step::<E>(session, before, unit, next);
                before = Some(unit);
                match next {
                    Some(next) => unit = next,
                    None => break,
                }
            }
            for panel in 0..self.plan.cache.steps() {
                E::product(session, self.weigh(unit, panel));
            }
        }
    }

    /// Exponentials of `unit`, beside the scores of `next` and the weighted values of `before`.
    unsafe fn step<E: Engine>(
        &mut self,
        session: &mut E::Session,
        before: Option<Unit>,
        unit: Unit,
        next: Option<Unit>,
    ) {
        let halves = self.halves(unit.tile);
        let scale = std::f32::consts::LOG2_E / (self.plan.cache.dim() as f32).sqrt();
        let mut moved = [false; 2];
        // SAFETY: see the head of this block.
        unsafe {
            self.list_products(before, next);
            let scores = self.scores.add(unit.side * RESULT_BLOCK);
            let weights = self.weights.add(unit.side * STEP_ELEMENTS);
            for (half, moved) in moved.iter_mut().enumerate().take(halves) {
                let softmax = &mut self.softmax[unit.tile][half];
                let scores = scores.add(half * LANES);
                let (first, end, holes) =
                    (unit.block * AMX_BLOCK_KEYS, (unit.block + 1) * AMX_BLOCK_KEYS, &self.holes[unit.tile]);
                if self.visible[unit.tile].0 < end {
                    hide(scores, first, &softmax.visible);
                }
                if holes.any.start < end && first < holes.any.end {
                    punch(scores, first, &holes.rows[half * LANES..][..LANES]);
                }
                let from = self.plan.holes.partition_point(|hole| hole.end <= first);
                for hole in self.plan.holes[from..].iter().take_while(|hole| hole.start < end) {
                    blank(scores, hole.start.max(first) - first..hole.end.min(end) - first);
                }
                if !self.plan.maxima.is_null() {
                    raise(scores, &mut self.peaks[unit.tile][half]);
                }
                *moved = E::observe(scores, scale, softmax);
            }
            let share = |half: usize| half * self.products.len() / halves;
            for half in 0..halves {
                let work = Exponentials {
                    scores: scores.add(half * LANES),
                    scale,
                    softmax: &raw mut self.softmax[unit.tile][half],
                    weights: weights.add(half * TILE_ELEMENTS),
                };
                E::exponentials(session, work, &self.products[share(half)..share(half + 1)]);
            }
            // The products of `before` settle the scores of `next`, which come first; what decays must be settled too.
            if before.is_none() || moved.contains(&true) {
                E::settle(session);
            }
            for (half, _) in moved.into_iter().enumerate().filter(|&(_, moved)| moved) {
                self.decay(unit.tile, half);
            }
        }
    }

    /// Lists the products to run beside a unit: scores first, as they are needed next.
    unsafe fn list_products(&mut self, before: Option<Unit>, next: Option<Unit>) {
        self.products.clear();
        // SAFETY: see the head of this block.
        unsafe {
            if let Some(next) = next {
                self.products.push(self.score(next));
            }
            if let Some(before) = before {
                for panel in 0..self.plan.cache.steps() {
                    self.products.push(self.weigh(before, panel));
                }
            }
        }
    }

    /// Scores of a unit: `K Q^T`.
    unsafe fn score(&self, unit: Unit) -> Product {
        let AmxAttentionPlan { cache, .. } = self.plan;
        // SAFETY: see the head of this block.
        unsafe {
            Product {
                a: cache.at(self.task.head, unit.block),
                b: self.queries.add(unit.tile * cache.steps() * STEP_ELEMENTS),
                steps: cache.steps(),
                c: self.scores.add(unit.side * RESULT_BLOCK),
                accumulate: false,
                narrow: self.is_narrow(),
                prefetch: self.prefetch(),
            }
        }
    }

    /// The weighted values of a unit, 32 elements of its rows: `V^T P^T`.
    unsafe fn weigh(&self, unit: Unit, panel: usize) -> Product {
        let AmxAttentionPlan { cache, .. } = self.plan;
        // SAFETY: see the head of this block.
        unsafe {
            Product {
                a: cache.at(self.task.head, unit.block).add(cache.block() / 2 + panel * STEP_ELEMENTS),
                b: self.weights.add(unit.side * STEP_ELEMENTS),
                steps: 1,
                c: self.sums.add((unit.tile * cache.steps() + panel) * RESULT_BLOCK),
                accumulate: true,
                narrow: self.is_narrow(),
                prefetch: self.prefetch(),
            }
        }
    }

    /// Applies a moved reference to what 16 rows have summed.
    unsafe fn decay(&mut self, tile: usize, half: usize) {
        let decay = self.softmax[tile][half].decay;
        let width = self.plan.cache.steps() * BLOCK_SIDE;
        for element in 0..width {
            let at = (tile * width + element) * BLOCK_SIDE + half * LANES;
            // SAFETY: see the head of this block.
            let line = unsafe { &mut *self.sums.add(at).cast::<[f32; LANES]>() };
            for (sum, decay) in line.iter_mut().zip(decay) {
                *sum *= decay;
            }
        }
    }

    /// Normalises, transposes and writes the task's rows.
    unsafe fn finish<E: Engine>(&mut self) {
        #[repr(align(64))]
        struct Square([[f32; LANES]; LANES]);
        let (plan, task) = (self.plan, self.task);
        let (dim, steps) = (plan.cache.dim(), plan.cache.steps());
        let first = task.head * plan.rows + task.first;
        let natural = 1.0 / (dim as f32).sqrt();
        for row in (0..task.rows).step_by(LANES) {
            let (tile, half) = (row / BLOCK_SIDE, row / LANES % 2);
            let softmax = &self.softmax[tile][half];
            let rows = LANES.min(task.rows - row);
            let inverse = softmax.sum.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum });
            for column in (0..dim).step_by(LANES) {
                let mut square = Square([[0.0; LANES]; LANES]);
                for (element, line) in square.0.iter_mut().enumerate() {
                    let at = (tile * steps * BLOCK_SIDE + column + element) * BLOCK_SIDE + half * LANES;
                    // SAFETY: see the head of this block.
                    let sums = unsafe { *self.sums.add(at).cast::<[f32; LANES]>() };
                    *line = std::array::from_fn(|lane| sums[lane] * inverse[lane]);
                }
                // SAFETY: 16 x 16 aligned elements; the rows written are the task's.
                unsafe {
                    E::transpose((&raw mut square.0).cast());
                    for (lane, line) in square.0.iter().take(rows).enumerate() {
                        plan.output.add((first + row + lane) * dim + column).cast::<[f32; LANES]>().write(*line);
                    }
                }
            }
            for lane in 0..rows {
                let (sum, reference) = (softmax.sum[lane], softmax.reference[lane]);
                let lse = if sum == 0.0 { f32::NEG_INFINITY } else { reference * natural + sum.ln() };
                // SAFETY: the row is the task's.
                unsafe {
                    plan.lse.add(first + row + lane).write(lse);
                    if !plan.maxima.is_null() {
                        plan.maxima.add(first + row + lane).write(self.peaks[tile][half][lane] * natural);
                    }
                }
            }
        }
    }

    /// The unit after `unit`, or the first: stretches of blocks, tiles within them, then the blocks that the tile's rows see.
    fn following(&self, unit: Option<Unit>) -> Option<Unit> {
        let (mut tile, mut block, side) = unit.map_or((0, 0, 0), |unit| (unit.tile, unit.block + 1, 1 - unit.side));
        let mut block_run = unit.map_or(0, |unit| unit.block / STRETCH_BLOCKS);
        loop {
            let hidden = &self.holes[tile].all;
            if (hidden.start.div_ceil(AMX_BLOCK_KEYS)..hidden.end / AMX_BLOCK_KEYS).contains(&block) {
                block = (hidden.end / AMX_BLOCK_KEYS).min(self.visible[tile].1.div_ceil(AMX_BLOCK_KEYS));
            }
            if block < (block_run + 1) * STRETCH_BLOCKS && block * AMX_BLOCK_KEYS < self.visible[tile].1 {
                return Some(Unit { block, tile, side });
            }
            tile += 1;
            if tile == self.tiles() {
                (tile, block_run) = (0, block_run + 1);
                if block_run * STRETCH_BLOCKS * AMX_BLOCK_KEYS >= self.task.visible {
                    return None;
                }
            }
            block = block_run * STRETCH_BLOCKS;
        }
    }

    /// Few rows are done with a block sooner than the next comes from memory, and the processor foresees no more than the
    /// rest of a page: what is asked for lies some blocks ahead.
    fn prefetch(&self) -> usize {
        if self.is_narrow() { PREFETCHED_BLOCKS * self.plan.cache.block() } else { 0 }
    }

    /// Whether the only tile's second half holds no row.
    fn is_narrow(&self) -> bool {
        self.task.rows <= LANES
    }

    /// Tiles that hold rows.
    fn tiles(&self) -> usize {
        self.task.rows.div_ceil(BLOCK_SIDE)
    }

    /// Half tiles, of 16 rows, that hold rows.
    fn halves(&self, tile: usize) -> usize {
        (self.task.rows - tile * BLOCK_SIDE).div_ceil(LANES).min(2)
    }
}
