//! Parts of a matrix, one of each of several GPUs, put together on all of them. GPUs that are linked write to each other's memory and
//! wait for what the others write, by one kernel each; elsewhere parts are exported.

mod rows;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaStream, sys};

use super::super::device::{DeviceBuffer, LaunchShape, Pinned, device_error, launch};
use super::super::exchange;
use super::super::gpu::Cuda;
use super::super::tensor::Tensor;
use super::placing::Placing;
use crate::backend::{GatheredLayer, PendingFill};
use crate::{AllGather, KernelError, Rendezvous};

/// Most GPUs, as the kernel has it.
const MEMBERS: usize = 8;
/// Most bytes of a part that go by the kernel.
const MOST_BYTES: usize = 4 << 20;
/// Bytes that are written at a time, and those of them that are not the exchange's number.
const PACKET: usize = 16;
const PAYLOAD: usize = 8;
/// Threads of a block, and most blocks: all of them run at the same time.
const GATHER_THREADS: usize = 256;
const GATHER_BLOCKS: usize = 64;

/// As `exchange.cu` declares it.
#[repr(C)]
struct Gathering {
    own: u64,
    out: u64,
    to: [u64; MEMBERS],
    from: [u64; MEMBERS],
    abandoned: u64,
    widths: [i32; MEMBERS],
    at: [i32; MEMBERS],
    rows: i32,
    pitch: i32,
    member: i32,
    members: i32,
    number: u32,
    unused: i32,
}

/// As `Collectives::all_gather`.
pub(super) fn all_gather(members: &[Arc<Cuda>]) -> Result<Box<dyn AllGather<Cuda>>, KernelError> {
    if are_linked(members) { at_once(members) } else { Ok(Box::new(Rendezvous::new(members))) }
}

/// By the kernel that waits for the others', even where all are on one GPU: different ones must be linked.
pub(super) fn at_once(members: &[Arc<Cuda>]) -> Result<Box<dyn AllGather<Cuda>>, KernelError> {
    // Memory of a GPU is open to others from when somebody looked whether they are linked.
    are_linked(members);
    Ok(Box::new(Inboxes::of(members)?))
}

/// Refuses GPUs that cannot compute as one.
pub(super) fn check_alike(gpus: &[Cuda]) -> Result<(), KernelError> {
    let about = |gpu: &Cuda| -> Result<_, KernelError> { Ok((gpu.device.name()?, gpu.device.memory()?.1)) };
    let Some((first, others)) = gpus.split_first() else { return Ok(()) };
    let (name, bytes) = about(first)?;
    for gpu in others {
        let (other, of_other) = about(gpu)?;
        let unlike = |cause| KernelError::UnlikeDevices { one: first.index, other: gpu.index, cause };
        if (&other, of_other) != (&name, bytes) {
            return Err(unlike(format!("one is a {name} of {bytes} bytes, the other a {other} of {of_other}")));
        }
    }
    for (at, gpu) in gpus.iter().enumerate() {
        let unreached = |of: &&Cuda| !exchange::open(of.device.shared_context(), gpu.device.shared_context());
        if let Some(of) = gpus.iter().enumerate().filter(|(of, _)| *of != at).map(|(_, of)| of).find(unreached) {
            let cause = "the driver lets neither read the other's memory (peer access)".to_owned();
            return Err(KernelError::UnlikeDevices { one: gpu.index, other: of.index, cause });
        }
    }
    Ok(())
}

/// Whether each reads and writes the memory of each other.
fn are_linked(members: &[Arc<Cuda>]) -> bool {
    let linked = |(at, one): (usize, &Arc<Cuda>)| {
        let open = |of: &Arc<Cuda>| exchange::open(of.device.shared_context(), one.device.shared_context());
        members.iter().enumerate().all(|(other, of)| other == at || open(of))
    };
    (2..=MEMBERS).contains(&members.len()) && members.iter().enumerate().all(linked)
}

/// How parts lie in the whole, in steps of [`PAYLOAD`] bytes.
struct Layout {
    rows: usize,
    widths: Vec<usize>,
    shape: [usize; 2],
}

impl Layout {
    /// Of matrices that the kernel takes: all members find the same.
    fn of(part: &Tensor, sizes: &[usize], axis: usize) -> Option<Self> {
        let ([rows, columns], width) =
            (<[usize; 2]>::try_from(&part.shape[..]).ok()?, part.bytes() / part.elements().max(1));
        let (lines, line, shape) = match axis {
            0 => (1, columns, [sizes.iter().sum(), columns]),
            1 => (rows, 1, [rows, sizes.iter().sum()]),
            _ => return None,
        };
        let bytes = |size: &usize| size * line * width;
        let fits =
            |size: &usize| bytes(size).is_multiple_of(PAYLOAD) && (1..=MOST_BYTES).contains(&(lines * bytes(size)));
        let widths = sizes.iter().map(|size| bytes(size) / PAYLOAD).collect();
        sizes.iter().all(fits).then_some(Self { rows: lines, widths, shape })
    }
}

