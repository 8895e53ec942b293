//! Waiting for what was queued, and giving back what is not needed meanwhile.

use std::time::Duration;

use cudarc::driver::sys;

use super::throttle::{LONG_CALL_OPERATIONS, SHORT_MEMORY, SHORT_QUANTUM_OPERATIONS, SPLIT_KEY_ROWS};
use super::{Device, KEPT_SHARE, device_error};
use crate::{KernelError, Mark, PriorityGuard, Rank};

impl Device {
    /// Waits until all queued work is done, and gives back what the process keeps of freed memory but for a share: others may
    /// compute on this GPU too.
    pub fn rest(&self) -> Result<(), KernelError> {
        self.synchronize()?;
        self.throttle.quanta.end_turn();
        let (_, all) = self.memory()?;
        self.trim(all / KEPT_SHARE);
        Ok(())
    }

    /// Waits until all queued work is done, and gives back all that is kept of freed memory.
    pub(in super::super) fn give_back(&self) -> Result<(), KernelError> {
        self.synchronize()?;
        self.trim(0);
        Ok(())
    }

    /// Gives back what is kept of freed memory, but for `spare` bytes.
    pub(super) fn trim(&self, spare: usize) {
        if spare == 0 {
            [&self.pool, &self.lasting].iter().for_each(|pool| pool.give_back());
        }
        self.memory_pools().for_each(|pool| pool.trim(spare));
    }

    /// Whether the context still computes: an error of a kernel, or of the GPU, is every later call's, too.
    pub fn health(&self) -> Result<(), KernelError> {
        let failed = |error| device_error("health", error);
        self.context.bind_to_thread().map_err(failed)?;
        // SAFETY: the stream is live.
        match unsafe { sys::cuStreamQuery(self.stream.cu_stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(()),
            status => status.result().map_err(failed),
        }
    }

    /// What waits until all that was queued before is done.
    pub fn mark(&self) -> Result<Mark, KernelError> {
        let failed = |error| device_error("mark", error);
        let event = self.stream.record_event(None).map_err(failed)?;
        Ok(Box::new(move || event.synchronize().map_err(failed)))
    }

    /// Waits until all queued work is done.
    pub fn synchronize(&self) -> Result<(), KernelError> {
        self.stream.synchronize().map_err(|error| device_error("synchronize", error))
    }

    /// A step begins, ahead of which nothing of a later rank goes.
    pub fn priority(&self, rank: Rank) -> PriorityGuard {
        self.throttle.quanta.priority(rank)
    }

    /// A step is to begin: those have their turn first that the last one held up, while steps follow each other within `interval`.
    pub fn await_turn(&self, interval: Duration) {
        self.throttle.quanta.await_turn(interval);
    }

    /// So many operations of a call of so many rows were queued. Waits at the end of a quantum.
    pub(in super::super) fn queued(&self, rows: usize, operations: f64) -> Result<(), KernelError> {
        if rows <= SPLIT_KEY_ROWS {
            return Ok(());
        }
        let failed = |error| device_error("queue", error);
        let (before, last) = {
            let mut queued = self.throttle.queued.lock().expect("no panic holds it");
            if !queued.quantum.ends_with(operations, SHORT_QUANTUM_OPERATIONS) {
                return Ok(());
            }
            if operations < LONG_CALL_OPERATIONS && !(self.throttle.quanta.are_wanted() && self.has_room()?) {
                (queued.last, queued.before) = (None, None);
                return Ok(());
            }
            let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
            let last = queued.last.replace(self.stream.record_event(timed).map_err(failed)?);
            (queued.before.take(), last)
        };
        // Of a quantum whose beginning is not known, all of it may have been queued long before.
        let mut busy = Duration::MAX;
        if let Some(last) = last {
            last.synchronize().map_err(failed)?;
            if let Some(before) = before {
                busy = Duration::from_secs_f32(before.elapsed_ms(&last).map_err(failed)?.max(0.0) / 1e3);
            }
            self.throttle.queued.lock().expect("no panic holds it").before = Some(last);
        }
        self.throttle.quanta.pass(busy);
        Ok(())
    }

    fn has_room(&self) -> Result<bool, KernelError> {
        let (free, all) = self.memory()?;
        Ok(free > all / SHORT_MEMORY)
    }
}
