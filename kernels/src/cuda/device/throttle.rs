//! Long work is queued a quantum at a time, at most one further than what the GPU is at, and lets steps go ahead between two,
//! whichever backend of this process takes them: where steps came lately and memory is not short, and in calls that are long by
//! themselves. Elsewhere nothing waits here: a driver that sees work done early keeps more memory for what is allocated behind it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaEvent;

use crate::{Quanta, Quantum, Steps};

/// Rows up to which a call of attention goes through the kernel that cuts the keys: below, a row's bits do not depend on its company.
pub const SPLIT_KEY_ROWS: usize = 512;
/// Operations of a call that is queued whole, about: some 25 milliseconds of a Hopper GPU.
pub const QUANTUM_OPERATIONS: f64 = 1.5e13;
/// Operations of a quantum, where calls are shorter: some 8 milliseconds, beside which a step of few rows is short, and waiting for it
/// shorter.
pub const SHORT_QUANTUM_OPERATIONS: f64 = QUANTUM_OPERATIONS / 3.0;
/// Operations of a call that is long by itself.
pub const LONG_CALL_OPERATIONS: f64 = QUANTUM_OPERATIONS / 2.0;
/// Part of a GPU's memory below which what is free is short.
pub const SHORT_MEMORY: usize = 8;

/// What is queued of long work.
pub struct Throttle {
    pub quanta: Quanta,
    pub queued: Mutex<Queued>,
}

#[derive(Default)]
pub struct Queued {
    /// Since the last quantum ended.
    pub quantum: Quantum,
    /// The end of the last one, and of the one before.
    pub last: Option<CudaEvent>,
    pub before: Option<CudaEvent>,
}

impl Throttle {
    /// Of work on this GPU.
    pub fn of(gpu: usize) -> Self {
        static GPUS: Mutex<Option<HashMap<usize, Arc<Steps>>>> = Mutex::new(None);
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = gpus.get_or_insert_default().entry(gpu).or_default();
        Self { quanta: Quanta::beside(Arc::clone(steps)), queued: Mutex::default() }
    }
}