/// Where each member gets the parts of the others: two places for each, which take turns.
struct Inboxes {
    members: Vec<Arc<Cuda>>,
    each: Vec<DeviceBuffer>,
    /// Of each member's last exchange.
    numbers: Vec<AtomicU32>,
    abandoned: Abandoned,
    companies: Companies,
    /// Of each member, for copies beside what it computes.
    sides: Vec<Arc<CudaStream>>,
    /// Whether such copies were tried, and came to where they belong.
    places: bool,
    /// For what the kernel does not take.
    meeting: Rendezvous<Cuda>,
}

/// Whether a member takes part no more, in host memory, where waiting kernels look.
struct Abandoned(Pinned);

// SAFETY: the memory is one flag, read and written as an atomic.
unsafe impl Sync for Abandoned {}

impl Abandoned {
    fn flag(&self) -> &AtomicBool {
        // SAFETY: the memory is live and aligned, and was written when it was fresh.
        unsafe { AtomicBool::from_ptr(self.0.pointer().cast()) }
    }
}

/// How many members of groups there are on each GPU of one. Kernels may start early behind an exchange only where they are alone: those
/// of two groups could keep each other's from running.
struct Companies {
    counts: Vec<Arc<AtomicUsize>>,
    /// Whether processes run side by side on a GPU of them.
    shared: bool,
}

impl Companies {
    fn join(members: &[Arc<Cuda>]) -> Self {
        static GPUS: Mutex<Option<HashMap<usize, Arc<AtomicUsize>>>> = Mutex::new(None);
        let side_by_side = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MPS_ENABLED;
        // A driver that does not know of it has older ways: then nothing is early.
        let shared = |member: &Arc<Cuda>| member.device.context().attribute(side_by_side) != Ok(0);
        let shared = members.iter().any(shared);
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |member: &Arc<Cuda>| {
            let count = Arc::clone(gpus.get_or_insert_default().entry(member.index).or_default());
            count.fetch_add(1, Ordering::AcqRel);
            count
        };
        Self { counts: members.iter().map(count).collect(), shared }
    }

    fn are_alone(&self) -> bool {
        !self.shared && self.counts.iter().all(|count| count.load(Ordering::Acquire) == 1)
    }
}

impl Drop for Companies {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Inboxes {
    fn drop(&mut self) {
        // Nobody writes there any more. A device that failed does not.
        self.members.iter().for_each(|member| drop(member.device.synchronize()));
    }
}

impl Inboxes {
    fn of(members: &[Arc<Cuda>]) -> Result<Self, KernelError> {
        let inbox = |member: &Arc<Cuda>| {
            let device = &member.device;
            let inbox = device.alloc(2 * members.len() * PACKET / PAYLOAD * MOST_BYTES)?;
            device.clear(&inbox)?;
            // Nobody writes there before it is done.
            device.synchronize()?;
            Ok(inbox)
        };
        let each = members.iter().map(inbox).collect::<Result<Vec<_>, KernelError>>()?;
        let numbers = members.iter().map(|_| AtomicU32::new(0)).collect();
        let flag = Pinned::new(size_of::<u32>(), Arc::clone(members[0].device.stream()));
        let flag = flag.map_err(|error| device_error("all_gather", error))?;
        // SAFETY: the memory is fresh, and a word fits.
        unsafe { flag.pointer().cast::<u32>().write(0) };
        let side = |member: &Arc<Cuda>| member.device.shared_context().new_stream();
        let sides = members.iter().map(side).collect::<Result<Vec<_>, _>>();
        let sides = sides.map_err(|error| device_error("all_gather", error))?;
        let places = Placing::is_right(members, &sides).unwrap_or(false);
        let meeting = Rendezvous::new(members);
        let (members, companies) = (members.to_vec(), Companies::join(members));
        Ok(Self { members, each, numbers, abandoned: Abandoned(flag), companies, sides, places, meeting })
    }

    /// Where `receiver` gets what `sender` sends by exchange `number`.
    fn place(&self, receiver: usize, sender: usize, number: u32) -> u64 {
        let place = number as usize % 2 * self.each.len() + sender;
        self.each[receiver].pointer + (place * PACKET / PAYLOAD * MOST_BYTES) as u64
    }

    /// The number of a member's next exchange.
    fn next(&self, member: usize) -> u32 {
        let last = self.numbers[member].load(Ordering::Relaxed);
        let number = if last == u32::MAX { 2 } else { last + 1 };
        self.numbers[member].store(number, Ordering::Relaxed);
        number
    }

