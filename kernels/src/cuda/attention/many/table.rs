//! Structures of a launch's kernels, sent to them together.

use super::super::super::device::{Carried, Device, DeviceBuffer};
use crate::KernelError;

/// Structures as kernels declare them, one behind the other, to be uploaded together.
#[derive(Default)]
pub struct Table(pub Vec<u8>);

impl Table {
    /// Appends and returns the place.
    pub fn push<T: Copy>(&mut self, values: &[T]) -> u64 {
        let at = self.begin::<T>(values.len());
        self.add(values);
        at
    }

    /// As [`Table::push`], of values as they are made.
    pub fn append<T: Copy>(&mut self, values: impl ExactSizeIterator<Item = T>) -> u64 {
        let at = self.begin::<T>(values.len());
        values.for_each(|value| self.add(&[value]));
        at
    }

    /// Where so many values begin, for which there is room then.
    fn begin<T>(&mut self, count: usize) -> u64 {
        let at = self.0.len().next_multiple_of(align_of::<T>().max(16));
        self.0.reserve(at - self.0.len() + count * size_of::<T>());
        self.0.resize(at, 0);
        at as u64
    }

    fn add<T: Copy>(&mut self, values: &[T]) {
        // SAFETY: these are C structures of numbers without gaps.
        self.0.extend_from_slice(unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), std::mem::size_of_val(values))
        });
    }
}

/// A table as kernels get it: with their arguments, or in device memory.
pub enum Sent {
    Carried(Box<Carried>),
    Lies(DeviceBuffer),
}

impl Device {
    /// Sends a table to the kernels behind.
    pub(super) fn send(&self, table: &Table) -> Result<Sent, KernelError> {
        Ok(match Carried::of(&table.0) {
            Some(carried) => Sent::Carried(Box::new(carried)),
            None => Sent::Lies(self.upload_bytes(&table.0)?),
        })
    }

    /// Appends `count` values from `pointer` on, once all work queued before is done.
    pub(super) fn download_floats(&self, pointer: u64, count: usize, values: &mut Vec<f32>) -> Result<(), KernelError> {
        if count == 0 {
            return Ok(());
        }
        let start = values.len();
        values.resize(start + count, 0.0);
        // SAFETY: every bit pattern is a value of either type, and these are its bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(values[start..].as_mut_ptr().cast::<u8>(), 4 * count) };
        self.download_bytes(pointer, bytes)
    }
}
