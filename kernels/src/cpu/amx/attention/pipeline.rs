//! The inner loop of a task: tile products of one unit of work between the exponentials of another.
//!
//! A unit is a block of keys for a tile of 32 query rows. While the exponentials of a unit are taken, the tile unit
//! computes the scores of the next and adds the weighted values of the one before; scores and weights are double-buffered.

use std::cell::RefCell;

use super::super::buffer::Buffer;
use super::super::engine::{BLOCK, Engine, LANES, Rows, SIDE, STEP, Softmax, TILE};
use super::super::panels;
use super::{KEYS, Plan, TILES, Task};

/// Bands of 32 keys in a block.
const BANDS: usize = KEYS / SIDE;
/// Blocks packed on the way that are alive at once: the one before, this one, the next.
const RING: usize = 3;

thread_local! {
    /// Scores, weights, sums, queries and packed blocks of a task, kept between calls.
    static SCRATCH: RefCell<Buffer> = RefCell::new(Buffer::new(0));
}

/// Computes the rows of one task. `packed` are the blocks of its head, if packed beforehand.
///
/// # Safety
/// The machine must suit the engine; the task must be one of the plan's, and no other thread have it.
pub(super) unsafe fn run<E: Engine>(plan: &Plan, task: &Task, packed: Option<*const u16>) {
    SCRATCH.with_borrow_mut(|scratch| {
        let width = plan.steps() * SIDE;
        let floats = 2 * KEYS * SIDE + TILES * width * SIDE;
        let halves = 2 * KEYS * SIDE + TILES * width * SIDE + RING * 2 * plan.block();
        scratch.reserve(floats * size_of::<f32>() + halves * size_of::<u16>());
        let scores = scratch.pointer::<f32>();
        // SAFETY: the parts follow one another in the buffer sized for them; each is a multiple of 64 bytes.
        unsafe {
            let sums = scores.add(2 * KEYS * SIDE);
            let weights = sums.add(TILES * width * SIDE).cast::<u16>();
            let queries = weights.add(2 * KEYS * SIDE);
            let ring = queries.add(TILES * width * SIDE);
            let softmax = [[Softmax::EMPTY; 2]; TILES];
            let visible = [(usize::MAX, 0); TILES];
            let mut pipeline = Pipeline { plan, task, packed, scores, sums, weights, queries, ring, softmax, visible };
            let _session = E::begin();
            pipeline.prepare::<E>();
            pipeline.attend::<E>();
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

struct Pipeline<'a> {
    plan: &'a Plan,
    task: &'a Task,
    packed: Option<*const u16>,
    /// Twice `(KEYS, 32)`: a key a row.
    scores: *mut f32,
    /// For each tile `(head dim, 32)`: weighted values, transposed, not yet normalised.
    sums: *mut f32,
    /// Twice `KEYS / 32` steps of a panel of `B`.
    weights: *mut u16,
    /// For each tile a panel of `B`.
    queries: *mut u16,
    /// Blocks packed on the way.
    ring: *mut u16,
    softmax: [[Softmax; 2]; TILES],
    /// Keys that every row of a tile sees, and that any does.
    visible: [(usize, usize); TILES],
}

// SAFETY of the methods: `run` sized the scratch for the plan, began a session and owns the task; each method touches only
// scratch and the task's own rows, through pointers derived from these sizes.
impl Pipeline<'_> {
    /// Packs the queries, clears the sums and notes what each row sees.
    unsafe fn prepare<E: Engine>(&mut self) {
        let (plan, task) = (self.plan, self.task);
        let first = task.head * plan.rows + task.first;
        let rows = Rows {
            data: plan.query.wrapping_add(first * plan.dim),
            stride: plan.dim,
            rows: task.rows,
            columns: plan.dim,
        };
        for tile in 0..self.tiles() {
            // SAFETY: a band lies within the task's rows; the panel and the sums are the tile's.
            unsafe {
                panels::pack_columns::<E>(rows.band(tile * SIDE), self.queries.add(tile * plan.steps() * STEP));
                self.sums.add(tile * plan.steps() * BLOCK).write_bytes(0, plan.steps() * BLOCK);
            }
        }
        for row in 0..task.rows {
            let visible = plan.visible(task.first + row);
            let (least, most) = &mut self.visible[row / SIDE];
            (*least, *most) = (visible.min(*least), visible.max(*most));
            self.softmax[row / SIDE][row / LANES % 2].visible[row % LANES] = u32::try_from(visible).unwrap_or(u32::MAX);
        }
    }

    /// All units, in order of blocks.
    unsafe fn attend<E: Engine>(&mut self) {
        let Some(mut unit) = self.following(None) else { return };
        let mut before: Option<Unit> = None;
        // SAFETY: each unit's scores are computed before `weigh` reads them, its weights before they are accumulated.
        unsafe {
            self.load::<E>(unit.block);
            for band in 0..BANDS {
                self.score::<E>(unit, band);
            }
            loop {
                let next = self.following(Some(unit));
                if let Some(next) = next
                    && next.block != unit.block
                {
                    self.load::<E>(next.block);
                }
                self.step::<E>(before, unit, next);
                before = Some(unit);
                match next {
                    Some(next) => unit = next,
                    None => break,
                }
            }
            for panel in 0..self.plan.steps() {
                self.accumulate::<E>(unit, panel);
            }
        }
    }

    /// Exponentials of `unit`, with the scores of `next` and the sums of `before` in between.
    unsafe fn step<E: Engine>(&mut self, before: Option<Unit>, unit: Unit, next: Option<Unit>) {
        let (plan, halves) = (self.plan, self.halves(unit.tile));
        let scale = std::f32::consts::LOG2_E / (plan.dim as f32).sqrt();
        let ahead = if next.is_some() { BANDS } else { 0 };
        let products = ahead + if before.is_some() { plan.steps() } else { 0 };
        let hidden = self.visible[unit.tile].0 < (unit.block + 1) * KEYS;
        let mut moved = [false; 2];
        let mut issued = 0;
        // SAFETY: see the head of this block.
        unsafe {
            let scores = self.scores.add(unit.side * KEYS * SIDE);
            let weights = self.weights.add(unit.side * KEYS * SIDE);
            for (half, moved) in moved.iter_mut().enumerate().take(halves) {
                let softmax = &mut self.softmax[unit.tile][half];
                let scores = scores.add(half * LANES);
                if hidden {
                    hide(scores, unit.block * KEYS, &softmax.visible);
                }
                *moved = E::observe(scores, KEYS, scale, softmax);
            }
            for part in 0..BANDS * halves {
                while issued < ((part + 1) * products).div_ceil(BANDS * halves) {
                    match (before, next) {
                        (_, Some(next)) if issued < ahead => self.score::<E>(next, issued),
                        (Some(before), _) => self.accumulate::<E>(before, issued - ahead),
                        _ => unreachable!("products are counted from the units there are"),
                    }
                    issued += 1;
                }
                let (band, half) = (part / halves, part % halves);
                let scores = scores.add(band * BLOCK + half * LANES);
                let weights = weights.add(band * STEP + half * TILE);
                E::exponentials(scores, scale, &raw mut self.softmax[unit.tile][half], weights);
            }
            for (half, _) in moved.into_iter().enumerate().filter(|&(_, moved)| moved) {
                self.decay(unit.tile, half);
            }
        }
    }

    /// Scores of 32 keys of a unit: `K Q^T`.
    #[inline(always)]
    unsafe fn score<E: Engine>(&self, unit: Unit, band: usize) {
        let steps = self.plan.steps();
        // SAFETY: see the head of this block.
        unsafe {
            let keys = self.block(unit.block).add(band * steps * STEP);
            let queries = self.queries.add(unit.tile * steps * STEP);
            let scores = self.scores.add(unit.side * KEYS * SIDE + band * BLOCK);
            E::product(keys, queries, steps, scores, false);
        }
    }

    /// Adds the weighted values of a unit to 32 elements of its rows: `V^T P^T`.
    #[inline(always)]
    unsafe fn accumulate<E: Engine>(&self, unit: Unit, panel: usize) {
        // SAFETY: see the head of this block.
        unsafe {
            let values = self.block(unit.block).add(self.plan.block() + panel * BANDS * STEP);
            let weights = self.weights.add(unit.side * KEYS * SIDE);
            let sums = self.sums.add((unit.tile * self.plan.steps() + panel) * BLOCK);
            E::product(values, weights, BANDS, sums, true);
        }
    }

    /// Applies a moved reference to what 16 rows have summed.
    unsafe fn decay(&mut self, tile: usize, half: usize) {
        let decay = self.softmax[tile][half].decay;
        let width = self.plan.steps() * SIDE;
        for element in 0..width {
            // SAFETY: see the head of this block.
            let line =
                unsafe { &mut *self.sums.add((tile * width + element) * SIDE + half * LANES).cast::<[f32; LANES]>() };
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
        let first = task.head * plan.rows + task.first;
        let natural = 1.0 / (plan.dim as f32).sqrt();
        for row in (0..task.rows).step_by(LANES) {
            let (tile, half) = (row / SIDE, row / LANES % 2);
            let softmax = &self.softmax[tile][half];
            let rows = LANES.min(task.rows - row);
            let inverse = softmax.sum.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum });
            for column in (0..plan.dim).step_by(LANES) {
                let mut square = Square([[0.0; LANES]; LANES]);
                for (element, line) in square.0.iter_mut().enumerate() {
                    let at = (tile * plan.steps() * SIDE + column + element) * SIDE + half * LANES;
                    // SAFETY: see the head of this block.
                    let sums = unsafe { *self.sums.add(at).cast::<[f32; LANES]>() };
                    *line = std::array::from_fn(|lane| sums[lane] * inverse[lane]);
                }
                // SAFETY: 16 x 16 aligned elements; the rows written are the task's.
                unsafe {
                    E::transpose((&raw mut square.0).cast());
                    for (lane, line) in square.0.iter().take(rows).enumerate() {
                        plan.output.add((first + row + lane) * plan.dim + column).cast::<[f32; LANES]>().write(*line);
                    }
                }
            }
            for lane in 0..rows {
                let (sum, reference) = (softmax.sum[lane], softmax.reference[lane]);
                let lse = if sum == 0.0 { f32::NEG_INFINITY } else { reference * natural + sum.ln() };
                // SAFETY: the row is the task's.
                unsafe { plan.lse.add(first + row + lane).write(lse) };
            }
        }
    }

    /// Makes a block's panels available, packing it unless it was.
    unsafe fn load<E: Engine>(&mut self, block: usize) {
        if self.packed.is_none() {
            // SAFETY: see the head of this block.
            unsafe { self.plan.pack::<E>(self.task.head, block, self.ring.add(block % RING * 2 * self.plan.block())) }
        }
    }

    /// Keys of a block, packed, then its values.
    #[inline(always)]
    unsafe fn block(&self, block: usize) -> *const u16 {
        let size = 2 * self.plan.block();
        // SAFETY: see the head of this block.
        unsafe {
            match self.packed {
                Some(packed) => packed.add(block * size),
                None => self.ring.add(block % RING * size).cast_const(),
            }
        }
    }

    /// The unit after `unit`, or the first: tiles within blocks, without those whose rows see nothing of the block.
    fn following(&self, unit: Option<Unit>) -> Option<Unit> {
        let tiles = self.tiles();
        let start = unit.map_or(0, |unit| unit.block * tiles + unit.tile + 1);
        let side = unit.map_or(0, |unit| 1 - unit.side);
        (start..self.task.visible.div_ceil(KEYS) * tiles)
            .map(|index| Unit { block: index / tiles, tile: index % tiles, side })
            .find(|unit| self.visible[unit.tile].1 > unit.block * KEYS)
    }

    /// Tiles that hold rows.
    fn tiles(&self) -> usize {
        self.task.rows.div_ceil(SIDE)
    }

    /// Half tiles, of 16 rows, that hold rows.
    fn halves(&self, tile: usize) -> usize {
        (self.task.rows - tile * SIDE).div_ceil(LANES).min(2)
    }
}

/// Sets the scores that a row may not see to minus infinity.
///
/// # Safety
/// `scores` must be `KEYS` rows of 32, from the half tile's first lane on.
unsafe fn hide(scores: *mut f32, first: usize, visible: &[u32; LANES]) {
    for key in 0..KEYS {
        // SAFETY: the caller's promise.
        let line = unsafe { &mut *scores.add(key * SIDE).cast::<[f32; LANES]>() };
        for (score, &visible) in line.iter_mut().zip(visible) {
            if first + key >= visible as usize {
                *score = f32::NEG_INFINITY;
            }
        }
    }
}
