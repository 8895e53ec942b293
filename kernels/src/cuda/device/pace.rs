//! Long work is queued a stretch at a time, at most one further than what the GPU is at, and lets steps go ahead between two,
//! whichever backend of this process takes them: where steps came lately and memory is not short, and in calls that are long by
//! themselves. Elsewhere nothing waits here: a driver that sees work done early keeps more memory for what is allocated behind it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaEvent, sys};

use super::super::FEW_ROWS;
use super::{Device, device_error};
use crate::{Ahead, KernelError, Rank, Steps, Stretch, Stretches};

/// Operations of a stretch: some 25 milliseconds of a Hopper GPU, beside which a step of few rows is short, and waiting for it shorter.
pub(in super::super) const STRETCH: f64 = 1.5e13;
/// Operations of a call that is long by itself.
const LONG: f64 = STRETCH / 2.0;
/// Part of a GPU's memory below which what is free is short.
const SHORT: usize = 8;

/// What is queued of long work.
pub struct Pace {
    stretches: Stretches,
    queued: Mutex<Queued>,
}

#[derive(Default)]
struct Queued {
    /// Since the last stretch ended.
    stretch: Stretch,
    /// The end of the last one, and of the one before.
    last: Option<CudaEvent>,
    before: Option<CudaEvent>,
}

impl Pace {
    /// Of work on this GPU.
    pub fn of(gpu: usize) -> Self {
        static GPUS: Mutex<Option<HashMap<usize, Arc<Steps>>>> = Mutex::new(None);
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = gpus.get_or_insert_default().entry(gpu).or_default();
        Self { stretches: Stretches::beside(Arc::clone(steps)), queued: Mutex::default() }
    }
}

impl Device {
    /// A step begins, ahead of which nothing of a later rank goes.
    pub fn ahead(&self, rank: Rank) -> Ahead {
        self.pace.stretches.ahead(rank)
    }

    /// So many operations of a call of so many rows were queued. Waits at the end of a stretch.
    pub(in super::super) fn queued(&self, rows: usize, operations: f64) -> Result<(), KernelError> {
        if rows <= FEW_ROWS {
            return Ok(());
        }
        let failed = |error| device_error("queue", error);
        let (before, last) = {
            let mut queued = self.pace.queued.lock().expect("no panic holds it");
            if !queued.stretch.ends_with(operations, STRETCH) {
                return Ok(());
            }
            if operations < LONG && !(self.pace.stretches.are_wanted() && self.has_room()?) {
                (queued.last, queued.before) = (None, None);
                return Ok(());
            }
            let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
            let last = queued.last.replace(self.stream.record_event(timed).map_err(failed)?);
            (queued.before.take(), last)
        };
        // Of a stretch whose beginning is not known, all of it may have been queued long before.
        let mut busy = Duration::MAX;
        if let Some(last) = last {
            last.synchronize().map_err(failed)?;
            if let Some(before) = before {
                busy = Duration::from_secs_f32(before.elapsed_ms(&last).map_err(failed)?.max(0.0) / 1e3);
            }
            self.pace.queued.lock().expect("no panic holds it").before = Some(last);
        }
        self.pace.stretches.pass(busy);
        Ok(())
    }

    fn has_room(&self) -> Result<bool, KernelError> {
        let (free, all) = self.memory()?;
        Ok(free > all / SHORT)
    }
}
