//! Columns of matrices, some on each of several GPUs, put together on all of them by copies beside what the GPUs compute.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream, DriverError, sys};

use super::super::device::device_error;
use super::super::gpu::Cuda;
use super::super::tensor::Tensor;
use crate::{DType, KernelError};

/// Columns of all members on their way to each, by copies that the devices make beside what they compute.
pub(super) struct Placing {
    members: Vec<Arc<Cuda>>,
    sides: Vec<Arc<CudaStream>>,
    /// Which are read and written until all copies are made.
    _held: Vec<Tensor>,
    /// When a member has all.
    done: Vec<CudaEvent>,
    joined: bool,
}

impl Placing {
    /// Whether these are columns, as products give them.
    pub fn takes(parts: &[Tensor], axis: usize) -> bool {
        axis == 1 && parts.iter().all(|part| part.shape.len() == 2 && !part.rows_first && part.bytes() > 0)
    }

    /// Whether columns of each of these members come to all of them as they are.
    pub fn is_right(members: &[Arc<Cuda>], sides: &[Arc<CudaStream>]) -> Result<bool, KernelError> {
        let (rows, columns) = (3, 8);
        let value = |row: usize, column: usize| (row * columns * members.len() + column) as f32;
        let part = |(at, member): (usize, &Arc<Cuda>)| {
            let own = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, at * columns + column)));
            let values: Vec<f32> = own.map(|(row, column)| value(row, column)).collect();
            member.device.tensor(&[rows, columns], &values, DType::F32)
        };
        let parts = members.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?;
        let (whole, placing) = Self::begun(members, sides, (&parts, &vec![columns; members.len()]))?;
        placing.joined()?;
        let expected: Vec<f32> = (0..rows * columns * members.len()).map(|at| at as f32).collect();
        for (member, whole) in members.iter().zip(&whole) {
            if member.device.download(whole)? != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Queues the copies, behind what was asked of the devices before: where each gets all columns.
    pub fn begun(
        members: &[Arc<Cuda>],
        sides: &[Arc<CudaStream>],
        (parts, sizes): (&[Tensor], &[usize]),
    ) -> Result<(Vec<Tensor>, Self), KernelError> {
        let failed = |error| device_error("all_gather", error);
        let (rows, dtype) = (parts[0].shape[0], parts[0].dtype);
        let whole = members.iter().map(|member| member.device.empty(&[rows, sizes.iter().sum()], dtype));
        let whole = whole.collect::<Result<Vec<_>, _>>()?;
        let ready = members.iter().map(|member| member.device.stream().record_event(None).map_err(failed));
        let ready = ready.collect::<Result<Vec<_>, _>>()?;
        let mut placing = Self {
            members: members.to_vec(),
            sides: sides.to_vec(),
            _held: parts.iter().chain(&whole).cloned().collect(),
            done: Vec::new(),
            joined: false,
        };
        for (to, side) in whole.iter().zip(sides) {
            ready.iter().try_for_each(|ready| side.wait(ready)).map_err(failed)?;
            let (mut at, pitch) = (to.pointer(), to.bytes() / rows);
            for part in parts {
                let row = part.bytes() / rows;
                copy_columns(side, (part.pointer(), row), (at, pitch), (rows, row)).map_err(failed)?;
                at += row as u64;
            }
            placing.done.push(side.record_event(None).map_err(failed)?);
        }
        Ok((whole, placing))
    }

    /// The same of columns that lie where they belong, each in its member's own matrix: those of the others come there.
    pub fn filling(
        members: &[Arc<Cuda>],
        sides: &[Arc<CudaStream>],
        (wholes, sizes): (&[Tensor], &[usize]),
    ) -> Result<Self, KernelError> {
        let failed = |error| device_error("all_gather", error);
        let ready = members.iter().map(|member| member.device.stream().record_event(None).map_err(failed));
        let ready = ready.collect::<Result<Vec<_>, _>>()?;
        let mut placing = Self {
            members: members.to_vec(),
            sides: sides.to_vec(),
            _held: wholes.to_vec(),
            done: Vec::new(),
            joined: false,
        };
        let (rows, pitch) = (wholes[0].shape[0], wholes[0].shape[1] * wholes[0].dtype.size());
        for (own, (to, side)) in wholes.iter().zip(sides).enumerate() {
            ready.iter().try_for_each(|ready| side.wait(ready)).map_err(failed)?;
            let mut at = 0;
            for (from, (of, size)) in wholes.iter().zip(sizes).enumerate() {
                let width = size * of.dtype.size();
                if from != own {
                    let [of, to] = [of, to].map(|whole| whole.pointer() + at as u64);
                    copy_columns(side, (of, pitch), (to, pitch), (rows, width)).map_err(failed)?;
                }
                at += width;
            }
            placing.done.push(side.record_event(None).map_err(failed)?);
        }
        Ok(placing)
    }

    /// Has each member's stream wait for its columns, and for the copies of its own part, whose memory it may use again.
    pub fn joined(mut self) -> Result<(), KernelError> {
        self.joined = true;
        let waits = self.wait_for_all();
        if waits.is_err() {
            self.stop();
        }
        waits.map_err(|error| device_error("all_gather", error))
    }

    fn wait_for_all(&self) -> Result<(), DriverError> {
        let each = |member: &Arc<Cuda>| self.done.iter().try_for_each(|done| member.device.stream().wait(done));
        self.members.iter().try_for_each(each)
    }

    /// Somebody failed. No copy may go on where memory is freed.
    fn stop(&self) {
        for side in &self.sides {
            let _ = side.synchronize();
        }
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        // Nobody read what came: whoever gets the memory next waits for the copies. Where not all of them have an event, here.
        if !self.joined && (self.done.len() < self.members.len() || self.wait_for_all().is_err()) {
            self.stop();
        }
    }
}

/// Rows of so many bytes from one pitch to another, on whichever GPUs they are, in the order of `stream`.
fn copy_columns(
    stream: &CudaStream,
    (from, from_pitch): (u64, usize),
    (to, pitch): (u64, usize),
    (rows, width): (usize, usize),
) -> Result<(), DriverError> {
    stream.context().bind_to_thread()?;
    let memory = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED;
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: memory,
        srcHost: std::ptr::null(),
        srcDevice: from,
        srcArray: std::ptr::null_mut(),
        srcPitch: from_pitch,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: memory,
        dstHost: std::ptr::null_mut(),
        dstDevice: to,
        dstArray: std::ptr::null_mut(),
        dstPitch: pitch,
        WidthInBytes: width,
        Height: rows,
    };
    // SAFETY: both are live until the placing ends, of as many rows, and each lies within its row.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.cu_stream()) }.result()
}
