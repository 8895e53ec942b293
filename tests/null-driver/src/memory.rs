//! Memory of GPUs, by pools: what is allocated, what is kept of what was freed, and what is refused. Has no bytes of its own.

use std::collections::BTreeMap;
use std::ops::Bound;

/// What addresses are multiples of.
const ALIGNMENT: u64 = 512;
/// Addresses of a GPU's memory begin here times its number and one. None is given twice.
const ADDRESSES: u64 = 1 << 44;

/// Of all GPUs.
pub struct Memory {
    gpus: Vec<GpuMemory>,
    pools: BTreeMap<u64, Pool>,
    runs: BTreeMap<u64, Run>,
    refusing: Refusing,
}

#[derive(Clone)]
struct GpuMemory {
    limit: u64,
    next: u64,
    most: u64,
    refused: u64,
}

#[derive(Default)]
struct Pool {
    gpu: usize,
    used: u64,
    /// Bytes that no other pool has: at least those used.
    kept: u64,
    /// Most bytes used since this was set.
    high: u64,
    /// Bytes above which what is not used is given back when somebody waits for the GPU.
    threshold: u64,
}

/// Bytes that are allocated.
struct Run {
    pool: u64,
    bytes: u64,
}

/// Allocations that are refused whatever is free: some, after so many.
#[derive(Clone, Copy, Default)]
struct Refusing {
    after: u64,
    count: u64,
}

/// There is not so much.
#[derive(Debug, PartialEq)]
pub struct Refused;

/// What a GPU has.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Bytes that are allocated, most of them at once, and what the pools keep.
    pub used: u64,
    pub most: u64,
    pub kept: u64,
    pub limit: u64,
    /// Allocations that live.
    pub runs: u64,
    pub refused: u64,
}

impl Memory {
    pub fn new(gpus: usize, limit: u64) -> Self {
        let gpu = |number| GpuMemory { limit, next: (number as u64 + 1) * ADDRESSES, most: 0, refused: 0 };
        let (pools, runs, refusing) = Default::default();
        Self { gpus: (0..gpus).map(gpu).collect(), pools, runs, refusing }
    }

    pub fn gpus(&self) -> usize {
        self.gpus.len()
    }

    pub fn add_pool(&mut self, pool: u64, gpu: usize) {
        self.pools.insert(pool, Pool { gpu, ..Pool::default() });
    }

