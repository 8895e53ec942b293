//! What every kernel runs on: the instructions and the threads.

use super::choice::KernelSet;
use super::pool::Pool;

pub(super) struct Compute {
    pub set: KernelSet,
    pub pool: Pool,
}
