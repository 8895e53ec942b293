//! Small tensors from GPU to GPU without the driver's help. The lender's stream counts its lendings in device memory; a kernel of the
//! receiver waits until it has counted far enough, copies, and counts its copies in host memory, where the lender sees what it
//! need not keep any more. A kernel waits only for what was queued before it, so that none waits for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::CudaStream;

use super::super::device::{Device, DeviceBuffer, LaunchShape, Pinned, device_error, launch};
use super::super::tensor::Tensor;
use crate::KernelError;

/// Bytes of a tensor up to which a kernel of one block of threads copies it.
const SMALL_TENSOR: usize = 512 << 10;

/// What a device counts.
pub struct Signals {
    /// Lendings that are there, in device memory.
    exported: DeviceBuffer,
    /// Lendings that were queued.
    queued: Mutex<u64>,
    /// Copies from others that were queued.
    fetched: Mutex<u64>,
    copied: Arc<Copied>,
    kept: Mutex<Vec<Kept>>,
}

/// The signals of a device, made when they are wanted first.
#[derive(Default)]
pub struct SignalsSlot(OnceLock<Arc<Signals>>);

impl SignalsSlot {
    /// Those of this device, whose slot it is.
    pub fn of(&self, device: &Device) -> Result<&Arc<Signals>, KernelError> {
        if let Some(signals) = self.0.get() {
            return Ok(signals);
        }
        let new = Arc::new(Signals::new(device)?);
        Ok(self.0.get_or_init(|| new))
    }
}

/// Copies that a device made from others, in host memory.
struct Copied(Pinned);

/// Whose copies tensors are kept for, up to which of its copies.
pub struct Fetched {
    by: Arc<Copied>,
    number: u64,
    stream: Arc<CudaStream>,
}

/// Tensors that others may still copy.
struct Kept {
    _tensors: Vec<Tensor>,
    fetched: Vec<Fetched>,
}

// SAFETY: the memory is one number, read and written as an atomic.
unsafe impl Sync for Copied {}

impl Copied {
    fn count(&self) -> u64 {
        // SAFETY: the memory is live, aligned and holds a number, which the device writes whole.
        unsafe { AtomicU64::from_ptr(self.0.pointer().cast()) }.load(Ordering::Acquire)
    }
}

impl Fetched {
    fn is_done(&self) -> bool {
        self.by.count() >= self.number
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for fetched in self.fetched.iter().filter(|fetched| !fetched.is_done()) {
            let _ = fetched.stream.synchronize();
        }
    }
}

/// Whether a kernel copies such tensors.
pub fn suit(tensors: &[Tensor]) -> bool {
    let suits = |tensor: &Tensor| {
        tensor.bytes() <= SMALL_TENSOR && tensor.bytes().is_multiple_of(4) && tensor.pointer().is_multiple_of(16)
    };
    !tensors.is_empty() && tensors.iter().all(suits)
}

impl Signals {
    /// Nothing is exported yet.
    pub fn new(device: &Device) -> Result<Self, KernelError> {
        let exported = device.upload_bytes(&[0; 16])?;
        // Other devices look there whatever stands in this one's queue: what lay there before is no count.
        device.synchronize()?;
        let copied =
            Pinned::new(size_of::<u64>(), Arc::clone(device.stream())).map_err(|error| device_error("lend", error))?;
        // SAFETY: the memory is fresh, and a number fits.
        unsafe { copied.pointer().cast::<u64>().write(0) };
        let (queued, fetched, kept) = Default::default();
        Ok(Self { exported, queued, fetched, copied: Arc::new(Copied(copied)), kept })
    }

    /// Counts a lending, once what was queued before is done; says which one it is.
    pub fn export(&self, device: &Device) -> Result<u64, KernelError> {
        self.kept.lock().expect("no panic holds it").retain(|kept| !kept.fetched.iter().all(Fetched::is_done));
        let mut queued = self.queued.lock().expect("no panic holds it");
        let (at, number) = (self.exported.pointer, *queued + 1);
        launch!(device, "signal", LaunchShape::new(1, 32), at, number)?;
        *queued = number;
        Ok(number)
    }

    /// Copies of what another device's lending `number` is of, on `to`, whose own signals count them.
    pub fn fetch(
        &self,
        number: u64,
        tensors: &[Tensor],
        (to, own): (&Device, &Self),
    ) -> Result<(Vec<Tensor>, Fetched), KernelError> {
        let place = |tensor: &Tensor| -> Result<Tensor, KernelError> {
            Ok(Tensor { rows_first: tensor.rows_first, ..to.empty(&tensor.shape, tensor.dtype)? })
        };
        let copies = tensors.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let mut fetched = own.fetched.lock().expect("no panic holds it");
        let made = *fetched + 1;
        for (at, (tensor, copy)) in tensors.iter().zip(&copies).enumerate() {
            // The last one is counted.
            let counter = if at + 1 == tensors.len() { own.copied.0.pointer() as u64 } else { 0 };
            let (exported, from, place, bytes) =
                (self.exported.pointer, tensor.pointer(), copy.pointer(), tensor.bytes() as i32);
            launch!(to, "fetch_lent", LaunchShape::new(1, 1024), exported, number, from, place, counter, made, bytes)?;
        }
        *fetched = made;
        Ok((copies, Fetched { by: Arc::clone(&own.copied), number: made, stream: Arc::clone(to.stream()) }))
    }

    /// Keeps tensors until all copies of them are made.
    pub fn keep(&self, tensors: Vec<Tensor>, fetched: Vec<Fetched>) {
        if !fetched.is_empty() {
            self.kept.lock().expect("no panic holds it").push(Kept { _tensors: tensors, fetched });
        }
    }
}
