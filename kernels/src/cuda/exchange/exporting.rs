//! Tensors from GPU to GPU of one process, by copies that the devices make among themselves: streams wait for each other, no host
//! does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};

use super::super::device::{Device, MemoryPool, device_error};
use super::super::tensor::Tensor;
use super::signals::{self, Fetched, Signals, SignalsSlot};
use crate::KernelError;

/// Whether GPUs of this process were found to be linked.
static LINKED: AtomicBool = AtomicBool::new(false);

/// Tensors that others may copy, from when what was queued before them is done.
pub struct Lending {
    tensors: Vec<Tensor>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    ready: Ready,
    /// When copies were made that the driver makes.
    copied: Mutex<Vec<CudaEvent>>,
}

/// How others see that tensors are there.
enum Ready {
    Event(CudaEvent),
    /// By the lender's count of its lendings, and what was copied since.
    Counted {
        signals: Arc<Signals>,
        number: u64,
        fetched: Mutex<Vec<Fetched>>,
    },
}

impl Drop for Lending {
    fn drop(&mut self) {
        // The memory is freed in the order of this stream: behind the copies.
        for event in self.copied.lock().expect("no panic holds it").drain(..) {
            let _ = self.stream.wait(&event);
        }
        if let Ready::Counted { signals, fetched, .. } = &self.ready {
            let fetched = std::mem::take(&mut *fetched.lock().expect("no panic holds it"));
            signals.keep(std::mem::take(&mut self.tensors), fetched);
        }
    }
}

impl Lending {
    /// Of a device, which counts them with these signals where GPUs are linked.
    pub fn of(tensors: Vec<Tensor>, device: &Device, signals: &SignalsSlot) -> Result<Self, KernelError> {
        let (context, stream) = (Arc::clone(device.shared_context()), Arc::clone(device.stream()));
        let ready = match LINKED.load(Ordering::Relaxed) && signals::suit(&tensors) {
            true => {
                let signals = signals.of(device)?;
                let number = signals.export(device)?;
                Ready::Counted { signals: Arc::clone(signals), number, fetched: Mutex::default() }
            }
            false => Ready::Event(stream.record_event(None).map_err(|error| device_error("lend", error))?),
        };
        Ok(Self { tensors, context, stream, ready, copied: Mutex::default() })
    }

    /// Copies on another device, which counts them with its own signals.
    pub fn fetch(&self, to: &Device, own: &SignalsSlot) -> Result<Vec<Tensor>, KernelError> {
        let failed = |error| device_error("fetch", error);
        if Arc::ptr_eq(&self.stream, to.stream()) {
            return Ok(self.tensors.clone());
        }
        let linked = open(&self.context, to.shared_context());
        match &self.ready {
            Ready::Counted { signals, number, fetched } if linked => {
                let (copies, by) = signals.fetch(*number, &self.tensors, (to, own.of(to)?))?;
                fetched.lock().expect("no panic holds it").push(by);
                return Ok(copies);
            }
            Ready::Counted { .. } => {
                let now = self.stream.record_event(None).map_err(failed)?;
                to.stream().wait(&now).map_err(failed)?;
            }
            Ready::Event(ready) => to.stream().wait(ready).map_err(failed)?,
        }
        self.copy(to)
    }

    /// Copies by the driver, once the receiver's stream waits for what is copied.
    fn copy(&self, to: &Device) -> Result<Vec<Tensor>, KernelError> {
        let failed = |error| device_error("fetch", error);
        let mut copies = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let copy = Tensor { rows_first: tensor.rows_first, ..to.empty(&tensor.shape, tensor.dtype)? };
            let (from_context, to_context) = (self.context.cu_ctx(), to.shared_context().cu_ctx());
            let (from, at, bytes) = (tensor.pointer(), copy.pointer(), tensor.bytes());
            if bytes > 0 {
                // SAFETY: both are live: the source until this lending is dropped, which waits for the event below.
                unsafe {
                    result::memcpy_peer_async(to_context, at, from_context, from, bytes, to.stream().cu_stream())
                }
                .map_err(failed)?;
            }
            copies.push(copy);
        }
        let done = to.stream().record_event(None).map_err(failed)?;
        self.copied.lock().expect("no panic holds it").push(done);
        Ok(copies)
    }
}

/// Lets one GPU read what another has, where they are linked, and says whether they are; without that the driver takes copies
/// through the host.
pub fn open(of: &Arc<CudaContext>, to: &Arc<CudaContext>) -> bool {
    static OPENED: Mutex<Vec<((usize, usize), bool)>> = Mutex::new(Vec::new());
    let pair = (of.ordinal(), to.ordinal());
    let mut opened = OPENED.lock().expect("no panic holds it");
    if pair.0 == pair.1 {
        return false;
    }
    if let Some((_, linked)) = opened.iter().find(|(known, _)| *known == pair) {
        return *linked;
    }
    let (mut can, mut pools) = (0, MemoryPool::all(of).peekable());
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: sys::CUmemLocation { type_, id: pair.1 as i32 }, flags };
    // SAFETY: both devices are open, and the pointers are to live values of the types that the calls want.
    let linked = unsafe {
        sys::cuDeviceCanAccessPeer(&mut can, to.cu_device(), of.cu_device()).result().is_ok()
            && can != 0
            && pools.peek().is_some()
            && pools.all(|pool| sys::cuMemPoolSetAccess(pool.handle(), &access, 1).result().is_ok())
    };
    opened.push((pair, linked));
    LINKED.fetch_or(linked, Ordering::Relaxed);
    linked
}
