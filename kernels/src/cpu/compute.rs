//! What every kernel runs on: the instructions and the threads.

use super::choice::KernelSet;
use super::pool::ThreadPool;

pub(super) struct Compute {
    pub set: KernelSet,
    pub pool: ThreadPool,
}
