//! Tensors from GPU to GPU of one process, by copies that the devices make among themselves: streams wait for each other, no host
//! does.

use std::sync::{Arc, Mutex};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result, sys};

use super::Cuda;
use super::device::{Device, device_error};
use super::tensor::Tensor;
use crate::{KernelError, Lent};

/// Tensors that others may copy, from when what was queued before them is done.
struct Lending {
    tensors: Vec<Tensor>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    ready: CudaEvent,
    /// When each copy was made.
    fetched: Mutex<Vec<CudaEvent>>,
}

impl Drop for Lending {
    fn drop(&mut self) {
        // The memory is freed in the order of this stream: behind the copies.
        for event in self.fetched.lock().expect("no panic holds it").drain(..) {
            let _ = self.stream.wait(&event);
        }
    }
}

impl Cuda {
    /// As `Backend::lend`.
    pub(super) fn lend_tensors(&self, tensors: Vec<Tensor>) -> Result<Lent<Self>, KernelError> {
        let failed = |error| device_error("lend", error);
        let (context, stream) = (Arc::clone(self.device.shared_context()), Arc::clone(self.device.stream()));
        let ready = stream.record_event(None).map_err(failed)?;
        let lending = Lending { tensors, context, stream, ready, fetched: Mutex::default() };
        Ok(Box::new(move |to: &Self| lending.fetch(&to.device)))
    }
}

impl Lending {
    fn fetch(&self, to: &Device) -> Result<Vec<Tensor>, KernelError> {
        let failed = |error| device_error("fetch", error);
        if Arc::ptr_eq(&self.stream, to.stream()) {
            return Ok(self.tensors.clone());
        }
        open(&self.context, to.shared_context());
        to.stream().wait(&self.ready).map_err(failed)?;
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
        self.fetched.lock().expect("no panic holds it").push(done);
        Ok(copies)
    }
}

/// Lets one GPU read what another has, where they are linked; without that the driver takes copies through the host.
fn open(of: &Arc<CudaContext>, to: &Arc<CudaContext>) {
    static OPENED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    let pair = (of.ordinal(), to.ordinal());
    let mut opened = OPENED.lock().expect("no panic holds it");
    if pair.0 == pair.1 || opened.contains(&pair) {
        return;
    }
    opened.push(pair);
    let (mut linked, mut pool) = (0, std::ptr::null_mut());
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: sys::CUmemLocation { type_, id: pair.1 as i32 }, flags };
    // SAFETY: both devices are open, and the pointers are to live values of the types that the calls want.
    unsafe {
        if sys::cuDeviceCanAccessPeer(&mut linked, to.cu_device(), of.cu_device()).result().is_ok()
            && linked != 0
            && sys::cuDeviceGetDefaultMemPool(&mut pool, of.cu_device()).result().is_ok()
        {
            let _ = sys::cuMemPoolSetAccess(pool, &access, 1).result();
        }
    }
}
