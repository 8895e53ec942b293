//! cuDNN's fused attention with log-sum-exp through its backend descriptors. Plans are built once a shape and kept; a shape that
//! cuDNN refuses is remembered and left to the own kernel.

mod graph;
mod shape;

use std::collections::HashMap;

use cudarc::cudnn::sys::{self, cudnnBackendDescriptor_t as Descriptor};
use graph::Graph;
pub use shape::Shape;

use super::super::device::{Device, DeviceBuffer, device_error};
use super::call::CudaAttentionCall;
use crate::KernelError;

/// Plans kept; beyond, the one that was not asked for the longest is dropped.
const PLANS_KEPT: usize = 256;

/// A built plan.
pub struct FusedPlan {
    plan: Descriptor,
    graph: Graph,
    /// What the plan was built from; kept as long as it is.
    _engines: Graph,
    workspace: usize,
}

/// What is known of a shape.
struct Known {
    /// `None`: refused.
    plan: Option<FusedPlan>,
    /// The call that asked for it last.
    asked: u64,
}

/// Bytes that are free where a plan is not refused for want of memory.
const ROOM: usize = 256 << 20;

/// cuDNN on one device.
pub struct Fused {
    handle: sys::cudnnHandle_t,
    plans: HashMap<Shape, Known>,
    /// Calls so far.
    calls: u64,
    workspace: Option<DeviceBuffer>,
}

// SAFETY: the handle and the plans are used by one thread at a time, behind the mutex of the owner.
unsafe impl Send for Fused {}

impl Fused {
    /// Opens the library; `None` where there is none.
    pub fn open(device: &Device) -> Result<Option<Self>, KernelError> {
        // SAFETY: this only tries to load the library.
        if !unsafe { sys::is_culib_present() } {
            return Ok(None);
        }
        let failed = |error: &dyn std::fmt::Display| device_error("cudnn", error);
        device.context().bind_to_thread().map_err(|error| failed(&error))?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a handle is made for the current context and given the stream, which outlives it.
        let status = unsafe {
            match sys::cudnnCreate(&mut handle) {
                sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => {
                    sys::cudnnSetStream(handle, device.stream().cu_stream().cast())
                }
                other => other,
            }
        };
        graph::check(status, "cudnnCreate")?;
        Ok(Some(Self { handle, plans: HashMap::new(), calls: 0, workspace: None }))
    }

    /// Queues attention of the call's first rows; whether cuDNN takes the shape.
    pub fn run(&mut self, device: &Device, shape: Shape, call: &CudaAttentionCall<'_>) -> Result<bool, KernelError> {
        device.context().bind_to_thread().map_err(|error| device_error("cudnn", error))?;
        self.calls += 1;
        if !self.plans.contains_key(&shape) {
            self.make_room(device)?;
            let plan = self.build(device, shape)?;
            if plan.is_none() && device.memory()?.0 < ROOM {
                return Ok(false);
            }
            self.plans.insert(shape, Known { plan, asked: 0 });
        }
        let known = self.plans.get_mut(&shape).expect("it is known by now");
        known.asked = self.calls;
        let Some(plan) = &known.plan else { return Ok(false) };
        if self.workspace.as_ref().is_none_or(|workspace| workspace.bytes < plan.workspace) {
            self.workspace = Some(device.alloc(plan.workspace)?);
        }
        let workspace = self.workspace.as_ref().map_or(0, |workspace| workspace.pointer);
        let tensors = [call.q, call.k, call.v, call.out].map(|view| view.pointer);
        plan.graph.execute(
            self.handle,
            plan.plan,
            &shape,
            [&tensors[..], &[call.lse.pointer(), workspace]].concat(),
        )?;
        Ok(true)
    }
}

impl Fused {
    /// A plan, if the library has one. It may lack memory that the process keeps to allocate from.
    fn build(&self, device: &Device, shape: Shape) -> Result<Option<FusedPlan>, KernelError> {
        if let Ok(plan) = FusedPlan::build(self.handle, shape) {
            return Ok(Some(plan));
        }
        device.give_back()?;
        Ok(FusedPlan::build(self.handle, shape).ok())
    }

    fn make_room(&mut self, device: &Device) -> Result<(), KernelError> {
        while self.plans.len() >= PLANS_KEPT {
            device.synchronize()?;
            let oldest = self.plans.iter().min_by_key(|(_, known)| known.asked).map(|(shape, _)| *shape);
            oldest.and_then(|shape| self.plans.remove(&shape));
        }
        Ok(())
    }
}

impl Drop for Fused {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: the handle was made by `open` and is not used again.
        unsafe { sys::cudnnDestroy(self.handle) };
    }
}

impl FusedPlan {
    fn build(handle: sys::cudnnHandle_t, shape: Shape) -> Result<Self, KernelError> {
        let graph = Graph::new(shape)?;
        let (plan, workspace, engines) = graph.plan(handle)?;
        Ok(Self { plan, graph, _engines: engines, workspace })
    }
}

impl Drop for FusedPlan {
    fn drop(&mut self) {
        // SAFETY: the plan was built for this value alone.
        unsafe { sys::cudnnBackendDestroyDescriptor(self.plan) };
    }
}