    /// A new run of a pool that there is.
    pub fn alloc(&mut self, pool: u64, bytes: u64) -> Result<u64, Refused> {
        let of = &self.pools[&pool];
        let (number, used) = (of.gpu, of.used + bytes);
        let more = used.saturating_sub(of.kept);
        let full = self.kept(number) + more > self.gpus[number].limit;
        let gpu = &mut self.gpus[number];
        if self.refusing.refuses() || full {
            gpu.refused += 1;
            return Err(Refused);
        }
        let pointer = gpu.next;
        gpu.next += bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT);
        let of = self.pools.get_mut(&pool).expect("it was there");
        (of.used, of.kept, of.high) = (used, of.kept + more, of.high.max(used));
        self.runs.insert(pointer, Run { pool, bytes });
        let now = self.used(number);
        self.gpus[number].most = self.gpus[number].most.max(now);
        Ok(pointer)
    }

    /// Frees a run; whether it was there.
    pub fn free(&mut self, pointer: u64) -> bool {
        let Some(run) = self.runs.remove(&pointer) else { return false };
        let pool = self.pools.get_mut(&run.pool).expect("pools stay");
        pool.used -= run.bytes;
        true
    }

    /// Whether all these bytes are of one run.
    pub fn holds(&self, pointer: u64, bytes: u64) -> bool {
        let below = self.runs.range((Bound::Unbounded, Bound::Included(pointer))).next_back();
        below.is_some_and(|(start, run)| pointer - start + bytes <= run.bytes)
    }

    /// Gives back what a pool keeps but for so many bytes.
    pub fn trim(&mut self, pool: u64, spare: u64) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.kept = pool.kept.min(spare.max(pool.used));
        }
    }

    /// Somebody waits for a GPU: its pools give back what is above their thresholds.
    pub fn wait(&mut self, gpu: usize) {
        for pool in self.pools.values_mut().filter(|pool| pool.gpu == gpu) {
            pool.kept = pool.kept.min(pool.threshold.max(pool.used));
        }
    }

    pub fn set_threshold(&mut self, pool: u64, bytes: u64) {
        self.pools.entry(pool).and_modify(|pool| pool.threshold = bytes);
    }

    pub fn forget_high(&mut self, pool: u64) {
        self.pools.entry(pool).and_modify(|pool| pool.high = pool.used);
    }

    /// Bytes of a pool that are used, and most that were.
    pub fn pool(&self, pool: u64) -> Option<(u64, u64)> {
        self.pools.get(&pool).map(|pool| (pool.used, pool.high))
    }

    /// From now on GPUs have so much memory.
    pub fn limit(&mut self, bytes: u64) {
        self.gpus.iter_mut().for_each(|gpu| gpu.limit = bytes);
    }

    /// Refuses `count` allocations after the next `after`.
    pub fn refuse(&mut self, after: u64, count: u64) {
        self.refusing = Refusing { after, count };
    }

    /// Whether allocations are still to be refused.
    pub fn is_refusing(&self) -> bool {
        self.refusing.count > 0
    }

    fn used(&self, gpu: usize) -> u64 {
        self.pools.values().filter(|pool| pool.gpu == gpu).map(|pool| pool.used).sum()
    }

    fn kept(&self, gpu: usize) -> u64 {
        self.pools.values().filter(|pool| pool.gpu == gpu).map(|pool| pool.kept).sum()
    }

    /// Free and all bytes.
    pub fn room(&self, gpu: usize) -> (u64, u64) {
        let limit = self.gpus[gpu].limit;
        (limit.saturating_sub(self.kept(gpu)), limit)
    }

    pub fn figures(&self) -> Vec<Figures> {
        let runs = |gpu| self.runs.values().filter(|run| self.pools[&run.pool].gpu == gpu).count() as u64;
        let figures = |(gpu, of): (usize, &GpuMemory)| Figures {
            used: self.used(gpu),
            most: of.most,
            kept: self.kept(gpu),
            limit: of.limit,
            runs: runs(gpu),
            refused: of.refused,
        };
        self.gpus.iter().enumerate().map(figures).collect()
    }
}

impl Refusing {
    fn refuses(&mut self) -> bool {
        if self.count == 0 {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        self.count -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: u64 = 1;
    const LASTING: u64 = 2;

    fn memory() -> Memory {
        let mut memory = Memory::new(1, 1000);
        memory.add_pool(USUAL, 0);
        memory.add_pool(LASTING, 0);
        memory.set_threshold(USUAL, u64::MAX);
        memory
    }

    #[test]
    fn what_one_pool_keeps_no_other_has_until_it_is_trimmed() {
        let mut memory = memory();
        let first = memory.alloc(USUAL, 800).unwrap();
        assert_eq!(memory.alloc(LASTING, 300), Err(Refused));
        assert!(memory.free(first) && !memory.free(first), "once");
        memory.wait(0);
        assert_eq!((memory.alloc(LASTING, 300), memory.room(0)), (Err(Refused), (200, 1000)));
        memory.trim(USUAL, 0);
        let second = memory.alloc(LASTING, 300).unwrap();
        assert_eq!(memory.room(0), (700, 1000));
        memory.free(second);
        memory.wait(0);
        assert_eq!(memory.room(0), (1000, 1000), "of a pool that keeps nothing");
        let expected = Figures { used: 0, most: 800, kept: 0, limit: 1000, runs: 0, refused: 2 };
        assert_eq!(memory.figures(), [expected]);
    }

    #[test]
    fn bytes_are_of_one_run_or_of_none() {
        let mut memory = memory();
        let [first, second] = [100, 100].map(|bytes| memory.alloc(USUAL, bytes).unwrap());
        let held = |memory: &Memory| {
            [(first, 100), (first + 99, 1), (first, 101), (second - 1, 1)].map(|(at, bytes)| memory.holds(at, bytes))
        };
        assert_eq!(held(&memory), [true, true, false, false]);
        memory.free(first);
        assert_eq!(held(&memory), [false; 4]);
    }

    #[test]
    fn so_many_allocations_are_refused_after_so_many() {
        let mut memory = memory();
        memory.refuse(1, 2);
        let granted = [(); 4].map(|()| memory.alloc(USUAL, 10).is_ok());
        assert_eq!((granted, memory.is_refusing()), ([true, false, false, true], false));
    }
}