    fn gathering(&self, (member, number): (usize, u32), (part, out): (u64, u64), layout: &Layout) -> Gathering {
        let members = self.each.len();
        let mut gathering = Gathering {
            own: part,
            out,
            to: [0; MEMBERS],
            from: [0; MEMBERS],
            abandoned: self.abandoned.0.pointer() as u64,
            widths: [0; MEMBERS],
            at: [0; MEMBERS],
            rows: layout.rows as i32,
            pitch: layout.widths.iter().sum::<usize>() as i32,
            member: member as i32,
            members: members as i32,
            number,
            unused: 0,
        };
        let mut at = 0;
        for other in 0..members {
            gathering.to[other] = self.place(other, member, number);
            gathering.from[other] = self.place(member, other, number);
            gathering.widths[other] = layout.widths[other] as i32;
            gathering.at[other] = at;
            at += gathering.widths[other];
        }
        gathering
    }
}

/// What a member sends, where the kernel can read it, and where all come together.
struct Taken {
    part: Tensor,
    out: Tensor,
}

impl Inboxes {
    fn taken(&self, member: usize, part: &Tensor, layout: &Layout) -> Result<Taken, KernelError> {
        let device = &self.members[member].device;
        let copy = (!part.pointer().is_multiple_of(PAYLOAD as u64)).then(|| device.narrow(part, 0, 0, part.shape[0]));
        let part = copy.transpose()?.unwrap_or_else(|| part.clone());
        let out = device.empty(&layout.shape, part.dtype)?;
        Ok(Taken { part, out })
    }

    fn queued(&self, member: usize, Taken { part, out }: Taken, layout: &Layout) -> Result<Tensor, KernelError> {
        let device = &self.members[member].device;
        let most = layout.rows * layout.widths.iter().copied().max().unwrap_or(0);
        let spread = LaunchShape::new(most.div_ceil(GATHER_THREADS).clamp(1, GATHER_BLOCKS), GATHER_THREADS as u32);
        let gathering = self.gathering((member, self.next(member)), (part.pointer(), out.pointer()), layout);
        let name = if self.companies.are_alone() { "all_gather_early" } else { "all_gather" };
        launch!(device, name, spread, gathering)?;
        Ok(out)
    }

    /// Of all members, by one thread. What may fail for want of memory comes before the first of them waits for the others.
    fn queued_all(&self, parts: &[Tensor], layout: &Layout) -> Result<Vec<Tensor>, KernelError> {
        if self.abandoned.flag().load(Ordering::Acquire) {
            return Err(KernelError::Abandoned);
        }
        let taken = parts.iter().enumerate().map(|(member, part)| self.taken(member, part, layout));
        let taken = taken.collect::<Result<Vec<_>, _>>()?;
        let queued = taken.into_iter().enumerate().map(|(member, taken)| self.queued(member, taken, layout));
        queued.collect::<Result<Vec<_>, _>>().inspect_err(|_| self.abandon())
    }
}

impl AllGather<Cuda> for Inboxes {
    fn gather(&self, member: usize, part: &Tensor, sizes: &[usize], axis: usize) -> Result<Tensor, KernelError> {
        let Some(layout) = Layout::of(part, sizes, axis) else { return self.meeting.gather(member, part, sizes, axis) };
        if self.abandoned.flag().load(Ordering::Acquire) {
            return Err(KernelError::Abandoned);
        }
        let taken = self.taken(member, part, &layout)?;
        self.queued(member, taken, &layout)
    }

    fn gather_all(&self, parts: &[Tensor], sizes: &[usize], axis: usize) -> Result<Vec<Tensor>, KernelError> {
        // Kernels wait for each other on the devices, and nobody here: all are queued before the caller asks for anything else.
        match Layout::of(&parts[0], sizes, axis) {
            Some(layout) => self.queued_all(parts, &layout),
            None if self.places && Placing::takes(parts, axis) => {
                let (whole, placing) = Placing::begun(&self.members, &self.sides, (parts, sizes))?;
                placing.joined().map(|()| whole)
            }
            None => self.meeting.gather_all(parts, sizes, axis),
        }
    }

    fn gather_beside(
        &self,
        parts: &[Tensor],
        sizes: &[usize],
        axis: usize,
    ) -> Result<(Vec<Tensor>, PendingFill), KernelError> {
        match Layout::of(&parts[0], sizes, axis) {
            None if self.places && Placing::takes(parts, axis) => {
                let (whole, placing) = Placing::begun(&self.members, &self.sides, (parts, sizes))?;
                Ok((whole, Box::new(|| placing.joined())))
            }
            _ => Ok((self.gather_all(parts, sizes, axis)?, Box::new(|| Ok(())))),
        }
    }

    fn fills(&self) -> bool {
        self.places
    }

    fn fill_beside(&self, wholes: &[Tensor], sizes: &[usize]) -> Result<PendingFill, KernelError> {
        let placing = Placing::filling(&self.members, &self.sides, (wholes, sizes))?;
        Ok(Box::new(|| placing.joined()))
    }

    fn gather_linear(
        &self,
        parts: &[Tensor],
        sizes: &[usize],
        layers: &[GatheredLayer<'_, Cuda>],
    ) -> Result<Option<Vec<Tensor>>, KernelError> {
        self.rows_multiplied(parts, sizes, layers)
    }

    fn abandon(&self) {
        self.abandoned.flag().store(true, Ordering::Release);
        self.meeting.abandon();
    }
}
